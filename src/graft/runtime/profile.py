"""Where the time of a run goes: instructions as they run in, moments with their durations out.

A moment is an instruction, or a kernel call of a segment. Its own time is what is left without what
runs within it: of a segment, what Python takes around the kernels.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from graft.program.instructions import Instruction, KernelCall
from graft.runtime.prepare import Prepared
from graft.runtime.segment import CallTimes
from graft.runtime.spaces import Spent

# Which step: its position in its block, preceded by that of the instruction around it, and so on.
Path = tuple[int, ...]


@dataclass(frozen=True, eq=False, slots=True)
class Moment:
    """One execution of an instruction or kernel: when it began, in nanoseconds of
    `time.perf_counter_ns`, and the seconds it took. `busy` and `begins` are the same for the part
    that each thread had in a kernel; one that had none began at 0. `spent` is what regions and
    transfers spent it on; `flops` and `bytes` are what a kernel has to do."""

    path: Path
    step: Instruction | KernelCall
    begin: int
    seconds: float
    own: float
    busy: tuple[float, ...]
    begins: tuple[int, ...]
    spent: Spent | None = None
    flops: int = 0
    bytes: int = 0


@dataclass(frozen=True, eq=False)
class Profile:
    """A measured run: its outputs, how long it took, and what happened, as it ended."""

    outputs: list[Any]
    seconds: float
    moments: Sequence[Moment]

    @property
    def calls(self) -> list[Moment]:
        """The kernel calls."""
        return [one for one in self.moments if isinstance(one.step, KernelCall)]


@dataclass
class Recorder:
    """Collects moments while a program runs."""

    moments: list[Moment] = field(default_factory=list)
    spent: Spent | None = None  # by the region or transfer that runs
    _inside: list[float] = field(default_factory=lambda: [0.0])  # per open step, what is within it

    @contextmanager
    def measure(self, path: Path, step: Instruction) -> Iterator[None]:
        """Measure an instruction."""
        begin = time.perf_counter_ns()
        self._inside.append(0.0)
        yield
        seconds = (time.perf_counter_ns() - begin) * 1e-9
        within = self._inside.pop()
        self._inside[-1] += seconds
        spent, self.spent = self.spent, None
        spent = None if spent is None else spent.with_launch(seconds)
        own = seconds - within
        self.moments.append(Moment(path, step, begin, seconds, own, (seconds,), (begin,), spent))

    def add(self, path: Path, prepared: Prepared, times: CallTimes) -> None:
        """The kernel calls of a segment that ran within the open instruction."""
        calls, work = prepared.layout.segment.calls, prepared.layout.work(prepared.numbers)
        for number, (call, (flops, moved)) in enumerate(zip(calls, work, strict=True)):
            seconds = float(times.seconds[number])
            begins = tuple(map(int, times.begins[:, number]))
            busy = tuple(map(float, times.busy[:, number]))
            took = seconds, seconds, busy, begins
            self.moments.append(
                Moment((*path, number), call, begins[0], *took, flops=flops, bytes=moved)
            )
            self._inside[-1] += seconds

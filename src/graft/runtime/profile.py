"""Where the time of a run goes: instructions as they run in, moments with their durations out.

A moment is an instruction, or a kernel call of a segment. Its own time is what is left without what
runs within it: of a segment, what Python takes around the kernels.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from graft.base.dims import AnyDim, Unknown
from graft.base.dtypes import Array
from graft.program.bytecode_work import Path, PythonWork
from graft.program.extents import Extents
from graft.program.instructions import KernelCall, Segment
from graft.runtime.spaces import TimeSpent


@dataclass(frozen=True, eq=False, slots=True)
class CallTimes:
    """What the driver measured of a segment: seconds per kernel call; by thread and call the
    seconds it worked, and when it began, in nanoseconds of `time.perf_counter_ns`, 0 where it took
    no part."""

    seconds: Array
    busy: Array
    begins: Array

    @classmethod
    def of(cls, stamps: Array) -> CallTimes:
        """Of what the driver writes: by thread, when each call began and ended for it, and at last
        when all were through."""
        begins, ends = stamps[:, 0:-1:2], stamps[:, 1::2]
        seconds = np.diff(stamps[0, 0::2]) * 1e-9
        return cls(seconds, (ends - begins) * 1e-9, begins)


@dataclass(frozen=True, eq=False, slots=True)
class Moment:
    """One execution of an instruction or kernel: when it began, in nanoseconds of
    `time.perf_counter_ns`, and the seconds it took. `busy` and `begins` are the same for the part
    that each thread had in a kernel; one that had none began at 0. `spent` is what regions and
    transfers spent it on; `flops` and `bytes` are what a kernel has to do."""

    path: Path
    step: PythonWork | KernelCall
    begin: int
    seconds: float
    own: float
    busy: tuple[float, ...]
    begins: tuple[int, ...]
    spent: TimeSpent | None = None
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
        return [moment for moment in self.moments if isinstance(moment.step, KernelCall)]


@dataclass
class Recorder:
    """Collects moments while a program runs."""

    moments: list[Moment] = field(default_factory=list)
    spent: TimeSpent | None = None  # by the region or transfer that runs
    _inside: list[float] = field(default_factory=lambda: [0.0])  # per open step, what is within it

    @contextmanager
    def measure(self, path: Path, step: PythonWork) -> Iterator[None]:
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

    def add(
        self, path: Path, segment: Segment, symbols: Mapping[str, int], times: CallTimes, begin: int
    ) -> None:
        """A segment that the driver was called for at a time, with its kernel calls."""
        took = (time.perf_counter_ns() - begin) * 1e-9
        extents = Extents(symbols)
        for number, call in enumerate(segment.calls):
            flops, moved = (_amount(dim, extents) for dim in (call.flops, call.bytes))
            seconds = float(times.seconds[number])
            begins = tuple(map(int, times.begins[:, number]))
            busy = tuple(map(float, times.busy[:, number]))
            how_long = seconds, seconds, busy, begins
            self.moments.append(
                Moment((*path, number), call, begins[0], *how_long, flops=flops, bytes=moved)
            )
        own = max(took - float(times.seconds.sum()), 0.0)
        self.moments.append(Moment(path, segment, begin, took, own, (took,), (begin,)))
        self._inside[-1] += took


def _amount(dim: AnyDim, extents: Extents) -> int:
    return 0 if isinstance(dim, Unknown) else extents[dim]

"""Where the time of a flow goes: steps as they run in, moments with their durations out.

A moment is a step of the flow, or a step of one of its native programs. Its own time is what is
left without what runs within it: of a stretch, what Python takes around the kernels.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

from graft.base.dtypes import Array
from graft.runtime.executor import Times
from graft.runtime.flow import FlowStep
from graft.runtime.program import Program, Step
from graft.runtime.spaces import Spent

# Which step: its position in the flow, preceded by that of the step around it, and so on.
Path = tuple[int, ...]


@dataclass(frozen=True, eq=False, slots=True)
class Moment:
    """One execution of a step: when it began, in nanoseconds of `time.perf_counter_ns`, and the
    seconds it took. `busy` and `begins` are the same for the part that each thread had in a
    native step; one that had none began at 0."""

    path: Path
    step: FlowStep | Step
    begin: int
    seconds: float
    own: float
    busy: tuple[float, ...] = ()
    begins: tuple[int, ...] = ()
    spent: Spent | None = None


@dataclass(frozen=True, eq=False)
class FlowProfile:
    """A measured run: its outputs, how long it took, and what happened, as it ended."""

    outputs: list[Array]
    seconds: float
    moments: Sequence[Moment]


@dataclass
class Recorder:
    """Collects moments while a flow runs."""

    moments: list[Moment] = field(default_factory=list)
    _inside: list[float] = field(default_factory=lambda: [0.0])  # per open step, what is within it

    @contextmanager
    def measure(self, path: Path, step: FlowStep) -> Iterator[None]:
        """Measure a step of a flow."""
        begin = time.perf_counter_ns()
        self._inside.append(0.0)
        yield
        seconds = (time.perf_counter_ns() - begin) * 1e-9
        within = self._inside.pop()
        self._inside[-1] += seconds
        self.moments.append(Moment(path, step, begin, seconds, seconds - within))

    def add(self, path: Path, program: Program, times: Times) -> None:
        """The steps of a native program that ran within the open step."""
        for number, step in enumerate(program.steps):
            seconds = float(times.seconds[number])
            begins = tuple(map(int, times.begins[:, number]))
            busy = tuple(map(float, times.busy[:, number]))
            took = (seconds, seconds, busy, begins, times.spent.get(number))
            self.moments.append(Moment((*path, number), step, begins[0], *took))
            self._inside[-1] += seconds

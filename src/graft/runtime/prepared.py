"""Programs ready to be given memory: tables for native code, and what is run in which order.

A program, or one for every size and a size, comes in. Kernels without Python steps between them are
one native call, unless it takes so long that somebody may want to interrupt it. Stretches with so
little to do that threads would only wait for each other are the caller's alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from graft.base.dtypes import Array
from graft.runtime.engine import Engine
from graft.runtime.guards import Guard
from graft.runtime.program import KernelCall, Program, RemoteTensor, Step
from graft.runtime.shaped import Measured, ShapedProgram
from graft.runtime.tables import ShapedTables, Tables, tables_of

# Work after which a native call ends, so that Python can see to Ctrl-C: some seconds' worth.
LONG_FLOPS, LONG_BYTES = 100_000_000_000, 20_000_000_000
_LONG_CALLS = 10_000_000  # of kernels

# Of a core and its caches, roughly: operations and bytes per second. What it takes to call the
# other threads, and to meet them after a kernel, in seconds: far more than tools/barrier.py finds
# where they are awake and have cores of their own, for they may sleep, or others want these cores.
_FLOPS, _BYTES = 3e10, 3e10
CALLING, MEETING = 20e-6, 2e-6


@dataclass(frozen=True, slots=True)
class Work:
    """What a kernel call has to do, as far as anybody has said."""

    flops: int
    bytes: int
    serial: bool


@dataclass(frozen=True, slots=True)
class Stretch:
    """Kernel calls between Python steps: positions among the records, and among the steps."""

    record: int
    step: int
    count: int
    shared: bool = True  # by all threads


@dataclass(frozen=True, eq=False)
class Prepared:
    """A program in its native form. `steps` are all of them where some are Python's, and none where
    there are only kernels, as in programs for every size."""

    tables: Tables
    works: tuple[Work | None, ...]  # per step; None: it is Python's
    threads: int
    arena_bytes: int
    scratch_bytes: int
    guards: tuple[Guard, ...]
    steps: tuple[Step, ...] = ()
    remotes: tuple[RemoteTensor, ...] = ()
    constants: tuple[Array, ...] = ()

    @cached_property
    def plan(self) -> tuple[Stretch | int, ...]:
        """Stretches of kernel calls, and the positions of other steps, in order."""
        plan: list[Stretch | int] = []
        record = count = flops = moved = 0
        for index, work in enumerate(self.works):
            long = flops >= LONG_FLOPS or moved >= LONG_BYTES
            if count and (work is None or long):
                plan.append(self.planned(Stretch(record - count, index - count, count)))
                count = flops = moved = 0
            if work is None:
                plan.append(index)
                continue
            record, count = record + 1, count + 1
            flops += work.flops
            moved += work.bytes
        if count:
            begin = len(self.works) - count
            plan.append(self.planned(Stretch(record - count, begin, count)))
        return tuple(plan)

    def planned(self, stretch: Stretch, turns: int = 1) -> Stretch:
        """The same with the answer to whether several threads are faster than one, if it is run so
        many times in one go."""
        seconds = 0.0
        for work in self.works[stretch.step : stretch.step + stretch.count]:
            assert work is not None
            if work.serial:
                continue
            if not work.flops and not work.bytes:
                return stretch  # nobody has said how much work it is
            seconds += work.flops / _FLOPS + work.bytes / _BYTES
        spared = seconds - seconds / self.threads
        return replace(stretch, shared=spared > CALLING / turns + stretch.count * MEETING)

    @property
    def turns_at_once(self) -> int:
        """How often all can be run in one native call of some seconds; 0: never."""
        if len(self.plan) != 1 or isinstance(self.plan[0], int):
            return 0
        works = [work for work in self.works if work is not None]
        flops = sum(work.flops for work in works)
        moved = sum(work.bytes for work in works)
        most = min(_LONG_CALLS // len(works), LONG_FLOPS // max(flops, 1))
        return max(1, min(most, LONG_BYTES // max(moved, 1)))


def prepared(program: Program, engine: Engine) -> Prepared:
    """A program of known sizes."""
    return Prepared(
        tables_of(program, engine),
        tuple(_works(program.steps)),
        engine.team.threads,
        program.arena_bytes,
        program.scratch_bytes,
        program.guards,
        program.steps if any(not isinstance(step, KernelCall) for step in program.steps) else (),
        program.remotes,
        program.constants,
    )


def _works(steps: Sequence[Step]) -> list[Work | None]:
    return [
        Work(step.flops, step.bytes, step.serial) if isinstance(step, KernelCall) else None
        for step in steps
    ]


class PreparedSizes:
    """A program for every size."""

    def __init__(self, program: ShapedProgram, engine: Engine) -> None:
        self._tables, self._threads = ShapedTables(program, engine), engine.team.threads
        number_of = program.number_of
        self._works = [
            (number_of(step.flops), number_of(step.bytes), step.serial) for step in program.steps
        ]

    def at(self, measured: Measured) -> Prepared:
        """The same at some size."""
        numbers = measured.numbers
        works = [
            Work(numbers[flops], numbers[moved], serial) for flops, moved, serial in self._works
        ]
        return Prepared(
            self._tables.at(measured),
            tuple(works),
            self._threads,
            measured.arena_bytes,
            measured.scratch_bytes,
            measured.guards,
        )

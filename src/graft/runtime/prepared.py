"""Programs ready to be given memory: tables for native code, and what is run in which order.

A program, or one for every size and a size, comes in. Kernels without Python steps between them are
one native call, unless it takes so long that somebody may want to interrupt it. Stretches with so
little to do that threads would only wait for each other are the caller's alone.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

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


@dataclass(frozen=True, eq=False, slots=True)
class Works:
    """What kernel calls have to do, as far as anybody has said: arrays, one element per step."""

    flops: Array
    bytes: Array
    serial: Array
    python: Array  # whether the step is Python's


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
    works: Works
    threads: int
    arena_bytes: int
    scratch_bytes: int
    guards: Callable[[], tuple[Guard, ...]]
    guarded: int  # how many there are
    steps: tuple[Step, ...] = ()
    remotes: tuple[RemoteTensor, ...] = ()
    constants: tuple[Array, ...] = ()

    @cached_property
    def plan(self) -> tuple[Stretch | int, ...]:
        """Stretches of kernel calls, and the positions of other steps, in order."""
        works, count = self.works, len(self.works.flops)
        if not works.python.any() and self._is_short(slice(0, count)):
            return (self.planned(Stretch(0, 0, count)),) if count else ()
        plan: list[Stretch | int] = []
        record = begin = 0
        for index, is_python in enumerate([*works.python.tolist(), True]):
            if index > begin and (is_python or not self._is_short(slice(begin, index))):
                length = index - begin
                plan.append(self.planned(Stretch(record, begin, length)))
                record, begin = record + length, index
            if is_python and index < count:
                plan.append(index)
                begin = index + 1
        return tuple(plan)

    def _is_short(self, steps: slice) -> bool:
        works = self.works
        return bool(works.flops[steps].sum() < LONG_FLOPS and works.bytes[steps].sum() < LONG_BYTES)

    def planned(self, stretch: Stretch, turns: int = 1) -> Stretch:
        """The same with the answer to whether several threads are faster than one, if it is run so
        many times in one go."""
        works, steps = self.works, slice(stretch.step, stretch.step + stretch.count)
        seconds = works.flops[steps] / _FLOPS + works.bytes[steps] / _BYTES
        if (seconds + works.serial[steps]).min() == 0:
            return stretch  # nobody has said how much work it is
        total = float(seconds[~works.serial[steps]].sum())
        shared = total - total / self.threads > CALLING / turns + stretch.count * MEETING
        return Stretch(stretch.record, stretch.step, stretch.count, shared)

    @property
    def turns_at_once(self) -> int:
        """How often all can be run in one native call of some seconds; 0: never."""
        if len(self.plan) != 1 or isinstance(self.plan[0], int):
            return 0
        flops, moved = float(self.works.flops.sum()), float(self.works.bytes.sum())
        most = min(_LONG_CALLS // len(self.works.flops), LONG_FLOPS // max(flops, 1.0))
        return max(1, int(min(most, LONG_BYTES // max(moved, 1.0))))


def prepared(program: Program, engine: Engine) -> Prepared:
    """A program of known sizes."""
    return Prepared(
        tables_of(program, engine),
        _works(program.steps),
        engine.team.threads,
        program.arena_bytes,
        program.scratch_bytes,
        lambda: program.guards,
        len(program.guards),
        program.steps if any(not isinstance(step, KernelCall) for step in program.steps) else (),
        program.remotes,
        program.constants,
    )


def _works(steps: Sequence[Step]) -> Works:
    return Works(
        np.array([float(step.flops) for step in steps]),
        np.array([float(step.bytes) for step in steps]),
        np.array([isinstance(step, KernelCall) and step.serial for step in steps], np.bool_),
        np.array([not isinstance(step, KernelCall) for step in steps], np.bool_),
    )


class PreparedSizes:
    """A program for every size."""

    def __init__(self, program: ShapedProgram, engine: Engine) -> None:
        self._tables, self._threads = ShapedTables(program, engine), engine.team.threads
        steps = program.steps
        self._flops, self._bytes = (
            np.array([program.number_of(dim) for dim in dims], np.int64)
            for dims in ([step.flops for step in steps], [step.bytes for step in steps])
        )
        self._serial = np.array([step.serial for step in steps], np.bool_)
        self._python, self._guarded = np.zeros(len(steps), np.bool_), len(program.guards)

    def at(self, measured: Measured) -> Prepared:
        """The same at some size."""
        numbers = np.array(measured.numbers, np.float64)
        works = Works(
            numbers[self._flops],
            numbers[self._bytes],
            self._serial,
            self._python,
        )
        return Prepared(
            self._tables.at(measured),
            works,
            self._threads,
            measured.arena_bytes,
            measured.scratch_bytes,
            lambda: measured.guards,
            self._guarded,
        )

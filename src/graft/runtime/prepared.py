"""Programs ready to be given memory: tables for native code, and what is run in which order.

A program, or one for every size and a size, comes in. Kernels without Python steps between them are
one native call, unless it takes so long that somebody may want to interrupt it. Each stretch is for
as many threads as make it fastest: with little to do, they would only wait for each other.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from graft.base.dtypes import Array
from graft.runtime.engine import Engine
from graft.runtime.guards import Guard
from graft.runtime.program import (
    KernelCall,
    Program,
    PythonStep,
    Remote,
    RemoteTensor,
    Step,
    Target,
    Transfer,
)
from graft.runtime.shaped import Measured, ShapedProgram
from graft.runtime.tables import ShapedTables, Tables, tables_of

# Work after which a native call ends, so that Python can see to Ctrl-C: some seconds' worth.
LONG_FLOPS, LONG_BYTES = 100_000_000_000, 20_000_000_000
_LONG_CALLS = 10_000_000  # of kernels

# The share of a core's peak rates that kernels with little to do come to.
_REACHED = 1 / 4
# What it takes to call the other threads, and to meet them after a kernel, in seconds: far more
# than tools/barrier.py finds where they are awake and have cores of their own, for they may sleep,
# or others want these cores. Both are for two threads; each further one makes them dearer by a part
# of that, since threads are woken, and arrive at a barrier, one after the other.
CALLING, MEETING = 20e-6, 2e-6
_FURTHER = 1 / 40


@dataclass(frozen=True, slots=True)
class Work:
    """What kernels have to do, as far as anybody has said: operations, bytes, and the seconds that
    a core would take for what threads can share."""

    flops: float
    bytes: float
    seconds: float

    def is_long(self) -> bool:
        """Whether somebody may want to interrupt it."""
        return self.flops >= LONG_FLOPS or self.bytes >= LONG_BYTES

    def best_threads(self, kernels: int, threads: int, turns: int = 1) -> int:
        """How many threads of so many are fastest, if it is done so many times in one go."""
        price = CALLING / turns + kernels * MEETING
        if threads < 2 or self.seconds / 2 <= price:  # what two would spare, and what they cost
            return 1
        further = price * _FURTHER
        if math.isinf(self.seconds) or further <= 0:
            return threads
        # seconds / n + further * n is least where both parts are equal
        return max(2, min(threads, round(math.sqrt(self.seconds / further))))

    def __add__(self, other: Work) -> Work:
        return Work(
            self.flops + other.flops, self.bytes + other.bytes, self.seconds + other.seconds
        )


_NOTHING = Work(0, 0, 0)


@dataclass(frozen=True, slots=True)
class Stretch:
    """Kernel calls between Python steps: positions among the records, and among the steps."""

    record: int
    step: int
    count: int
    threads: int

    @property
    def shared(self) -> bool:
        return self.threads > 1


@dataclass(frozen=True, eq=False, slots=True)
class Prepared:
    """A program in its native form. `steps` are all of them where some are Python's, and none where
    there are only kernels, as in programs for every size."""

    tables: Tables
    plan: tuple[Stretch | int, ...]  # stretches, and the positions of other steps, in order
    work: Work  # of all kernels
    threads: int
    arena_bytes: int
    scratch_bytes: int
    guards: Callable[[], tuple[Guard, ...]]
    guarded: int  # how many there are
    count: int  # of steps
    steps: tuple[Step, ...] = ()
    remotes: tuple[RemoteTensor, ...] = ()
    last_uses: tuple[int, ...] = ()  # of these, by step
    constants: tuple[Array, ...] = ()

    @property
    def turns_at_once(self) -> int:
        """How often all can be run in one native call of some seconds; 0: never."""
        if len(self.plan) != 1 or isinstance(self.plan[0], int):
            return 0
        most = min(_LONG_CALLS // self.count, LONG_FLOPS // max(self.work.flops, 1.0))
        return max(1, int(min(most, LONG_BYTES // max(self.work.bytes, 1.0))))

    def turning(self, turns: int) -> Stretch:
        """The only stretch, if it is run so many times in one go."""
        (stretch,) = self.plan
        assert isinstance(stretch, Stretch)
        threads = self.work.best_threads(stretch.count, self.threads, turns)
        return replace(stretch, threads=threads)


def prepared(program: Program, engine: Engine) -> Prepared:
    """A program of known sizes."""
    steps, threads = program.steps, engine.team.threads
    works = [
        _work(step.flops, step.bytes, step.serial, program.target)
        if isinstance(step, KernelCall)
        else None
        for step in steps
    ]
    return Prepared(
        tables_of(program, engine),
        _plan(works, threads),
        sum((work for work in works if work is not None), _NOTHING),
        threads,
        program.arena_bytes,
        program.scratch_bytes,
        lambda: program.guards,
        len(program.guards),
        len(steps),
        () if program.is_native else steps,
        program.remotes,
        _last_uses(program),
        program.constants,
    )


def _last_uses(program: Program) -> tuple[int, ...]:
    """The last step that uses each tensor of a device."""
    found = [0] * len(program.remotes)
    for index, step in enumerate(program.steps):
        if isinstance(step, Transfer):
            found[step.remote.index] = index
        elif isinstance(step, PythonStep):
            for operand in (*step.inputs, *step.outputs):
                if isinstance(operand.buffer, Remote):
                    found[operand.buffer.index] = index
    return tuple(found)


def _work(flops: int, moved: int, serial: bool, target: Target) -> Work:
    if not flops and not moved and not serial:
        return Work(0, 0, math.inf)  # nobody has said how much work it is
    per_flop, per_byte = _seconds_per(target)
    return Work(flops, moved, 0 if serial else flops * per_flop + moved * per_byte)


def _seconds_per(target: Target) -> tuple[float, float]:
    """Seconds that a core takes for an operation, and to move a byte."""
    return 1 / (_REACHED * target.core_flops), 1 / (_REACHED * target.core_bytes)


def _plan(works: Sequence[Work | None], threads: int) -> tuple[Stretch | int, ...]:
    """Stretches of kernels, cut where they take long, and the positions of Python's steps."""
    plan: list[Stretch | int] = []
    record, count, total = 0, 0, _NOTHING
    for index, work in enumerate([*works, None]):
        if count and (work is None or total.is_long()):
            best = total.best_threads(count, threads)
            plan.append(Stretch(record, index - count, count, best))
            record, count, total = record + count, 0, _NOTHING
        if work is not None:
            count, total = count + 1, total + work
        elif index < len(works):
            plan.append(index)
    return tuple(plan)


class PreparedSizes:
    """A program for every size."""

    def __init__(self, program: ShapedProgram, engine: Engine) -> None:
        self._tables, self._threads = ShapedTables(program, engine), engine.team.threads
        self._count, self._guarded = len(program.steps), len(program.guards)
        self._target = program.target
        per_flop, per_byte = _seconds_per(program.target)
        words = program.numbers + len(program.shelves)
        self._weights = np.zeros((3, words))  # of each number in operations, bytes, time
        self._works = []
        for step in program.steps:
            flops, moved = program.number_of(step.flops), program.number_of(step.bytes)
            self._works.append((flops, moved, step.serial))
            self._weights[0, flops] += 1
            self._weights[1, moved] += 1
            self._weights[2, flops] += 0 if step.serial else per_flop
            self._weights[2, moved] += 0 if step.serial else per_byte

    def at(self, measured: Measured) -> Prepared:
        """The same at some size."""
        work = Work(*(self._weights @ measured.words).tolist())
        return Prepared(
            self._tables.at(measured),
            self._plan(work, measured.numbers),
            work,
            self._threads,
            measured.arena_bytes,
            measured.scratch_bytes,
            lambda: measured.guards,
            self._guarded,
            self._count,
        )

    def _plan(self, work: Work, numbers: Sequence[int]) -> tuple[Stretch | int, ...]:
        if not self._count:
            return ()
        if not work.is_long():
            best = work.best_threads(self._count, self._threads)
            return (Stretch(0, 0, self._count, best),)
        works = [
            _work(numbers[one], numbers[other], serial, self._target)
            for one, other, serial in self._works
        ]
        return _plan(works, self._threads)

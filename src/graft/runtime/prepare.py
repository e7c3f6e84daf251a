"""Segments ready to be given memory: a segment, and numbers for its symbols, in; tables for native
code, sizes of memory and results, and jobs for threads out.

The kernels of a segment are one native call, unless that takes so long that somebody may want to
interrupt it. Each call is for as many threads as make it fastest: with little to do, they would
only wait for each other.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from graft.base import capacity
from graft.base.dim_functions import function_of
from graft.base.dims import AnyDim, symbols_of
from graft.base.dtypes import Array
from graft.base.errors import EvaluationError
from graft.program.extents import Extents, check_sizes
from graft.program.guards import Guard
from graft.program.instructions import Segment
from graft.program.program import Program
from graft.program.verify import dims_of
from graft.runtime.context import RuntimeContext
from graft.runtime.lending import ResultSpec
from graft.runtime.memory import aligned_size
from graft.runtime.tables import TableWriter

# Work after which a native call ends, so that Python can see to Ctrl-C: some seconds' worth.
LONG_FLOPS, LONG_BYTES = 100_000_000_000, 20_000_000_000
_LONG_CALLS = 10_000_000  # of kernels

# Of a core and its caches, roughly: operations and bytes per second. What it takes to call the
# other threads, and to meet them after a kernel, in seconds: far more than tools/barrier.py finds
# where they are awake and have cores of their own, for they may sleep, or others want these cores.
# Both are for two threads; each further one makes them dearer by a part of that, since threads are
# woken, and arrive at a barrier, one after the other.
_FLOPS, _BYTES = 3e10, 3e10
CALLING, MEETING = 20e-6, 2e-6
_FURTHER = 1 / 40

_WORD = np.dtype(np.int64)
_LEAST, _MOST = np.iinfo(_WORD).min, np.iinfo(_WORD).max


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

    def best_threads(self, kernels: int, threads: int, iterations: int = 1) -> int:
        """How many threads of so many are fastest, if it is done so many times in one go."""
        price = CALLING / iterations + kernels * MEETING
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
class Launch:
    """Kernel calls in a row that threads run as one job."""

    first: int
    count: int
    threads: int

    @property
    def is_shared(self) -> bool:
        return self.threads > 1


class SegmentLayout:
    """A segment whose tables are laid out and whose dims are numbered, each once, so that a new
    size need not look them up."""

    def __init__(self, segment: Segment, program: Program, context: RuntimeContext) -> None:
        self.segment, self.threads = segment, context.team.threads
        self.symbols = tuple(
            sorted({name for dim in dims_of(segment, program) for name in symbols_of(dim)})
        )
        values = program.values
        # Values on the program's shelf of the arena are reached through it.
        self.inputs = tuple(n for n in segment.inputs if values[n].slot is None)
        self.results = tuple(n for n in segment.outputs if values[n].slot is None)
        found = () if segment.found is None else (segment.found,)
        self.outputs = (*self.results, *found)
        writer = TableWriter(context, (*self.inputs, *self.outputs))
        for call in segment.calls:
            writer.add(call)
        self.tables = writer.tables()
        self._number_dims(writer, program)
        self._values = [values[n] for n in self.results]

    @property
    def uses_shelf(self) -> bool:
        """Whether kernels reach the program's shelf of the arena."""
        return bool(self.tables.shared.size)

    def _number_dims(self, writer: TableWriter, program: Program) -> None:
        segment = self.segment
        self._numbers: dict[AnyDim, int] = {}
        shelves = [self._several(shelf) or (self._number(0),) for shelf in segment.shelves]
        self._scratch = self._several(segment.scratch)
        self._shapes = [self._several(program.values[n].shape or ()) for n in self.results]
        slots = self._several(slot.offset for slot in writer.slots)
        shared = self._several(slot.offset for slot in writer.shared_slots)
        scalars = self._several(writer.scalars)
        self._work = [
            (self._number(call.flops), self._number(call.bytes), call.serial)
            for call in segment.calls
        ]
        for guard in segment.guards:
            self._several((guard.extent, guard.count))
        # Positions among the dims' numbers, with the beginnings of shelves behind them.
        starts = tuple(len(self._numbers) + slot.shelf - 1 for slot in writer.slots)
        self._slots, self._shared = len(slots), len(shared)
        self._wanted = np.array([*slots, *starts, *shared, *scalars], _WORD)
        self._function = function_of(list(self._numbers), self.symbols, shelves)
        self._weigh(len(self._numbers) + len(shelves))

    def _weigh(self, words: int) -> None:
        """What each number means for the work: operations, bytes, time."""
        self._weights = np.zeros((3, words))
        self._is_unknown = False
        for call, (flops, moved, serial) in zip(self.segment.calls, self._work, strict=True):
            self._weights[0, flops] += 1
            self._weights[1, moved] += 1
            self._weights[2, flops] += 0 if serial else 1 / _FLOPS
            self._weights[2, moved] += 0 if serial else 1 / _BYTES
            is_told = call.flops != 0 or call.bytes != 0
            self._is_unknown |= not is_told and not serial

    def _several(self, dims: Iterable[AnyDim]) -> tuple[int, ...]:
        return tuple([self._number(dim) for dim in dims])

    def _number(self, dim: AnyDim) -> int:
        return self._numbers.setdefault(dim, len(self._numbers))

    def at(self, symbols: Mapping[str, int]) -> Prepared:
        """The segment at some sizes; refuses those that do not fit together."""
        given = [symbols[name] for name in self.symbols]
        if self.segment.checks:
            check_sizes(self.segment.checks, self._one_by_one(given))
        try:
            numbers, shelves = self._function(given)
        except EvaluationError:
            self._one_by_one(given).refuse_without_value(self._numbers)
            raise
        return self._prepared(numbers, shelves)

    def _one_by_one(self, given: Sequence[int]) -> Extents:
        return Extents(dict(zip(self.symbols, given, strict=True)))

    def _prepared(self, numbers: list[int], shelves: list[int]) -> Prepared:
        starts, arena_bytes = [], 0
        for size in shelves:
            starts.append(arena_bytes)
            arena_bytes += aligned_size(size)
        words = _words(numbers + starts)
        chosen, slots = words[self._wanted], self._slots
        flops, moved, seconds = (self._weights @ words).tolist()
        work = Work(flops, moved, math.inf if self._is_unknown else seconds)
        shapes = [tuple([numbers[at] for at in extents]) for extents in self._shapes]
        results = [
            (shape, value.dtype.numpy, value.alignment)
            for shape, value in zip(shapes, self._values, strict=True)
            if value.dtype is not None
        ]
        self._refuse_absurd_sizes(results, arena_bytes)
        return Prepared(
            self,
            chosen[:slots] + chosen[slots : 2 * slots],
            chosen[2 * slots : 2 * slots + self._shared],
            chosen[2 * slots + self._shared :],
            self._launches(work, numbers),
            work,
            arena_bytes,
            max([numbers[size] for size in self._scratch], default=0),
            results,
            numbers,
        )

    def _refuse_absurd_sizes(self, results: Sequence[ResultSpec], arena_bytes: int) -> None:
        """Loops may make more of their data with every iteration."""
        for (shape, dtype, _), value in zip(results, self._values, strict=True):
            size = math.prod(shape) * dtype.itemsize
            if size > capacity.MOST_BYTES:
                extents = ", ".join(map(str, shape))
                capacity.check_bytes(size, f"'{value.name}' would be {value.dtype}[{extents}]")
        capacity.check_bytes(arena_bytes, "a segment would work in an arena")

    def _launches(self, work: Work, numbers: Sequence[int]) -> tuple[Launch, ...]:
        count = len(self.segment.calls)
        if not count:
            return ()
        if not work.is_long():
            return (Launch(0, count, work.best_threads(count, self.threads)),)
        return _cut([_work(numbers[a], numbers[b], serial) for a, b, serial in self._work], self)

    def guards(self, numbers: Sequence[int]) -> tuple[Guard, ...]:
        """With numbers for the extents that they watch over."""
        extents = dict(zip(self._numbers, numbers, strict=True))
        return tuple([guard.bound(extents) for guard in self.segment.guards])

    def work(self, numbers: Sequence[int]) -> list[tuple[int, int]]:
        """Operations and bytes of each kernel call."""
        return [(numbers[flops], numbers[moved]) for flops, moved, _ in self._work]


@dataclass(frozen=True, eq=False)
class Prepared:
    """A segment at some sizes, in its native form."""

    layout: SegmentLayout
    offsets: Array  # in the segment's part of the arena
    shared_offsets: Array  # in the program's
    scalars: Array
    launches: tuple[Launch, ...]
    work: Work  # of all kernels
    arena_bytes: int
    scratch_bytes: int
    results: list[ResultSpec]
    numbers: Sequence[int]  # of all dims

    @cached_property
    def guards(self) -> tuple[Guard, ...]:
        """What is watched over, with numbers."""
        return self.layout.guards(self.numbers)

    @property
    def guarded(self) -> int:
        """How many guards there are."""
        return len(self.layout.segment.guards)

    @property
    def iterations_at_once(self) -> int:
        """How often all can be run in one native call of some seconds; 0: never."""
        if len(self.launches) != 1:
            return 0
        count = len(self.layout.segment.calls)
        most = min(_LONG_CALLS // count, LONG_FLOPS // max(self.work.flops, 1.0))
        return max(1, int(min(most, LONG_BYTES // max(self.work.bytes, 1.0))))

    def repeated(self, iterations: int) -> Launch:
        """The only launch, if it is run so many times in one go."""
        (launch,) = self.launches
        threads = self.work.best_threads(launch.count, self.layout.threads, iterations)
        return replace(launch, threads=threads)


def _words(counts: list[int]) -> Array:
    """Numbers as words. Work may come to more than a word holds; memory cannot."""
    words = np.array(counts, dtype=None if counts else _WORD)
    if words.dtype != _WORD:
        words = np.array([min(max(count, _LEAST), _MOST) for count in counts], _WORD)
    return words


def _work(flops: int, moved: int, serial: bool) -> Work:
    return Work(flops, moved, 0 if serial else flops / _FLOPS + moved / _BYTES)


def _cut(works: Sequence[Work], layout: SegmentLayout) -> tuple[Launch, ...]:
    """Calls cut into launches that do not take too long."""
    launches: list[Launch] = []
    first, total = 0, _NOTHING
    for index, work in enumerate(works):
        total += work
        if total.is_long() or index + 1 == len(works):
            count = index + 1 - first
            launches.append(Launch(first, count, total.best_threads(count, layout.threads)))
            first, total = index + 1, _NOTHING
    return tuple(launches)

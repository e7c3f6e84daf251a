"""The first elements along an axis in descending or ascending order: `topk`, whatever the sizes.

Elements become integers in their order (`SortKeys`). A row fills a buffer with candidates; whenever
that is full, a bisection over the bits of their keys finds the last one that may be among the first
`count`, the others are dropped, and from then on vectors of elements that are all behind it cost a
comparison. What remains is sorted: few elements by counting those before each, many by their
digits. Candidates that are equal always lie in the order of their positions. Where few elements of
short rows are wanted, a lane takes a row instead and keeps its first ones in registers.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import reduce

from graft.backends.host.cost import typical
from graft.backends.host.group import Group
from graft.backends.host.kernel import Stores
from graft.backends.host.kernel_template import Plan, node_kernel
from graft.backends.host.kernels.selection_lanes import LaneSelection, RowShape, lane_cycles
from graft.backends.host.kernels.sort_keys import KeySort, LaneCount, SortKeys, across
from graft.backends.host.kernels.writing import Writer, node_plan
from graft.backends.host.storage import shape_of
from graft.base.dims import product
from graft.base.dtypes import DType
from graft.loop.build import Term, call, cast, compare, equal, load, maximum, minimum, select
from graft.loop.ir import INDEX, Buffer, CompareKind, Const, Scope
from graft.loop.statements import (
    Cell,
    StatementBuilder,
    ramp,
    scratch,
    spread,
    store_vector,
    vector,
)
from graft.target.target import Target

_WORD = 64  # lanes whose comparisons one word of bits tells
_VECTORS = 4  # at most, that are compared before a branch
# Cycles, about: of a vector's keys and their comparison; of a candidate that is found by a branch
# nobody foresees; of one that is kept or dropped; of a step that waits for a sum of lanes.
_OFFERED, _HIT, _CANDIDATE, _STEP = 3, 25, 4, 16


@node_kernel("topk")
def topk(group: Group, stores: Stores, target: Target) -> Plan:
    """The first elements along an axis in descending or ascending order."""
    # How many is not read: it is what the result's shape says, and the type rule has compared it,
    # when the model was compiled or when the sizes were known.
    node = group.node
    keys = SortKeys(node.args[0].dtype, node.attrs.largest)
    rows, values = RowShape.of(group), (node.args[0],)
    extent, count = (max(1, typical(one, values)) for one in (rows.extent, rows.count))
    if lane_cycles(group, keys, target) < candidate_cycles(extent, count, keys, target):
        return node_plan(group, stores, lambda writer: LaneSelection(writer, keys, target).write())
    return node_plan(group, stores, lambda writer: _Rows(writer, keys, target).write())


def candidate_cycles(extent: int, count: int, keys: SortKeys, target: Target) -> float:
    """How long a row of random numbers takes, about, of which the first `count` are selected."""
    lanes = target.lanes(keys.dtype)
    capacity = min(2 * count + lanes * _VECTORS, extent)
    seen = extent / capacity  # which doubles, about, from one reduction to the next
    reductions = 1 + math.log2(seen) * count / capacity if count < extent else 0
    vectors = capacity / lanes + _STEP
    reduced = reductions * (vectors * keys.dtype.bits / 2 + capacity * _CANDIDATE)
    offered = (extent - capacity) / lanes * _OFFERED + count * math.log(seen) * _HIT
    return reduced + offered + capacity / lanes * _OFFERED + count * (count / lanes + _STEP)


# Those of a row from a position on, as many as there are lanes.
Elements = Callable[[Term, int], Term]


class _Rows:
    """Writes the loop over rows, and what a row's elements are read and written by."""

    def __init__(self, writer: Writer, keys: SortKeys, target: Target) -> None:
        self._code, node = writer.code, writer.group.node
        shape = shape_of(node.args[0])
        axis = node.attrs.axis % len(shape)
        self._outer, self._inner = (
            writer.dim(product(part)) for part in (shape[:axis], shape[axis + 1 :])
        )
        self._is_contiguous = product(shape[axis + 1 :]) == 1
        self._extent, self._count = writer.dim(shape[axis]), writer.dim(shape_of(node.output)[axis])
        self._data = writer.present_operand(0)
        self._values, self._indices = writer.result(0), writer.result(1)
        self._candidates = Candidates(
            writer.code, keys, target.lanes(keys.dtype), self._count, self._extent
        )

    def write(self) -> None:
        code = self._code
        with (
            code.when(self._count > 0),
            code.memory(*self._candidates.memory),
            code.parallel("job", self._outer * self._inner) as job,
        ):
            line = code.let("line", job // self._inner)
            column = code.let("column", job % self._inner)
            self._candidates.gather(lambda at, lanes: self._elements(line, column, at, lanes))
            self._candidates.sort(lambda rank, at: self._write(line, column, rank, at))

    def _elements(self, line: Term, column: Term, at: Term, lanes: int) -> Term:
        """Those at some position of the row and behind it."""
        if self._is_contiguous:
            return vector(self._data, line * self._extent + at, lanes)
        start = (line * self._extent + at) * self._inner + column
        return load(self._data, start + ramp(0, lanes) * self._inner if lanes > 1 else start)

    def _write(self, line: Term, column: Term, rank: Term, at: Term) -> None:
        """The element at a position of the row is the one of that rank."""
        code = self._code
        offset = (line * self._count + rank) * self._inner + column
        code.store(self._values, offset, self._elements(line, column, at, 1))
        code.store(self._indices, offset, at)


@dataclass(frozen=True, slots=True)
class Candidates:
    """Keys and positions of the elements that may be among the first `count` of a row."""

    code: StatementBuilder
    keys: SortKeys
    lanes: int
    count: Term
    extent: Term

    @property
    def _chunk(self) -> int:
        """Elements that are compared before a branch."""
        return self.lanes * min(_VECTORS, _WORD // self.lanes)

    @property
    def _capacity(self) -> Term:
        """From how many candidates on the worst are dropped: half of them, of few the most.

        A reduction takes a step per bit, which should pass over some vectors."""
        return minimum(self.count * 2 + self.lanes * _VECTORS, self.extent)

    def _scratch(self, name: str, dtype: DType) -> Buffer:
        return scratch(name, dtype, self._capacity + (self._chunk + self.lanes))

    @property
    def _keys(self) -> Buffer:
        return self._scratch("keys", self.keys.dtype)

    @property
    def _positions(self) -> Buffer:
        return self._scratch("positions", INDEX)

    @property
    def _size(self) -> Cell:
        return Cell("size")

    @property
    def _limit(self) -> Cell:
        """Keys from this one on are behind `count` candidates."""
        return Cell("limit", self.keys.dtype)

    @property
    def _sort(self) -> KeySort:
        return KeySort(self.code, self.keys, self.lanes, self._keys, self._positions, self.count)

    @property
    def memory(self) -> tuple[Cell | Buffer, ...]:
        return self._keys, self._positions, self._size, self._limit, *self._sort.memory

    def gather(self, elements: Elements) -> None:
        """The first `count` elements of a row become candidates, equal ones in their order."""
        code = self.code
        first = code.let("first", self._capacity)
        self._fill(elements, first)
        code.set(self._size, first)
        chunks = code.let("chunks", (self.extent - first + (self._chunk - 1)) // self._chunk)
        with code.loop("chunk", chunks + 1) as number:
            is_last = equal(number, chunks)  # behind all elements
            with code.when(self._size.value >= select(is_last, self.count + 1, first)):
                self._reduce()
            start = code.let("chunk_start", first + number * self._chunk)
            with code.when(start + self._chunk <= self.extent):
                self._offer_chunk(elements, start)
            with code.otherwise(), code.loop("late", maximum(self.extent - start, 0), start) as at:
                key = code.let("late_key", self.keys.of(elements(at, 1)))
                with code.when(key < self._limit.value):
                    self._append("late", key, at)

    def _fill(self, elements: Elements, count: Term) -> None:
        code, lanes = self.code, self.lanes
        vectors = count // lanes
        with code.loop("filled", vectors) as number:
            at = code.let("fill_at", number * lanes)
            code.emit(store_vector(self._keys, at, self.keys.of(elements(at, lanes))))
            code.emit(store_vector(self._positions, at, ramp(at, lanes)))
        with code.loop("single", count % lanes, vectors * lanes) as at:
            code.store(self._keys, at, self.keys.of(elements(at, 1)))
            code.store(self._positions, at, at)

    def _append(self, tag: str, key: Term, position: Term) -> None:
        code = self.code
        end = code.let(f"{tag}_end", self._size.value)
        code.store(self._keys, end, key)
        code.store(self._positions, end, position)
        code.set(self._size, end + 1)

    def _offer_chunk(self, elements: Elements, start: Term) -> None:
        """Append the elements before the limit, found by the bits of the comparisons."""
        code, lanes = self.code, self.lanes
        limit = code.let("limit_now", self._limit.value)
        words = []
        for number in range(self._chunk // lanes):
            keys = self.keys.of(elements(start + number * lanes, lanes))
            bits = call("reduce_to_bits", keys < spread(limit, lanes))
            words.append(bits << (number * lanes) if number else bits)
        left = Cell("hits")
        with code.memory(left):
            code.set(left, reduce(lambda one, other: one | other, words))
            with code.as_long_as(compare(CompareKind.NOT_EQUAL, left.value, 0)):
                hits = code.let("hits_now", left.value)
                lowest = code.let("lowest", hits & (0 - hits))
                at = code.let("hit_at", start + ((_WORD - 1) - call("clz", lowest)))
                self._append("hit", self.keys.of(elements(at, 1)), at)
                code.set(left, hits ^ lowest)

    def _reduce(self) -> None:
        """Keep the first `count` candidates.

        Bit by bit from the first that differs, the limit becomes the greatest key that has fewer
        before it; as soon as one has exactly `count` before it, it is that."""
        code, keys = self.code, self.keys
        size = code.let("size_now", self._size.value)
        vectors = code.let("size_vectors", (size + (self.lanes - 1)) // self.lanes)
        below, bit = Cell("below"), Cell("bit", keys.dtype)
        before = LaneCount(code, "before", keys.dtype, self.lanes)
        with code.memory(below, bit, before.memory):
            self._begin_bisection(size, vectors, bit)
            code.set(below, 0)
            # vectors reach beyond the last candidate
            code.emit(store_vector(self._keys, size, spread(keys.greatest, self.lanes)))
            with code.as_long_as((bit.value >= 0) & (below.value < self.count)):
                limit = code.let("limit_tried", self._limit.value ^ self._power(bit.value))
                before.clear()
                with code.loop("bisected", vectors) as number:
                    before.add(self._vector(number) < spread(limit, self.lanes))
                total = code.let("before_limit", before.total)
                # which of both nobody foresees: no branch
                code.set(self._limit, select(total <= self.count, limit, self._limit.value))
                code.set(below, select(total <= self.count, total, below.value))
                code.set(bit, bit.value - 1)
            self._partition(size, self.count - below.value)
        code.set(self._size, self.count)

    def _begin_bisection(self, size: Term, vectors: Term, bit: Cell) -> None:
        """The highest bit in which keys differ, and the bits that they have in common."""
        code, keys, lanes = self.code, self.keys, self.lanes
        first = spread(code.let("first_key", load(self._keys, 0)), lanes)
        code.emit(store_vector(self._keys, size, first))
        least, most = (
            Buffer(name, keys.dtype, (Const(lanes),), Scope.REGISTER) for name in ("least", "most")
        )
        with code.memory(least, most):
            for extreme in (least, most):
                code.emit(store_vector(extreme, 0, first))
            with code.loop("compared", vectors) as number:
                here = code.let("compared_keys", self._vector(number))
                code.emit(store_vector(least, 0, minimum(vector(least, 0, lanes), here)))
                code.emit(store_vector(most, 0, maximum(vector(most, 0, lanes), here)))
            low = code.let("low", across("reduce_min", vector(least, 0, lanes)))
            high = across("reduce_max", vector(most, 0, lanes))
            code.set(bit, (keys.dtype.bits - 1) - call("clz", low ^ high))
            below = self._power(maximum(bit.value, 0)) - 1
            code.set(self._limit, low & (below ^ -1))

    def _power(self, bit: Term) -> Term:
        return Term(Const(1, self.keys.dtype)) << bit

    def _vector(self, number: Term) -> Term:
        return vector(self._keys, number * self.lanes, self.lanes)

    def _partition(self, size: Term, equals: Term) -> None:
        """Move the candidates before the limit to the front, and some of those that are equal to
        it, without a branch."""
        code, end, room = self.code, Cell("kept"), Cell("room")
        limit = code.let("limit_found", self._limit.value)
        with code.memory(end, room):
            code.set(end, 0)
            code.set(room, equals)
            with code.loop("candidate", size) as at:
                key, to = code.let("key", load(self._keys, at)), code.let("to", end.value)
                code.store(self._keys, to, key)
                code.store(self._positions, to, code.let("position", load(self._positions, at)))
                is_equal = cast(INDEX, equal(key, limit) & (room.value > 0))
                is_kept = code.let("is_equal", is_equal)
                code.set(room, room.value - is_kept)
                code.set(end, to + (is_kept | cast(INDEX, key < limit)))

    def sort(self, write: Callable[[Term, Term], None]) -> None:
        """Tell `write` the rank of each candidate, and its position."""
        self._sort.write(write)

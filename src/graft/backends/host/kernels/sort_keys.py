"""Sorting by integer keys: integers in the order of elements of any dtype, and their sort.

`SortKeys` makes the keys. `KeySort` sorts those in a buffer, equal ones in the order in which they
lie there: few by counting for each the keys before it, vectors of them at a time, many by their
digits, from the last one on.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from graft.base.dtypes import DType
from graft.llvm.types import SMALL_FLOATS
from graft.loop.build import Operand, Term, call, cast, compare, equal, load, select, term
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

_DIGIT_BITS = 8
_DIGITS = 1 << _DIGIT_BITS
# Cycles, about: of a key's rank beside the vectors of keys it is compared with; of moving a key to
# its place by a digit; of a digit's count, cleared and added up.
_RANK, _MOVE, _COUNTER = 10, 6, 2


@dataclass(frozen=True, slots=True)
class SortKeys:
    """Signed integers, the less the earlier an element comes, and equal for equal elements.

    A NaN is larger than every number and equal to any other; both zeros are equal. What is narrower
    than a key is in its upper bits, so that every key starts at the sign.
    """

    element: DType
    is_descending: bool

    @property
    def dtype(self) -> DType:
        return DType.INT64 if self.element.bits > DType.INT32.bits else DType.INT32

    @property
    def unused_bits(self) -> int:
        """How many of the lowest bits are zero in every key."""
        return 0 if self.element.is_float else self.dtype.bits - self.element.bits

    @property
    def least(self) -> Term:
        return term(Const(-(1 << (self.dtype.bits - 1)), self.dtype))

    @property
    def greatest(self) -> Term:
        return term(Const((1 << (self.dtype.bits - 1)) - 1, self.dtype))

    def of(self, elements: Term) -> Term:
        """The key of an element, or of each lane of a vector."""
        if self.element.is_float:
            keys = self._of_floats(elements)
            return keys ^ -1 if self.is_descending else keys
        keys = cast(self.dtype, elements)
        keys = keys ^ -1 if self.is_descending else keys
        keys = keys << self.unused_bits if self.unused_bits else keys
        return keys ^ self.least if self.element.is_unsigned_integer else keys

    def _of_floats(self, elements: Term) -> Term:
        """The bits are in order but for a sign, which turns the order of the others around."""
        numbers = cast(DType.FLOAT32, elements) if self.element in SMALL_FLOATS else elements
        bits = call("bits", numbers + 0.0)  # -0.0 becomes 0.0
        keys = bits ^ ((bits >> (self.dtype.bits - 1)) & self.greatest)
        return select(call("isnan", numbers), self.greatest, keys)


@dataclass(frozen=True, slots=True)
class LaneCount:
    """In how many lanes of some vectors a condition has held."""

    code: StatementBuilder
    name: str
    dtype: DType
    lanes: int

    @property
    def memory(self) -> Buffer:
        return Buffer(self.name, self.dtype, (Const(self.lanes),), Scope.REGISTER)

    def clear(self) -> None:
        zero = Term(Const(0, self.dtype))
        self.code.emit(store_vector(self.memory, 0, spread(zero, self.lanes)))

    def add(self, condition: Term) -> None:
        one, zero = (Term(Const(value, self.dtype)) for value in (1, 0))
        sums = vector(self.memory, 0, self.lanes) + select(condition, one, zero)
        self.code.emit(store_vector(self.memory, 0, sums))

    @property
    def total(self) -> Term:
        return cast(INDEX, across("reduce_add", vector(self.memory, 0, self.lanes)))


@dataclass(frozen=True, slots=True)
class KeySort:
    """The sort of `count` keys, each with a position; behind them is room for a vector."""

    code: StatementBuilder
    order: SortKeys
    lanes: int
    keys: Buffer
    positions: Buffer
    count: Term

    @property
    def _others(self) -> tuple[Buffer, Buffer]:
        return (
            scratch("sorted_keys", self.order.dtype, self.count),
            scratch("sorted_positions", INDEX, self.count),
        )

    @property
    def _starts(self) -> Buffer:
        return scratch("starts", INDEX, _DIGITS)

    @property
    def memory(self) -> tuple[Buffer, ...]:
        return (*self._others, self._starts)

    @property
    def _passes(self) -> int:
        return (self.order.dtype.bits - self.order.unused_bits) // _DIGIT_BITS

    @property
    def _most_counted(self) -> int:
        """So many keys take as long by either algorithm.

        n · (n / lanes + RANK) = passes · (COUNTER · digits + MOVE · n), solved for n."""
        half = self.lanes * (self._passes * _MOVE - _RANK) / 2
        constant = self.lanes * self._passes * _COUNTER * _DIGITS
        return int(half + math.sqrt(half * half + constant))

    def write(self, write: Callable[[Term, Term], None]) -> None:
        """Tell `write` the rank of each key, and its position."""
        code, count = self.code, self.count.expr
        if isinstance(count, Const):
            few = count.value <= self._most_counted
            self._by_counting(write) if few else self._by_digits(write)
            return
        with code.when(self.count <= self._most_counted):
            self._by_counting(write)
        with code.otherwise():
            self._by_digits(write)

    def _by_counting(self, write: Callable[[Term, Term], None]) -> None:
        code, lanes = self.code, self.lanes
        code.emit(store_vector(self.keys, self.count, spread(self.order.greatest, lanes)))
        before = LaneCount(code, "keys_before", self.order.dtype, lanes)
        with code.loop("ranked", self.count) as at, code.memory(before.memory):
            key = code.let("ranked_key", load(self.keys, at))
            own = code.let("own_vector", at // lanes)
            before.clear()
            with code.loop("vector_before", own) as number:
                before.add(vector(self.keys, number * lanes, lanes) <= spread(key, lanes))
            rest = (self.count + (lanes - 1)) // lanes - own
            with code.loop("vector_behind", rest, own) as number:
                before.add(vector(self.keys, number * lanes, lanes) < spread(key, lanes))
            is_equal = equal(vector(self.keys, own * lanes, lanes), spread(key, lanes))
            before.add(is_equal & (ramp(own * lanes, lanes) < spread(at, lanes)))
            write(code.let("rank", before.total), code.let("ranked_at", load(self.positions, at)))

    def _by_digits(self, write: Callable[[Term, Term], None]) -> None:
        code = self.code
        with code.loop("digit", self._passes) as number:
            shift = code.let("shift", number * _DIGIT_BITS + self.order.unused_bits)
            self._count_digits(shift)
            most = load(self._starts, self._digit(0, shift))
            # keys that have one digit in common are in order already
            with code.when(compare(CompareKind.NOT_EQUAL, most, self.count)):
                self._move(shift)
        with code.loop("placed", self.count) as rank:
            write(rank, code.let("placed_at", load(self.positions, rank)))

    def _digit(self, at: Operand, shift: Term) -> Term:
        key = load(self.keys, at) ^ self.order.least
        return cast(INDEX, (key >> cast(self.order.dtype, shift)) & (_DIGITS - 1))

    def _count_digits(self, shift: Term) -> None:
        code, starts = self.code, self._starts
        with code.loop("cleared", _DIGITS) as at:
            code.store(starts, at, 0)
        with code.loop("counted", self.count) as at:
            digit = code.let("digit_counted", self._digit(at, shift))
            code.store(starts, digit, load(starts, digit) + 1)

    def _move(self, shift: Term) -> None:
        code, starts, end = self.code, self._starts, Cell("start")
        with code.memory(end):
            code.set(end, 0)
            with code.loop("summed", _DIGITS) as at:
                count = code.let("count_here", load(starts, at))
                code.store(starts, at, end.value)
                code.set(end, end.value + count)
        mine, others = (self.keys, self.positions), self._others
        with code.loop("moved", self.count) as at:
            digit = code.let("digit_moved", self._digit(at, shift))
            to = code.let("moved_to", load(starts, digit))
            code.store(starts, digit, to + 1)
            for source, other in zip(mine, others, strict=True):
                code.store(other, to, load(source, at))
        with code.loop("back", self.count) as at:
            for target, other in zip(mine, others, strict=True):
                code.store(target, at, load(other, at))


def across(name: str, value: Term) -> Term:
    """The lanes of a vector as one; a scalar itself."""
    return call(name, value) if value.expr.lanes > 1 else value

"""Heaps of elements in one thread's memory, for kernels that choose or sort by value.

An element is a value with its position. An order says which of two comes first; a heap has the one
that comes first, or the one that comes last, on top.
"""

from __future__ import annotations

from dataclasses import dataclass

from graft.backends.host.kernels.writing import (
    Cell,
    as_long_as,
    block,
    let,
    loop,
    scratch,
    store,
    when,
    with_memory,
)
from graft.base.dtypes import DType
from graft.loop.build import Operand, Term, call, equal, load, minimum, select, term
from graft.loop.ir import INDEX, Buffer, Stmt


@dataclass(frozen=True, slots=True)
class Order:
    """Ascending or descending; a NaN is larger than every number, or else always the last."""

    descending: bool
    nan_last: bool = False

    def precedes(self, one: Term, other: Term) -> Term:
        """Whether a value comes before another wherever they are."""
        found = one > other if self.descending else one < other
        if not one.dtype.is_float:
            return found
        first, second = call("isnan", one), call("isnan", other)
        if self.descending and not self.nan_last:
            first, second = second, first
        return found | ((first ^ True) & second)

    def same(self, one: Term, other: Term) -> Term:
        """Whether neither value comes before the other."""
        same = equal(one, other)
        if one.dtype.is_float:
            same = same | (call("isnan", one) & call("isnan", other))
        return same

    def before(self, one: Term, at: Term, other: Term, other_at: Term) -> Term:
        """Whether an element comes before another; among equals the lower position does."""
        return self.precedes(one, other) | (self.same(one, other) & (at < other_at))


@dataclass(frozen=True, slots=True)
class Heap:
    """Values and positions in scratch memory, as a binary tree without gaps."""

    order: Order
    values: Buffer
    positions: Buffer
    first_on_top: bool

    @classmethod
    def of(cls, order: Order, dtype: DType, capacity: Operand, first_on_top: bool) -> Heap:
        values, positions = (
            scratch("values", dtype, capacity),
            scratch("positions", INDEX, capacity),
        )
        return cls(order, values, positions, first_on_top)

    @property
    def memory(self) -> tuple[Buffer, Buffer]:
        return self.values, self.positions

    def value(self, at: Operand) -> Term:
        return load(self.values, at)

    def position(self, at: Operand) -> Term:
        return load(self.positions, at)

    def put(self, at: Operand, value: Operand, position: Operand) -> Stmt:
        return block(store(self.values, at, value), store(self.positions, at, position))

    def _above(self, one: Term, at: Term, other: Term, other_at: Term) -> Term:
        if self.first_on_top:
            return self.order.before(one, at, other, other_at)
        return self.order.before(other, other_at, one, at)

    def build(self, count: Term) -> Stmt:
        """Bring `count` elements, which lie there anyhow, into the order of a heap."""
        half = count // 2

        def sunk(turn: Term) -> Stmt:
            return let("root", half - 1 - turn, lambda root: self.taken("build", root, count, root))

        return loop("built", half, sunk)

    def taken(self, tag: str, source: Operand, count: Operand, start: Operand = 0) -> Stmt:
        """Put the element that lies at `source` under `start`, within `count` elements."""
        return let(
            f"{tag}_value",
            self.value(source),
            lambda value: let(
                f"{tag}_position",
                self.position(source),
                lambda position: self.sink(tag, value, position, count, start),
            ),
        )

    def sink(
        self, tag: str, value: Term, position: Term, count: Operand, start: Operand = 0
    ) -> Stmt:
        """Put an element in the place of the one at `start`, or as far below as it belongs."""
        hole, child = Cell(f"{tag}_hole"), Cell(f"{tag}_child")
        below, size = child.value, term(count)

        def moved(pick: Term) -> Stmt:
            here, at = self.value(pick), self.position(pick)
            up = block(self.put(hole.value, here, at), hole.set(pick), child.set(pick * 2 + 1))
            return when(self._above(here, at, value, position), up, child.set(count))

        def descend(left: Term) -> Stmt:
            # The right child where there is one, else the left again, which is not above itself.
            def choose(right: Term) -> Stmt:
                values = self.value(right), self.position(right)
                higher = self._above(*values, self.value(left), self.position(left))
                return let(f"{tag}_pick", select(higher, right, left), moved)

            return let(f"{tag}_right", minimum(left + 1, size - 1), choose)

        body = block(
            hole.set(start),
            child.set(term(start) * 2 + 1),
            as_long_as(below < size, let(f"{tag}_left", below, descend)),
            self.put(hole.value, value, position),
        )
        return with_memory(body, hole, child)

"""The boxes that were kept so far, side by side in one thread's memory, and how near another is."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from graft.backends.host.kernels.writing import (
    Cell,
    as_long_as,
    block,
    let,
    scratch,
    store,
    when,
    with_memory,
)
from graft.base.dtypes import DType
from graft.loop.build import Term, call, equal, load, maximum, minimum, select, term
from graft.loop.ir import Broadcast, Buffer, Const, Ramp, Stmt

_SIDES = ("low_y", "high_y", "low_x", "high_x")


@dataclass(frozen=True, slots=True)
class Box:
    """Least and greatest coordinate along the first axis, then along the second; and the area."""

    sides: tuple[Term, ...]
    area: Term


@dataclass(frozen=True, slots=True)
class KeptBoxes:
    """Room for `most` boxes and a vector; those behind the last one have no area."""

    dtype: DType
    lanes: int
    most: Term
    overlap: Term  # from which on boxes are too near

    @property
    def memory(self) -> tuple[Buffer, ...]:
        names = (*_SIDES, "area")
        return tuple(scratch(f"kept_{n}", self.dtype, self.most + self.lanes) for n in names)

    def corners(self, sides: Sequence[Term], body: Callable[[Box], Stmt]) -> Stmt:
        """A name for each number of a box."""

        def named(known: tuple[Term, ...]) -> Stmt:
            if len(known) < len(_SIDES):
                name, value = _SIDES[len(known)], sides[len(known)]
                return let(name, value, lambda side: named((*known, side)))
            area = (known[1] - known[0]) * (known[3] - known[2])
            return let("area", area, lambda size: body(Box(known, size)))

        return named(())

    def add(self, box: Box, count: Term) -> Stmt:
        """The box behind `count` others."""
        *sides, areas = self.memory
        ramp = Term(Ramp(count.expr, 1, self.lanes)) if self.lanes > 1 else count
        cleared = store(areas, ramp, Term(Const(0.0, self.dtype, self.lanes)))
        stored = [store(memory, count, side) for memory, side in zip(sides, box.sides, strict=True)]
        fresh = equal(count % self.lanes, 0)
        return block(when(fresh, cleared), *stored, store(areas, count, box.area))

    def unless_near(self, box: Box, count: Term, body: Stmt) -> Stmt:
        """Run the body if the box is far from all of `count` others."""
        at, near = Cell("compared"), Cell("near", DType.INT32)

        def step(first: Term) -> Stmt:
            hits = select(self._near(box, first), _flag(1, self.lanes), _flag(0, self.lanes))
            found = call("reduce_max", hits) if self.lanes > 1 else hits
            return block(near.set(found), at.set(first + self.lanes))

        search = block(
            at.set(0),
            near.set(0),
            as_long_as((at.value < count) & equal(near.value, 0), let("first", at.value, step)),
            when(equal(near.value, 0), body),
        )
        return with_memory(search, at, near)

    def _near(self, box: Box, first: Term) -> Term:
        """Whether the box overlaps each of a vector of others too much."""
        *sides, areas = self.memory
        ramp = Term(Ramp(first.expr, 1, self.lanes)) if self.lanes > 1 else first
        low_y, high_y, low_x, high_x = (load(side, ramp) for side in sides)
        area, own = load(areas, ramp), self._wide(box.area)
        top, bottom, left, right = map(self._wide, box.sides)
        height = minimum(high_y, bottom) - maximum(low_y, top)
        width = minimum(high_x, right) - maximum(low_x, left)
        nothing = self._wide(Term(Const(0.0, self.dtype)))
        shared = maximum(height, nothing) * maximum(width, nothing)
        union = area + own - shared
        proper = (shared > nothing) & (area > nothing) & (own > nothing) & (union > nothing)
        share = shared / select(proper, union, self._wide(Term(Const(1.0, self.dtype))))
        return proper & (share > self._wide(self.overlap))

    def _wide(self, value: Term) -> Term:
        return value if self.lanes == 1 else Term(Broadcast(value.expr, self.lanes))


def _flag(value: int, lanes: int) -> Term:
    return term(Const(value, DType.INT32, lanes))

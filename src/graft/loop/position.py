"""Where generation stands inside a nest: which loops have a value, and what follows for the axes.

Loops count from 0; an axis is its start plus the value its loops give it. Extents come from the
region of the stage that is to be computed; the inner loop of a split has a shorter one in the
remainder. `span` bounds an axis while the loops that have no value yet run: bounds inference.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from graft.base.polynomials import constant_value
from graft.loop.index import add, multiply, polynomial
from graft.loop.ir import Binary, BinaryKind, Const, Expr
from graft.loop.nest import Nest
from graft.loop.ranges import Context, Range
from graft.loop.schedule import Fuse, Split
from graft.loop.simplify import simplify


def binary(kind: BinaryKind, left: Expr, right: Expr, context: Context) -> Expr:
    """The operation, simplified."""
    return simplify(Binary(kind, left, right), context)


def ceiling(extent: Expr, factor: int, context: Context) -> Expr:
    """How many tiles of `factor` it takes to cover the extent."""
    return binary(BinaryKind.FLOOR_DIVIDE, add(extent, Const(factor - 1)), Const(factor), context)


@dataclass(frozen=True)
class Position:
    """A nest, the region it covers, and the values of the loops entered so far."""

    nest: Nest
    starts: Mapping[str, Expr]
    extents: Mapping[str, Expr]
    values: Mapping[str, Expr] = field(default_factory=dict)
    tails: frozenset[str] = frozenset()  # loops in whose last tile, of masked lanes, it stands

    def enter(self, name: str, value: Expr) -> Position:
        """Inside an iteration of the loop."""
        return replace(self, values={**self.values, name: value})

    def with_extent(self, name: str, extent: Expr) -> Position:
        """With another extent for a loop."""
        return replace(self, extents={**self.extents, name: extent})

    def with_tail(self, name: str) -> Position:
        """In the last tile of a loop, some of whose lanes are masked."""
        return replace(self, tails=self.tails | {name})

    def has_value(self, name: str) -> bool:
        """Whether the loop or axis has a value, itself or through the loops it became."""
        if name in self.values:
            return True
        match self.replacement(name):
            case Split(outer=outer, inner=inner):
                return self.has_value(outer) and self.has_value(inner)
            case Fuse(fused=fused):
                return self.has_value(fused)
            case None:
                return False

    def origin(self, name: str) -> Split | Fuse | None:
        """The split or fusion that the loop is a result of."""
        for relation in self.nest.relations:
            if isinstance(relation, Split) and name in (relation.outer, relation.inner):
                return relation
            if isinstance(relation, Fuse) and name == relation.fused:
                return relation
        return None

    def replacement(self, name: str) -> Split | Fuse | None:
        """The split or fusion that replaced the loop."""
        for relation in self.nest.relations:
            if isinstance(relation, Split) and name == relation.loop:
                return relation
            if isinstance(relation, Fuse) and name in (relation.outer, relation.inner):
                return relation
        return None

    def extent(self, name: str, context: Context) -> Expr:
        """How often the loop runs at most."""
        if name in self.extents:
            return self.extents[name]
        relation = self.origin(name)
        match relation:
            case Split(loop=loop, outer=outer, factor=factor):
                whole = self.extent(loop, context)
                if name == outer:
                    return ceiling(whole, factor, context)
                if self.nest.is_masked(name):
                    return Const(factor)  # of which some lanes may not be there
                size = constant_value(polynomial(whole))
                return Const(factor if size is None else min(factor, max(size, 0)))
            case Fuse(outer=outer, inner=inner):
                return multiply(self.extent(outer, context), self.extent(inner, context))
            case None:
                raise self.nest.fail(f"there is no loop '{name}'")

    def is_exact(self, split: Split, context: Context) -> bool:
        """Whether the split leaves no tail."""
        whole = self.extent(split.loop, context)
        rest = binary(BinaryKind.FLOOR_MODULO, whole, Const(split.factor), context)
        inner = self.extent(split.inner, context)
        return rest == Const(0) or inner == whole

    def value(self, name: str, context: Context) -> Expr:
        """The loop's or axis's value, counted from 0; all its loops have to have one."""
        span = self.span(name, context)
        if span.low is None or span.low != span.high:
            raise self.nest.fail(f"loop '{name}' has no value yet")
        return span.low

    def span(self, name: str, context: Context) -> Range:
        """Bounds of the loop or axis, counted from 0."""
        if name in self.values:
            return Range(self.values[name], self.values[name])
        match self.replacement(name):
            case Split() as split:
                return self._split_span(split, context)
            case Fuse() as fuse:
                return self._fuse_span(fuse, name, context)
            case None:
                return Range(Const(0), add(self.extent(name, context), Const(-1)))

    def _split_span(self, split: Split, context: Context) -> Range:
        outer, inner = self.span(split.outer, context), self.span(split.inner, context)
        fixed = outer.low == outer.high and inner.low == inner.high
        whole = self.extent(split.loop, context)
        exact = self.is_exact(split, context)
        bounds: list[Expr | None] = []
        for one, other in zip(outer, inner, strict=True):
            if one is None or other is None:
                return Range(None, None)
            base = multiply(one, Const(split.factor))
            if split.tail == "shift_inwards" and not exact:
                self._check_shift(split, whole, context)
                last = add(whole, Const(-split.factor))
                base = binary(BinaryKind.MINIMUM, base, last, context)
            bounds.append(add(base, other))
        low, high = bounds
        # Tiles with loops of their own, be they whole or the last one, do not reach too far.
        is_own = split.tail in ("remainder", "branch") and split.inner in self.extents
        if not fixed and not exact and not is_own and high is not None:
            high = binary(BinaryKind.MINIMUM, high, add(whole, Const(-1)), context)
        return Range(low, high)

    def _check_shift(self, split: Split, whole: Expr, context: Context) -> None:
        if not context.at_most(Const(split.factor), whole):
            message = f"cannot shift the tail of loop '{split.loop}' inwards"
            hint = "use guard or remainder"
            raise self.nest.fail(f"{message}: it may be shorter than {split.factor}", hint)

    def _fuse_span(self, fuse: Fuse, name: str, context: Context) -> Range:
        if not self.nest.leaves(fuse.fused) & self.values.keys():
            return Range(Const(0), add(self.extent(name, context), Const(-1)))
        inner = self.extent(fuse.inner, context)
        low, high = self.span(fuse.fused, context)
        if low is None or high is None:
            return Range(None, None)
        first, last = (
            binary(BinaryKind.FLOOR_DIVIDE, bound, inner, context) for bound in (low, high)
        )
        if name == fuse.outer:
            return Range(first, last)
        if low == high or first == last:
            rests = [binary(BinaryKind.FLOOR_MODULO, end, inner, context) for end in (low, high)]
            return Range(*rests)
        return Range(Const(0), add(inner, Const(-1)))

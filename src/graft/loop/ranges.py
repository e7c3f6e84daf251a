"""Assumptions about the variables of a kernel at one point of its code.

A `Context` is a set of assumptions (`base.assumptions`) that is extended on entering loops and
branches, with queries about expressions of the loop IR.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from functools import reduce
from typing import NamedTuple

from graft.base import bounds
from graft.base.assumptions import ONE, Assumptions
from graft.base.dims import Dim, index_expr
from graft.base.polynomials import Polynomial, constant_value, plus
from graft.loop.index import index_of, is_index, polynomial
from graft.loop.ir import Binary, BinaryKind, Compare, CompareKind, Const, Expr, Var
from graft.loop.traverse import reads_memory


class Range(NamedTuple):
    """Inclusive bounds; None is unbounded."""

    low: Expr | None
    high: Expr | None


NATURAL = Range(Const(0), None)


class Context(Assumptions):
    """Assumptions about variables.

    What was read from memory may be written afterwards, so nothing here mentions a load.
    """

    def __init__(
        self, ranges: Mapping[str, bounds.Range] | None = None, facts: tuple[Polynomial, ...] = ()
    ) -> None:
        super().__init__(ranges, facts)
        self.simplified: dict[Expr, Expr] = {}  # index arithmetic that was simplified here

    def variable(self, name: str, low: Expr | None, high: Expr | None) -> Context:
        """Add a variable with its bounds, which may mention variables bound before."""
        return self.bind(name, _dim(low), _dim(high))

    def range_of(self, name: str) -> Range:
        """The bounds of a variable."""
        return _with_expressions(self.ranges[name])

    def loop(self, var: Var, start: Expr, extent: Expr) -> Context:
        """The assumptions inside a loop body, which is executed at least once."""
        if reads_memory(extent) or reads_memory(start):
            return self.variable(var.name, None if reads_memory(start) else start, None)
        least = plus(polynomial(extent), ONE, -1)
        high = index_expr(plus(polynomial(start), least))
        inside = self.bind(var.name, _dim(start), high)
        return inside if constant_value(least) is not None else inside.with_fact(least)

    def assume(self, condition: Expr, holds: bool = True) -> Context:
        """Add the condition, or its negation."""
        match condition:
            case Binary(BinaryKind.AND, left, right) if holds:
                return self.assume(left).assume(right)
            case Binary(BinaryKind.OR, left, right) if not holds:
                return self.assume(left, False).assume(right, False)
            case Compare(kind, left, right) if is_index(left) and not reads_memory(condition):
                new = facts(kind if holds else NEGATED[kind], left, right)
                return reduce(Context.with_fact, new, self)
            case _:
                return self

    def at_most(self, left: Expr, right: Expr) -> bool:
        """Whether left <= right for sure."""
        return self.proves(plus(polynomial(right), polynomial(left), -1))

    def below(self, left: Expr, right: Expr) -> bool:
        """Whether left < right for sure."""
        return self.proves(plus(plus(polynomial(right), polynomial(left), -1), ONE, -1))


def _dim(expr: Expr | None) -> Dim | None:
    return None if expr is None else index_expr(polynomial(expr))


def _with_dims(ranges: Mapping[str, Range]) -> dict[str, bounds.Range]:
    return {name: bounds.Range(*map(_dim, ends)) for name, ends in ranges.items()}


def _with_expressions(ends: bounds.Range) -> Range:
    return Range(*(None if end is None else index_of(end) for end in ends))


NEGATED = {
    CompareKind.EQUAL: CompareKind.NOT_EQUAL,
    CompareKind.NOT_EQUAL: CompareKind.EQUAL,
    CompareKind.LESS: CompareKind.GREATER_EQUAL,
    CompareKind.LESS_EQUAL: CompareKind.GREATER,
    CompareKind.GREATER: CompareKind.LESS_EQUAL,
    CompareKind.GREATER_EQUAL: CompareKind.LESS,
}


def facts(kind: CompareKind, left: Expr, right: Expr) -> list[Polynomial]:
    """Polynomials that are all at least 0 exactly if the comparison holds; none for `!=`."""
    rising = plus(polynomial(right), polynomial(left), -1)
    falling = plus({}, rising, -1)
    return {
        CompareKind.EQUAL: [rising, falling],
        CompareKind.NOT_EQUAL: [],
        CompareKind.LESS: [plus(rising, ONE, -1)],
        CompareKind.LESS_EQUAL: [rising],
        CompareKind.GREATER: [plus(falling, ONE, -1)],
        CompareKind.GREATER_EQUAL: [falling],
    }[kind]


def interval(expr: Expr, moving: Mapping[str, Range], context: Context) -> Range:
    """Bounds of the expression in which none of the `moving` variables occurs."""
    terms = polynomial(expr)
    if not any(atom.symbols & moving.keys() for monomial in terms for atom in monomial):
        return Range(expr, expr)
    return _with_expressions(context.interval(terms, _with_dims(moving)))


def hull(one: Range, other: Range) -> Range:
    """The smallest range that holds both."""
    low, high = (
        None if first is None or second is None else _combined(kind, first, second)
        for kind, first, second in zip(_ENDS, one, other, strict=True)
    )
    return Range(low, high)


_ENDS = BinaryKind.MINIMUM, BinaryKind.MAXIMUM


def _combined(kind: BinaryKind, first: Expr, second: Expr) -> Expr:
    return first if first == second else Binary(kind, first, second)


def constant_upper_bound(expr: Expr, context: Context) -> int | None:
    """A constant the expression never exceeds, if one can be seen."""
    match expr:
        case Binary(BinaryKind.MINIMUM, left, right):  # a fact may limit one side
            limits = [constant_upper_bound(part, context) for part in (left, right)]
        case Binary(BinaryKind.FLOOR_DIVIDE, inner, Const(value=int(divisor))) if divisor > 0:
            most = constant_upper_bound(inner, context)
            limits = [None if most is None else most // divisor]
        case _:
            limits = _limits(polynomial(expr), context)
    least = min((limit for limit in limits if limit is not None), default=None)
    return _width(polynomial(expr), context) if least is None else least


def _width(terms: Polynomial, context: Context) -> int | None:
    """A power of two that a remainder, such as `n - n // 16 * 16`, does not exceed."""
    if not any(atom.kind == "floordiv" for monomial in terms for atom in monomial):
        return None
    return next((n for n in _WIDTHS if context.proves(plus({(): n}, terms, -1))), None)


_WIDTHS = tuple(1 << power for power in range(8))


def _limits(terms: Polynomial, context: Context) -> list[int | None]:
    """Constants that a polynomial does not exceed, by its range and by facts."""
    most, high = context.bounds(terms)[1], context.interval(terms, context.ranges).high
    # A fact c - expr >= 0 says that the expression is at most c.
    by_facts = (constant_value(plus(terms, fact)) for fact in context.facts)
    by_range = high if isinstance(high, int) else None
    return [None if math.isinf(most) else int(most), by_range, *by_facts]

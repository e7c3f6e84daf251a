"""What is known about variables, and what follows from it.

A `Context` holds the bounds of variables, which may be symbolic, and facts (polynomials known to be
at least 0). Two questions are answered: whether an index expression is surely non-negative
(`proves`), and between which expressions it lies while some variables run through their ranges
(`interval`). The answer "no" to the first means "not seen to be", never "surely negative".
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property, reduce
from typing import NamedTuple

from graft.loop.affine import (
    Monomial,
    Polynomial,
    atom_key,
    constant_value,
    expression,
    is_index,
    plus,
    polynomial,
    times,
)
from graft.loop.ir import (
    Binary,
    BinaryKind,
    Compare,
    CompareKind,
    Const,
    Expr,
    Load,
    Select,
    Var,
)
from graft.loop.numeric import NumericBounds
from graft.loop.traverse import variables, walk_expr

MAX_STEPS = 16  # eliminations in one chain of reasoning
MAX_WORK = 150  # eliminations in all for one question
MAX_TERMS = 20  # of a sum that is worth reasoning about
ONE: Polynomial = {(): 1}


class Range(NamedTuple):
    """Inclusive bounds; None is unbounded."""

    low: Expr | None
    high: Expr | None


NATURAL = Range(Const(0), None)
_Question = frozenset[tuple[Monomial, int]]  # a polynomial, as a key


@dataclass(frozen=True)
class Context:
    """Bounds of variables in the order they were bound, and facts.

    What was read from memory may be written afterwards, so nothing here mentions a load. Lowering
    comes to the same places again, pass after pass: so a context remembers those made of it, and
    what it was asked.
    """

    ranges: Mapping[str, Range] = field(default_factory=dict)
    facts: tuple[Polynomial, ...] = ()
    simplified: dict[Expr, Expr] = field(
        default_factory=dict, init=False, compare=False, repr=False
    )  # index arithmetic that was simplified here
    _answers: dict[_Question, bool] = field(
        default_factory=dict, init=False, compare=False, repr=False
    )
    _bound: dict[tuple[str, Range], Context] = field(
        default_factory=dict, init=False, compare=False, repr=False
    )
    _assumed: dict[_Question, Context] = field(
        default_factory=dict, init=False, compare=False, repr=False
    )

    def bind(self, name: str, low: Expr | None, high: Expr | None) -> Context:
        """With a variable and its bounds, which may mention those bound before."""
        bound = Range(low, high)
        if (name, bound) not in self._bound:
            self._bound[name, bound] = replace(self, ranges={**self.ranges, name: bound})
        return self._bound[name, bound]

    def _with_fact(self, fact: Polynomial) -> Context:
        key = frozenset(fact.items())
        if key not in self._assumed:
            self._assumed[key] = replace(self, facts=(*self.facts, fact))
        return self._assumed[key]

    def loop(self, var: Var, start: Expr, extent: Expr) -> Context:
        """Inside the body of a loop, which runs at least once if one is there at all."""
        if reads_memory(extent) or reads_memory(start):
            return self.bind(var.name, None if reads_memory(start) else start, None)
        high = expression(plus(plus(polynomial(start), polynomial(extent)), ONE, -1))
        inside = self.bind(var.name, start, high)
        least = plus(polynomial(extent), ONE, -1)
        if constant_value(least) is not None:
            return inside
        return inside._with_fact(least)

    def assume(self, condition: Expr, holds: bool = True) -> Context:
        """Where the condition holds, or where it does not."""
        match condition:
            case Binary(BinaryKind.AND, left, right) if holds:
                return self.assume(left).assume(right)
            case Binary(BinaryKind.OR, left, right) if not holds:
                return self.assume(left, False).assume(right, False)
            case Compare(kind, left, right) if is_index(left) and not reads_memory(condition):
                new = _facts(kind if holds else _NEGATED[kind], left, right)
                return reduce(Context._with_fact, new, self)
            case _:
                return self

    def proves(self, terms: Polynomial) -> bool:
        """Whether the polynomial is surely at least 0."""
        question = frozenset(terms.items())
        if question not in self._answers:
            self._answers[question] = self._prover.holds(terms)
        return self._answers[question]

    @cached_property
    def _prover(self) -> _Prover:
        return _Prover(self)

    def at_most(self, left: Expr, right: Expr) -> bool:
        """Whether left <= right for sure."""
        return self.proves(plus(polynomial(right), polynomial(left), -1))

    def below(self, left: Expr, right: Expr) -> bool:
        """Whether left < right for sure."""
        return self.proves(plus(plus(polynomial(right), polynomial(left), -1), ONE, -1))


def reads_memory(expr: Expr) -> bool:
    """Whether there is a load in the expression."""
    return any(isinstance(part, Load) for part in walk_expr(expr))


_NEGATED = {
    CompareKind.EQUAL: CompareKind.NOT_EQUAL,
    CompareKind.NOT_EQUAL: CompareKind.EQUAL,
    CompareKind.LESS: CompareKind.GREATER_EQUAL,
    CompareKind.LESS_EQUAL: CompareKind.GREATER,
    CompareKind.GREATER: CompareKind.LESS_EQUAL,
    CompareKind.GREATER_EQUAL: CompareKind.LESS,
}


def _facts(kind: CompareKind, left: Expr, right: Expr) -> list[Polynomial]:
    rising = plus(polynomial(right), polynomial(left), -1)
    falling = plus(polynomial(left), polynomial(right), -1)
    return {
        CompareKind.EQUAL: [rising, falling],
        CompareKind.NOT_EQUAL: [],
        CompareKind.LESS: [plus(rising, ONE, -1)],
        CompareKind.LESS_EQUAL: [rising],
        CompareKind.GREATER: [plus(falling, ONE, -1)],
        CompareKind.GREATER_EQUAL: [falling],
    }[kind]


class _Prover:
    """Answers: eliminates atoms, innermost first, by a bound that makes the sum smaller."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._order = {name: place for place, name in enumerate(context.ranges)}
        self._numeric = NumericBounds(context.ranges)
        self._ranks: dict[Expr, tuple[int, int, str]] = {}
        self._work = 0

    def holds(self, terms: Polynomial) -> bool:
        self._work = 0
        if self._numeric.of(expression(terms))[0] >= 0 or self._at_least_zero(terms, MAX_STEPS):
            return True
        facts = [fact for fact in self._context.facts if self._related(fact, terms)]
        return any(self._at_least_zero(plus(terms, fact, -1), MAX_STEPS) for fact in facts)

    def _related(self, fact: Polynomial, terms: Polynomial) -> bool:
        return bool(_names(fact) & _names(terms))

    def _at_least_zero(self, terms: Polynomial, steps: int) -> bool:
        value = constant_value(terms)
        if value is not None:
            return value >= 0
        self._work += 1
        if steps == 0 or self._work > MAX_WORK or len(terms) > MAX_TERMS:
            return False
        atom = max({atom for monomial in terms for atom in monomial}, key=self._rank)
        factor, rest = _factored(terms, atom)
        if any(atom in monomial for monomial in factor):
            return False
        sign = self._sign(factor, steps)
        return sign != 0 and self._eliminate(atom, factor, rest, sign > 0, steps - 1)

    def _rank(self, atom: Expr) -> tuple[int, int, str]:
        """Later bound is further inside; what contains a variable goes before it."""
        known = self._ranks.get(atom)
        if known is None:
            place = max((self._order.get(name, -1) for name in variables(atom)), default=-1)
            known = place, 0 if isinstance(atom, Var) else 1, atom_key(atom)
            self._ranks[atom] = known
        return known

    def _sign(self, factor: Polynomial, steps: int) -> int:
        value = constant_value(factor)
        if value is not None:
            return 1 if value > 0 else -1
        if self._at_least_zero(factor, steps - 1):
            return 1
        return -1 if self._at_least_zero(plus({}, factor, -1), steps - 1) else 0

    def _eliminate(
        self, atom: Expr, factor: Polynomial, rest: Polynomial, positive: bool, steps: int
    ) -> bool:
        """Whether factor * atom + rest is at least 0, the factor's sign being known."""

        def with_value(value: Expr) -> bool:
            return self._at_least_zero(plus(times(polynomial(value), factor), rest), steps)

        match atom:
            case Var():
                low, high = self._context.ranges.get(atom.name, Range(None, None))
                bound = low if positive else high
                return bound is not None and with_value(bound)
            case Binary(BinaryKind.FLOOR_DIVIDE, value, Const(value=int(divisor))) if divisor > 0:
                end = self._numeric.of(atom)[0 if positive else 1]
                if not math.isinf(end) and with_value(Const(int(end))):
                    return True
                # Everything times the divisor: divisor * (x // divisor) is x - x % divisor.
                remainder = Binary(BinaryKind.FLOOR_MODULO, value, Const(divisor))
                exact = plus(polynomial(value), polynomial(remainder), -1)
                return self._at_least_zero(plus(times(exact, factor), rest, divisor), steps)
            case Binary(BinaryKind.FLOOR_MODULO, value, Const(value=int(divisor))) if divisor > 0:
                if positive:
                    return with_value(Const(0))
                small = self._at_least_zero(polynomial(value), steps) and with_value(value)
                return small or with_value(Const(divisor - 1))
            case Binary(BinaryKind.MINIMUM | BinaryKind.MAXIMUM as kind, left, right):
                if positive == (kind is BinaryKind.MINIMUM):
                    return with_value(left) and with_value(right)
                return with_value(left) or with_value(right)
            case Select(yes=yes, no=no):
                return with_value(yes) and with_value(no)
            case Binary(BinaryKind.FLOOR_DIVIDE | BinaryKind.FLOOR_MODULO, value, divisor):
                natural = positive and self._at_least_zero(polynomial(value), steps)
                natural = natural and self._at_least_zero(polynomial(divisor), steps)
                return natural and with_value(Const(0))
            case _:
                return False


def _names(terms: Polynomial) -> frozenset[str]:
    return frozenset().union(*(variables(atom) for monomial in terms for atom in monomial))


def _factored(terms: Polynomial, atom: Expr) -> tuple[Polynomial, Polynomial]:
    """`terms == factor * atom + rest`."""
    factor: Polynomial = {}
    rest: Polynomial = {}
    for monomial, coefficient in terms.items():
        if atom in monomial:
            place = monomial.index(atom)
            factor[monomial[:place] + monomial[place + 1 :]] = coefficient
        else:
            rest[monomial] = coefficient
    return factor, rest


def interval(expr: Expr, moving: Mapping[str, Range], context: Context) -> Range:
    """Bounds of the expression in which none of the `moving` variables occurs."""
    if not variables(expr) & moving.keys():
        return Range(expr, expr)
    terms = polynomial(expr)
    if terms != {(expr,): 1}:
        return _sum_interval(terms, moving, context)
    match expr:
        case Var():
            low, high = moving[expr.name]
            least = None if low is None else interval(low, moving, context).low
            most = None if high is None else interval(high, moving, context).high
            return Range(least, most)
        case Binary(kind, left, Const(value=int(divisor))) if kind in _DIVISIONS and divisor > 0:
            return _division_interval(kind, interval(left, moving, context), divisor, context)
        case Binary(BinaryKind.MINIMUM | BinaryKind.MAXIMUM as kind, left, right):
            return _extreme(kind, interval(left, moving, context), interval(right, moving, context))
        case Select(yes=yes, no=no):
            one, other = interval(yes, moving, context), interval(no, moving, context)
            return hull(one, other)
        case _:
            return Range(None, None)


_DIVISIONS = (BinaryKind.FLOOR_DIVIDE, BinaryKind.FLOOR_MODULO)


def hull(one: Range, other: Range) -> Range:
    """The smallest range that holds both."""
    return Range(
        _extreme(BinaryKind.MINIMUM, one, other).low, _extreme(BinaryKind.MAXIMUM, one, other).high
    )


def _extreme(kind: BinaryKind, one: Range, other: Range) -> Range:
    low, high = (
        None if first is None or second is None else _combined(kind, first, second)
        for first, second in zip(one, other, strict=True)
    )
    return Range(low, high)


def _combined(kind: BinaryKind, first: Expr, second: Expr) -> Expr:
    return first if first == second else Binary(kind, first, second)


def _division_interval(kind: BinaryKind, inner: Range, divisor: int, context: Context) -> Range:
    low, high = inner
    if low is None or high is None:
        bounded = kind is BinaryKind.FLOOR_MODULO
        return Range(Const(0), Const(divisor - 1)) if bounded else Range(None, None)
    count = Const(divisor)
    first, last = (Binary(BinaryKind.FLOOR_DIVIDE, bound, count) for bound in inner if bound)
    if kind is BinaryKind.FLOOR_DIVIDE:
        return Range(first, last)
    if context.at_most(last, first):  # all within one period
        return Range(Binary(kind, low, count), Binary(kind, high, count))
    return Range(Const(0), Const(divisor - 1))


def _sum_interval(terms: Polynomial, moving: Mapping[str, Range], context: Context) -> Range:
    low: Polynomial | None = {}
    high: Polynomial | None = {}
    for monomial, coefficient in terms.items():
        changing = [atom for atom in monomial if variables(atom) & moving.keys()]
        fixed = {tuple(atom for atom in monomial if atom not in changing): 1}
        if len(changing) > 1 or (changing and not context.proves(fixed)):
            return Range(None, None)
        inner = interval(changing[0], moving, context) if changing else Range(Const(1), Const(1))
        least, most = inner if coefficient > 0 else (inner.high, inner.low)
        low = _added(low, least, fixed, coefficient)
        high = _added(high, most, fixed, coefficient)
    return Range(
        None if low is None else expression(low), None if high is None else expression(high)
    )


def _added(
    total: Polynomial | None, bound: Expr | None, fixed: Polynomial, coefficient: int
) -> Polynomial | None:
    if total is None or bound is None:
        return None
    return plus(total, times(polynomial(bound), fixed), coefficient)


def constant_upper_bound(expr: Expr, context: Context) -> int | None:
    """A constant the expression never exceeds, if its own parts show one."""
    match expr:
        case Const(value=int(value)):
            return value
        case Binary(BinaryKind.MINIMUM, left, right):
            bounds = [constant_upper_bound(part, context) for part in (left, right)]
            return min((bound for bound in bounds if bound is not None), default=None)
        case Binary(BinaryKind.MAXIMUM, left, right):
            bounds = [constant_upper_bound(part, context) for part in (left, right)]
            known = [bound for bound in bounds if bound is not None]
            return max(known) if len(known) == 2 else None
        case Binary(BinaryKind.FLOOR_MODULO, _, Const(value=int(divisor))):
            return divisor - 1
        case _:
            high = interval(expr, context.ranges, context).high
            found = [] if high is None else [constant_value(polynomial(high))]
            # A fact c - expr >= 0 says that the expression is at most c.
            found += [constant_value(plus(polynomial(expr), fact)) for fact in context.facts]
            # Parts whose bounds are known bound what is computed of them and of unknown ones.
            most = NumericBounds(context.ranges).of(expr)[1]
            found += [] if math.isinf(most) else [int(most)]
            return min((bound for bound in found if bound is not None), default=None)

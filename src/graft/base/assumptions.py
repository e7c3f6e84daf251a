"""What is assumed of symbols, and what follows from it.

`Assumptions` are ranges of symbols, whose ends may be dims over symbols bound before, and facts:
polynomials known to be at least 0. Two questions are answered: whether a polynomial is surely not
negative (`proves`), and between which dims one lies while some symbols run through their ranges
(`interval`). The answer "no" to the first means "not seen to be", never "surely negative".
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from functools import cached_property
from typing import Final, Self, TypeAlias

from graft.base.bounds import ANY, Intervals, Range
from graft.base.dims import Dim, floor_divide, index_expr, modulo
from graft.base.polynomials import (
    OPAQUE,
    SYMBOL,
    Atom,
    Monomial,
    Polynomial,
    call_atom,
    constant_value,
    plus,
    terms_of,
    times,
)

MAX_STEPS: Final = 16  # eliminations in one chain of reasoning
MAX_WORK: Final = 150  # eliminations in all for one question
MAX_TERMS: Final = 20  # of a sum that is worth reasoning about
ONE: Final[Polynomial] = {(): 1}
_Question: TypeAlias = frozenset[tuple[Monomial, int]]  # a polynomial, as a key


class Assumptions(Intervals):
    """Ranges of symbols in the order they were bound, and facts.

    Derived assumptions and answers are memoised: every lowering pass visits the same loops again.
    """

    def __init__(
        self, ranges: Mapping[str, Range] | None = None, facts: tuple[Polynomial, ...] = ()
    ) -> None:
        super().__init__(ranges or {})
        self.facts = facts
        self._answers: dict[_Question, bool] = {}
        self._bound: dict[tuple[str, Range], Self] = {}
        self._assumed: dict[_Question, Self] = {}

    def bind(self, name: str, low: Dim | None, high: Dim | None) -> Self:
        """Add a symbol with its range, whose ends may mention symbols bound before."""
        key = name, Range(low, high)
        if key not in self._bound:
            self._bound[key] = type(self)({**self.ranges, name: key[1]}, self.facts)
        return self._bound[key]

    def with_fact(self, fact: Polynomial) -> Self:
        """Add the fact that the polynomial is at least 0."""
        key = frozenset(fact.items())
        if key not in self._assumed:
            self._assumed[key] = type(self)(self.ranges, (*self.facts, fact))
        return self._assumed[key]

    def proves(self, terms: Polynomial) -> bool:
        """Whether the polynomial is surely at least 0."""
        question = frozenset(terms.items())
        answer = self._answers.get(question)
        if answer is None:
            answer = self._answers[question] = super().proves(terms) or self._prover.holds(terms)
        return answer

    @cached_property
    def _prover(self) -> _Prover:
        return _Prover(self)

    def interval(self, terms: Polynomial, moving: Mapping[str, Range]) -> Range:
        """Bounds of the polynomial in which none of the `moving` symbols occurs."""
        low: Polynomial | None = {}
        high: Polynomial | None = {}
        for monomial, coefficient in terms.items():
            changing = [atom for atom in monomial if not atom.symbols.isdisjoint(moving)]
            fixed = {tuple([atom for atom in monomial if atom not in changing]): 1}
            if len(changing) > 1 or (changing and not self.proves(fixed)):
                return ANY
            inner = self._atom_interval(changing[0], moving) if changing else Range(1, 1)
            least, most = inner if coefficient > 0 else (inner.high, inner.low)
            low = _added(low, least, fixed, coefficient)
            high = _added(high, most, fixed, coefficient)
        return Range(
            None if low is None else index_expr(low), None if high is None else index_expr(high)
        )

    def _dim_interval(self, dim: Dim, moving: Mapping[str, Range]) -> Range:
        return self.interval(dict(terms_of(dim)), moving)

    def _atom_interval(self, atom: Atom, moving: Mapping[str, Range]) -> Range:
        if atom.kind is SYMBOL:
            low, high = moving[atom.name]
            return Range(
                None if low is None else self._dim_interval(low, moving).low,
                None if high is None else self._dim_interval(high, moving).high,
            )
        ranges = [self._dim_interval(argument, moving) for argument in atom.arguments]
        if atom.kind in ("floordiv", "mod"):
            divisor = atom.arguments[1]
            if not isinstance(divisor, int) or divisor <= 0:
                return ANY
            return self._division_interval(atom.kind, ranges[0], divisor)
        if atom.kind in ("min", "max"):
            lows, highs = zip(*ranges, strict=True)
            return Range(_combined(atom.kind, lows), _combined(atom.kind, highs))
        return hull(ranges)

    def _division_interval(self, kind: str, inner: Range, divisor: int) -> Range:
        if inner.low is None or inner.high is None:
            return Range(0, divisor - 1) if kind == "mod" else ANY
        count: Polynomial = {(): divisor}
        ends = [dict(terms_of(end)) for end in inner]
        first, last = (floor_divide(end, count, self) for end in ends)
        if kind == "floordiv":
            return Range(index_expr(first), index_expr(last))
        if self.proves(plus(first, last, -1)):  # all within one period
            return Range(*(index_expr(modulo(end, count, self)) for end in ends))
        return Range(0, divisor - 1)


def hull(ranges: list[Range]) -> Range:
    """The smallest range that holds all of them; of none, every integer."""
    lows, highs = zip(*(ranges or [ANY]), strict=True)
    return Range(_combined("min", lows), _combined("max", highs))


def _combined(function: str, dims: tuple[Dim | None, ...]) -> Dim | None:
    distinct = tuple(dict.fromkeys(dim for dim in dims if dim is not None))
    if None in dims:
        return None
    return distinct[0] if len(distinct) == 1 else index_expr({(call_atom(function, distinct),): 1})


def _added(
    total: Polynomial | None, bound: Dim | None, fixed: Polynomial, coefficient: int
) -> Polynomial | None:
    if total is None or bound is None:
        return None
    return plus(total, times(dict(terms_of(bound)), fixed), coefficient)


class _Prover:
    """Eliminates atoms, innermost first, by a bound that makes the sum smaller."""

    def __init__(self, assumptions: Assumptions) -> None:
        self._assumptions = assumptions
        self._order = {name: depth for depth, name in enumerate(assumptions.ranges)}
        self._ranks: dict[Atom, tuple[int, tuple[bool, str]]] = {}
        self._work = 0

    def holds(self, terms: Polynomial) -> bool:
        """Whether the polynomial is surely at least 0."""
        self._work = 0
        if self._at_least_zero(terms, MAX_STEPS):
            return True
        names = _symbols(terms)
        facts = [fact for fact in self._assumptions.facts if not names.isdisjoint(_symbols(fact))]
        multiples = ((fact, count) for fact in facts for count in _multiples(terms, fact))
        return any(
            self._at_least_zero(plus(terms, fact, -count), MAX_STEPS) for fact, count in multiples
        )

    def _at_least_zero(self, terms: Polynomial, steps: int) -> bool:
        value = constant_value(terms)
        if value is not None:
            return value >= 0
        self._work += 1
        if steps == 0 or self._work > MAX_WORK or len(terms) > MAX_TERMS:
            return False
        atom = max({atom for monomial in terms for atom in monomial}, key=self._rank)
        factor, rest = _factor_out(terms, atom)
        if any(atom in monomial for monomial in factor):
            return False
        sign = self._sign(factor, steps)
        return sign != 0 and self._eliminate(atom, factor, rest, sign > 0, steps - 1)

    def _rank(self, atom: Atom) -> tuple[int, tuple[bool, str]]:
        """Later bound is further inside; what contains a symbol goes before it."""
        rank = self._ranks.get(atom)
        if rank is None:
            depth = max((self._order.get(name, -1) for name in atom.symbols), default=-1)
            rank = self._ranks[atom] = depth, atom.key
        return rank

    def _sign(self, factor: Polynomial, steps: int) -> int:
        value = constant_value(factor)
        if value is not None:
            return 1 if value > 0 else -1
        if self._at_least_zero(factor, steps - 1):
            return 1
        return -1 if self._at_least_zero(plus({}, factor, -1), steps - 1) else 0

    def _eliminate(
        self, atom: Atom, factor: Polynomial, rest: Polynomial, positive: bool, steps: int
    ) -> bool:
        """Whether factor * atom + rest is at least 0, the factor's sign being known."""

        def with_value(value: Dim) -> bool:
            return self._at_least_zero(plus(rest, times(dict(terms_of(value)), factor)), steps)

        arguments = atom.arguments
        if atom.kind is SYMBOL:
            ends = self._assumptions.ranges.get(atom.name, ANY)
            bound = ends.low if positive else ends.high
            return bound is not None and with_value(bound)
        if atom.kind in ("min", "max"):
            choose = all if positive == (atom.kind == "min") else any
            return choose(map(with_value, arguments))
        if atom.kind is OPAQUE or atom.kind == "broadcast":
            return bool(arguments) and all(map(with_value, arguments))
        value, divisor = arguments
        if not isinstance(divisor, int) or divisor <= 0:
            natural = positive and self._at_least_zero(dict(terms_of(value)), steps)
            natural = natural and self._at_least_zero(dict(terms_of(divisor)), steps)
            return natural and with_value(0)
        if atom.kind == "mod":
            if positive:
                return with_value(0)
            small = self._at_least_zero(dict(terms_of(value)), steps) and with_value(value)
            return small or with_value(divisor - 1)
        end = self._assumptions.atom_bounds(atom)[0 if positive else 1]
        if not math.isinf(end) and with_value(int(end)):
            return True
        # Everything times the divisor: divisor * (x // divisor) is x - x % divisor.
        exact = plus(dict(terms_of(value)), {(call_atom("mod", arguments),): 1}, -1)
        return self._at_least_zero(plus(times(exact, factor), rest, divisor), steps)


def _multiples(terms: Polynomial, fact: Polynomial) -> set[int]:
    """How often a fact may be worth subtracting: once, or such that a monomial is gone."""
    shared = [one for one in terms.keys() & fact.keys() if one]
    return {1} | {terms[one] // fact[one] for one in shared if terms[one] // fact[one] > 1}


def _symbols(terms: Polynomial) -> frozenset[str]:
    return frozenset().union(*(atom.symbols for monomial in terms for atom in monomial))


def _factor_out(terms: Polynomial, atom: Atom) -> tuple[Polynomial, Polynomial]:
    """`terms == factor * atom + rest`."""
    factor: Polynomial = {}
    rest: Polynomial = {}
    for monomial, coefficient in terms.items():
        if atom in monomial:
            position = monomial.index(atom)
            factor[monomial[:position] + monomial[position + 1 :]] = coefficient
        else:
            rest[monomial] = coefficient
    return factor, rest

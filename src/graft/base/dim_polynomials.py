"""Integer polynomials over atoms: the algebra beneath symbolic dimensions.

Polynomials enter as dictionaries from monomials to coefficients; their quotients and the bounds
between which they must lie leave. Kept apart from `dims`, which decides what an extent looks like,
because nothing here depends on that.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from functools import reduce
from typing import Any, Final, NamedTuple, TypeAlias

Bounds: TypeAlias = tuple[int | None, int | None]  # for every binding; None is unbounded
Limits: TypeAlias = list[int | None]


class Atom(NamedTuple):
    """A symbol, or a call that could not be simplified.

    The first two fields tell atoms apart and sort them, symbols before calls, by plain tuple
    comparison; everything after follows from the text.
    """

    is_call: bool
    text: str
    name: str  # of the symbol or of the function
    arguments: tuple[Any, ...]  # dimensions; a symbol has none
    size: int
    bounds: Bounds


Monomial: TypeAlias = tuple[Atom, ...]  # sorted; a power is a repetition; () is the constant's
Terms: TypeAlias = tuple[tuple[Monomial, int], ...]
Polynomial: TypeAlias = dict[Monomial, int]


def order(monomial: Monomial) -> tuple[int, Monomial]:
    """Sorts the highest degree first, then by atoms: an order that multiplication respects."""
    return -len(monomial), monomial


def sole_atom(terms: Terms) -> Atom | None:
    """The atom that the sum consists of, if it is just one."""
    ((monomial, coefficient), *others) = terms
    return monomial[0] if len(monomial) == 1 and coefficient == 1 and not others else None


def only_floordiv(terms: Terms) -> Atom | None:
    """The one term of the sum that is a floor division by an integer, if just one is."""
    atoms = [atom for atom in map(sole_atom, ((term,) for term in terms)) if atom is not None]
    found = [atom for atom in atoms if atom.is_call and atom.name == "floordiv"]
    found = [atom for atom in found if isinstance(atom.arguments[1], int)]
    return found[0] if len(found) == 1 else None


def opposite_extremes(total: Polynomial) -> list[tuple[Atom, Atom, int]]:
    """Every max with every min that the sum adds to it, and how often it adds both."""
    pairs = []
    calls = [one for one in total if len(one) == 1 and len(one[0].arguments) == 2]
    for most in [one for one in calls if one[0].name == "max"]:
        for least in [one for one in calls if one[0].name == "min"]:
            if total[most] * total[least] > 0:
                count = min(total[most], total[least], key=abs)
                pairs.append((most[0], least[0], count))
    return pairs


def accumulate(
    total: Polynomial, coefficient: int, terms: Polynomial, factor: Monomial = ()
) -> Polynomial:
    """Add `coefficient * factor * terms` to `total`, which it changes and returns."""
    for monomial, count in terms.items():
        if factor:
            monomial = tuple(sorted(factor + monomial)) if monomial else factor
        total[monomial] = total.get(monomial, 0) + coefficient * count
    return total


def bounds_of(terms: Iterable[tuple[Monomial, int]]) -> Bounds:
    """Between which values the sum lies, whatever the symbols are."""
    low: int | None = 0
    high: int | None = 0
    for monomial, coefficient in terms:
        least, most = _monomial_bounds(monomial)
        if coefficient < 0:
            least, most = most, least
        low = None if low is None or least is None else low + coefficient * least
        high = None if high is None or most is None else high + coefficient * most
    return low, high


def _monomial_bounds(monomial: Monomial) -> Bounds:
    if len(monomial) == 1:
        return monomial[0].bounds
    low = 1
    high: int | None = 1
    for atom in monomial:
        least, most = atom.bounds
        if least is None or least < 0:
            return None, None
        low *= least
        high = None if high is None or most is None else high * most
    return low, high


def _every(choose: Callable[[list[int]], int], limits: Limits) -> int | None:
    """The choice among the limits, if all are there."""
    return None if None in limits else _some(choose, limits)


def _some(choose: Callable[[list[int]], int], limits: Limits) -> int | None:
    """The choice among the limits that are there."""
    known = [limit for limit in limits if limit is not None]
    return choose(known) if known else None


def _floordiv_bounds(lows: Limits, highs: Limits) -> Bounds:
    (low, least), (high, most) = lows, highs
    if least is not None and least == most and least > 0:
        return None if low is None else low // least, None if high is None else high // least
    natural = low is not None and low >= 0 and least is not None and least >= 0
    return (0, high) if natural else (None, None)


def _mod_bounds(lows: Limits, highs: Limits) -> Bounds:
    (low, least), (high, most) = lows, highs
    if least is None or least < 0:
        return None, None
    below_divisor = None if most is None else most - 1
    return 0, _some(min, [below_divisor, high if low is not None and low >= 0 else None])


_CALL_BOUNDS: Final[dict[str, Callable[[Limits, Limits], Bounds]]] = {
    "floordiv": _floordiv_bounds,
    "mod": _mod_bounds,
    "min": lambda lows, highs: (_every(min, lows), _some(min, highs)),
    "max": lambda lows, highs: (_some(max, lows), _every(max, highs)),
    "broadcast": lambda lows, highs: (_every(min, lows), _every(max, highs)),
}


def bounds_of_call(function: str, arguments: Sequence[Bounds]) -> Bounds:
    """Between which values the call lies, given the bounds of its arguments."""
    lows, highs = [low for low, _ in arguments], [high for _, high in arguments]
    return _CALL_BOUNDS[function](lows, highs)


class Division(NamedTuple):
    """a//b == quotient + rest//divisor and a%b == scale*(step*(rest % divisor) + remainder)."""

    quotient: Polynomial
    rest: Polynomial
    divisor: Polynomial
    scale: Polynomial
    step: int
    remainder: int


def divide(dividend: Polynomial, divisor: Polynomial) -> Division:
    """Cancel what both have in common, then take out of the dividend what the divisor divides.

    Sound wherever the divisor is not zero.
    """
    if not any(divisor.values()):
        raise ZeroDivisionError("a dimension is divided by zero")
    factor, content = _shared_factor(dividend, divisor)
    rest, divisor = _reduced(dividend, factor, content), _reduced(divisor, factor, content)
    scale = {factor: content}
    if len(divisor) > 1:
        exact = _exact_quotient(rest, divisor)
        if exact is None:
            return Division({}, rest, divisor, scale, 1, 0)
        return Division(exact, {}, divisor, scale, 1, 0)
    quotient, rest = _split(rest, divisor)
    if () not in divisor:
        return Division(quotient, rest, divisor, scale, 1, 0)
    # (s*x + r)//(s*k) == (x + r//s)//k, and (s*x + r)%(s*k) == s*((x + r//s)%k) + r%s
    constant = rest.pop((), 0)
    step = math.gcd(divisor[()], *rest.values())
    rest = {monomial: coefficient // step for monomial, coefficient in rest.items()}
    rest[()], remainder = divmod(constant, step)
    return Division(quotient, rest, {(): divisor[()] // step}, scale, step, remainder)


def _shared_factor(dividend: Polynomial, divisor: Polynomial) -> tuple[Monomial, int]:
    """What cancels: common atoms and integer, signed so that the divisor's lead is positive."""
    monomials = [monomial for monomial in dividend if dividend[monomial]] + list(divisor)
    content = math.gcd(*dividend.values(), *divisor.values())
    lead = divisor[min(divisor, key=order)]
    return reduce(_common, monomials), content if lead > 0 else -content


def _common(left: Monomial, right: Monomial) -> Monomial:
    rest, shared = list(right), []
    for atom in left:
        if atom in rest:
            rest.remove(atom)
            shared.append(atom)
    return tuple(shared)


def _reduced(polynomial: Polynomial, factor: Monomial, content: int) -> Polynomial:
    return {
        _without(monomial, factor) or (): coefficient // content
        for monomial, coefficient in polynomial.items()
        if coefficient
    }


def _without(monomial: Monomial, factor: Monomial) -> Monomial | None:
    """The monomial divided by `factor`, where that is exact."""
    rest = list(monomial)
    for atom in factor:
        if atom not in rest:
            return None
        rest.remove(atom)
    return tuple(rest)


def _split(dividend: Polynomial, divisor: Polynomial) -> tuple[Polynomial, Polynomial]:
    """Quotient and rest by a single term, taking out of each coefficient what goes in whole."""
    ((factor, count),) = divisor.items()
    quotient, rest = {}, {}
    for monomial, coefficient in dividend.items():
        partner = _without(monomial, factor)
        if partner is None:
            rest[monomial] = coefficient
        else:
            quotient[partner], rest[monomial] = divmod(coefficient, count)
    return quotient, rest


def _exact_quotient(dividend: Polynomial, divisor: Polynomial) -> Polynomial | None:
    """Long division by several terms; None unless it comes out even."""
    lead = min(divisor, key=order)
    quotient: Polynomial = {}
    rest = dict(dividend)
    # Division that does not come out even can go on for as many steps as there are monomials.
    patience = 2 * len(dividend)
    while rest and len(quotient) < patience:
        top = min(rest, key=order)
        partner = _without(top, lead)
        count, remainder = divmod(rest[top], divisor[lead])
        if partner is None or remainder:
            return None
        quotient[partner] = count
        accumulate(rest, -count, divisor, partner)
        rest = {monomial: coefficient for monomial, coefficient in rest.items() if coefficient}
    return None if rest else quotient

"""Between which integers index expressions lie, by interval arithmetic.

Ranges of symbols and a polynomial enter; its least and its largest value leave, infinite where
there is no limit. It takes linear time and attempts no proofs; `assumptions` builds on it and
proves more.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, NamedTuple, TypeAlias

from graft.base.polynomials import OPAQUE, SYMBOL, Atom, Monomial, Polynomial, terms_of

Bounds: TypeAlias = tuple[float, float]  # integers, or infinite
Limits: TypeAlias = list[float]
UNBOUNDED: Final[Bounds] = (-math.inf, math.inf)
_MOST_REMEMBERED: Final = 1 << 16


class Range(NamedTuple):
    """Inclusive bounds, as dims; None is unbounded."""

    low: Any
    high: Any


ANY, NATURAL_NUMBERS = Range(None, None), Range(0, None)


class Intervals:
    """Interval arithmetic over symbols: the range of each, and one range for all others."""

    def __init__(self, ranges: Mapping[str, Range], others: Range = ANY) -> None:
        self.ranges = ranges
        self.others = others
        self._bounds: dict[Atom, Bounds] = {}

    def bounds(self, terms: Polynomial) -> Bounds:
        """The least and the largest value of the polynomial."""
        low: float = 0
        high: float = 0
        try:
            for monomial, coefficient in terms.items():
                least, most = self._monomial_bounds(monomial)
                if coefficient < 0:
                    least, most = most, least
                low += coefficient * least
                high += coefficient * most
        except OverflowError:  # a number that is too large to be compared with infinity
            return UNBOUNDED
        return low, high

    def proves(self, terms: Polynomial) -> bool:
        """Whether the polynomial is surely at least 0; False is "not seen to be"."""
        return self.bounds(terms)[0] >= 0

    def atom_bounds(self, atom: Atom) -> Bounds:
        """The least and the largest value of one atom."""
        bounds = self._bounds.get(atom)
        if bounds is None:
            if len(self._bounds) > _MOST_REMEMBERED:
                self._bounds.clear()
            self._bounds[atom] = UNBOUNDED  # for a symbol whose range leads back to itself
            bounds = self._bounds[atom] = self._compute(atom)
        return bounds

    def _compute(self, atom: Atom) -> Bounds:
        if atom.kind is not SYMBOL:
            return bounds_of_call(atom.kind, [self._of_dim(one) for one in atom.arguments])
        ends = self.ranges.get(atom.name, self.others)
        low = -math.inf if ends.low is None else self._of_dim(ends.low)[0]
        return low, math.inf if ends.high is None else self._of_dim(ends.high)[1]

    def _of_dim(self, dim: Any) -> Bounds:
        return (dim, dim) if isinstance(dim, int) else self.bounds(dict(terms_of(dim)))

    def _monomial_bounds(self, monomial: Monomial) -> Bounds:
        if len(monomial) == 1:
            return self.atom_bounds(monomial[0])
        bounds: Bounds = (1, 1)
        for atom in monomial:
            bounds = _times(bounds, self.atom_bounds(atom))
        return bounds


NATURAL: Final = Intervals({}, NATURAL_NUMBERS)  # every symbol is some integer >= 0


def _times(one: Bounds, other: Bounds) -> Bounds:
    corners = [0 if 0 in (a, b) else a * b for a in one for b in other]
    return min(corners), max(corners)


def _floordiv_bounds(lows: Limits, highs: Limits) -> Bounds:
    (low, divisor), (high, most) = lows, highs
    if divisor == most and divisor > 0:
        return _floor(low, divisor), _floor(high, divisor)
    return (0, high) if low >= 0 and divisor >= 0 else UNBOUNDED


def _floor(value: float, divisor: float) -> float:
    return value if math.isinf(value) else value // divisor


def _mod_bounds(lows: Limits, highs: Limits) -> Bounds:
    (low, least), (high, most) = lows, highs
    if least < 0:
        return UNBOUNDED
    largest = max(most - 1, 0)  # what is left of a division by zero is zero
    return 0, min(largest, high) if low >= 0 else largest


def _one_of(lows: Limits, highs: Limits) -> Bounds:
    return (min(lows), max(highs)) if lows else UNBOUNDED


_CALL_BOUNDS: Final[dict[str, Callable[[Limits, Limits], Bounds]]] = {
    "floordiv": _floordiv_bounds,
    "mod": _mod_bounds,
    "min": lambda lows, highs: (min(lows), min(highs)),
    "max": lambda lows, highs: (max(lows), max(highs)),
    "broadcast": _one_of,
    OPAQUE: _one_of,
}


def bounds_of_call(function: str, arguments: Sequence[Bounds]) -> Bounds:
    """Bounds of a call from the bounds of its arguments."""
    lows, highs = [low for low, _ in arguments], [high for _, high in arguments]
    return _CALL_BOUNDS[function](lows, highs)

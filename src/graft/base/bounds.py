"""Between which integers index expressions lie, by interval arithmetic.

Ranges of symbols and a polynomial enter; its least and its largest value leave, None where there is
no limit. The time is linear, since nothing is asked on the way; `assumptions` builds on it and
proves more.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, NamedTuple, TypeAlias

from graft.base.polynomials import OPAQUE, SYMBOL, Atom, Monomial, Polynomial, terms_of

Bounds: TypeAlias = tuple[int | None, int | None]  # None is unbounded
Limits: TypeAlias = list[int | None]
UNBOUNDED: Final[Bounds] = (None, None)
_MOST_REMEMBERED: Final = 1 << 16


class Range(NamedTuple):
    """Inclusive bounds, as dims; None is unbounded."""

    low: Any
    high: Any


ANY, NATURAL_NUMBERS = Range(None, None), Range(0, None)


class Intervals:
    """What is known of symbols: the range of each, and of those of which nothing was said."""

    def __init__(self, ranges: Mapping[str, Range], others: Range = ANY) -> None:
        self.ranges = ranges
        self.others = others
        self._bounds: dict[Atom, Bounds] = {}

    def bounds(self, terms: Polynomial) -> Bounds:
        """The least and the largest value of the polynomial."""
        low: int | None = 0
        high: int | None = 0
        for monomial, coefficient in terms.items():
            least, most = self._monomial_bounds(monomial)
            if coefficient < 0:
                least, most = most, least
            low = None if low is None or least is None else low + coefficient * least
            high = None if high is None or most is None else high + coefficient * most
            if low is None and high is None:
                break
        return low, high

    def proves(self, terms: Polynomial) -> bool:
        """Whether the polynomial is surely at least 0; False is "not seen to be"."""
        low = self.bounds(terms)[0]
        return low is not None and low >= 0

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
        return (
            None if ends.low is None else self._of_dim(ends.low)[0],
            None if ends.high is None else self._of_dim(ends.high)[1],
        )

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
    (low, high), (least, most) = one, other
    if low is not None and low >= 0 and least is not None and least >= 0:
        return low * least, None if high is None or most is None else high * most
    try:
        corners = [0 if 0 in (a, b) else a * b for a in _infinite(one) for b in _infinite(other)]
    except OverflowError:  # a number too large to be compared with infinity
        return UNBOUNDED
    return _finite(min(corners)), _finite(max(corners))


def _infinite(bounds: Bounds) -> tuple[float, float]:
    low, high = bounds
    return -math.inf if low is None else low, math.inf if high is None else high


def _finite(value: float) -> int | None:
    return None if math.isinf(value) else int(value)


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
    return (0, high) if natural else UNBOUNDED


def _mod_bounds(lows: Limits, highs: Limits) -> Bounds:
    (low, least), (high, most) = lows, highs
    if least is None or least < 0:
        return UNBOUNDED
    below_divisor = None if most is None else most - 1
    return 0, _some(min, [below_divisor, high if low is not None and low >= 0 else None])


def _one_of(lows: Limits, highs: Limits) -> Bounds:
    return _every(min, lows), _every(max, highs)


_CALL_BOUNDS: Final[dict[str, Callable[[Limits, Limits], Bounds]]] = {
    "floordiv": _floordiv_bounds,
    "mod": _mod_bounds,
    "min": lambda lows, highs: (_every(min, lows), _some(min, highs)),
    "max": lambda lows, highs: (_some(max, lows), _every(max, highs)),
    "broadcast": _one_of,
    OPAQUE: _one_of,
}


def bounds_of_call(function: str, arguments: Sequence[Bounds]) -> Bounds:
    """Between which values the call lies, given the bounds of its arguments."""
    lows, highs = [low for low, _ in arguments], [high for _, high in arguments]
    return _CALL_BOUNDS[function](lows, highs)

"""Constant bounds of index expressions, by plain interval arithmetic.

An expression and the ranges of variables enter; two numbers between which it always lies leave,
infinite where nothing is known. Cruder than the reasoning in `ranges`, which builds on it, but its
time is linear: it never asks a question of its own.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

from graft.loop.affine import polynomial
from graft.loop.ir import Binary, BinaryKind, Broadcast, Const, Expr, Ramp, Select, Var

Bounds = tuple[float, float]  # integers, or infinite
UNBOUNDED: Bounds = (-math.inf, math.inf)


class NumericBounds:
    """Bounds under fixed ranges of variables; remembers what it has seen."""

    def __init__(self, ranges: Mapping[str, tuple[Expr | None, Expr | None]]) -> None:
        self._ranges = ranges
        self._known: dict[Expr, Bounds] = {}

    def of(self, expr: Expr) -> Bounds:
        """The least and the largest value."""
        if expr not in self._known:
            self._known[expr] = UNBOUNDED  # for a variable whose range leads back to itself
            self._known[expr] = self._compute(expr)
        return self._known[expr]

    def _compute(self, expr: Expr) -> Bounds:
        terms = polynomial(expr)
        if terms != {(expr,): 1}:
            low, high = 0.0, 0.0
            for monomial, count in terms.items():
                bounds: Bounds = (count, count)
                for atom in monomial:
                    bounds = _times(bounds, self.of(atom))
                low, high = low + bounds[0], high + bounds[1]
            return low, high
        match expr:
            case Var():
                least, most = self._ranges.get(expr.name, (None, None))
                low = -math.inf if least is None else self.of(least)[0]
                return low, math.inf if most is None else self.of(most)[1]
            case Binary(BinaryKind.FLOOR_DIVIDE, value, Const(value=int(divisor))) if divisor > 0:
                low, high = self.of(value)
                return _floor(low, divisor), _floor(high, divisor)
            case Binary(BinaryKind.FLOOR_MODULO, _, Const(value=int(divisor))) if divisor > 0:
                return 0, divisor - 1
            case Binary(BinaryKind.MINIMUM | BinaryKind.MAXIMUM as kind, left, right):
                choose = min if kind is BinaryKind.MINIMUM else max
                one, other = self.of(left), self.of(right)
                return choose(one[0], other[0]), choose(one[1], other[1])
            case Broadcast(value):
                return self.of(value)
            case Ramp(base, stride, lanes):
                (low, high), last = self.of(base), stride * (lanes - 1)
                return low + min(0, last), high + max(0, last)
            case Select(yes=yes, no=no):
                one, other = self.of(yes), self.of(no)
                return min(one[0], other[0]), max(one[1], other[1])
            case _:
                return UNBOUNDED


def _floor(value: float, divisor: int) -> float:
    return value if math.isinf(value) else int(value) // divisor


def _times(one: Bounds, other: Bounds) -> Bounds:
    corners = [0 if 0 in (a, b) else a * b for a in one for b in other]
    return min(corners), max(corners)

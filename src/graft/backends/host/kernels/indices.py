"""Indices of data movement: where along an axis a result element comes from.

An `Index` is what one index of a load is made of while it is traced from a result back to memory:
its expression, how far lanes lie apart, which numbers it can be, and whether it still is a
coordinate of the result, shifted. Knowing the range decides at compile time which operand of a
concatenation, or which side of a padding's edge, an element belongs to.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from graft.backends.host.point import plus, times
from graft.loop.ir import Binary, BinaryKind, Const, Expr, Ramp


class NotInVectorsError(Exception):
    """Lanes would not be evenly spaced; element by element it can be done."""


@dataclass(frozen=True, slots=True)
class Index:
    """An index along some axis; numbers from `low` to `high`."""

    base: Expr
    low: int
    high: int
    stride: int = 0  # between lanes; 0: all lanes are at the same index
    axis: int | None = None  # the result's coordinate that this is, but for `shift`
    shift: int = 0

    def expr(self, lanes: int) -> Expr:
        """The index as loads have it."""
        return Ramp(self.base, self.stride, lanes) if self.stride else self.base

    def moved(self, distance: int) -> Index:
        """Further on by a constant."""
        return replace(
            self,
            base=plus(self.base, distance),
            low=self.low + distance,
            high=self.high + distance,
            shift=self.shift + distance,
        )

    def scaled(self, factor: int) -> Index:
        """Times a constant."""
        if factor == 1:
            return self
        ends = sorted((self.low * factor, self.high * factor))
        return Index(times(self.base, factor), ends[0], ends[1], self.stride * factor)

    def added(self, other: Index) -> Index:
        """A sum, of which at most one side has lanes."""
        if other == ZERO or self == ZERO:
            return self if other == ZERO else other
        if self.stride and other.stride:
            raise NotInVectorsError
        base = plus(self.base, other.base)
        return Index(base, self.low + other.low, self.high + other.high, self.stride + other.stride)

    def over(self, divisor: int, lanes: int) -> Index:
        """The quotient, rounded down."""
        low, high = self.low // divisor, self.high // divisor
        if low == high:
            return constant(low)
        self._check_blocks(divisor, lanes)
        return Index(Binary(BinaryKind.FLOOR_DIVIDE, self.base, Const(divisor)), low, high)

    def modulo(self, divisor: int, lanes: int) -> Index:
        """The remainder."""
        block = self.low // divisor
        if block == self.high // divisor:
            return self.moved(-block * divisor)
        self._check_blocks(divisor, lanes)
        base = Binary(BinaryKind.FLOOR_MODULO, self.base, Const(divisor))
        return Index(base, 0, divisor - 1, self.stride)

    def _check_blocks(self, divisor: int, lanes: int) -> None:
        """Lanes have to stay within one block of `divisor` elements."""
        whole = self.stride == 1 and divisor % lanes == 0 and _divides(lanes, self.base)
        if self.stride and not whole:
            raise NotInVectorsError


def constant(value: int) -> Index:
    """An index that is always the same."""
    return Index(Const(value), value, value)


ZERO = constant(0)


def _divides(divisor: int, expr: Expr) -> bool:
    """Whether an index is a multiple of a number, as far as can be seen."""
    match expr:
        case Const():
            return int(expr.value) % divisor == 0
        case Binary(kind=BinaryKind.MULTIPLY):
            return _divides(divisor, expr.left) or _divides(divisor, expr.right)
        case Binary(kind=BinaryKind.ADD):
            return _divides(divisor, expr.left) and _divides(divisor, expr.right)
    return False


def reshaped(
    at: Sequence[Index], shape: tuple[int, ...], source: tuple[int, ...], lanes: int
) -> tuple[Index, ...]:
    """Where the element at `at` of a tensor of `shape` lies in the same data of shape `source`."""
    found: list[Index] = []
    for axes, sources in _factors(shape, source):
        flat = ZERO
        for axis in axes:
            inner = math.prod(shape[later] for later in axes if later > axis)
            flat = flat.added(at[axis].scaled(inner))
        for position, axis in enumerate(sources):
            inner = math.prod(source[later] for later in sources[position + 1 :])
            index = flat.over(inner, lanes) if inner > 1 else flat
            found.append(index.modulo(source[axis], lanes) if position else index)
    return tuple(found)


def _factors(
    shape: tuple[int, ...], source: tuple[int, ...]
) -> Iterator[tuple[list[int], list[int]]]:
    """Smallest groups of axes on both sides that have equally many elements."""
    left, right = 0, 0
    while left < len(shape) or right < len(source):
        axes: list[int] = []
        sources: list[int] = []
        here = there = 1
        while not (axes or sources) or here != there:
            if (here <= there and left < len(shape)) or right == len(source):
                axes.append(left)
                here *= shape[left]
                left += 1
            else:
                sources.append(right)
                there *= source[right]
                right += 1
        while here == there and left < len(shape) and shape[left] == 1:
            axes.append(left)
            left += 1
        while here == there and right < len(source) and source[right] == 1:
            sources.append(right)
            right += 1
        yield axes, sources

"""Sampling at positions that are data, and grids of such positions.

They are the formulas of `ops/grid`: positions are normalised, and what lies outside is zero, the
nearest element or a mirrored one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import reduce
from typing import Any

from graft.base.dims import AnyDim
from graft.base.dtypes import DType, dtype_of
from graft.loop.build import Term, call, cast, equal, maximum, minimum, select, term
from graft.loop.ir import INDEX
from graft.loop.tensor import Reduce, Tensor, sum_
from graft.ops.expression.registry import Inputs, Results, Types, Unexpressed, expresses
from graft.ops.expression.resizing import saturated
from graft.ops.expression.shapes import (
    by_index,
    extents_of,
    number,
    present,
    read,
    reduce_axes,
    sizes,
)
from graft.ops.grid import CUBIC_ALPHA, FAR, TAPS
from graft.ops.resize import working_dtype


@dataclass(frozen=True)
class _Axis:
    """One axis that is sampled along: its extent and where its edges lie."""

    extent: AnyDim
    align_corners: bool
    dtype: DType

    @property
    def size(self) -> Term:
        return cast(self.dtype, self.extent)

    @property
    def edges(self) -> tuple[Term, Term]:
        half = 0.0 if self.align_corners else 0.5
        return number(-half, self.dtype), self.size - (1.0 - half)

    def position(self, normalized: Term) -> Term:
        """Where a normalised coordinate lies, counted in elements."""
        if self.align_corners:
            at = (normalized + 1.0) / 2.0 * (self.size - 1.0)
        else:
            at = ((normalized + 1.0) * self.size - 1.0) / 2.0
        at = select(call("isnan", at), number(-FAR, self.dtype), at)
        return minimum(maximum(at, -FAR), FAR)

    def reflected(self, at: Term) -> Term:
        """The position mirrored at the edges until it lies between them."""
        low, high = self.edges
        span = high - low
        beyond = select(at < low, low - at, at - high)
        turns = call("floor", beyond / span)
        rest = beyond - turns * span
        is_even = equal(turns, call("floor", turns / 2.0) * 2.0)
        from_low = ((at < low) ^ is_even) ^ True
        mirrored = select(from_low, low + rest, high - rest)
        found = select((at >= low) & (at <= high), at, mirrored)
        return select(equal(span, 0.0), low, found)

    def padded(self, at: Term, mode: str) -> Term:
        """A position brought back from outside the edges where the padding says so."""
        low, high = self.edges
        if mode == "reflection":
            return self.reflected(at)
        if mode == "border":
            kept = minimum(maximum(at, 0.0), self.size - 1.0)
            return select((at < low) | (at > high), kept, at)
        return at

    def element(self, at: Term, mode: str) -> Term:
        """The element at a whole position; -1 where there is none."""
        if mode == "reflection":
            at = self.reflected(at)
        found = cast(INDEX, minimum(maximum(at, 0.0), self.size - 1.0))
        inside = (at >= 0.0) & (at < self.size)
        return select(inside, found, number(-1, INDEX)) if mode == "zeros" else found


@dataclass(frozen=True)
class _Neighbours:
    """The elements around every position along one axis, and what each counts: tensors [batch,
    positions, neighbours], so that all channels share what it takes to find them."""

    places: Tensor
    weights: Tensor


def _neighbours(attrs: Any, axis: _Axis, grid: Tensor, coordinate: int, name: str) -> _Neighbours:
    mode, outer = attrs.padding_mode, grid.shape[:-1]

    def position(*at: Term) -> Term:
        found = axis.position(cast(axis.dtype, read(grid, [*at, coordinate])))
        if attrs.method == "nearest":
            return call("trunc", axis.padded(call("round", found), mode))
        # Of cubic interpolation the neighbours are padded, not the position.
        return axis.padded(found, mode) if attrs.method == "linear" else found

    positions = by_index(f"{name}_at", outer, position)

    def place(*at: Term) -> Term:
        *where, tap = at
        first = cast(axis.dtype, tap) - (1.0 if attrs.method == "cubic" else 0.0)
        return axis.element(call("floor", read(positions, where)) + first, mode)

    def weight(*at: Term) -> Term:
        *where, tap = at
        found = read(positions, where)
        return _weight(attrs.method, found - call("floor", found), cast(axis.dtype, tap))

    shape = [*outer, TAPS[attrs.method]]
    return _Neighbours(
        by_index(f"{name}_place", shape, place), by_index(f"{name}_weight", shape, weight)
    )


def _weight(method: str, fraction: Term, tap: Term) -> Term:
    """What a neighbour counts for a position that is a fraction past one of them."""
    if method == "nearest":
        return number(1, fraction.dtype)
    if method == "linear":
        return select(equal(tap, 0.0), 1.0 - fraction, fraction)
    a, distance = CUBIC_ALPHA, call("abs", fraction + 1.0 - tap)
    near = ((a + 2) * distance - (a + 3)) * distance * distance + 1.0
    far = ((a * distance - 5 * a) * distance + 8 * a) * distance - 4 * a
    return select(distance < 1.0, near, far)


@expresses("grid_sample")
def grid_sample(attrs: Any, inputs: Inputs, types: Types, name: str) -> Results:
    """The element next to a position, or a weighted sum of those around it."""
    data, grid = map(present, inputs)
    dtype, extents, shape = types[0].dtype, sizes(data)[2:], extents_of(types[0])
    if 0 in extents:
        return Unexpressed("there is nothing to sample in an empty tensor")
    wide = dtype_of(working_dtype(dtype.numpy))
    exact = DType.FLOAT64 if grid.dtype is DType.FLOAT64 else DType.FLOAT32
    axes = [_Axis(extent, attrs.align_corners, exact) for extent in extents]
    around = [
        _neighbours(attrs, axis, grid, len(axes) - 1 - at, f"{name}_axis{at}")
        for at, axis in enumerate(axes)
    ]

    def value(batch: Term, channel: Term, at: Sequence[Term], taps: Sequence[Term]) -> Term:
        pairs = zip(around, taps, strict=True)
        places = [read(one.places, [batch, *at, tap]) for one, tap in pairs]
        bounded = (
            maximum(minimum(place, term(extent) - 1), 0)
            for place, extent in zip(places, extents, strict=True)
        )
        found = read(data, [batch, channel, *bounded])
        if attrs.padding_mode != "zeros":
            return found
        exists = reduce(lambda a, b: a & b, (place >= 0 for place in places))
        return select(exists, found, number(0, dtype))

    def weighted(batch: Term, channel: Term, *at: Term) -> Reduce:
        taps = reduce_axes([TAPS[attrs.method]] * len(extents))
        pairs = zip(around, taps, strict=True)
        weights = (read(one.weights, [batch, *at, tap]) for one, tap in pairs)
        weight = cast(wide, reduce(lambda a, b: a * b, weights))
        return sum_(cast(wide, value(batch, channel, at, taps)) * weight, taps)

    if attrs.method == "nearest":
        first = [term(0)] * len(extents)
        return (by_index(name, shape, lambda b, c, *at: value(b, c, at, first)),)
    total = by_index(f"{name}_sum", shape, weighted)
    return (by_index(name, shape, lambda *at: _in_dtype(read(total, at), dtype)),)


def _in_dtype(total: Term, dtype: DType) -> Term:
    """A sum as an element; integers lose what is behind the point."""
    return saturated(call("trunc", total) if dtype.is_integer else total, dtype)


@expresses("affine_grid")
def affine_grid(attrs: Any, inputs: Inputs, types: Types, name: str) -> Results:
    """Matrices times the positions of an image's elements."""
    theta = present(inputs[0])
    shape = extents_of(types[0])
    extents, wide = shape[1:-1], dtype_of(working_dtype(types[0].dtype.numpy))

    def element(batch: Term, *rest: Term) -> Term:
        *place, row = rest
        total = _entry(theta, [batch, row, len(extents)], wide)
        for axis, (index, extent) in enumerate(zip(place, extents, strict=True)):
            steps = cast(_EXACT, index * 2 - (term(extent) - 1))
            count = term(extent) - 1 if attrs.align_corners else term(extent)
            at = cast(wide, steps / cast(_EXACT, maximum(count, 1)))
            total = total + at * _entry(theta, [batch, row, len(extents) - 1 - axis], wide)
        return cast(types[0].dtype, total)

    return (by_index(name, shape, element),)


_EXACT = DType.FLOAT64


def _entry(theta: Tensor, at: list[Any], wide: DType) -> Term:
    return cast(wide, read(theta, at))

"""Sampling at positions that are data, and grids of such positions.

They are the formulas of `ops/grid`: positions are normalised, and what lies outside is zero, the
nearest element or a mirrored one.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import reduce
from itertools import product
from typing import Any

from graft.base.dims import AnyDim
from graft.base.dtypes import DType, dtype_of
from graft.loop.build import Term, call, cast, equal, maximum, minimum, select, term
from graft.loop.ir import INDEX
from graft.loop.tensor import Tensor
from graft.ops.expression.registry import Inputs, Results, Types, Unexpressed, expresses
from graft.ops.expression.resizing import saturated
from graft.ops.expression.shapes import by_index, extents_of, number, present, read, sizes
from graft.ops.grid import CUBIC_ALPHA, FAR
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

    def element(self, at: Term, mode: str) -> tuple[Term, Term | None]:
        """The element at a whole position, and whether it is one of the operand's."""
        if mode == "reflection":
            at = self.reflected(at)
        inside = (at >= 0.0) & (at < self.size)
        found = minimum(maximum(at, 0.0), self.size - 1.0)
        return cast(INDEX, found), inside if mode == "zeros" else None


_Tap = tuple[Term, Term | None, Term]


def _taps(attrs: Any, axis: _Axis, normalized: Term) -> list[_Tap]:
    """The neighbours of a position along one axis: element, whether it exists, weight."""
    at, mode = axis.position(normalized), attrs.padding_mode
    if attrs.method == "nearest":
        near = call("trunc", axis.padded(call("round", at), mode))
        return [(*axis.element(near, mode), number(1, axis.dtype))]
    if attrs.method == "linear":
        at = axis.padded(at, mode)
    base = call("floor", at)
    fraction = at - base
    first, weights = 0, [1.0 - fraction, fraction]
    if attrs.method == "cubic":  # the neighbours are padded, not the position
        first, weights = -1, _cubic_weights(fraction)
    return [
        (*axis.element(base + float(first + n), mode), weight) for n, weight in enumerate(weights)
    ]


def _cubic_weights(fraction: Term) -> list[Term]:
    a = CUBIC_ALPHA
    near = [((a + 2) * d - (a + 3)) * d * d + 1.0 for d in (fraction, 1.0 - fraction)]
    ends = (fraction + 1.0, 2.0 - fraction)
    far = [((a * d - 5 * a) * d + 8 * a) * d - 4 * a for d in ends]
    return [far[0], *near, far[1]]


@expresses("grid_sample")
def grid_sample(attrs: Any, inputs: Inputs, types: Types, name: str) -> Results:
    """The element next to a position, or a weighted sum of those around it."""
    data, grid = map(present, inputs)
    dtype, extents = types[0].dtype, sizes(data)[2:]
    if 0 in extents:
        return Unexpressed("there is nothing to sample in an empty tensor")
    wide = dtype_of(working_dtype(dtype.numpy))
    exact = DType.FLOAT64 if grid.dtype is DType.FLOAT64 else DType.FLOAT32
    zero = number(0, dtype if attrs.method == "nearest" else wide)

    def element(batch: Term, channel: Term, *place: Term) -> Term:
        def along(axis: int) -> list[_Tap]:
            last = len(extents) - 1 - axis
            normalized = cast(exact, read(grid, [batch, *place, last]))
            return _taps(attrs, _Axis(extents[axis], attrs.align_corners, exact), normalized)

        total: Term | None = None
        for corner in product(*map(along, range(len(extents)))):
            found = cast(zero.dtype, read(data, [batch, channel, *(tap[0] for tap in corner)]))
            tests = [tap[1] for tap in corner if tap[1] is not None]
            if tests:
                found = select(reduce(lambda a, b: a & b, tests), found, zero)
            if attrs.method == "nearest":
                return found
            weight = cast(wide, reduce(lambda a, b: a * b, (tap[2] for tap in corner)))
            total = found * weight if total is None else total + found * weight
        assert total is not None
        return saturated(call("trunc", total) if dtype.is_integer else total, dtype)

    return (by_index(name, extents_of(types[0]), element),)


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

"""Sampling a tensor at positions that another tensor gives, and the grids of such positions.

Positions are normalised: along each axis -1 and 1 are the operand's edges. A grid's last axis lists
the innermost coordinate first.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import reduce
from typing import Any

import numpy as np

from graft.base.capacity import check_extents
from graft.base.dims import UNKNOWN, AnyDim
from graft.base.dtypes import Array, DType, dtype_of
from graft.ir.attrs import Attrs, Dims
from graft.ir.op import Work, traffic
from graft.ir.types import TensorType
from graft.loop.build import Term, call, cast, equal, maximum, minimum, select, term
from graft.loop.evaluate_expr import evaluate_arrays
from graft.loop.ir import INDEX, Var
from graft.loop.tensor import Reduce, Tensor, sum_
from graft.ops import expression as te
from graft.ops.resize import saturated, to_dtype, working_dtype
from graft.ops.resize_axis import cubic_weight
from graft.ops.rules import (
    operator,
    require,
    require_same_dim,
    unknown_shape,
)

CUBIC_ALPHA = -0.75
TAPS = {"nearest": 1, "linear": 2, "cubic": 4}
_PADDINGS = ("zeros", "border", "reflection")
# Farther out than this a position is only outside; an integer can still hold it.
FAR = float(1 << 30)

# A neighbour of each position along one axis: the element, -1 where there is none; its weight.
_Tap = tuple[Array, Array]


@dataclass(frozen=True, slots=True)
class GridSampleAttrs(Attrs):
    method: str = "linear"
    padding_mode: str = "zeros"
    align_corners: bool = False


def _grid_sample_type(attrs: GridSampleAttrs, data: TensorType, grid: TensorType) -> TensorType:
    for what, value, known in (
        ("method", attrs.method, TAPS),
        ("padding", attrs.padding_mode, _PADDINGS),
    ):
        require(value in known, f"the {what} '{value}' is none of {', '.join(known)}")
    require(grid.dtype.is_float, f"the grid is {grid.dtype}, not floating-point")
    copies = attrs.method == "nearest"
    require(copies or data.dtype.is_number, f"{data.dtype} elements cannot be interpolated")
    if data.shape is None and grid.shape is None:
        return TensorType(data.dtype, None)
    rank = len((grid.shape if data.shape is None else data.shape) or ())
    shape = unknown_shape(rank) if data.shape is None else data.shape
    positions = unknown_shape(rank) if grid.shape is None else grid.shape
    require(rank >= 3, f"data of rank {rank} have no axis to sample along")
    require(len(positions) == rank, f"the data have rank {rank}, the grid {len(positions)}")
    require_same_dim(positions[-1], rank - 2, "the coordinates per position and the axes")
    require_same_dim(shape[0], positions[0], "the batch sizes")
    batch = positions[0] if shape[0] is UNKNOWN else shape[0]
    return TensorType(data.dtype, (batch, shape[1], *positions[1:-1]))


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
        return te.number(-half, self.dtype), self.size - (1.0 - half)

    def position(self, normalized: Term) -> Term:
        """Where a normalised coordinate lies, counted in elements."""
        if self.align_corners:
            at = (normalized + 1.0) / 2.0 * (self.size - 1.0)
        else:
            at = ((normalized + 1.0) * self.size - 1.0) / 2.0
        at = select(call("isnan", at), te.number(-FAR, self.dtype), at)
        return minimum(maximum(at, -FAR), FAR)

    def reflected(self, at: Term) -> Term:
        """The position mirrored at the edges until it lies between them."""
        low, high = self.edges
        span = high - low
        beyond = select(at < low, low - at, at - high)
        laps = call("floor", beyond / span)
        rest = beyond - laps * span
        is_even = equal(laps, call("floor", laps / 2.0) * 2.0)
        from_low = ((at < low) ^ is_even) ^ True
        mirrored = select(from_low, low + rest, high - rest)
        result = select((at >= low) & (at <= high), at, mirrored)
        return select(equal(span, 0.0), low, result)

    def padded(self, at: Term, mode: str) -> Term:
        """A position outside of the edges mapped back inside, as the padding mode requires."""
        low, high = self.edges
        if mode == "reflection":
            return self.reflected(at)
        if mode == "border":
            clamped = minimum(maximum(at, 0.0), self.size - 1.0)
            return select((at < low) | (at > high), clamped, at)
        return at

    def element(self, at: Term, mode: str) -> Term:
        """The element at a whole position; -1 where there is none."""
        if mode == "reflection":
            at = self.reflected(at)
        result = cast(INDEX, minimum(maximum(at, 0.0), self.size - 1.0))
        inside = (at >= 0.0) & (at < self.size)
        return select(inside, result, te.number(-1, INDEX)) if mode == "zeros" else result

    def sampled(self, attrs: GridSampleAttrs, normalized: Term) -> Term:
        """The position around which elements are looked for."""
        at = self.position(normalized)
        if attrs.method == "nearest":
            return call("trunc", self.padded(call("round", at), attrs.padding_mode))
        # Of cubic interpolation the neighbours are padded, not the position, as in PyTorch.
        return self.padded(at, attrs.padding_mode) if attrs.method == "linear" else at

    def neighbour(self, attrs: GridSampleAttrs, at: Term, tap: Term) -> tuple[Term, Term]:
        """The element of that number among those around a position, and its weight."""
        tap, base = cast(self.dtype, tap), call("floor", at)
        first = tap - (1.0 if attrs.method == "cubic" else 0.0)
        return self.element(base + first, attrs.padding_mode), _weight(attrs.method, at - base, tap)


def _weight(method: str, fraction: Term, tap: Term) -> Term:
    """What a neighbour counts for a position that is a fraction past one of them."""
    if method == "nearest":
        return te.number(1, fraction.dtype)
    if method == "linear":
        return select(equal(tap, 0.0), 1.0 - fraction, fraction)
    return cubic_weight(call("abs", fraction + 1.0 - tap), CUBIC_ALPHA)


def _taps(attrs: GridSampleAttrs, axis: _Axis, normalized: Array) -> list[_Tap]:
    """The neighbours of each position along one axis."""
    at = axis.sampled(attrs, Term(Var("x", axis.dtype)))
    taps = (axis.neighbour(attrs, at, term(tap)) for tap in range(TAPS[attrs.method]))
    tables = ([evaluate_arrays(one.expr, {"x": normalized}) for one in pair] for pair in taps)
    return [(position, np.broadcast_to(weight, position.shape)) for position, weight in tables]


def _read(flat: Array, corner: Sequence[_Tap], extents: Sequence[int]) -> Array:
    """The elements [batch, channels, positions] at one neighbour along each axis; zero outside."""
    positions = [position for position, _ in corner]
    index = np.ravel_multi_index(tuple(np.maximum(positions, 0)), tuple(extents))
    inside = np.logical_and.reduce([position >= 0 for position in positions])
    empty = "" if dtype_of(flat.dtype) is DType.STRING else np.zeros((), flat.dtype)
    return np.where(inside[:, None], np.take_along_axis(flat, index[:, None], axis=2), empty)


def _blend(flat: Array, taps: Sequence[list[_Tap]], extents: Sequence[int]) -> Array:
    """The weighted sum over every combination of the axes' neighbours."""
    dtype = working_dtype(flat.dtype)
    source = flat.astype(dtype, copy=False)
    total = np.zeros((*flat.shape[:2], taps[0][0][0].shape[1]), dtype)
    for corner in itertools.product(*taps):
        weight = np.multiply.reduce([weight for _, weight in corner]).astype(dtype)
        total += _read(source, corner, extents) * weight[:, None]
    if dtype_of(flat.dtype).is_integer:
        total = np.trunc(total)
    return to_dtype(total, flat.dtype)


def _grid_sample_work(
    attrs: GridSampleAttrs, ins: Sequence[TensorType], outs: Sequence[TensorType]
) -> Work:
    result = outs[0]
    axes = 2 if result.rank is None else result.rank - 2
    return Work(0, result.size * (2 * TAPS[attrs.method] ** axes), traffic(ins, outs))


@operator("grid_sample", "data grid", _grid_sample_type, work=_grid_sample_work)
def _grid_sample(attrs: GridSampleAttrs, data: Array, grid: Array) -> Array:
    """The data read at positions of a grid in [-1, 1], between elements by interpolation."""
    batch, channels, *extents = data.shape
    if 0 in extents and grid.size:
        raise ValueError("there is nothing to sample in an empty tensor")
    exact = DType.FLOAT64 if grid.dtype == np.float64 else DType.FLOAT32
    positions = grid.reshape(batch, math.prod(grid.shape[1:-1]), len(extents)).astype(exact.numpy)
    taps = [
        _taps(attrs, _Axis(extent, attrs.align_corners, exact), positions[:, :, -1 - i])
        for i, extent in enumerate(extents)
    ]
    flat = data.reshape(batch, channels, math.prod(extents))
    if attrs.method == "nearest":  # of any dtype, since nothing is computed
        result = _read(flat, [axis[0] for axis in taps], extents).astype(flat.dtype)
    else:
        result = _blend(flat, taps, extents)
    return result.reshape(batch, channels, *grid.shape[1:-1])


@dataclass(frozen=True, slots=True)
class AffineGridAttrs(Attrs):
    size: Dims | None = None  # of the image: batch, channels, extents
    align_corners: bool = False


def _affine_grid_type(
    attrs: AffineGridAttrs, theta: TensorType, size: TensorType | None
) -> TensorType:
    require(theta.dtype.is_float, f"the matrices are {theta.dtype}, not floating-point")
    require(attrs.size is not None or size is not None, "the size is given nowhere")
    require(theta.rank in (None, 3), f"the matrices are {theta}, not of rank 3")
    batch, rows, columns = theta.shape if theta.shape is not None else unknown_shape(3)
    extents: tuple[AnyDim, ...] | None = attrs.size
    if extents is None:
        assert size is not None
        require(size.rank in (None, 1), f"the size is {size}, not a list")
        length = size.shape[0] if size.shape else UNKNOWN
        count = length if isinstance(length, int) else rows + 2
        if not isinstance(count, int):
            return TensorType(theta.dtype, None)
        extents = unknown_shape(count)
    axes = len(extents) - 2
    require(axes in (2, 3), f"the size has {len(extents)} extents, neither 4 nor 5")
    require_same_dim(rows, axes, "the matrices' rows and the axes")
    require_same_dim(columns, axes + 1, "the matrices' columns and the axes plus one")
    require_same_dim(batch, extents[0], "the batch sizes")
    count_known = batch if extents[0] is UNKNOWN else extents[0]
    return TensorType(theta.dtype, (count_known, *extents[2:], axes))


def _line(extent: int, align_corners: bool) -> Array:
    """Evenly spaced positions from -1 to 1; a single one lies in the middle."""
    steps = 2 * np.arange(extent) - (extent - 1)
    return np.asarray(steps / max(extent - 1 if align_corners else extent, 1))


@operator("affine_grid", "theta size?", _affine_grid_type)
def _affine_grid(attrs: AffineGridAttrs, theta: Array) -> Array:
    """The grid of positions that affine transforms make of a regular one."""
    extents: Any = (attrs.size or ())[2:]
    dtype = working_dtype(theta.dtype)
    check_extents([len(theta), *extents, len(extents)], theta.dtype, "affine_grid")
    lines = [_line(int(extent), attrs.align_corners) for extent in extents]
    mesh = np.meshgrid(*lines, indexing="ij")
    coordinates = np.stack([*reversed(mesh), np.ones_like(mesh[0])], axis=-1).astype(dtype)
    flat = coordinates.reshape(-1, len(extents) + 1)
    moved: Array = flat @ theta.astype(dtype).transpose(0, 2, 1)
    return moved.reshape(len(theta), *mesh[0].shape, len(extents)).astype(theta.dtype)


# Tensor expressions.


@dataclass(frozen=True)
class _Neighbours:
    """The elements around every position along one axis, and what each counts: tensors [batch,
    positions, neighbours], so that all channels share what it takes to find them."""

    indices: Tensor
    weights: Tensor


def _neighbours(attrs: Any, axis: _Axis, grid: Tensor, coordinate: int, name: str) -> _Neighbours:
    outer = grid.shape[:-1]

    def position(*at: Term) -> Term:
        return axis.sampled(attrs, cast(axis.dtype, te.read(grid, [*at, coordinate])))

    positions = te.by_index(f"{name}_at", outer, position)

    def index_of(*at: Term) -> Term:
        return axis.neighbour(attrs, te.read(positions, at[:-1]), at[-1])[0]

    def weight(*at: Term) -> Term:
        return axis.neighbour(attrs, te.read(positions, at[:-1]), at[-1])[1]

    shape = [*outer, TAPS[attrs.method]]
    return _Neighbours(
        te.by_index(f"{name}_place", shape, index_of), te.by_index(f"{name}_weight", shape, weight)
    )


@te.expresses("grid_sample")
def _express_grid_sample(attrs: Any, out: te.Out, data: Tensor, grid: Tensor) -> te.Results:
    """The element next to a position, or a weighted sum of those around it."""
    dtype, extents, shape = out.dtype, te.sizes(data)[2:], out.shape
    if 0 in extents:
        return te.Unexpressed("there is nothing to sample in an empty tensor")
    wide = dtype_of(working_dtype(dtype.numpy))
    exact = DType.FLOAT64 if grid.dtype is DType.FLOAT64 else DType.FLOAT32
    axes = [_Axis(extent, attrs.align_corners, exact) for extent in extents]
    around = [
        _neighbours(attrs, axis, grid, len(axes) - 1 - at, f"{out.name}_axis{at}")
        for at, axis in enumerate(axes)
    ]

    def value(batch: Term, channel: Term, at: Sequence[Term], taps: Sequence[Term]) -> Term:
        pairs = zip(around, taps, strict=True)
        positions = [te.read(one.indices, [batch, *at, tap]) for one, tap in pairs]
        bounded = (
            te.clamped(position, extent)
            for position, extent in zip(positions, extents, strict=True)
        )
        result = te.read(data, [batch, channel, *bounded])
        if attrs.padding_mode != "zeros":
            return result
        exists = reduce(lambda a, b: a & b, (position >= 0 for position in positions))
        return select(exists, result, te.number(0, dtype))

    def weighted(batch: Term, channel: Term, *at: Term) -> Reduce:
        taps = te.reduce_axes([TAPS[attrs.method]] * len(extents))
        pairs = zip(around, taps, strict=True)
        weights = (te.read(one.weights, [batch, *at, tap]) for one, tap in pairs)
        weight = cast(wide, reduce(lambda a, b: a * b, weights))
        return sum_(cast(wide, value(batch, channel, at, taps)) * weight, taps)

    if attrs.method == "nearest":
        first = [term(0)] * len(extents)
        return out.of(lambda b, c, *at: value(b, c, at, first))
    total = te.by_index(f"{out.name}_sum", shape, weighted)
    return out.of(lambda *at: _in_dtype(te.read(total, at), dtype))


def _in_dtype(total: Term, dtype: DType) -> Term:
    """A sum as an element; integers lose what is behind the point."""
    return saturated(call("trunc", total) if dtype.is_integer else total, dtype)


@te.expresses("affine_grid")
def _express_affine_grid(attrs: Any, out: te.Out, theta: Tensor, *_: Tensor | None) -> te.Results:
    """Matrices times the positions of an image's elements."""
    shape = out.shape
    extents, wide = shape[1:-1], dtype_of(working_dtype(out.dtype.numpy))

    def element(batch: Term, *rest: Term) -> Term:
        *position, row = rest
        total = _entry(theta, [batch, row, len(extents)], wide)
        for axis, (index, extent) in enumerate(zip(position, extents, strict=True)):
            steps = cast(_EXACT, index * 2 - (term(extent) - 1))
            count = term(extent) - 1 if attrs.align_corners else term(extent)
            at = cast(wide, steps / cast(_EXACT, maximum(count, 1)))
            total = total + at * _entry(theta, [batch, row, len(extents) - 1 - axis], wide)
        return cast(out.dtype, total)

    return out.of(element)


_EXACT = DType.FLOAT64


def _entry(theta: Tensor, at: list[Any], wide: DType) -> Term:
    return cast(wide, te.read(theta, at))

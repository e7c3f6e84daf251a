"""Sampling a tensor at positions that another tensor gives, and the grids of such positions.

Positions are normalised: along each axis -1 and 1 are the operand's edges. A grid's last axis lists
the innermost coordinate first.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from graft.base.capacity import check_extents
from graft.base.dims import UNKNOWN, AnyDim
from graft.base.dtypes import Array, DType, dtype_of
from graft.ir.attrs import Attrs, Dims
from graft.ir.op import Work, define, traffic
from graft.ir.types import TensorType, Type
from graft.ops.resize import to_dtype, working_dtype
from graft.ops.rules import require, require_same_dim, unknown_shape

CUBIC_ALPHA = -0.75
TAPS = {"nearest": 1, "linear": 2, "cubic": 4}
_PADDINGS = ("zeros", "border", "reflection")
# Farther out than this a position is only outside; an integer can still hold it.
FAR = float(1 << 30)

# Along one axis, per neighbour of each position: the element, whether it exists, its weight.
_Taps = list[tuple[Array, ...]]


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


@dataclass(frozen=True, slots=True)
class _Axis:
    """One axis that is sampled along: its extent and where its edges lie."""

    extent: int
    align_corners: bool

    @property
    def edges(self) -> tuple[float, float]:
        return (0.0, self.extent - 1.0) if self.align_corners else (-0.5, self.extent - 0.5)

    def position(self, normalized: Array) -> Array:
        """Where a normalised coordinate lies, counted in elements."""
        if self.align_corners:
            at = (normalized + 1) / 2 * (self.extent - 1)
        else:
            at = ((normalized + 1) * self.extent - 1) / 2
        return np.clip(np.nan_to_num(at, nan=-FAR), -FAR, FAR)

    def reflected(self, at: Array) -> Array:
        """The position mirrored at the edges until it lies between them."""
        low, high = self.edges
        span = high - low
        if span == 0:
            return np.full_like(at, low)
        beyond = np.where(at < low, low - at, at - high)
        turns = np.floor(beyond / span)
        rest = beyond - turns * span
        from_low = (at < low) == (turns % 2 == 0)
        mirrored = np.where(from_low, low + rest, high - rest)
        return np.where((at >= low) & (at <= high), at, mirrored)

    def padded(self, at: Array, padding_mode: str) -> Array:
        """A position brought back from outside the edges where the padding says so."""
        low, high = self.edges
        if padding_mode == "reflection":
            return self.reflected(at)
        if padding_mode == "border":
            return np.where((at < low) | (at > high), np.clip(at, 0, self.extent - 1), at)
        return at

    def elements(self, at: Array, padding_mode: str) -> tuple[Array, Array]:
        """Elements at whole positions, and whether each is one of the operand's."""
        if padding_mode == "reflection":
            at = self.reflected(at)
        inside = (at >= 0) & (at < self.extent)
        found = np.clip(at, 0, self.extent - 1).astype(np.intp)
        return found, inside if padding_mode == "zeros" else np.ones_like(inside)


def _cubic_weights(fraction: Array) -> list[Array]:
    a = CUBIC_ALPHA
    near = [((a + 2) * d - (a + 3)) * d * d + 1 for d in (fraction, 1 - fraction)]
    far = [((a * d - 5 * a) * d + 8 * a) * d - 4 * a for d in (fraction + 1, 2 - fraction)]
    return [far[0], *near, far[1]]


def _taps(attrs: GridSampleAttrs, axis: _Axis, normalized: Array) -> _Taps:
    """The neighbours of each position along one axis."""
    at = axis.position(normalized)
    if attrs.method == "nearest":
        at = axis.padded(np.rint(at), attrs.padding_mode)
        return [(*axis.elements(np.trunc(at), attrs.padding_mode), np.ones_like(at))]
    if attrs.method == "linear":
        at = axis.padded(at, attrs.padding_mode)
    base = np.floor(at)
    fraction = at - base
    first, weights = 0, [1 - fraction, fraction]
    if attrs.method == "cubic":  # as in PyTorch, the neighbours are padded, not the position
        first, weights = -1, _cubic_weights(fraction)
    return [
        (*axis.elements(base + (first + i), attrs.padding_mode), weight)
        for i, weight in enumerate(weights)
    ]


def _grid_sample(attrs: GridSampleAttrs, data: Array, grid: Array) -> Array:
    batch, channels, *extents = data.shape
    if 0 in extents and grid.size:
        raise ValueError("there is nothing to sample in an empty tensor")
    places = grid.reshape(batch, math.prod(grid.shape[1:-1]), len(extents))
    places = places.astype(np.float64 if grid.dtype == np.float64 else np.float32)
    taps = [
        _taps(attrs, _Axis(extent, attrs.align_corners), places[:, :, -1 - i])
        for i, extent in enumerate(extents)
    ]
    flat = data.reshape(batch, channels, math.prod(extents))
    result = (_gather if attrs.method == "nearest" else _blend)(flat, taps, extents)
    return result.reshape(batch, channels, *grid.shape[1:-1])


def _gather(flat: Array, taps: Sequence[_Taps], extents: Sequence[int]) -> Array:
    """Each position's nearest element; of any dtype, since nothing is computed."""
    index = np.ravel_multi_index(tuple(axis[0][0] for axis in taps), tuple(extents))
    inside = np.logical_and.reduce([axis[0][1] for axis in taps])
    found = np.take_along_axis(flat, index[:, None], axis=2)
    empty = "" if dtype_of(flat.dtype) is DType.STRING else np.zeros((), flat.dtype)
    return np.where(inside[:, None], found, empty).astype(flat.dtype)


def _blend(flat: Array, taps: Sequence[_Taps], extents: Sequence[int]) -> Array:
    """The weighted sum over every combination of the axes' neighbours."""
    dtype = working_dtype(flat.dtype)
    source = flat.astype(dtype, copy=False)
    total = np.zeros((*flat.shape[:2], taps[0][0][0].shape[1]), dtype)
    for corner in itertools.product(*taps):
        index = np.ravel_multi_index(tuple(tap[0] for tap in corner), tuple(extents))
        inside = np.logical_and.reduce([tap[1] for tap in corner])
        weight = np.multiply.reduce([tap[2] for tap in corner]).astype(dtype)
        found = np.take_along_axis(source, index[:, None], axis=2)
        total += np.where(inside[:, None], found, 0) * weight[:, None]
    if dtype_of(flat.dtype).is_integer:
        total = np.trunc(total)
    return to_dtype(total, flat.dtype)


def _grid_sample_work(
    attrs: GridSampleAttrs, ins: Sequence[Type | None], outs: Sequence[Type]
) -> Work:
    result = outs[0]
    assert isinstance(result, TensorType)
    axes = 2 if result.rank is None else result.rank - 2
    return Work(0, result.size * (2 * TAPS[attrs.method] ** axes), traffic(ins, outs))


define(
    "grid_sample",
    "data grid",
    _grid_sample_type,
    _grid_sample,
    attrs=GridSampleAttrs,
    work=_grid_sample_work,
    summary="the data read at positions of a grid in [-1, 1], between elements by interpolation",
)


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


def _affine_grid(attrs: AffineGridAttrs, theta: Array, size: Array | None) -> Array:
    _, _, *extents = attrs.size if size is None else size.tolist()  # type: ignore[misc]
    dtype = working_dtype(theta.dtype)
    check_extents([len(theta), *extents, len(extents)], theta.dtype, "affine_grid")
    lines = [_line(int(extent), attrs.align_corners) for extent in extents]
    mesh = np.meshgrid(*lines, indexing="ij")
    points = np.stack([*reversed(mesh), np.ones_like(mesh[0])], axis=-1).astype(dtype)
    flat = points.reshape(-1, len(extents) + 1)
    moved: Array = flat @ theta.astype(dtype).transpose(0, 2, 1)
    return moved.reshape(len(theta), *mesh[0].shape, len(extents)).astype(theta.dtype)


def _line(extent: int, align_corners: bool) -> Array:
    """Evenly spaced positions from -1 to 1; a single one lies in the middle."""
    steps = 2 * np.arange(extent) - (extent - 1)
    return np.asarray(steps / max(extent - 1 if align_corners else extent, 1))


define(
    "affine_grid",
    "theta size?",
    _affine_grid_type,
    _affine_grid,
    attrs=AffineGridAttrs,
    summary="the grid of positions that affine transforms make of a regular one",
)

"""Padding and rearrangement within a tensor: `nn.pad`, blocks of space and depth, triangles,
and sequences read backwards.

Tensors of any dtype enter and leave; each result element is one operand element or a filler.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from graft.base.capacity import check_extents
from graft.base.dim_questions import provably_below, provably_different, provably_no_multiple
from graft.base.dims import UNKNOWN, AnyDim, Unknown, at_least, dim_max, dim_min
from graft.base.dtypes import Array, DType
from graft.base.errors import EvaluationError
from graft.ir.attrs import Attrs, Dims, Ints, Number
from graft.ir.graph import Node
from graft.ir.op import Kind, define, movement_work
from graft.ir.types import Shape, TensorType
from graft.loop.build import Term, cast, maximum, minimum, select, term
from graft.loop.tensor import Tensor
from graft.ops import expression as te
from graft.ops.index_bounds import IndexBounds
from graft.ops.movement import length_of
from graft.ops.rules import (
    normalize_axes,
    normalize_axis,
    operator,
    require,
    require_same_dim,
    same_dtype,
    shape_of,
    unknown_shape,
)
from graft.ops.slicing import listed, of_axis


@dataclass(frozen=True, slots=True)
class PadAttrs(Attrs):
    """`pad_width` lists what to add before each axis, then what to add after; negative cuts."""

    value: Number | None = None
    pad_width: Dims | None = None
    axes: Ints | None = None
    mode: str = "constant"

    @property
    def fill(self) -> Number:
        """The value of the border where no operand gives it."""
        return 0 if self.value is None else self.value


def pad_widths(attrs: PadAttrs, rank: int) -> dict[int, tuple[Any, Any]]:
    """Per axis that is padded by attributes: what is added before it, and after."""
    return _by_axis(attrs.pad_width or (), attrs.axes, rank)


def _by_axis(widths: Sequence[Any], axes: Ints | None, rank: int) -> dict[int, tuple[Any, Any]]:
    numbers = normalize_axes(range(rank) if axes is None else axes, rank)
    require(len(widths) == 2 * len(numbers), f"{len(widths)} pads for {len(numbers)} axes")
    return dict(zip(numbers, zip(widths, widths[len(numbers) :], strict=False), strict=True))


def _pad_type(
    attrs: PadAttrs,
    data: TensorType,
    value: TensorType | None,
    pad_width: TensorType | None,
    axes: TensorType | None,
) -> TensorType:
    same_dtype(data, value)
    require(attrs.mode in ("constant", *_SOURCES), f"mode is '{attrs.mode}'")
    if attrs.pad_width is None:
        length_of(pad_width, "pads")
    if data.shape is None:
        return TensorType(data.dtype, None)
    rank = len(data.shape)
    if attrs.pad_width is None or (axes is not None and attrs.axes is None):
        return TensorType(data.dtype, unknown_shape(rank))
    dims = list(data.shape)
    for axis, (before, after) in pad_widths(attrs, rank).items():
        dims[axis] = _padded_extent(dims[axis], before, after, axis, attrs.mode)
    return TensorType(data.dtype, tuple(dims))


def _padded_extent(extent: AnyDim, before: AnyDim, after: AnyDim, axis: int, mode: str) -> AnyDim:
    total = extent + before + after
    require(
        not provably_below(total, 0),
        f"pads {before} and {after} cut more than the {extent} of axis {axis}",
    )
    empty = mode != "constant" and provably_below(extent, 1) and provably_different(total, 0)
    require(not empty, f"axis {axis} has nothing to fill pads with")
    return total


def _reflect(positions: Array, extent: int) -> Array:
    period = max(2 * (extent - 1), 1)
    inside = positions % period
    return np.minimum(inside, period - inside) if extent > 1 else np.zeros_like(positions)


# For each mode, which of `extent` elements stands at positions that may lie outside.
_SOURCES: dict[str, Callable[[Array, int], Array]] = {
    "reflect": _reflect,
    "edge": lambda positions, extent: np.clip(positions, 0, extent - 1),
    "wrap": lambda positions, extent: positions % extent,
}


def _filler(attribute: Number | None, operand: Array | None, data: Array) -> Any:
    if operand is not None:
        return operand.reshape(-1)[0]
    if attribute is None:
        return "" if data.dtype == object else np.zeros((), data.dtype)
    return np.asarray(attribute).astype(data.dtype)


def _pad_axis(data: Array, axis: int, before: int, after: int, mode: str, fill: Any) -> Array:
    """One axis: cut what is negative first, then add."""
    extent = data.shape[axis]
    total: Any = _padded_extent(extent, before, after, axis, mode)
    inside = slice(min(max(-before, 0), extent), max(extent + min(after, 0), 0))
    data = data[(slice(None),) * axis + (inside,)]
    before, extent = min(max(before, 0), total), data.shape[axis]
    after = total - before - extent
    if mode != "constant":
        _padded_extent(extent, before, after, axis, mode)
        positions = _SOURCES[mode](np.arange(-before, extent + after), extent)
        return np.take(data, positions, axis=axis)
    shape = (*data.shape[:axis], total, *data.shape[axis + 1 :])
    result = np.full(shape, fill, dtype=data.dtype)
    result[(slice(None),) * axis + (slice(before, before + extent),)] = data
    return result


@operator("nn.pad", "data value? pad_width? axes?", _pad_type, kind=Kind.INJECTIVE)
def _pad(attrs: PadAttrs, data: Array, value: Array | None) -> Array:
    """Borders of a constant, of the edge, of reflected or of wrapped elements."""
    fill = _filler(attrs.value, value, data)
    pairs = pad_widths(attrs, data.ndim)
    extents: list[Any] = list(data.shape)
    for axis, (before, after) in pairs.items():
        extents[axis] = _padded_extent(extents[axis], before, after, axis, attrs.mode)
    check_extents(extents, data.dtype, "nn.pad")
    for axis, (before, after) in pairs.items():
        data = _pad_axis(data, axis, before, after, attrs.mode, fill)
    return data


@dataclass(frozen=True, slots=True)
class BlockAttrs(Attrs):
    """`mode` DCR: a pixel's place within its block is the slower part of depth; CRD: the faster."""

    block_size: int
    mode: str = "DCR"


def _block_shape(attrs: BlockAttrs, data: TensorType) -> Shape | None:
    require(attrs.block_size > 0, f"block_size is {attrs.block_size}")
    require(attrs.mode in ("DCR", "CRD"), f"mode is '{attrs.mode}', neither DCR nor CRD")
    require(data.rank in (None, 4), f"wants rank 4 (NCHW), not {data.rank}")
    return data.shape


def _whole(extent: AnyDim, parts: int, what: str) -> AnyDim:
    require(
        not provably_no_multiple(extent, parts), f"{what} {extent} is not a multiple of {parts}"
    )
    return extent // parts


def _depth_to_space_type(attrs: BlockAttrs, data: TensorType) -> TensorType:
    shape = _block_shape(attrs, data)
    if shape is None:
        return TensorType(data.dtype, unknown_shape(4))
    block = attrs.block_size
    batch, channels, height, width = shape
    depth = _whole(channels, block * block, "depth")
    return TensorType(data.dtype, (batch, depth, height * block, width * block))


def _depth_to_space(attrs: BlockAttrs, data: Array) -> Array:
    block, (batch, channels, height, width) = attrs.block_size, data.shape
    depth = channels // (block * block)
    if attrs.mode == "DCR":
        split = data.reshape(batch, block, block, depth, height, width)
        split = split.transpose(0, 3, 4, 1, 5, 2)
    else:
        split = data.reshape(batch, depth, block, block, height, width)
        split = split.transpose(0, 1, 4, 2, 5, 3)
    return split.reshape(batch, depth, height * block, width * block)


def _space_to_depth_type(attrs: BlockAttrs, data: TensorType) -> TensorType:
    shape = _block_shape(attrs, data)
    if shape is None:
        return TensorType(data.dtype, unknown_shape(4))
    block = attrs.block_size
    batch, channels, height, width = shape
    rows, columns = _whole(height, block, "height"), _whole(width, block, "width")
    return TensorType(data.dtype, (batch, channels * (block * block), rows, columns))


def _space_to_depth(attrs: BlockAttrs, data: Array) -> Array:
    block, (batch, channels, height, width) = attrs.block_size, data.shape
    rows, columns = height // block, width // block
    split = data.reshape(batch, channels, rows, block, columns, block)
    order = (0, 3, 5, 1, 2, 4) if attrs.mode == "DCR" else (0, 1, 3, 5, 2, 4)
    return split.transpose(order).reshape(batch, channels * block * block, rows, columns)


for _name, _rule, _meaning, _summary in (
    ("depth_to_space", _depth_to_space_type, _depth_to_space, "channels as blocks of pixels"),
    ("space_to_depth", _space_to_depth_type, _space_to_depth, "blocks of pixels as channels"),
):
    define(
        _name,
        "data",
        _rule,
        _meaning,
        attrs=BlockAttrs,
        kind=Kind.INJECTIVE,
        work=movement_work,
        summary=_summary,
    )


@dataclass(frozen=True, slots=True)
class TriluAttrs(Attrs):
    """Keeps what is on or above (`upper`) or on or below the `k`-th diagonal; the rest is 0."""

    k: int | None = None
    upper: bool = True


def _trilu_type(attrs: TriluAttrs, data: TensorType, k: TensorType | None) -> TensorType:
    require(data.rank is None or data.rank >= 2, f"wants matrices, not rank {data.rank}")
    require(k is None or k.dtype is DType.INT64, "the diagonal is not int64")
    return data


@operator("trilu", "data k?", _trilu_type, kind=Kind.INJECTIVE)
def _trilu(attrs: TriluAttrs, data: Array) -> Array:
    """The upper or lower triangle of matrices, the rest 0."""
    diagonal = attrs.k or 0
    offsets = np.arange(data.shape[-1]) - np.arange(data.shape[-2])[:, np.newaxis]
    mask = offsets >= diagonal if attrs.upper else offsets <= diagonal
    return np.where(mask, data, _filler(None, None, data))


@dataclass(frozen=True, slots=True)
class ReverseSequenceAttrs(Attrs):
    seq_axis: int = 0
    batch_axis: int = 1


def _reverse_sequence_type(
    attrs: ReverseSequenceAttrs, data: TensorType, seq_lengths: TensorType
) -> TensorType:
    require(seq_lengths.dtype.is_integer, f"lengths are {seq_lengths.dtype}, not integers")
    require(seq_lengths.rank in (None, 1), "lengths are not a list")
    if data.shape is not None:
        rank = len(data.shape)
        _, batch = normalize_axes((attrs.seq_axis, attrs.batch_axis), rank)
        lengths = seq_lengths.shape[0] if seq_lengths.shape else UNKNOWN
        require_same_dim(shape_of(data)[batch], lengths, "batch and number of lengths")
    return data


def _up_to_steps(node: Node) -> IndexBounds | None:
    """Lengths of sequences: from zero to the number of steps."""
    data, lengths = node.args
    extent = (data.shape or ())[node.attrs.seq_axis]
    if isinstance(extent, Unknown):
        return None
    message = "a length is not between 0 and the number of steps"
    return IndexBounds(lengths, (0,), (extent + 1,), wraps=False, message=message)


@operator(
    "reverse_sequence",
    "data seq_lengths",
    _reverse_sequence_type,
    kind=Kind.INJECTIVE,
    index_bounds=_up_to_steps,
)
def _reverse_sequence(attrs: ReverseSequenceAttrs, data: Array, seq_lengths: Array) -> Array:
    """Per batch the first elements along an axis in reverse order."""
    axes = tuple(normalize_axis(a, data.ndim) for a in (attrs.seq_axis, attrs.batch_axis))
    moved = np.moveaxis(data, axes, (0, 1))
    steps, batch = np.ogrid[: moved.shape[0], : moved.shape[1]]
    lengths = seq_lengths.astype(np.int64)
    if np.any((lengths < 0) | (lengths > moved.shape[0])):
        raise EvaluationError("a length is not between 0 and the number of steps")
    source = np.where(steps < lengths, lengths - 1 - steps, steps)
    return np.moveaxis(moved[source, batch], (0, 1), axes)


# Tensor expressions.


def _fill_term(attrs: Any, dtype: DType) -> Term:
    """The fill value as an element, converted as the meaning does: 1.5 is 1 among integers."""
    value = np.asarray(attrs.fill)
    return te.number(value.astype(dtype.numpy).item() if dtype.is_integer else attrs.fill, dtype)


@te.expresses("nn.pad")
def _express_pad(
    attrs: Any, out: te.Out, data: Tensor, value: Tensor | None, *widths_and_axes: Tensor | None
) -> te.Results:
    """A border of a filler, or of elements of the data; negative widths cut off."""
    if attrs.pad_width is None or any(one is not None for one in widths_and_axes):
        return _pad_at_run_time(attrs, out, data, value, *widths_and_axes)
    rank, shape = len(data.shape), te.sizes(data)
    widths = pad_widths(attrs, rank)

    def source_index(axis: int, index: Term) -> tuple[Term, Term | None]:
        """Where an index of the result reads, and whether that is inside."""
        begin, end = widths.get(axis, (0, 0))
        at = index - begin
        if at_least(-begin, 0) and at_least(-end, 0):
            return at, None
        if attrs.mode == "constant":
            return at, (at >= 0) & (at < shape[axis])
        first, last = (
            dim_max(-begin, 0),
            shape[axis] + dim_min(end, 0),
        )  # what is left after cutting
        return _source(attrs.mode, at - first, last - first) + first, None

    def element(*indices: Term) -> Term:
        positions = [source_index(axis, index) for axis, index in enumerate(indices)]
        result = te.read(data, [at for at, _ in positions])
        tests = [test for _, test in positions if test is not None]
        if not tests:
            return result
        inside = tests[0]
        for test in tests[1:]:
            inside = inside & test
        fill = _fill_term(attrs, data.dtype) if value is None else te.single(value)
        return select(inside, result, cast(data.dtype, fill))

    return out.of(element)


def _pad_at_run_time(
    attrs: Any, out: te.Out, data: Tensor, value: Tensor | None, *widths_and_axes: Tensor | None
) -> te.Results:
    widths, axes = map(listed, (attrs.pad_width, attrs.axes), widths_and_axes)
    begins, ends = widths[: len(widths) // 2], widths[len(widths) // 2 :]
    fill = _fill_term(attrs, data.dtype) if value is None else te.single(value)
    if 0 in te.sizes(data):
        return out.of(lambda *_: cast(data.dtype, fill))

    def element(*indices: Term) -> Term:
        at: list[Term] = []
        outside = te.number(False, DType.BOOL)
        for axis, (index, extent) in enumerate(zip(indices, te.sizes(data), strict=True)):
            begin = of_axis(axis, len(indices), axes, begins, 0)
            position = index - begin
            if attrs.mode == "constant":
                outside = outside | (position < 0) | (position >= extent)
            else:
                end = of_axis(axis, len(indices), axes, ends, 0)
                first = maximum(0 - begin, 0)  # what is left after cutting
                left = minimum(end, 0) + extent - first
                position = _source(attrs.mode, position - first, left) + first
            at.append(te.clamped(position, extent))
        return select(outside, cast(data.dtype, fill), te.unless_empty(data, te.read(data, at)))

    return out.of(element)


def _source(mode: str, position: Term, extent: AnyDim | Term) -> Term:
    """The index of the element that a mode repeats at a position which may lie outside."""
    if mode == "edge":
        return maximum(minimum(position, extent - 1), 0)
    if mode == "wrap":
        return position % _at_least_one(extent)
    if extent == 1:
        return position * 0
    period = _at_least_one((extent - 1) * 2)
    inside = position % period
    return minimum(inside, term(period) - inside)


def _at_least_one(count: AnyDim | Term) -> AnyDim | Term:
    return maximum(count, 1) if isinstance(count, Term) else dim_max(count, 1)


@te.expresses("trilu")
def _express_trilu(attrs: Any, out: te.Out, data: Tensor, diagonal: Tensor | None) -> te.Results:
    """What is on one side of a diagonal; zero elsewhere."""

    def element(*indices: Term) -> Term:
        first = attrs.k or 0 if diagonal is None else cast(DType.INT64, te.single(diagonal))
        offset = indices[-1] - indices[-2]
        is_inside = offset >= first if attrs.upper else offset <= first
        return select(is_inside, te.read(data, indices), te.number(0, out.dtype))

    return out.of(element)


@te.expresses("depth_to_space")
def _express_depth_to_space(attrs: Any, out: te.Out, data: Tensor) -> te.Results:
    """Blocks of depth as blocks of pixels."""
    block = attrs.block_size
    depth = te.sizes(data)[1] // (block * block)

    def element(batch: Term, channel: Term, row: Term, column: Term) -> Term:
        inside = row % block * block + column % block
        source = inside * depth + channel if attrs.mode == "DCR" else channel * block**2 + inside
        return data[batch, source, row // block, column // block]

    return out.of(element)


@te.expresses("space_to_depth")
def _express_space_to_depth(attrs: Any, out: te.Out, data: Tensor) -> te.Results:
    """Blocks of pixels as blocks of depth."""
    block = attrs.block_size
    depth = te.sizes(data)[1]

    def element(batch: Term, channel: Term, row: Term, column: Term) -> Term:
        if attrs.mode == "DCR":
            inside, source = channel // depth, channel % depth
        else:
            inside, source = channel % block**2, channel // block**2
        position = row * block + inside // block, column * block + inside % block
        return data[(batch, source, *position)]

    return out.of(element)


@te.expresses("reverse_sequence")
def _express_reverse_sequence(attrs: Any, out: te.Out, data: Tensor, lengths: Tensor) -> te.Results:
    """The first so many steps backwards, per batch."""
    steps, batch = normalize_axes((attrs.seq_axis, attrs.batch_axis), len(data.shape))
    last = te.sizes(data)[steps] - 1

    def element(*indices: Term) -> Term:
        length = cast(indices[0].dtype, lengths[indices[batch]])
        reversed_index = maximum(minimum(length - 1 - indices[steps], last), 0)
        at: te.Indices = [
            select(index < length, reversed_index, index) if axis == steps else index
            for axis, index in enumerate(indices)
        ]
        return te.read(data, at)

    return out.of(element)

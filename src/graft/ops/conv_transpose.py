"""Transposed convolution over one, two or three spatial axes, and its relative `col2im`.

A transposed convolution spreads each element of the data [batch, channels, ...] over a window of
the result, weighted by [channels, outputs / groups, ...]; what overlaps adds up. Its padding cuts
off the result's edges (a negative amount adds zeros there); `output_padding` adds behind them.
`col2im` does the spreading alone: columns of window elements enter, an image leaves.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from graft.base.capacity import check_extents
from graft.base.dim_questions import provably_below
from graft.base.dims import UNKNOWN, AnyDim, product
from graft.base.dtypes import Array, DType, dtype_of
from graft.ir.attrs import Dims, Ints
from graft.ir.op import Kind, Work, define, traffic
from graft.ir.types import Shape, TensorType
from graft.loop.build import Term, cast, equal, maximum, select, term
from graft.loop.tensor import Reduce, Tensor, reduce_axis, sum_
from graft.ops import expression as te
from graft.ops.conv import ConvAttrs, check_groups, first_channel
from graft.ops.creation import shape_operand
from graft.ops.rules import (
    operator,
    ranked_shape,
    require,
    require_same_dim,
    same_dtype,
)
from graft.ops.slicing import listed
from graft.ops.window import (
    RANKS,
    Index,
    WindowAttrs,
    accumulator,
    check_kernel,
    check_window,
    fixed_counts,
    for_rank,
    narrowed,
    pad_pairs,
    padded,
    reach,
    window_counts,
    window_slices,
)


@dataclass(frozen=True, slots=True)
class ConvTransposeAttrs(ConvAttrs):
    output_padding: Ints = ()


def _spread_extents(
    attrs: ConvTransposeAttrs, extents: Sequence[AnyDim], kernel: Sequence[AnyDim]
) -> Shape:
    """Extents of the result before its edges are cut off."""
    added, strides, dilation = attrs.output_padding, attrs.strides, attrs.dilation
    return tuple(
        (extents[axis] - 1) * strides[axis] + reach(kernel[axis], dilation[axis]) + added[axis]
        for axis in range(len(extents))
    )


def _conv_transpose_type(
    rank: int,
) -> Callable[[ConvTransposeAttrs, TensorType, TensorType], TensorType]:
    def rule(attrs: ConvTransposeAttrs, data: TensorType, weight: TensorType) -> TensorType:
        dtype = same_dtype(data, weight)
        require(dtype.is_number, f"wants numeric operands, not {dtype}")
        check_window(attrs, rank, may_crop=True)
        added = attrs.output_padding
        fits = len(added) == rank and all(amount >= 0 for amount in added)
        require(fits, f"output_padding {list(added)} is not {rank} amounts")
        batch, channels, *extents = ranked_shape(data, rank + 2, "the data")
        depth, outputs, *kernel = ranked_shape(weight, rank + 2, "the weight")
        check_groups(attrs.groups, channels=channels)
        check_kernel(kernel)
        require_same_dim(channels, depth, "channels of the data and the weight")
        full, pads = _spread_extents(attrs, extents, kernel), attrs.padding
        result = tuple(full[i] - pads[i] - pads[rank + i] for i in range(rank))
        negative = any(provably_below(dim, 0) for dim in result)
        require(not negative, f"padding {list(pads)} cuts off more than {list(full)}")
        return TensorType(dtype, (batch, outputs * attrs.groups, *result))

    return rule


def _conv_transpose_work(
    _attrs: ConvTransposeAttrs, ins: Sequence[TensorType], outs: Sequence[TensorType]
) -> Work:
    data, weight = ins[0], ins[1]
    targets = UNKNOWN if weight.shape is None else product(weight.shape[1:])
    return Work(data.size * targets, 0, traffic(ins, outs))


def _conv_transpose(attrs: ConvTransposeAttrs, data: Array, weight: Array) -> Array:
    dtype, groups = data.dtype, attrs.groups
    batch, channels, *extents = data.shape
    kernel, outputs = weight.shape[2:], weight.shape[1]
    terms = channels // groups * math.prod(kernel)
    computed_in = accumulator(data, weight, terms)
    pixels = data.astype(computed_in, copy=False)
    pixels = pixels.reshape(batch, groups, channels // groups, math.prod(extents))
    matrix = weight.astype(computed_in, copy=False)
    matrix = matrix.reshape(groups, channels // groups, outputs * math.prod(kernel))
    full: Any = _spread_extents(attrs, extents, kernel)
    total = np.zeros((batch, groups * outputs, *full), computed_in)
    for image in range(batch):
        columns = np.matmul(matrix.swapaxes(1, 2), pixels[image])
        columns = columns.reshape(groups * outputs, *kernel, *extents)
        add_columns(total[image], columns, attrs)
    cut = [(-begin, -end) for begin, end in pad_pairs(attrs.padding)]
    return narrowed(padded(total, cut), dtype)


def add_columns(total: Array, columns: Array, attrs: WindowAttrs) -> None:
    """Add columns [channels, kernel..., position...] to `total` [channels, ...], in place."""
    rank = len(attrs.strides)
    kernel, counts = columns.shape[1 : 1 + rank], columns.shape[1 + rank :]
    if 0 in counts:
        return
    for position, target in window_slices(kernel, counts, attrs.strides, attrs.dilation):
        element: Index = (slice(None), *position)
        total[(slice(None), *target)] += columns[element]


for _rank in RANKS:
    define(
        f"nn.conv{_rank}d_transpose",
        "data weight",
        _conv_transpose_type(_rank),
        _conv_transpose,
        attrs=for_rank(ConvTransposeAttrs, _rank, output_padding=(0,) * _rank),
        kind=Kind.ANCHOR,
        work=_conv_transpose_work,
        summary="transposed convolution; the weight is [channels, outputs / groups, ...]",
    )


@dataclass(frozen=True, slots=True)
class Col2ImAttrs(WindowAttrs):
    image_shape: Dims | None = None
    block_shape: Dims | None = None


def column_windows(attrs: Col2ImAttrs, rank: int) -> WindowAttrs:
    """The window's attributes; left out, steps are 1 and padding is 0."""
    ones = (1,) * rank
    zeros = (0,) * (2 * rank)
    return WindowAttrs(attrs.strides or ones, attrs.padding or zeros, attrs.dilation or ones)


def _col2im_type(
    attrs: Col2ImAttrs, data: TensorType, image: TensorType | None, block: TensorType | None
) -> TensorType:
    require(data.dtype is not DType.STRING, "strings do not add up")
    batch, rows, columns = ranked_shape(data, 3, "the data")
    extents = shape_operand(attrs.image_shape, image)
    kernel = shape_operand(attrs.block_shape, block)
    if extents is None or kernel is None:
        return TensorType(data.dtype, None)
    rank = len(extents)
    require(len(kernel) == rank, f"the block has {len(kernel)} axes and the image {rank}")
    window = column_windows(attrs, rank)
    check_window(window, rank)
    check_kernel(kernel)
    elements = product(kernel)
    if isinstance(rows, int) and isinstance(elements, int):
        require(rows % elements == 0, f"{rows} rows are not whole blocks of {elements}")
    blocks = product(window_counts(window, extents, kernel))
    require_same_dim(columns, blocks, "the number of blocks in the data and in the image")
    return TensorType(data.dtype, (batch, rows // elements, *extents))


@operator("col2im", "data image_shape? block_shape?", _col2im_type)
def _col2im(attrs: Col2ImAttrs, data: Array) -> Array:
    """Adds up columns of overlapping blocks into an image of any spatial rank."""
    extents: Any = attrs.image_shape
    kernel: Any = attrs.block_shape
    window = column_windows(attrs, len(extents))
    check_kernel(kernel)
    counts = fixed_counts(window, extents, kernel)
    pairs = pad_pairs(window.padding)
    channels = data.shape[1] // math.prod(kernel)
    dtype = dtype_of(data.dtype)
    computed_in = np.float32 if dtype.is_float and dtype.bits < 32 else data.dtype
    columns = data.astype(computed_in, copy=False)
    columns = columns.reshape(data.shape[0] * channels, *kernel, *counts)
    full = [extent + begin + end for extent, (begin, end) in zip(extents, pairs, strict=True)]
    check_extents((data.shape[0] * channels, *full), columns.dtype, "col2im")
    total = np.zeros((data.shape[0] * channels, *full), computed_in)
    add_columns(total, columns, window)
    inside = padded(total, [(-begin, -end) for begin, end in pairs])
    return inside.reshape(data.shape[0], channels, *extents).astype(data.dtype, copy=False)


# Tensor expressions.


@te.expresses(*(f"nn.conv{rank}d_transpose" for rank in RANKS))
def _express_transposed(attrs: Any, out: te.Out, data: Tensor, weight: Tensor) -> te.Results:
    """A convolution of the data, zeros put between them, with the weights turned around.

    Weights are [channels, outputs / groups, ...].
    """
    dtype, shape = out.dtype, out.shape
    rank = len(attrs.strides)
    channels, outputs, *kernel = te.numbers(te.sizes(weight), "the kernel's extents")
    depth = channels // attrs.groups
    reach = [(taps - 1) * step for taps, step in zip(kernel, attrs.dilation, strict=True)]
    extents = [count + last for count, last in zip(shape[2:], reach, strict=True)]
    begins = [last - cut for last, cut in zip(reach, attrs.padding[:rank], strict=True)]
    zero = te.number(0, te.accumulated_in(dtype))
    source = te.bordered(data, f"{out.name}_pad", begins, extents, zero, attrs.strides)

    def element(batch: Term, output: Term, *position: Term) -> Reduce:
        channel, *taps = te.reduce_axes((depth, *kernel))
        steps = zip(position, taps, attrs.dilation, strict=True)
        at = [index + tap * dilation for index, tap, dilation in steps]
        last = zip(kernel, taps, strict=True)
        flipped = [count - 1 - tap for count, tap in last]
        first = first_channel(output, outputs, depth, attrs.groups)
        pixel = te.widened(source[(batch, first + channel, *at)])
        factor = te.widened(weight[(first + channel, output % outputs, *flipped)])
        return sum_(pixel * factor, [channel, *taps])

    total = te.by_index(te.sum_name(out.name, dtype), shape, element)
    return out.rounded(total)


@te.expresses("col2im")
def _express_col2im(attrs: Any, out: te.Out, data: Tensor, *shapes: Tensor | None) -> te.Results:
    """Every pixel is the sum of the elements of the blocks that lie over it."""
    shape, dtype = out.shape, out.dtype
    if not dtype.is_number:
        return te.Unexpressed(f"{dtype} elements are not added")
    rank = len(shape) - 2
    block = listed(attrs.block_shape, shapes[1])
    strides, dilation = attrs.strides or (1,) * rank, attrs.dilation or (1,) * rank
    padding = attrs.padding or (0,) * (2 * rank)
    wide = te.accumulated_in(dtype)
    if 0 in te.sizes(data) or shape[1] == 0:
        return out.of(lambda *_: te.number(0, dtype))
    area: AnyDim = te.sizes(data)[1] // shape[1]

    def blocks(axis: int) -> Term:
        """How many blocks lie along an axis."""
        reach = (block[axis] - 1) * dilation[axis] + 1
        left = term(shape[2 + axis]) + (padding[axis] + padding[rank + axis]) - reach
        return left // strides[axis] + 1

    def element(batch: Term, channel: Term, *position: Term) -> Reduce:
        tap = reduce_axis("tap", area)
        rest: Term = tap
        column, inside = term(0), te.number(True, DType.BOOL)
        along: list[Term] = []
        for axis in reversed(range(rank)):
            along.insert(0, rest % maximum(block[axis], 1))
            rest = rest // maximum(block[axis], 1)
        for axis in range(rank):
            at = position[axis] + padding[axis] - along[axis] * dilation[axis]
            number_ = at // strides[axis]
            inside = inside & (at >= 0) & equal(at % strides[axis], 0) & (number_ < blocks(axis))
            column = column * blocks(axis) + number_
        bounded = te.clamped(column, te.sizes(data)[2])
        row = channel * area + tap
        value = cast(wide, te.read(data, [batch, row, bounded]))
        return sum_(select(inside, value, te.number(0, wide)), [tap])

    total = te.by_index(te.sum_name(out.name, dtype), shape, element)
    return out.rounded(total)

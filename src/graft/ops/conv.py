"""Convolution over one, two or three spatial axes, and the bias that follows it.

Data [batch, channels, ...] and weight [outputs, channels / groups, ...] of one dtype enter,
[batch, outputs, ...] of that dtype leaves. Floats narrower than float32 are computed in float32 and
rounded once; integers are exact modulo two to the power of their bits.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view

from graft.base.dim_questions import provably_no_multiple
from graft.base.dims import UNKNOWN, AnyDim, product
from graft.base.dtypes import Array
from graft.ir.attrs import Attrs
from graft.ir.op import Kind, Work, define, get_op, traffic
from graft.ir.types import TensorType
from graft.loop.build import Term, term
from graft.loop.tensor import Reduce, Tensor, sum_
from graft.ops import expression as te
from graft.ops.pointwise import by_numpy, formula, pointwise
from graft.ops.rules import (
    NUMBERS,
    ranked_shape,
    require,
    require_same_dim,
    same_dtype,
    with_extent,
)
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
    read_extents,
    window_counts,
    window_slices,
)

# Bytes of unfolded data that are multiplied at a time: small enough for a cache to hold.
_BLOCK_BYTES = 4 << 20


@dataclass(frozen=True, slots=True)
class ConvAttrs(WindowAttrs):
    groups: int = 1


def check_groups(groups: int, **channels: AnyDim) -> None:
    """Refuse groups that do not divide the channels."""
    require(groups >= 1, f"groups is {groups}")
    for name, count in channels.items():
        require(
            not provably_no_multiple(count, groups), f"{count} {name} do not make {groups} groups"
        )


def _conv_type(rank: int) -> Callable[[ConvAttrs, TensorType, TensorType], TensorType]:
    def rule(attrs: ConvAttrs, data: TensorType, weight: TensorType) -> TensorType:
        dtype = same_dtype(data, weight)
        require(dtype.is_number, f"wants numeric operands, not {dtype}")
        check_window(attrs, rank)
        batch, channels, *extents = ranked_shape(data, rank + 2, "the data")
        outputs, depth, *kernel = ranked_shape(weight, rank + 2, "the weight")
        check_groups(attrs.groups, outputs=outputs)
        check_kernel(kernel)
        require_same_dim(channels, depth * attrs.groups, "channels of the data and the weight")
        return TensorType(dtype, (batch, outputs, *window_counts(attrs, extents, kernel)))

    return rule


def _conv_work(_attrs: ConvAttrs, ins: Sequence[TensorType], outs: Sequence[TensorType]) -> Work:
    weight, result = ins[1], outs[0]
    terms = UNKNOWN if weight.shape is None else product(weight.shape[1:])
    return Work(result.size * terms, 0, traffic(ins, outs))


def convolve(attrs: ConvAttrs, data: Array, weight: Array) -> Array:
    """Convolve over any number of spatial axes: the meaning of every convolution."""
    dtype = data.dtype
    computed_in = accumulator(data, weight, math.prod(weight.shape[1:]))
    data, weight = data.astype(computed_in, copy=False), weight.astype(computed_in, copy=False)
    counts = fixed_counts(attrs, data.shape[2:], weight.shape[2:])
    data = padded(data, pad_pairs(attrs.padding))
    if 0 in (*counts, data.size, weight.size):
        return np.zeros((data.shape[0], weight.shape[0], *counts), dtype)
    if math.prod(weight.shape[2:]) == 1:
        result = _pointwise(attrs, data, weight, counts)
    elif weight.shape[1] == 1:
        result = _depthwise(attrs, data, weight, counts)
    else:
        result = _im2col_product(attrs, data, weight, counts)
    return narrowed(result, dtype)


def _pointwise(attrs: ConvAttrs, data: Array, weight: Array, counts: Sequence[int]) -> Array:
    """A kernel of one element: one matrix product per image and group."""
    batch, outputs, groups = data.shape[0], weight.shape[0], attrs.groups
    read: Index = (..., *(slice(0, None, stride) for stride in attrs.strides))
    pixels = data[read].reshape(batch, groups, weight.shape[1], math.prod(counts))
    matrix = weight.reshape(groups, outputs // groups, weight.shape[1])
    return np.asarray(np.matmul(matrix, pixels)).reshape(batch, outputs, *counts)


def _depthwise(attrs: ConvAttrs, data: Array, weight: Array, counts: Sequence[int]) -> Array:
    """Groups of one channel: no matrices, but one multiply-add of images per kernel element."""
    batch, channels = data.shape[:2]
    factors = weight.reshape(channels, -1, *weight.shape[2:])
    total = np.zeros((batch, channels, factors.shape[1], *counts), data.dtype)
    term = np.empty_like(total)
    kernel = weight.shape[2:]
    for position, taps in window_slices(kernel, counts, attrs.strides, attrs.dilation):
        element: Index = (slice(None), slice(None), *position)
        factor = factors[element]
        factor = factor.reshape(*factor.shape, *(1,) * len(kernel))
        np.multiply(data[(slice(None), slice(None), None, *taps)], factor, out=term)
        total += term
    return total.reshape(batch, weight.shape[0], *counts)


def _im2col_product(attrs: ConvAttrs, data: Array, weight: Array, counts: Sequence[int]) -> Array:
    """The data under all windows side by side, block by block, times the weight as a matrix."""
    batch, rank = data.shape[0], len(counts)
    groups, outputs, depth = attrs.groups, weight.shape[0], math.prod(weight.shape[1:])
    matrix = weight.reshape(groups, outputs // groups, depth)
    windows = _windows(attrs, data, weight.shape[2:])
    inner = math.prod(counts[1:])
    block = max(1, _BLOCK_BYTES // max(1, groups * depth * inner * data.itemsize))
    block = min(block, counts[0])
    buffer = np.empty(groups * depth * inner * block, data.dtype)
    result = np.empty((batch, groups, outputs // groups, counts[0] * inner), data.dtype)
    for image in range(batch):
        for first in range(0, counts[0], block):
            last = min(first + block, counts[0])
            rows = windows[image][(..., slice(first, last), *(slice(None),) * (rank - 1))]
            columns = buffer[: groups * depth * inner * (last - first)]
            np.copyto(columns.reshape(rows.shape), rows)
            target = result[image, :, :, first * inner : last * inner]
            np.matmul(matrix, columns.reshape(groups, depth, -1), out=target)
    return result.reshape(batch, outputs, *counts)


def _windows(attrs: ConvAttrs, data: Array, kernel: Sequence[int]) -> Array:
    """A view [batch, channels, kernel..., position...] of the data under each window."""
    rank = len(kernel)
    spans: Any = [reach(k, d) for k, d in zip(kernel, attrs.dilation, strict=True)]
    view = sliding_window_view(data, spans, axis=tuple(range(2, 2 + rank)))
    steps = (*attrs.strides, *attrs.dilation)
    view = view[(slice(None), slice(None), *(slice(None, None, step) for step in steps))]
    return view.transpose(0, 1, *range(2 + rank, 2 + 2 * rank), *range(2, 2 + rank))


for _rank in RANKS:
    define(
        f"nn.conv{_rank}d",
        "data weight",
        _conv_type(_rank),
        convolve,
        attrs=for_rank(ConvAttrs, _rank),
        kind=Kind.ANCHOR,
        work=_conv_work,
        summary=f"convolution over {_rank} spatial axes; the weight is [outputs, channels, ...]",
    )


@dataclass(frozen=True, slots=True)
class BiasAddAttrs(Attrs):
    axis: int = 1


def _bias_add_type(attrs: BiasAddAttrs, data: TensorType, bias: TensorType) -> TensorType:
    same_dtype(data, bias)
    (length,) = ranked_shape(bias, 1, "the bias")
    return with_extent(data, attrs.axis, length, "extents of the data's axis and the bias")


def _bias_add(attrs: BiasAddAttrs, data: Array, bias: Array) -> Array:
    shape = [1] * data.ndim
    shape[attrs.axis] = -1
    return np.asarray(by_numpy(np.add)(attrs, data, bias.reshape(shape)))


def _express_bias_add(attrs: BiasAddAttrs, out: te.Out, data: Tensor, bias: Tensor) -> te.Results:
    """Add a vector that runs along one axis."""
    shape = out.shape

    def element(*indices: Term) -> Term:
        operands = [te.read(data, indices), te.along(bias, indices, attrs.axis, shape)]
        return formula(get_op("nn.bias_add"), attrs, operands, out.dtype)

    return out.of(element)


pointwise(
    "nn.bias_add",
    "data bias",
    lambda _attrs, x, bias: x + bias,
    infer=_bias_add_type,
    evaluate=_bias_add,
    expression=_express_bias_add,
    attrs=BiasAddAttrs,
    dtypes=NUMBERS,
    summary="adds a vector along one axis",
)


# Tensor expressions.


@te.expresses(*(f"nn.conv{rank}d" for rank in RANKS))
def _express_convolution(attrs: Any, out: te.Out, data: Tensor, weight: Tensor) -> te.Results:
    """Data [batch, channels, ...] and weights [outputs, channels / groups, ...]."""
    dtype, shape = out.dtype, out.shape
    rank = len(attrs.strides)
    outputs, depth, *kernel = te.numbers(te.sizes(weight), "the kernel's extents")
    extents = read_extents(attrs, shape[2:], kernel)
    begins, ends = attrs.padding[:rank], attrs.padding[rank:]
    zero = te.number(0, te.accumulated_in(dtype))
    source = te.bordered(data, f"{out.name}_pad", begins, extents, zero, ends=ends)

    def element(batch: Term, output: Term, *position: Term) -> Reduce:
        channel, *taps = te.reduce_axes((depth, *kernel))
        first = first_channel(output, outputs // attrs.groups, depth, attrs.groups)
        steps = zip(position, attrs.strides, taps, attrs.dilation, strict=True)
        at = [index * stride + tap * dilation for index, stride, tap, dilation in steps]
        pixel = te.widened(source[(batch, first + channel, *at)])
        factor = te.widened(weight[(output, channel, *taps)])
        return sum_(pixel * factor, [channel, *taps])

    total = te.by_index(te.sum_name(out.name, dtype), shape, element)
    return out.rounded(total)


def first_channel(output: Term, outputs: int, depth: int, groups: int) -> Term:
    """The first channel of the group that an output belongs to."""
    return term(0) if groups == 1 else output // outputs * depth

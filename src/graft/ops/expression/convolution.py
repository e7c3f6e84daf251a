"""Convolutions and transposed convolutions over any number of spatial axes."""

from __future__ import annotations

from typing import Any

from graft.base.dtypes import DType
from graft.loop.build import Term, cast, term
from graft.loop.tensor import Reduce, Tensor, sum_
from graft.ops.expression.registry import Inputs, Results, Types, expresses
from graft.ops.expression.shapes import (
    bordered,
    by_index,
    extents_of,
    number,
    numbers,
    present,
    read,
    reduce_axes,
    sizes,
)
from graft.ops.scalar import is_narrow, widened

_RANKS = (1, 2, 3)


def accumulated_in(dtype: DType) -> DType:
    """The dtype in which products are summed."""
    return DType.FLOAT32 if is_narrow(dtype) else dtype


def rounded(total: Tensor, dtype: DType, name: str) -> Tensor:
    """A sum in the result's dtype."""
    if total.dtype is dtype:
        return total
    return by_index(name, total.shape, lambda *indices: cast(dtype, read(total, indices)))


def sum_name(name: str, dtype: DType) -> str:
    """What the sum before rounding is called: as the result, if it is the result."""
    return f"{name}_wide" if is_narrow(dtype) else name


@expresses(*(f"nn.conv{rank}d" for rank in _RANKS))
def convolution(attrs: Any, inputs: Inputs, types: Types, name: str) -> Results:
    """Data [batch, channels, ...] and weights [outputs, channels / groups, ...]."""
    data, weight = map(present, inputs)
    dtype, shape = types[0].dtype, extents_of(types[0])
    rank = len(attrs.strides)
    outputs, depth, *kernel = numbers(sizes(weight), "the kernel's extents")
    wanted = [
        (count - 1) * stride + (taps - 1) * dilation + 1
        for count, stride, taps, dilation in zip(
            shape[2:], attrs.strides, kernel, attrs.dilation, strict=True
        )
    ]
    begins, ends = attrs.padding[:rank], attrs.padding[rank:]
    zero = number(0, accumulated_in(dtype))
    source = bordered(data, f"{name}_pad", begins, wanted, zero, ends=ends)

    def element(batch: Term, output: Term, *place: Term) -> Reduce:
        channel, *taps = reduce_axes((depth, *kernel))
        first = _first_channel(output, outputs // attrs.groups, depth, attrs.groups)
        steps = zip(place, attrs.strides, taps, attrs.dilation, strict=True)
        at = [index * stride + tap * dilation for index, stride, tap, dilation in steps]
        pixel = widened(source[(batch, first + channel, *at)])
        factor = widened(weight[(output, channel, *taps)])
        return sum_(pixel * factor, [channel, *taps])

    total = by_index(sum_name(name, dtype), shape, element)
    return (rounded(total, dtype, name),)


def _first_channel(output: Term, outputs: int, depth: int, groups: int) -> Term:
    """The first channel of the group that an output belongs to."""
    return term(0) if groups == 1 else output // outputs * depth


@expresses(*(f"nn.conv{rank}d_transpose" for rank in _RANKS))
def transposed(attrs: Any, inputs: Inputs, types: Types, name: str) -> Results:
    """A convolution of the data, zeros put between them, with the weights turned around.

    Weights are [channels, outputs / groups, ...].
    """
    data, weight = map(present, inputs)
    dtype, shape = types[0].dtype, extents_of(types[0])
    rank = len(attrs.strides)
    channels, outputs, *kernel = numbers(sizes(weight), "the kernel's extents")
    depth = channels // attrs.groups
    reach = [(taps - 1) * step for taps, step in zip(kernel, attrs.dilation, strict=True)]
    wanted = [count + last for count, last in zip(shape[2:], reach, strict=True)]
    begins = [last - cut for last, cut in zip(reach, attrs.padding[:rank], strict=True)]
    zero = number(0, accumulated_in(dtype))
    source = bordered(data, f"{name}_pad", begins, wanted, zero, attrs.strides)

    def element(batch: Term, output: Term, *place: Term) -> Reduce:
        channel, *taps = reduce_axes((depth, *kernel))
        steps = zip(place, taps, attrs.dilation, strict=True)
        at = [index + tap * dilation for index, tap, dilation in steps]
        last = zip(kernel, taps, strict=True)
        turned = [count - 1 - tap for count, tap in last]
        first = _first_channel(output, outputs, depth, attrs.groups)
        pixel = widened(source[(batch, first + channel, *at)])
        factor = widened(weight[(first + channel, output % outputs, *turned)])
        return sum_(pixel * factor, [channel, *taps])

    total = by_index(sum_name(name, dtype), shape, element)
    return (rounded(total, dtype, name),)

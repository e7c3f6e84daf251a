"""Convolutions: plain, transposed, quantised, deformable and causal.

A bias becomes an `nn.bias_add`. Quantised convolutions are composed: an exact convolution of
integers, whose sums one factor per tensor or output channel scales.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from graft.base.dims import AnyDim, dim_max
from graft.base.dtypes import DType
from graft.frontends.onnx.call import Call
from graft.frontends.onnx.lower.activation import swish
from graft.frontends.onnx.lower.linear import without_zero_point
from graft.frontends.onnx.lower.window import (
    Window,
    padded_at_run_time,
    spatial_rank,
    split_padding,
    window_of,
    window_without_padding,
)
from graft.frontends.onnx.registry import lowers, lowers_to
from graft.ir.graph import Value

lowers_to("Col2Im", "col2im", "strides padding=pads dilation=dilations")


_TO_THE_END = np.iinfo(np.int64).max


@lowers("Conv")
def _conv(call: Call) -> Value:
    return _with_bias(call, _convolution(call, call.input(0), call.input(1)), call.optional(2))


def _convolution(call: Call, data: Value, weight: Value) -> Value:
    window = window_of(call, data, weight)
    data = padded_at_run_time(call, data, window)
    groups = call.int("group", 1)
    return call.op(f"nn.conv{window.rank}d", data, weight, groups=groups, **window.attributes)


def _with_bias(call: Call, result: Value, bias: Value | None) -> Value:
    return result if bias is None else call.op("nn.bias_add", result, bias)


@lowers("ConvTranspose")
def _conv_transpose(call: Call) -> Value:
    data, weight = call.input(0), call.input(1)
    window = window_without_padding(call, data, weight)
    added = call.ints("output_padding", ()) or (0,) * window.rank
    attributes = {**window.attributes, "padding": _transposed_padding(call, data, window, added)}
    result = call.op(
        f"nn.conv{window.rank}d_transpose",
        data,
        weight,
        groups=call.int("group", 1),
        output_padding=added,
        **attributes,
    )
    return _with_bias(call, result, call.optional(2))


def _transposed_padding(call: Call, data: Value, window: Window, added: Any) -> tuple[AnyDim, ...]:
    """What is cut off before, then behind each axis; negative amounts are zeros added."""
    rank, shape = window.rank, call.ints("output_shape", ())
    if shape:
        return _padding_for_shape(call, data, window, added, shape)
    if window.auto_pad in ("NOTSET", "VALID"):
        zeros = (0,) * (2 * rank)
        return call.ints("pads", ()) or zeros if window.auto_pad == "NOTSET" else zeros
    # The result is to be `stride` times as large, or larger where the kernel is too small for that.
    totals = [
        dim_max(window.span(axis) + added[axis] - window.strides[axis], 0) for axis in range(rank)
    ]
    begins, ends = split_padding(totals, window.auto_pad)
    return (*begins, *ends)


def _padding_for_shape(
    call: Call, data: Value, window: Window, added: Any, shape: Any
) -> tuple[AnyDim, ...]:
    if len(shape) != window.rank:
        call.fail(f"output_shape has {len(shape)} entries, not {window.rank}")
    call.rank(data)
    assert data.shape is not None
    totals = []
    for axis, extent in enumerate(data.shape[2:]):
        full = (extent - 1) * window.strides[axis] + window.span(axis) + added[axis]
        totals.append(full - shape[axis])
    if window.auto_pad != "SAME_UPPER":
        begins, ends = split_padding(totals, window.auto_pad)
        return (*begins, *ends)
    # The odd one goes behind even where something is missing, so halves are rounded toward zero.
    begins = [dim_max(total, 0) // 2 - dim_max(-total, 0) // 2 for total in totals]
    return (*begins, *(total - begin for total, begin in zip(totals, begins, strict=True)))


@lowers("ConvInteger")
def _conv_integer(call: Call) -> Value:
    return _integer_convolution(call, 0, 1, 2, 3)


@lowers("QLinearConv")
def _qlinear_conv(call: Call) -> Value:
    """The scales' ratio is formed first, so that ties round as in other implementations."""
    sums = _with_bias(call, _integer_convolution(call, 0, 3, 2, 5), call.optional(8))
    real = call.op("cast", sums, dtype=DType.FLOAT32)
    scale = call.op(
        "multiply", call.input(1), _per_output(call, call.input(4), call.rank(sums) - 1)
    )
    ratio = call.op("divide", scale, call.input(6))
    zero_point = call.input(7)
    one = call.scalar(1, real)
    scaled = call.op("multiply", real, ratio)
    return call.op("qnn.quantize", scaled, one, zero_point, dtype=zero_point.dtype)


def _integer_convolution(
    call: Call, data_at: int, weight_at: int, data_zero_at: int, weight_zero_at: int
) -> Value:
    """The exact convolution of operands less their zero points, in int32."""
    data, weight = call.input(data_at), call.input(weight_at)
    rank = spatial_rank(call, data, weight) + 2
    data_zero, weight_zero = call.optional(data_zero_at), call.optional(weight_zero_at)
    if weight_zero is not None:
        weight_zero = _per_output(call, weight_zero, rank)
    weight = without_zero_point(call, weight, weight_zero)
    window = window_of(call, data, weight)
    if data_zero is not None and call.rank(data_zero):
        data_zero = call.op("squeeze", data_zero, axes=(0,))
    data = padded_at_run_time(call, data, window, 0 if data_zero is None else data_zero)
    zeros = () if data_zero is None else (data_zero,)
    groups = call.int("group", 1)
    name = f"qnn.conv{window.rank}d"
    return call.op(name, data, weight, *zeros, groups=groups, **window.attributes)


def _per_output(call: Call, parameter: Value, rank: int) -> Value:
    """One number, or one per output channel, as the first of `rank` axes."""
    return call.op("reshape", parameter, shape=(-1, *(1,) * (rank - 1)))


@lowers("DeformConv")
def _deform_conv(call: Call) -> Value:
    data, weight, offset = (call.input(position) for position in range(3))
    window = window_of(call, data, weight)
    if window.rank != 2:
        call.unsupported(f"DeformConv has {window.rank} spatial axes; 2 are supported")
    result = call.op(
        "nn.deformable_conv2d",
        data,
        offset,
        weight,
        call.optional(4),
        groups=call.int("group", 1),
        deformable_groups=call.int("offset_group", 1),
        **window.attributes,
    )
    return _with_bias(call, result, call.optional(3))


@lowers("CausalConvWithState")
def _causal_conv_with_state(call: Call) -> tuple[Value, Value]:
    """A depthwise convolution of the past and the data; the last of these are the next past."""
    data, weight, past = call.input(0), call.input(1), call.optional(3)
    if call.rank(weight) != 3:
        call.fail(f"the weight has rank {call.rank(weight)}, not 3")
    channels, _, kernel = weight.shape or ()
    if not isinstance(kernel, int) or not isinstance(channels, int):
        call.unsupported("CausalConvWithState wants to know the weight's shape")
    state = kernel - 1
    if past is None:
        whole = call.op("nn.pad", data, pad_width=(0, 0, state, 0, 0, 0))
    else:
        whole = call.op("concatenate", past, data, axis=2)
    result = call.op("nn.conv1d", whole, weight, groups=channels)
    result = _with_bias(call, result, call.optional(2))
    begin, end = (-state, _TO_THE_END) if state else (0, 0)
    present = call.op("strided_slice", whole, begin=(begin,), end=(end,), axes=(2,))
    return _activate(call, result), present


def _activate(call: Call, result: Value) -> Value:
    activation = call.string("activation", "none")
    if activation in ("silu", "swish"):
        return swish(call, result)
    if activation != "none":
        call.fail(f"activation is '{activation}', none of none, silu, swish")
    return result

"""Layers, pools, sums and products in TOSA, in the table of `lower.py` once this is imported."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import tosa_serializer

from graft.backends.ethosu.lower import Lowering, Real, lowers, signed
from graft.backends.ethosu.tosa import IGNORED, Tensor
from graft.base.dtypes import Array
from graft.base.errors import UnsupportedError
from graft.byoc.formats.integer_units import SIGN, Coded, extents
from graft.ir.graph import Node

_ACCUMULATOR = tosa_serializer.DType.INT32
_SUM_BITS = 29  # of what is added in 32


@lowers("nn.conv2d", "nn.conv2d_transpose")
def _convolution(lowering: Lowering, node: Node) -> Real:
    is_transposed = node.op.name == "nn.conv2d_transpose"
    data, (array, weight) = (
        lowering.bytes_of(node.args[0]),
        _weights(lowering, node, int(is_transposed)),
    )
    attrs, channels, groups = node.attrs, data.tensor.shape[-1], node.attrs.groups
    if is_transposed:
        if groups > 1 or set(attrs.dilation) != {1}:
            raise UnsupportedError("TOSA's TRANSPOSE_CONV2D has neither groups nor dilation")
        top, left, bottom, right = attrs.padding
        rows, columns = attrs.output_padding
        pads = [-top, rows - bottom, -left, columns - right]
        kinds = (pads, list(attrs.strides), False, _ACCUMULATOR)
        array = array.transpose(3, 1, 2, 0)  # from IHWO to OHWI
        return _product(lowering, node, data, array, weight, kinds)
    if groups not in (1, channels):
        raise UnsupportedError(f"TOSA has no convolution in {groups} groups of {channels} channels")
    data, pads = _padded(lowering, node, data, array.shape[1:3], attrs.dilation)
    window = (pads, list(attrs.strides), list(attrs.dilation), False, _ACCUMULATOR)
    return _product(lowering, node, data, array, weight, window, depthwise=groups > 1)


@lowers("nn.dense")
def _dense(lowering: Lowering, node: Node) -> Real:
    """A convolution of single pixels."""
    data, (array, weight) = lowering.bytes_of(node.args[0]), _weights(lowering, node, 0)
    units, inputs = array.shape
    rows = int(np.prod(data.tensor.shape[:-1]))
    pixels = replace(data, tensor=lowering.tosa.reshape(data.tensor, (1, rows, 1, inputs)))
    kernel = array.reshape(units, 1, 1, inputs)
    kinds = ([0, 0, 0, 0], [1, 1], [1, 1], False, _ACCUMULATOR)
    product = _product(lowering, node, pixels, kernel, weight, kinds, shape=(1, rows, 1, units))
    return replace(product, tensor=lowering.tosa.reshape(product.tensor, extents(node.output)))


def _weights(lowering: Lowering, node: Node, axis: int) -> tuple[Array, Coded]:
    """Weights as signed bytes; their scales, where there are several, belong to the channels of the
    result."""
    weight = lowering.constant(node.args[1])
    if len(set(weight.zero.flat)) > 1:
        raise UnsupportedError("the weights have several zero points")
    if weight.scale.size > 1 and weight.axis != axis:
        raise UnsupportedError(f"the weights have scales along their axis {weight.axis}")
    return signed(weight), weight


def _product(
    lowering: Lowering,
    node: Node,
    data: Real,
    array: Array,  # OHWI
    weight: Coded,
    parameters: Sequence[object],
    depthwise: bool = False,
    shape: Sequence[int] | None = None,
) -> Real:
    """Sums of 32 bits, the bias behind the layer included."""
    tosa, zero = lowering.tosa, weight.offset - SIGN
    scale = data.scale * weight.scale.reshape(-1)
    bias = _bias(lowering, node, scale, len(array))
    most = np.abs(array - zero).sum((1, 2, 3)) * data.largest + np.abs(bias)
    name = "TRANSPOSE_CONV2D" if node.op.name == "nn.conv2d_transpose" else "CONV2D"
    if depthwise:  # HWCM
        name, channels = "DEPTHWISE_CONV2D", data.tensor.shape[-1]
        array = array.reshape(channels, -1, *array.shape[1:3]).transpose(2, 3, 0, 1)
    operands = (
        data.tensor,
        tosa.constant(array),
        tosa.constant(bias, "INT32"),
        tosa.numbers(data.zero),
        tosa.numbers(zero),
    )
    tensor = tosa.call(name, operands, shape or extents(node.output), *parameters, dtype="INT32")
    return Real(tensor, scale if scale.size > 1 else scale.reshape(()), largest=int(most.max()))


def _bias(lowering: Lowering, node: Node, scale: Array, channels: int) -> Array:
    """The operand of a `bias_add` behind a layer, in the steps of its sums."""
    (reader, *_) = lowering.region.users[node.output]
    if reader.op.name != "nn.bias_add":
        return np.zeros(channels, np.int64)
    rank, bias = len(extents(node.output)), lowering.constant(reader.args[1])
    if reader.attrs.axis % rank != (rank - 1 if node.op.name == "nn.dense" else 1):
        raise UnsupportedError(f"a bias along the axis {reader.attrs.axis}")
    return np.rint(bias.weights() * bias.scale / scale).astype(np.int64)


@lowers("nn.bias_add")
def _bias_add(lowering: Lowering, node: Node) -> Real:
    """The layer before it has added it."""
    return lowering.real(node.args[0])


def _padded(
    lowering: Lowering, node: Node, data: Real, kernel: Sequence[int], dilation: Sequence[int]
) -> tuple[Real, list[int]]:
    """Pads with which windows end where the image does, as TOSA wants it; where they end before,
    the rest of the image is cut off."""
    attrs, image, result = node.attrs, data.tensor.shape, extents(node.output)
    pads, kept = [], list(image)
    for axis in (0, 1):
        before, extent = attrs.padding[axis], image[1 + axis]
        reach = (
            (result[1 + axis] - 1) * attrs.strides[axis] + dilation[axis] * (kernel[axis] - 1) + 1
        )
        after = reach - extent - before
        kept[1 + axis] = extent + min(after, 0)
        pads += [before, max(after, 0)]
    return replace(data, tensor=lowering.tosa.slice(data.tensor, (0, 0, 0, 0), kept)), pads


@lowers("nn.max_pool2d", "nn.avg_pool2d")
def _pool(lowering: Lowering, node: Node) -> Real:
    attrs, data = node.attrs, lowering.bytes_of(node.args[0])
    window, strides = list(attrs.pool_size), list(attrs.strides)
    if set(attrs.dilation) != {1}:
        raise UnsupportedError("TOSA's pools have no dilation")
    data, pads = _padded(lowering, node, data, window, (1, 1))
    shape = extents(node.output)
    if node.op.name == "nn.max_pool2d":
        kinds = (window, strides, pads, IGNORED)
        return replace(data, tensor=lowering.tosa.call("MAX_POOL2D", (data.tensor,), shape, *kinds))
    if not any(pads) or (attrs.count_include_pad and not attrs.ceil_mode):
        return _mean(lowering, data, window, strides, pads, shape)
    if attrs.count_include_pad:
        raise UnsupportedError("ceil_mode and count_include_pad together")
    zero = lowering.tosa.numbers(data.zero)
    kinds = (window, strides, pads, _ACCUMULATOR)
    tensor = lowering.tosa.call("AVG_POOL2D", (data.tensor, zero, zero), shape, *kinds)
    return replace(data, tensor=tensor, is_rounded=True)


@lowers("mean")
def _global_mean(lowering: Lowering, node: Node) -> Real:
    data = lowering.bytes_of(node.args[0])
    rank = len(data.tensor.shape)
    if rank != 4 or sorted(axis % rank for axis in node.attrs.axes or ()) != [2, 3]:
        raise UnsupportedError(f"a mean over the axes {node.attrs.axes}, which are not an image's")
    batch, *window, channels = data.tensor.shape
    pooled = _mean(lowering, data, window, [1, 1], [0] * 4, (batch, 1, 1, channels))
    return replace(pooled, tensor=lowering.tosa.reshape(pooled.tensor, extents(node.output)))


def _mean(
    lowering: Lowering,
    data: Real,
    window: Sequence[int],
    strides: Sequence[int],
    pads: Sequence[int],
    shape: Sequence[int],
) -> Real:
    """A depthwise convolution with ones: AVG_POOL2D would round to the steps of its operand."""
    tosa, channels, count = lowering.tosa, data.tensor.shape[-1], int(np.prod(window))
    operands = (
        data.tensor,
        tosa.constant(np.ones((*window, channels, 1), np.int64)),
        tosa.constant(np.zeros(channels, np.int64), "INT32"),
        tosa.numbers(data.zero),
        tosa.numbers(0),
    )
    kinds = (list(pads), list(strides), [1, 1], False, _ACCUMULATOR)
    tensor = tosa.call("DEPTHWISE_CONV2D", operands, shape, *kinds, dtype="INT32")
    return Real(tensor, data.scale / count, largest=count * data.largest)


@lowers("multiply")
def _multiply(lowering: Lowering, node: Node) -> Real:
    left, right = pair = _pair(lowering, node)
    wide = [_widened(lowering, one, np.ones(())) for one in pair]
    operands = (*wide, lowering.tosa.numbers(0))
    tensor = lowering.tosa.call("MUL", operands, extents(node.output), dtype="INT32")
    return Real(tensor, left.scale * right.scale, largest=left.largest * right.largest)


@lowers("add", "subtract")
def _sum(lowering: Lowering, node: Node) -> Real:
    """Of two tensors, or of the sums of a layer and a tensor, in steps so fine that what is rounded
    before the sum does not show behind it."""
    pair = _pair(lowering, node)
    step = sum(one.largest * one.scale.max() for one in pair) / (1 << _SUM_BITS)
    wide = [_widened(lowering, one, one.scale / step) for one in pair]
    name = "ADD" if node.op.name == "add" else "SUB"
    tensor = lowering.tosa.call(name, wide, extents(node.output), dtype="INT32")
    return Real(tensor, np.asarray(step), largest=1 << _SUM_BITS)


def _pair(lowering: Lowering, node: Node) -> list[Real]:
    pair = [lowering.unbounded(value) for value in node.args]
    if any(len(one.tensor.shape) != len(extents(node.output)) for one in pair):
        raise UnsupportedError("TOSA does not broadcast tensors of different ranks")
    return pair


def _widened(lowering: Lowering, data: Real, factor: Array) -> Tensor:
    return lowering.tosa.rescale(data.tensor, factor, data.largest, data.zero, dtype="INT32")

"""Layers, pools, sums and products in TOSA, in the table of `lower.py` once this is imported."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import tosa_serializer

from graft.backends.ethosu.lower import LOWER, Lowering, Real, coded_real, stored_extents
from graft.backends.ethosu.tosa import IGNORED, Tensor
from graft.base.dtypes import Array
from graft.base.errors import UnsupportedError
from graft.byoc.formats.integer_units import (
    BYTES,
    LayerSums,
    Unit,
    counts_alike,
    extents,
    layer_sums,
    window_sums,
)
from graft.byoc.formats.storage import CHANNELS_LAST
from graft.ops.window import padding_behind

_ACCUMULATOR = tosa_serializer.DType.INT32
_BY_TAP = (2, 3, 0, 1)  # weights of a depthwise convolution: height, width, channel, multiple


@LOWER.entry("nn.conv2d")
def _convolution(lowering: Lowering, unit: Unit) -> Real:
    attrs, (sums, zero) = unit.operator.attrs, _layer(unit)
    channels, (_, _, *kernel) = extents(sums.data.value)[1], sums.weights.shape
    if attrs.groups not in (1, channels):
        reason = f"TOSA has no convolution in {attrs.groups} groups of {channels} channels"
        raise UnsupportedError(reason)
    data, pads = _padded(lowering, unit, lowering.real(sums.data).tensor, kernel)
    name, weights = "CONV2D", sums.weights.transpose(CHANNELS_LAST)
    if attrs.groups > 1:
        by_channel = sums.weights.reshape(channels, -1, *kernel)
        name, weights = "DEPTHWISE_CONV2D", by_channel.transpose(_BY_TAP)
    window = (pads, list(attrs.strides), list(attrs.dilation))
    shape = stored_extents(unit.operator.output)
    return _product(lowering, sums, name, data, weights, window, shape, zero)


@LOWER.entry("nn.conv2d_transpose")
def _transposed_convolution(lowering: Lowering, unit: Unit) -> Real:
    attrs = unit.operator.attrs
    if attrs.groups > 1 or set(attrs.dilation) != {1}:
        raise UnsupportedError("TOSA's TRANSPOSE_CONV2D has neither groups nor dilation")
    sums, zero = _layer(unit)
    top, left, bottom, right = attrs.padding
    rows, columns = attrs.output_padding
    window = ([-top, rows - bottom, -left, columns - right], list(attrs.strides))
    data, weights = lowering.real(sums.data).tensor, sums.weights.transpose(CHANNELS_LAST)
    shape = stored_extents(unit.operator.output)
    return _product(lowering, sums, "TRANSPOSE_CONV2D", data, weights, window, shape, zero)


@LOWER.entry("nn.dense")
def _dense(lowering: Lowering, unit: Unit) -> Real:
    """A convolution of single pixels."""
    tosa, (sums, zero), shape = lowering.tosa, _layer(unit), extents(unit.operator.output)
    units, inputs = sums.weights.shape
    rows = math.prod(shape[:-1])
    pixels = tosa.reshape(tosa.row_major(lowering.real(sums.data).tensor), (1, rows, 1, inputs))
    window, kernel = ([0, 0, 0, 0], [1, 1], [1, 1]), sums.weights.reshape(units, 1, 1, inputs)
    result = (1, rows, 1, units)
    product = _product(lowering, sums, "CONV2D", pixels, kernel, window, result, zero)
    if len(shape) < 4:
        return replace(product, tensor=tosa.reshape(product.tensor, shape))
    if unit.added is not None:
        raise UnsupportedError("a tensor is added to a dense layer along the rows of images")
    # Scales of units go along the last axis, which is another one in NHWC.
    codes = tosa.reshape(lowering.quantized(product, unit.target), shape)
    return coded_real(tosa.channels_last(codes), unit.target)


def _layer(unit: Unit) -> tuple[LayerSums, int]:
    """The sums of a layer, and the zero point with which its weights are signed bytes."""
    weights = unit.operands[1]
    if weights.value.dtype not in BYTES or len(set(weights.zero.flat)) > 1:
        raise UnsupportedError("the weights are not bytes with one zero point")
    return layer_sums(unit, wide=True), weights.signed_zero


def _product(
    lowering: Lowering,
    sums: LayerSums,
    name: str,
    data: Tensor,
    weights: Array,  # of the sums, in the order of TOSA's operator
    window: Sequence[list[int]],
    shape: Sequence[int],
    zero: int = 0,
) -> Real:
    """Sums of 32 bits, the bias behind the layer included."""
    tosa = lowering.tosa
    operands = (
        data,
        tosa.constant(weights + zero),
        tosa.constant(sums.bias, "INT32"),
        tosa.numbers(sums.data.signed_zero),
        tosa.numbers(zero),
    )
    tensor = tosa.call(name, operands, shape, *window, False, _ACCUMULATOR, dtype="INT32")
    scale = sums.steps if np.ptp(sums.steps) else sums.steps[0]
    return Real(tensor, scale, largest=sums.largest)


def _padded(
    lowering: Lowering, unit: Unit, image: Tensor, kernel: Sequence[int]
) -> tuple[Tensor, list[int]]:
    """Pads with which windows end where the image does, as TOSA wants it; where they end before,
    the rest of the image is cut off."""
    attrs, (images, *size, channels) = unit.operator.attrs, image.shape
    after = padding_behind(attrs, size, kernel, extents(unit.operator.output)[2:])
    kept = [extent + min(pad, 0) for extent, pad in zip(size, after, strict=True)]
    pads = [attrs.padding[0], max(after[0], 0), attrs.padding[1], max(after[1], 0)]
    return lowering.tosa.slice(image, (0, 0, 0, 0), (images, *kept, channels)), pads


@LOWER.entry("nn.max_pool2d", "nn.avg_pool2d")
def _pool(lowering: Lowering, unit: Unit) -> Real:
    attrs, tosa, data = unit.operator.attrs, lowering.tosa, lowering.real(unit.operands[0])
    size, strides = list(attrs.pool_size), list(attrs.strides)
    if set(attrs.dilation) != {1}:
        raise UnsupportedError("TOSA's pools have no dilation")
    image, pads = _padded(lowering, unit, data.tensor, size)
    window, shape = (size, strides, pads), stored_extents(unit.operator.output)
    if unit.operator.op.name == "nn.max_pool2d":
        return replace(data, tensor=tosa.call("MAX_POOL2D", (image,), shape, *window, IGNORED))
    if counts_alike(unit.operator):
        return _mean(lowering, window_sums(unit, size), image, shape, pads, strides)
    if attrs.count_include_pad:
        raise UnsupportedError("ceil_mode and count_include_pad together")
    zero = tosa.numbers(data.zero)
    means = tosa.call("AVG_POOL2D", (image, zero, zero), shape, *window, _ACCUMULATOR)
    return replace(data, tensor=means, is_rounded=True)


@LOWER.entry("mean")
def _image_mean(lowering: Lowering, unit: Unit) -> Real:
    sums = layer_sums(unit)
    image, (images, channels, *_) = lowering.real(sums.data).tensor, extents(sums.data.value)
    means = _mean(lowering, sums, image, (images, 1, 1, channels), [0, 0, 0, 0], [1, 1])
    result = stored_extents(unit.operator.output)
    return replace(means, tensor=lowering.tosa.reshape(means.tensor, result))


def _mean(
    lowering: Lowering, sums: LayerSums, image: Tensor, shape: Sequence[int], *window: list[int]
) -> Real:
    """A depthwise convolution with ones: AVG_POOL2D would round to the steps of its operand."""
    weights = sums.weights.transpose(_BY_TAP)
    return _product(lowering, sums, "DEPTHWISE_CONV2D", image, weights, (*window, [1, 1]), shape)


@LOWER.entry("multiply")
def _multiply(lowering: Lowering, unit: Unit) -> Real:
    left, right = pair = [lowering.real(one) for one in unit.operands]
    wide = [lowering.widened(one, np.ones(())) for one in pair]
    tensor = lowering.binary("MUL", wide, unit, lowering.tosa.numbers(0))
    return Real(tensor, left.scale * right.scale, largest=left.largest * right.largest)


@LOWER.entry("add", "subtract")
def _sum(lowering: Lowering, unit: Unit) -> Real:
    pair = [lowering.real(one) for one in unit.operands]
    return lowering.total(pair, unit, "ADD" if unit.operator.op.name == "add" else "SUB")

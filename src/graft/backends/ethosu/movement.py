"""Activations, movement and resizing in TOSA, in the table of `lower.py` once this is imported."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from fractions import Fraction

import numpy as np
import tosa_serializer

from graft.backends.ethosu.lower import LOWER, Lowering, Real, coded_real, stored_extents
from graft.backends.ethosu.tosa import LOWEST, Tensor
from graft.base.errors import UnsupportedError
from graft.byoc.formats.integer_units import Unit, extents, looked_up
from graft.byoc.formats.quantized import FUNCTIONS
from graft.byoc.formats.storage import CHANNELS_LAST
from graft.ir.evaluate import run_op
from graft.ir.graph import Node
from graft.ops.padding import pad_widths
from graft.ops.slicing import slice_ranges


@LOWER.entry(*FUNCTIONS)
def _look_up(lowering: Lowering, unit: Unit) -> Real:
    """All that a byte can stand for, by a table."""
    (data, codes), tosa = looked_up(unit), lowering.tosa
    tensor = lowering.real(data).tensor
    entries = tosa.constant(codes.astype(np.int64) - unit.target.shift)
    return coded_real(tosa.call("TABLE", (tensor, entries), tensor.shape), unit.target)


@LOWER.entry("qnn.dequantize")
def _activation(lowering: Lowering, unit: Unit) -> Real:
    """Bytes, which are held to bounds once they are quantised: rounding keeps the order."""
    return lowering.real(unit.operands[0])


@LOWER.entry("concatenate")
def _concatenate(lowering: Lowering, unit: Unit) -> Real:
    """Of tensors that have scales of their own until they are quantised."""
    parts = [lowering.quantized(lowering.real(one), unit.target) for one in unit.operands]
    axes = _stored_axes(parts[0])
    axis = axes.index(unit.operator.attrs.axis % len(axes))
    joined = lowering.tosa.call("CONCAT", parts, stored_extents(unit.result), axis)
    return coded_real(joined, unit.target)


@LOWER.entry("reshape", "squeeze", "expand_dims")
def _reshape(lowering: Lowering, unit: Unit) -> Real:
    tosa, data = lowering.tosa, lowering.real(unit.operands[0])
    moved = tosa.reshape(tosa.row_major(data.tensor), extents(unit.result))
    return replace(data, tensor=tosa.channels_last(moved))


@LOWER.entry("transpose")
def _transpose(lowering: Lowering, unit: Unit) -> Real:
    tosa, data, axes = lowering.tosa, lowering.real(unit.operands[0]), unit.operator.attrs.axes
    rank = len(data.tensor.shape)
    order = range(rank)[::-1] if axes is None else [axis % rank for axis in axes]
    moved = tosa.transpose(tosa.row_major(data.tensor), order)
    return replace(data, tensor=tosa.channels_last(moved))


@LOWER.entry("nn.pad")
def _pad(lowering: Lowering, unit: Unit) -> Real:
    tosa, data, attrs = lowering.tosa, lowering.real(unit.operands[0]), unit.operator.attrs
    is_zero = attrs.mode == "constant" and not attrs.value
    if not is_zero or attrs.pad_width is None or min(attrs.pad_width, default=0) < 0:
        raise UnsupportedError("pads other than of constant zeros")
    axes = _stored_axes(data.tensor)
    widths = pad_widths(attrs, len(axes))
    pads = [width for axis in axes for width in widths.get(axis, (0, 0))]
    operands = (data.tensor, tosa.numbers(*pads, dtype="SHAPE"), tosa.numbers(data.zero))
    return replace(data, tensor=tosa.call("PAD", operands, stored_extents(unit.result)))


@LOWER.entry("strided_slice")
def _slice(lowering: Lowering, unit: Unit) -> Real:
    data, attrs = lowering.real(unit.operands[0]), unit.operator.attrs
    if attrs.begin is None or attrs.end is None or set(attrs.strides or (1,)) != {1}:
        raise UnsupportedError("slices whose bounds are operands, or that leave elements out")
    ranges = slice_ranges(attrs, extents(unit.operator.args[0]))
    starts = [ranges[axis].start for axis in _stored_axes(data.tensor)]
    cut = lowering.tosa.slice(data.tensor, starts, stored_extents(unit.result))
    return replace(data, tensor=cut)


def _stored_axes(tensor: Tensor) -> Sequence[int]:
    """The axes of a value in the order of TOSA's."""
    return CHANNELS_LAST if len(tensor.shape) == 4 else range(len(tensor.shape))


@LOWER.entry("resize")
def _resize(lowering: Lowering, unit: Unit) -> Real:
    node, tosa, data = unit.operator, lowering.tosa, lowering.real(unit.operands[0])
    is_image = len(data.tensor.shape) == 4
    if not is_image or node.attrs.antialias or node.attrs.method == "cubic":
        raise UnsupportedError("resizing other than of images to static sizes, nearest or linear")
    sampled = [_sampling(node, axis) for axis in (2, 3)]
    scale = [number for numerator, step, _ in sampled for number in (numerator, step)]
    offsets = [offset for *_, offset in sampled]
    sizes = zip(extents(node.args[0])[2:], extents(node.output)[2:], strict=True)
    border = [
        (resized - 1) * step - (size - 1) * numerator + offset
        for (size, resized), (numerator, step, offset) in zip(sizes, sampled, strict=True)
    ]
    numbers = (tosa.numbers(*one, dtype="SHAPE") for one in (scale, offsets, border))
    operands, shape = (data.tensor, *numbers), stored_extents(node.output)
    modes = tosa_serializer.ResizeMode
    if node.attrs.method != "linear":
        return replace(data, tensor=tosa.call("RESIZE", operands, shape, modes.NEAREST))
    parts = scale[0] * scale[2]
    sums = tosa.call("RESIZE", operands, shape, modes.BILINEAR, dtype="INT32")
    means = tosa.rescale(sums, np.array(1 / parts), -LOWEST * parts)
    return replace(data, tensor=means, is_rounded=True)


def _sampling(node: Node, axis: int) -> tuple[int, int, int]:
    """Numerator, denominator and offset with which TOSA samples where the operator does, which is
    found by resizing a ramp."""
    shape, attrs = extents(node.args[0]), node.attrs
    size, resized = shape[axis], extents(node.output)[axis]
    ramp = np.moveaxis(np.zeros(shape, np.float32), axis, -1) + np.arange(size, dtype=np.float32)
    (result,) = run_op(node.op, attrs, [np.moveaxis(ramp, -1, axis)])
    coordinates = np.moveaxis(np.asarray(result), axis, -1)[0, 0, 0]
    ratio, positions = Fraction(resized, size), np.arange(resized)
    scale, step = ratio.numerator, ratio.denominator
    half_pixel, asymmetric = (2 * scale, 2 * step, step - scale), (scale, step, 0)
    for choice in (half_pixel, asymmetric, (max(resized - 1, 1), size - 1, 0)):
        sampled = (positions * choice[1] + choice[2]) / choice[0]
        sampled = sampled if attrs.method == "linear" else np.floor(sampled + 0.5)
        if np.allclose(np.clip(sampled, 0, size - 1), coordinates, atol=1e-4):
            return choice
    mode = attrs.coordinate_transformation_mode
    raise UnsupportedError(f"TOSA does not sample as {attrs.method} resizing by {mode}")

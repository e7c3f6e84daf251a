"""Activations, movement and resizing in TOSA, in the table of `lower.py` once this is imported."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction

import numpy as np
import tosa_serializer

from graft.backends.ethosu.lower import Joined, Lowering, Real, axis_of, lowers
from graft.backends.ethosu.tosa import HIGHEST, LOWEST
from graft.base.errors import UnsupportedError
from graft.byoc.formats.integer_units import bounds_of, extents
from graft.ir.evaluate import run_op
from graft.ir.graph import Node
from graft.ops.layout import rearrangement

# Functions of single elements, which a table of 256 bytes has exactly.
LOOKED_UP = (
    *("sigmoid", "tanh", "exp", "log", "sqrt", "erf", "sin", "cos", "abs", "negative"),
    *("nn.gelu", "nn.leaky_relu", "floor", "ceil", "round", "sign"),
)


@lowers(*LOOKED_UP)
def _look_up(lowering: Lowering, node: Node) -> Real:
    """The operator's own meaning, of all that a byte can stand for."""
    data = lowering.bytes_of(node.args[0])
    floats = (np.arange(LOWEST, HIGHEST + 1) - data.zero) * data.scale
    with np.errstate(all="ignore"):
        (results,) = run_op(node.op, node.attrs, [floats.astype(np.float32)])
    return replace(data, table=np.asarray(results))


@lowers("nn.relu", "clip")
def _clip(lowering: Lowering, node: Node) -> Real:
    """Bounds, which the bytes are held to once they are quantised: rounding keeps the order."""
    data = lowering.real(node.args[0])
    if data.table is not None:
        raise UnsupportedError("bounds of what a table has")
    low, high = bounds_of(node)
    bounds = [min(max(bound, low), high) for bound in (data.low, data.high)]
    return replace(data, low=bounds[0], high=bounds[1])


@lowers("concatenate")
def _concatenate(lowering: Lowering, node: Node) -> Joined:
    parts = tuple(lowering.bytes_of(value) for value in node.args)
    return Joined(parts, axis_of(node.attrs.axis, len(parts[0].tensor.shape)))


@lowers("reshape", "squeeze", "expand_dims")
def _reshape(lowering: Lowering, node: Node) -> Real:
    data = lowering.real(node.args[0])
    return replace(data, tensor=lowering.tosa.reshape(data.tensor, extents(node.output)))


@lowers("transpose")
def _transpose(lowering: Lowering, node: Node) -> Real:
    data = lowering.real(node.args[0])
    rank = len(data.tensor.shape)
    axes = node.attrs.axes if node.attrs.axes is not None else range(rank)[::-1]
    axes = [axis % rank for axis in axes]
    return replace(data, tensor=lowering.tosa.transpose(data.tensor, axes))


@lowers("layout_transform")
def _relayout(lowering: Lowering, node: Node) -> Real:
    data = lowering.real(node.args[0])
    layouts = node.attrs.src_layout, node.attrs.dst_layout
    moved = lowering.tosa.transpose(data.tensor, rearrangement(*layouts, data.tensor.shape).axes)
    return replace(data, tensor=moved)


@lowers("nn.pad")
def _pad(lowering: Lowering, node: Node) -> Real:
    data, attrs = lowering.bytes_of(node.args[0]), node.attrs
    rank, width = len(data.tensor.shape), attrs.pad_width or ()
    axes = attrs.axes if attrs.axes is not None else range(rank)
    if attrs.mode != "constant" or attrs.value or len(width) != 2 * len(axes) or min(width) < 0:
        raise UnsupportedError("pads other than of constant zeros")
    pads = [0] * (2 * rank)
    for number, axis in enumerate(axes):
        place = axis_of(axis, rank)
        pads[2 * place], pads[2 * place + 1] = width[number], width[number + len(axes)]
    zeros, shape = lowering.tosa.numbers(data.zero), lowering.tosa.numbers(*pads, dtype="SHAPE")
    operands = (data.tensor, shape, zeros)
    return replace(data, tensor=lowering.tosa.call("PAD", operands, extents(node.output)))


@lowers("strided_slice")
def _slice(lowering: Lowering, node: Node) -> Real:
    data, attrs = lowering.bytes_of(node.args[0]), node.attrs
    rank = len(data.tensor.shape)
    if attrs.begin is None or attrs.end is None or set(attrs.strides or (1,)) != {1}:
        raise UnsupportedError("slices whose bounds are operands, or that leave elements out")
    starts = [0] * rank
    axes = attrs.axes if attrs.axes is not None else range(len(attrs.begin))
    for axis, begin, end in zip(axes, attrs.begin, attrs.end, strict=True):
        place = axis_of(axis, rank)
        starts[place] = slice(begin, end).indices(data.tensor.shape[place])[0]
    return replace(data, tensor=lowering.tosa.slice(data.tensor, starts, extents(node.output)))


@lowers("resize")
def _resize(lowering: Lowering, node: Node) -> Real:
    data, shape, tosa = lowering.bytes_of(node.args[0]), extents(node.output), lowering.tosa
    image, attrs = data.tensor.shape, node.attrs
    is_linear = attrs.method == "linear"
    if len(node.args) > 1 or len(image) != 4 or attrs.antialias or attrs.method == "cubic":
        raise UnsupportedError("resizing other than of images to static sizes, nearest or linear")
    (rows, down, top), (columns, across, left) = (_sampling(node, axis) for axis in (0, 1))
    border = [(shape[1] - 1) * down - (image[1] - 1) * rows + top]
    border.append((shape[2] - 1) * across - (image[2] - 1) * columns + left)
    numbers = ((rows, down, columns, across), (top, left), border)
    operands = (data.tensor, *(tosa.numbers(*one, dtype="SHAPE") for one in numbers))
    if not is_linear:
        nearest = tosa_serializer.ResizeMode.NEAREST
        return replace(data, tensor=tosa.call("RESIZE", operands, shape, nearest))
    kind, parts = tosa_serializer.ResizeMode.BILINEAR, rows * columns
    sums = tosa.call("RESIZE", operands, shape, kind, dtype="INT32")
    means = tosa.rescale(sums, np.array(1 / parts), -LOWEST * parts)
    return replace(data, tensor=means, is_rounded=True)


def _sampling(node: Node, axis: int) -> tuple[int, int, int]:
    """Numerator, denominator and offset with which TOSA samples where the operator does, which is
    found by resizing a ramp."""
    images = (extents(node.args[0]), extents(node.output))
    size, resized = (image[1 + axis] for image in images)
    shape = [images[0][position] for position in (0, 3, 1, 2)]
    ramp = np.zeros(shape, np.float32) + np.arange(size).reshape((-1, 1) if axis == 0 else (-1,))
    (result,) = run_op(node.op, node.attrs, [ramp.astype(np.float32)])
    wanted = np.moveaxis(np.asarray(result)[0, 0], axis, 0)[:, 0]
    ratio, places = Fraction(resized, size), np.arange(resized)
    scale, step = ratio.numerator, ratio.denominator
    for choice in (
        (2 * scale, 2 * step, step - scale),
        (scale, step, 0),
        (max(resized - 1, 1), size - 1, 0),
    ):
        sampled = (places * choice[1] + choice[2]) / choice[0]
        sampled = sampled if node.attrs.method == "linear" else np.floor(sampled + 0.5)
        if np.allclose(np.clip(sampled, 0, size - 1), wanted, atol=1e-4):
            return choice
    mode = node.attrs.coordinate_transformation_mode
    raise UnsupportedError(f"TOSA does not sample as {node.attrs.method} resizing by {mode}")

"""Convolution that reads its data at learned places between the elements.

Data [batch, channels, height, width], an offset (down, then right) for every element of every
window, the weight [outputs, channels / groups, ...] and optionally a factor (mask) per element
enter; [batch, outputs, ...] leaves. Places between elements are interpolated bilinearly, with
zeros all around the data.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from graft.base.dims import UNKNOWN, AnyDim, product
from graft.base.dtypes import Array
from graft.ir.op import Kind, Work, define, traffic
from graft.ir.types import Shape, TensorType, Type
from graft.ops.conv import ConvAttrs, check_groups
from graft.ops.rules import require, require_same_dim, same_dtype
from graft.ops.window import (
    check_kernel,
    check_window,
    fixed_counts,
    for_rank,
    ranked_shape,
    window_counts,
)

# Per multiply-accumulate four corners are read, weighted and added.
_FLOPS_PER_SAMPLE = 8


@dataclass(frozen=True, slots=True)
class DeformableConvAttrs(ConvAttrs):
    deformable_groups: int = 1


def _deformable_type(
    attrs: DeformableConvAttrs,
    data: TensorType,
    offset: TensorType,
    weight: TensorType,
    mask: TensorType | None,
) -> TensorType:
    dtype = same_dtype(data, offset, weight, mask)
    require(dtype.is_float, f"wants floating-point operands, not {dtype}")
    check_window(attrs, 2)
    batch, channels, *extents = ranked_shape(data, 4, "the data")
    outputs, depth, *kernel = ranked_shape(weight, 4, "the weight")
    check_groups(attrs.groups, outputs=outputs)
    check_groups(attrs.deformable_groups, channels=channels)
    check_kernel(kernel)
    require_same_dim(channels, depth * attrs.groups, "channels of the data and the weight")
    counts = window_counts(attrs, extents, kernel)
    places = product(kernel) * attrs.deformable_groups
    _check_places(offset, "the offset", (batch, places * 2, *counts))
    if mask is not None:
        _check_places(mask, "the mask", (batch, places, *counts))
    return TensorType(dtype, (batch, outputs, *counts))


def _check_places(type_: TensorType, what: str, wanted: Shape) -> None:
    for dim, expected in zip(ranked_shape(type_, 4, what), wanted, strict=True):
        require_same_dim(dim, expected, f"extents of {what} and of what it applies to")


def _deformable_work(
    _attrs: DeformableConvAttrs, ins: Sequence[Type | None], outs: Sequence[Type]
) -> Work:
    data, weight, result = ins[0], ins[2], outs[0]
    assert isinstance(data, TensorType)
    assert isinstance(weight, TensorType)
    assert isinstance(result, TensorType)
    macs: AnyDim = UNKNOWN
    samples: AnyDim = UNKNOWN
    if weight.shape is not None and data.shape is not None and result.shape is not None:
        macs = result.size * product(weight.shape[1:])
        samples = product((*data.shape[:2], *weight.shape[2:], *result.shape[2:]))
    return Work(macs, samples * _FLOPS_PER_SAMPLE, traffic(ins, outs))


def _deformable_conv(
    attrs: DeformableConvAttrs, data: Array, offset: Array, weight: Array, mask: Array | None
) -> Array:
    dtype = data.dtype
    computed_in = np.float64 if dtype == np.float64 else np.float32
    kernel, groups, parts = weight.shape[2:], attrs.groups, attrs.deformable_groups
    counts = fixed_counts(attrs, data.shape[2:], kernel)
    places = (parts, *kernel, *counts)
    grid = _grid(attrs, kernel, counts).astype(computed_in)
    matrix = weight.astype(computed_in, copy=False)
    matrix = matrix.reshape(groups, weight.shape[0] // groups, math.prod(weight.shape[1:]))
    result = np.empty((data.shape[0], weight.shape[0], *counts), dtype)
    for image in range(data.shape[0]):
        shifts = offset[image].astype(computed_in).reshape(parts, *kernel, 2, *counts)
        points = grid + np.moveaxis(shifts, 3, 0)
        pixels = data[image].astype(computed_in, copy=False)
        pixels = pixels.reshape(parts, data.shape[1] // parts, *data.shape[2:])
        samples = _interpolated(pixels, points)
        if mask is not None:
            samples *= mask[image].astype(computed_in).reshape(parts, 1, *places[1:])
        columns = samples.reshape(groups, matrix.shape[2], math.prod(counts))
        result[image] = np.matmul(matrix, columns).reshape(result.shape[1:])
    return result


def _grid(attrs: DeformableConvAttrs, kernel: Sequence[int], counts: Sequence[int]) -> Array:
    """Where undeformed windows read: [2, 1, kernel..., position...]."""
    axes = []
    for axis in range(2):
        starts = np.arange(counts[axis]) * attrs.strides[axis] - int(attrs.padding[axis])
        inside = np.arange(kernel[axis]) * attrs.dilation[axis]
        axes.append(inside[:, None] + starts)
    down, right = axes
    shape = (*kernel, *counts)
    both = (
        np.broadcast_to(down[:, None, :, None], shape),
        np.broadcast_to(right[None, :, None, :], shape),
    )
    return np.stack(both)[:, None]


def _interpolated(pixels: Array, points: Array) -> Array:
    """Pixels [part, channel, height, width] at points [2, part, ...]: [part, channel, ...]."""
    parts, channels, height, width = pixels.shape
    flat = pixels.reshape(parts, channels, height * width)
    result = np.zeros((parts, channels, *points.shape[2:]), pixels.dtype)
    if flat.shape[2] == 0:
        return result
    # NaN and far-away places read nothing, and must not reach the conversion to indices.
    down, right = points
    near = (down > -1) & (down < height) & (right > -1) & (right < width)
    points = np.where(near, points, -1)
    corner = np.floor(points)
    fraction = points - corner
    for below in (0, 1):
        for beside in (0, 1):
            row, column = (corner[0] + below).astype(int), (corner[1] + beside).astype(int)
            share = np.abs(1 - below - fraction[0]) * np.abs(1 - beside - fraction[1])
            counted = (row >= 0) & (row < height) & (column >= 0) & (column < width) & (share != 0)
            index = np.where(counted, row * width + column, 0)
            for part in range(parts):
                read = np.where(counted[part], flat[part][:, index[part]], 0)
                result[part] += read * share[part]
    return result


define(
    "nn.deformable_conv2d",
    "data offset weight mask?",
    _deformable_type,
    _deformable_conv,
    attrs=for_rank(DeformableConvAttrs, 2),
    kind=Kind.ANCHOR,
    work=_deformable_work,
    summary="convolution that reads its data at places moved by an offset",
)

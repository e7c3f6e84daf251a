"""Deformable convolution: data are read at learned offsets, between elements.

Data [batch, channels, height, width], an offset (down, then right) for every element of every
window, the weight [outputs, channels / groups, ...] and optionally a factor (mask) per element
enter; [batch, outputs, ...] leaves. Positions between elements are interpolated bilinearly, with
zeros all around the data. `nn.deformable_windows` gives what the windows read, from which a
convolution of single pixels makes the same results: per group of channels, the elements of a window
one after the other, with the channels of the group innermost, since they are interpolated alike.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import product as combinations
from typing import Any

import numpy as np

from graft.base.dims import UNKNOWN, AnyDim, product
from graft.base.dtypes import Array, DType
from graft.ir.attrs import Ints
from graft.ir.op import Kind, Work, traffic
from graft.ir.types import Shape, TensorType
from graft.loop.build import Term, call, cast, select
from graft.loop.ir import INDEX
from graft.loop.tensor import Reduce, Tensor, sum_
from graft.ops import expression as te
from graft.ops.conv import ConvAttrs, check_groups
from graft.ops.rules import (
    operator,
    ranked_shape,
    require,
    require_same_dim,
    require_shape,
    same_dtype,
)
from graft.ops.window import (
    WindowAttrs,
    check_kernel,
    check_window,
    fixed_counts,
    for_rank,
    window_counts,
)

# Per multiply-accumulate four corners are read, weighted and added.
_FLOPS_PER_SAMPLE = 8


@dataclass(frozen=True, slots=True)
class DeformableConvAttrs(ConvAttrs):
    deformable_groups: int = 1


@dataclass(frozen=True, slots=True)
class DeformableWindowsAttrs(WindowAttrs):
    kernel_size: Ints = ()
    groups: int = 1
    deformable_groups: int = 1


def _check_sampling(
    attrs: DeformableConvAttrs | DeformableWindowsAttrs,
    kernel: Sequence[AnyDim],
    data: TensorType,
    offset: TensorType,
    mask: TensorType | None,
) -> tuple[AnyDim, AnyDim, Shape]:
    """Refuse operands that do not fit each other; the batch, the channels, and how many windows
    there are along each axis."""
    check_window(attrs, 2)
    batch, channels, *extents = ranked_shape(data, 4, "the data")
    check_groups(attrs.deformable_groups, channels=channels)
    check_kernel(kernel)
    counts = window_counts(attrs, extents, kernel)
    positions = product(kernel) * attrs.deformable_groups
    require_shape(offset, (batch, positions * 2, *counts), "the offset")
    require_shape(mask, (batch, positions, *counts), "the mask")
    return batch, channels, counts


def _windows_type(
    attrs: DeformableWindowsAttrs, data: TensorType, offset: TensorType, mask: TensorType | None
) -> TensorType:
    dtype = same_dtype(data, offset, mask)
    require(dtype.is_float, f"wants floating-point operands, not {dtype}")
    batch, channels, counts = _check_sampling(attrs, attrs.kernel_size, data, offset, mask)
    check_groups(attrs.groups, channels=channels)
    return TensorType(dtype, (batch, channels * product(attrs.kernel_size), *counts))


def _windows_work(
    _attrs: DeformableWindowsAttrs, ins: Sequence[TensorType], outs: Sequence[TensorType]
) -> Work:
    return Work(0, outs[0].size * _FLOPS_PER_SAMPLE, traffic(ins, outs))


def _deformable_type(
    attrs: DeformableConvAttrs,
    data: TensorType,
    offset: TensorType,
    weight: TensorType,
    mask: TensorType | None,
) -> TensorType:
    dtype = same_dtype(data, offset, weight, mask)
    require(dtype.is_float, f"wants floating-point operands, not {dtype}")
    outputs, depth, *kernel = ranked_shape(weight, 4, "the weight")
    check_groups(attrs.groups, outputs=outputs)
    batch, channels, counts = _check_sampling(attrs, kernel, data, offset, mask)
    require_same_dim(channels, depth * attrs.groups, "channels of the data and the weight")
    return TensorType(dtype, (batch, outputs, *counts))


def _deformable_work(
    _attrs: DeformableConvAttrs, ins: Sequence[TensorType], outs: Sequence[TensorType]
) -> Work:
    data, weight, result = ins[0], ins[2], outs[0]
    macs: AnyDim = UNKNOWN
    samples: AnyDim = UNKNOWN
    if weight.shape is not None and data.shape is not None and result.shape is not None:
        macs = result.size * product(weight.shape[1:])
        samples = product((*data.shape[:2], *weight.shape[2:], *result.shape[2:]))
    return Work(macs, samples * _FLOPS_PER_SAMPLE, traffic(ins, outs))


def _grid(attrs: WindowAttrs, kernel: Sequence[int], counts: Sequence[int]) -> Array:
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


def _interpolated(pixels: Array, coordinates: Array) -> Array:
    """Pixels [part, channel, height, width] at points [2, part, ...]: [part, channel, ...]."""
    parts, channels, height, width = pixels.shape
    flat = pixels.reshape(parts, channels, height * width)
    result = np.zeros((parts, channels, *coordinates.shape[2:]), pixels.dtype)
    if flat.shape[2] == 0:
        return result
    # NaN and far-away places read nothing, and must not reach the conversion to indices.
    down, right = coordinates
    near = (down > -1) & (down < height) & (right > -1) & (right < width)
    coordinates = np.where(near, coordinates, -1)
    corner = np.floor(coordinates)
    fraction = coordinates - corner
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


@operator(
    "nn.deformable_conv2d",
    "data offset weight mask?",
    _deformable_type,
    attrs=for_rank(DeformableConvAttrs, 2),
    kind=Kind.ANCHOR,
    work=_deformable_work,
)
def _deformable_conv(
    attrs: DeformableConvAttrs, data: Array, offset: Array, weight: Array, mask: Array | None
) -> Array:
    """Convolution that reads its data at places moved by an offset."""
    groups, outputs = attrs.groups, weight.shape[0]
    samples = _sampled(attrs, weight.shape[2:], data, offset, mask)
    matrix = weight.astype(samples.dtype, copy=False)
    matrix = matrix.reshape(groups, outputs // groups, math.prod(weight.shape[1:]))
    batch, counts = data.shape[0], samples.shape[2:]
    columns = samples.reshape(batch, groups, matrix.shape[2], math.prod(counts))
    result: Array = np.matmul(matrix, columns).reshape(batch, outputs, *counts)
    return result.astype(data.dtype, copy=False)


@operator(
    "nn.deformable_windows",
    "data offset mask?",
    _windows_type,
    attrs=for_rank(DeformableWindowsAttrs, 2),
    work=_windows_work,
)
def _deformable_windows(
    attrs: DeformableWindowsAttrs, data: Array, offset: Array, mask: Array | None
) -> Array:
    """What a deformable convolution reads: the elements of a window times channels as channels."""
    samples = _sampled(attrs, attrs.kernel_size, data, offset, mask)
    area = math.prod(attrs.kernel_size)
    inside = data.shape[1] // attrs.groups
    parts = samples.reshape(data.shape[0], attrs.groups, inside, area, *samples.shape[2:])
    result: Array = np.moveaxis(parts, 3, 2).reshape(samples.shape)
    return result.astype(data.dtype, copy=False)


def _sampled(
    attrs: DeformableConvAttrs | DeformableWindowsAttrs,
    kernel: tuple[int, ...],
    data: Array,
    offset: Array,
    mask: Array | None,
) -> Array:
    """[batch, channels * taps, ...], in float32 or wider."""
    computed_in = np.float64 if data.dtype == np.float64 else np.float32
    parts, counts = attrs.deformable_groups, fixed_counts(attrs, data.shape[2:], kernel)
    positions = (parts, *kernel, *counts)
    grid = _grid(attrs, kernel, counts).astype(computed_in)
    channels = data.shape[1] * math.prod(kernel)
    result = np.empty((data.shape[0], channels, *counts), computed_in)
    for image in range(data.shape[0]):
        shifts = offset[image].astype(computed_in).reshape(parts, *kernel, 2, *counts)
        coordinates = grid + np.moveaxis(shifts, 3, 0)
        pixels = data[image].astype(computed_in, copy=False)
        pixels = pixels.reshape(parts, data.shape[1] // parts, *data.shape[2:])
        samples = _interpolated(pixels, coordinates)
        if mask is not None:
            samples *= mask[image].astype(computed_in).reshape(parts, 1, *positions[1:])
        result[image] = samples.reshape(result.shape[1:])
    return result


# Tensor expressions.


@te.expresses("nn.deformable_conv2d")
def _express_deformable_conv2d(
    attrs: Any, out: te.Out, data: Tensor, offset: Tensor, weight: Tensor, mask: Tensor | None
) -> te.Results:
    """Where windows read, then the samples of all windows, then their weighted sums."""
    wide = te.accumulated_in(out.dtype)
    batch, channels, height, width = te.sizes(data)
    outputs, inside, *kernel = te.numbers(te.sizes(weight), "the extents of the weight")
    (count,) = te.numbers((channels,), "the channels")
    if 0 in (height, width):
        return te.Unexpressed("there is nothing to sample in an empty image")
    shape = out.shape
    area = kernel[0] * kernel[1]
    sample = _sample(attrs, out.name, (data, offset, mask), kernel, shape)
    samples = te.by_index(f"{out.name}_samples", [batch, count, area, *shape[2:]], sample)

    def element(image: Term, output: Term, row: Term, column: Term) -> Reduce:
        channel, tap = te.reduce_axes([inside, area])
        source = output // max(outputs // attrs.groups, 1) * inside + channel
        factor = te.read(weight, [output, channel, tap // kernel[1], tap % kernel[1]])
        value = te.read(samples, [image, source, tap, row, column])
        return sum_(value * cast(wide, factor), [channel, tap])

    total = te.by_index(f"{out.name}_sum", shape, element)
    return out.of(lambda *at: cast(out.dtype, te.read(total, at)))


@te.expresses("nn.deformable_windows")
def _express_deformable_windows(
    attrs: Any, out: te.Out, data: Tensor, offset: Tensor, mask: Tensor | None
) -> te.Results:
    """The samples, with the channels of a group innermost."""
    if 0 in te.sizes(data)[2:]:
        return te.Unexpressed("there is nothing to sample in an empty image")
    (count,) = te.numbers(te.sizes(data)[1:2], "the channels")
    area, inside = math.prod(attrs.kernel_size), max(count // attrs.groups, 1)
    sample = _sample(attrs, out.name, (data, offset, mask), attrs.kernel_size, out.shape)

    def element(image: Term, entry: Term, *at: Term) -> Term:
        channel = entry // (area * inside) * inside + entry % inside
        return cast(out.dtype, sample(image, channel, entry // inside % area, *at))

    return out.of(element)


_Extents = tuple[AnyDim, ...]


def _sample(
    attrs: Any,
    name: str,
    operands: tuple[Tensor, Tensor, Tensor | None],
    kernel: Sequence[int],
    shape: _Extents,
) -> Callable[..., Term]:
    """What a tap of a window reads, by image, channel, tap, row and column of the result."""
    data, offset, mask = operands
    wide = te.accumulated_in(data.dtype)
    height, width = te.sizes(data)[2:]
    (count,) = te.numbers(te.sizes(data)[1:2], "the channels")
    area, per_part = kernel[0] * kernel[1], max(count // attrs.deformable_groups, 1)
    at = _positions(attrs, offset, (kernel[1], shape[2:], (height, width)), name, wide)

    def sample(image: Term, channel: Term, tap: Term, row: Term, column: Term) -> Term:
        entry = channel // per_part * area + tap
        result = _interpolate(
            (height, width),
            [te.read(one, [image, entry, row, column]) for one in at],
            lambda y, x: cast(wide, te.read(data, [image, channel, y, x])),
        )
        if mask is None:
            return result
        return result * cast(wide, te.read(mask, [image, entry, row, column]))

    return sample


def _positions(
    attrs: Any,
    offset: Tensor,
    extents: tuple[int, _Extents, _Extents],
    name: str,
    wide: DType,
) -> list[Tensor]:
    """Rows and columns where windows read, [batch, groups * taps, ...]; -1 for both of them where
    that is outside. `extents` are the kernel's width and those of the result and the image."""
    width, expected, image = extents
    (entries,) = te.numbers(te.sizes(offset)[1:2], "the offsets")

    def moved(axis: int, batch: Term, entry: Term, *position: Term) -> Term:
        height = max(entries // (2 * attrs.deformable_groups * width), 1)
        tap = (entry // width % height, entry % width)[axis]
        start = position[axis] * attrs.strides[axis] - attrs.padding[axis]
        plain = cast(wide, start + tap * attrs.dilation[axis])
        return plain + cast(wide, te.read(offset, [batch, entry * 2 + axis, *position]))

    shape = [te.sizes(offset)[0], entries // 2, *expected]
    anywhere = [te.by_index(f"{name}_moved{n}", shape, partial(moved, n)) for n in (0, 1)]

    def bounded(axis: int, *at: Term) -> Term:
        near = te.number(True, DType.BOOL)
        for one, extent in zip(anywhere, image, strict=True):
            near = near & (te.read(one, at) > -1.0) & (te.read(one, at) < cast(wide, extent))
        return select(near, te.read(anywhere[axis], at), te.number(-1, wide))

    return [te.by_index(f"{name}_at{axis}", shape, partial(bounded, axis)) for axis in (0, 1)]


def _interpolate(
    extents: _Extents, positions: list[Term], pixel: Callable[[Term, Term], Term]
) -> Term:
    """The four pixels around a place by their shares; what is not there is zero."""
    zero = te.number(0, positions[0].dtype)
    total = zero
    for steps in combinations((0, 1), repeat=2):
        share, counted = te.number(1, zero.dtype), te.number(True, DType.BOOL)
        indices: list[Term] = []
        for position, step, extent in zip(positions, steps, extents, strict=True):
            here = call("floor", position) + float(step)
            share = share * (1.0 - call("abs", position - here))
            counted = counted & (here >= 0.0) & (here < cast(zero.dtype, extent))
            indices.append(te.clamped(cast(INDEX, here), extent))
        counted = counted & (share > 0.0)  # a pixel without a share may be infinite
        total = total + select(counted, pixel(*indices) * share, zero)
    return total

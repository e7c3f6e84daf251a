"""Samples for the templates on blocked images."""

from __future__ import annotations

import math
from dataclasses import replace

from tests.backends.host.property.pointwise import in_blocks, tail
from tests.backends.host.property.sketch import Sample, Shape, Sketch

from graft.backends.host.group import Winograd
from graft.backends.host.kernels.conv_plan import read_halo
from graft.backends.host.storage import Storage, static_shape
from graft.base.dtypes import DType
from graft.ir.graph import Value

FLOATS = ("float32", "float32", "float64")


def _sums(s: Sketch, op: str, terms: int, *operands: Value, **attrs: object) -> Value:
    """A node that adds up products of data."""
    bound = 7 * terms**0.5
    return s(op, *operands, bound=bound, error=8 * terms + 8 * bound, **attrs)


def _image_like(s: Sketch, value: Value, block: int, axis: int | None = 1) -> Sample:
    """What follows, and the result as an image in such blocks."""
    return s.finished(tail(s, value, in_blocks(block), axis), block=block, halo=s.halo())


def _window(s: Sketch, data: Shape, widest: int) -> dict[str, tuple[int, ...]]:
    """Kernel, strides, dilation and padding with at least one position on the image."""
    kernel = (s.number(1, widest), s.number(1, widest))
    dilation = tuple(s.pick((1, 1, 1, 2, 3)) for _ in kernel)
    padding = [s.number(0, size) for size in (*kernel, *kernel)]
    for axis in (0, 1):
        span = (kernel[axis] - 1) * dilation[axis] + 1
        short = span - data[2 + axis] - padding[axis] - padding[2 + axis]
        padding[2 + axis] += max(0, short)
    strides = tuple(s.pick((1, 1, 2, 3)) for _ in kernel)
    return {
        "kernel": kernel,
        "strides": strides,
        "dilation": dilation,
        "padding": tuple(padding),
    }


def draw_winograd(s: Sketch) -> Sample:
    sizes = (3, 8, 16) if s.small else (8, 16, 24, 32, 64)
    inputs, outputs = s.pick(sizes), s.pick(sizes[1:])
    shape = (s.extent(2, 3), inputs, s.extent(5, 19), s.extent(6, 23))
    padding = [s.number(0, 2) for _ in range(4)]
    for axis in (2, 3):
        padding[axis] += max(0, 3 - shape[axis] - padding[axis] - padding[axis - 2])
    # the transforms make the largest error some ten times that of direct summation
    s.algorithm = Winograd(s.pick((4, 2)))
    weight = (outputs, inputs, 3, 3)
    return _convolution(s, "nn.conv2d", 90 * inputs, shape, weight, {"padding": tuple(padding)})


def draw_conv2d(s: Sketch) -> Sample:
    groups = s.pick((1, 1, 1, 2, 4))
    if s.small:
        inputs, outputs = s.pick((1, 3, 4, 8) if groups == 1 else (2, 4, 8)), 16 // groups
        inputs, outputs = (inputs, outputs) if s.chance(70) else (4, 8 if groups == 1 else 4)
    else:
        inputs, outputs = s.pick((1, 3, 5, 8, 16, 24, 37)), s.pick((8, 16, 24, 48))
    shape = (s.extent(2, 3), groups * inputs, s.extent(4, 14), s.extent(7, 31))
    window = _window(s, shape, 2 if s.small else 5)
    kernel = window.pop("kernel")
    terms = inputs * kernel[0] * kernel[1]
    attrs: dict[str, object] = {**window, "groups": groups}
    if s.chance(70):
        weight = (groups * outputs, inputs, *kernel)
        return _convolution(s, "nn.conv2d", terms, shape, weight, attrs)
    # at most so much padding that a pixel is left
    spans = [(n - 1) * d for n, d in zip(kernel, window["dilation"], strict=True)]
    attrs["padding"] = tuple(s.number(0, span // 2) for span in (*spans, *spans))
    weight = (groups * inputs, outputs, *kernel)
    return _convolution(s, "nn.conv2d_transpose", terms, shape, weight, attrs)


def _convolution(
    s: Sketch, op: str, terms: int, shape: Shape, weight: Shape, attrs: dict[str, object]
) -> Sample:
    """A convolution of an image whose halo is as wide as it has to be, or wider."""
    blocks = (16, 8) if s.chance(70) else (8,)
    data = s.image(shape, next(b for b in (*blocks, shape[1]) if shape[1] % b == 0))
    value = _sums(s, op, terms, data, s.constant(s.array(weight)), **attrs)
    node = s.builder.producer(value)
    assert node is not None
    s.stores[data] = replace(s.stores[data], halo=s.halo(read_halo(node, weight, s.algorithm)))
    outputs = static_shape(value)[1]
    return _image_like(s, value, 16 if outputs % 16 == 0 and s.chance(70) else 8)


def draw_depthwise(s: Sketch) -> Sample:
    s.dtype = s.pick(FLOATS)
    channels, block = s.pick(((8, 8), (16, 16), (3, 3), (16, 8)))
    if not s.small:
        channels, block = s.pick(((32, 16), (24, 8), (5, 5), (12, 4), (6, 2), (7, 1)))
    shape = (s.extent(2, 3), channels, s.extent(6, 17), s.extent(9, 40))
    window = _window(s, shape, 3 if s.small else 5)
    data = s.image(shape, block, s.halo(window["padding"]))
    kernel = window.pop("kernel")
    weight = s.constant(s.array((channels, 1, *kernel)))
    terms = kernel[0] * kernel[1]
    value = _sums(s, "nn.conv2d", terms, data, weight, groups=channels, **window)
    return _image_like(s, value, block)


def _blocks(s: Sketch) -> tuple[int, int]:
    """Channels and a block size for them."""
    if s.small:
        return s.pick(((8, 8), (16, 8), (3, 3), (4, 1)))
    return s.pick(((32, 16), (16, 8), (24, 24), (5, 5), (6, 2), (7, 1), (48, 16)))


def draw_pool2d(s: Sketch) -> Sample:
    s.dtype, s.special = s.pick(FLOATS), s.chance(40)
    channels, block = _blocks(s)
    shape = (s.extent(2, 3), channels, s.extent(6, 15), s.extent(8, 37))
    window = _window(s, shape, 3 if s.small else 6)
    if not s.small and s.chance(20):
        window["kernel"] = (window["kernel"][0], 33)  # more columns than there are registers
        window["padding"] = (*window["padding"][:3], 33 * window["dilation"][1])
    data = s.image(shape, block, s.halo())
    if s.chance(30):
        data = tail(s, data, in_blocks(block), 1, most=2)
    window["pool_size"] = window.pop("kernel")
    op = s.pick(("nn.max_pool2d", "nn.avg_pool2d"))
    attrs: dict[str, object] = {**window, "ceil_mode": s.chance(30)}
    info = s.info[data]
    error = info.error
    if op == "nn.avg_pool2d":
        attrs["count_include_pad"] = s.chance(30)
        terms = window["pool_size"][0] * window["pool_size"][1]
        error += (terms + 4) * info.bound
    value = s(op, data, bound=info.bound, error=error, **attrs)
    return _image_like(s, value, block)


def draw_image_reduce(s: Sketch) -> Sample:
    return _reduction(s, s.pick(((2, 3), (-1, -2), (3, 2))))


def draw_image_channels(s: Sketch) -> Sample:
    return _reduction(s, s.pick(((1,), (-3,))))


def _reduction(s: Sketch, axes: tuple[int, ...]) -> Sample:
    s.dtype, s.special = s.pick(FLOATS), s.chance(20)
    channels, block = _blocks(s)
    shape = (s.extent(2, 3), channels, s.extent(5, 15), s.extent(7, 70))
    value = s.image(shape, block, s.halo())
    if s.chance(40):
        value = tail(s, value, in_blocks(block), 1, most=2)
    info = s.info[value]
    terms, keepdims = math.prod(shape[axis] for axis in axes), s.chance(50)
    error = info.error + (terms**0.5 + 4) * 4 * info.bound
    op = s.pick(("mean", "mean", "sum", "max", "min"))
    scale = terms if op == "sum" else 1
    bound = scale * info.bound
    value = s(op, value, bound=bound, error=scale * error, axes=axes, keepdims=keepdims)
    return s.finished(tail(s, value, axis=1))


def draw_channel_norm(s: Sketch) -> Sample:
    s.dtype = s.pick(FLOATS)
    channels, block = _blocks(s)
    shape = (s.extent(2, 3), channels, s.extent(5, 15), s.extent(7, 40))
    data = s.array(shape)
    data[:, ::2] += 4  # so that no variance is tiny
    value = s.given(data, Storage(DType(s.dtype), shape, block, s.halo()))
    lists = [s.constant(s.array((channels,))) if s.chance(60) else None for _ in range(2)]
    attrs = {"epsilon": s.pick((1e-5, 1e-2)), "centered": s.chance(70)}
    error = 64.0 * (8 + channels**0.5)
    value = s("nn.channel_norm", value, *lists, bound=100.0, error=error, **attrs)
    return _image_like(s, value, block)


def draw_image_pointwise(s: Sketch) -> Sample:
    s.dtype, s.special = s.pick(FLOATS), s.chance(40)
    channels, block = _blocks(s)
    shape = (s.extent(2, 3), channels, s.extent(5, 15), s.extent(7, 40))
    value = s.image(shape, block, s.halo())
    value = s("negative", value, bound=2.0, error=0.0)
    return _image_like(s, value, block)


def draw_image_resize(s: Sketch) -> Sample:
    s.special = s.chance(20)
    channels, block = _blocks(s)
    shape = (s.extent(2, 3), channels, s.extent(5, 9), s.extent(7, 20))
    data = s.image(shape, block, s.halo())
    method = s.pick(("nearest_neighbor", "linear", "linear", "cubic"))
    attrs: dict[str, object] = {
        "method": method,
        "coordinate_transformation_mode": s.pick(("half_pixel", "align_corners", "asymmetric")),
        "scales": (1.0, 1.0, *(s.pick((1.0, 2.0, 3.0, 1.5, 0.5)) for _ in "hw")),
    }
    info = s.info[data]
    bound = info.bound * (2.0 if method == "cubic" else 1.0)
    error = info.error if method == "nearest_neighbor" else info.error + 16 * bound
    value = s("resize", data, bound=bound, error=error, **attrs)
    return _image_like(s, value, block)


def draw_image_movement(s: Sketch) -> Sample:
    s.special = s.chance(40)
    channels, block = s.pick(((8, 8), (16, 8), (4, 4)) if s.small else ((32, 16), (24, 8), (12, 4)))
    shape = (s.extent(2, 3), channels, 2 * s.extent(2, 5), 2 * s.extent(2, 9))
    data = s.image(shape, block, s.halo())
    widths = tuple(s.number(0, 2) for _ in range(4))
    begin = (s.number(0, 2), s.number(0, 2))
    moves: tuple[tuple[str, dict[str, object]], ...] = (
        ("nn.pad", {"pad_width": widths, "axes": (2, 3), "value": 0.5}),
        ("nn.pad", {"pad_width": widths, "axes": (2, 3), "mode": s.pick(("edge", "reflect"))}),
        ("strided_slice", {"begin": begin, "end": (99, 99), "axes": (2, 3)}),
        ("depth_to_space", {"block_size": 2, "mode": s.pick(("DCR", "CRD"))}),
        ("space_to_depth", {"block_size": 2}),
    )
    op, attrs = s.pick(moves)
    info = s.info[data]
    value = s(op, data, bound=max(1.0, info.bound), error=info.error, **attrs)
    sizes = [size for size in (16, 8, 4, 3, 2, 1) if static_shape(value)[1] % size == 0]
    return _image_like(s, value, s.pick(sizes[:2]))


def draw_image_concat(s: Sketch) -> Sample:
    s.dtype, s.special = s.pick(FLOATS), s.chance(40)
    block = s.pick((8, 16))
    pixels = (s.extent(4, 9), s.extent(5, 19))
    batch = s.extent(2, 3)
    parts = []
    left = block * s.number(1, 2 if s.small else 4)
    while left:
        channels = min(left, s.pick((block, block // 2, 3, 4, left)))
        parts.append(_part(s, (batch, channels, *pixels), block))
        left -= channels
    if len(parts) == 1:
        parts.append(_part(s, (batch, block, *pixels), block))
    infos = [s.info[part] for part in parts]
    bound, error = max(i.bound for i in infos), max(i.error for i in infos)
    axis = s.pick((1, -3))
    value = s("concatenate", *parts, bound=bound, error=error, axis=axis)
    return _image_like(s, value, block)


def _part(s: Sketch, shape: Shape, block: int) -> Value:
    """An image in blocks of its own, or in rows; at times computed on the way."""
    channels = shape[1]
    sizes = [size for size in (16, 8, 4, channels, 0) if not size or channels % size == 0]
    size = s.pick(sizes)
    part = s.image(shape, size, s.halo()) if size else s.input(shape)
    if size and block % size == 0 and s.chance(30):
        part = tail(s, part, in_blocks(size), 1, most=1)
    return part

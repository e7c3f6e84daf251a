"""The operators that a network is made of, as tensor expressions, with what NumPy makes of them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from graft.base.dtypes import Array, DType
from graft.loop.build import Operand, call, maximum, select, term
from graft.loop.interpret import interpret
from graft.loop.ir import Buffer, Function
from graft.loop.tensor import Tensor, compute, max_, placeholder, reduce_axis, sum_


@dataclass(frozen=True)
class Kernel:
    """Arguments, the last of which is computed, and its value from the others' values."""

    arguments: list[Tensor]
    meaning: Callable[..., Array]


def run(function: Function, kernel: Kernel, threads: int = 1, **sizes: int) -> tuple[Array, Array]:
    """What the function computes on fixed inputs, and what it should."""
    generator = np.random.default_rng(1)
    arguments: dict[str, Array | int] = {}
    for parameter in function.parameters:
        if isinstance(parameter, Buffer):
            shape = [_size(extent, sizes) for extent in parameter.extents]
            values = generator.integers(-8, 9, shape) / 4
            arguments[parameter.name] = values.astype(parameter.dtype.numpy)
        else:
            arguments[parameter.name] = sizes[parameter.name]
    *inputs, output = kernel.arguments
    expected = kernel.meaning(*(arguments[tensor.name] for tensor in inputs))
    interpret(function, arguments, threads)
    result = arguments[output.name]
    assert isinstance(result, np.ndarray)
    return result, expected


def _size(extent: object, sizes: dict[str, int]) -> int:
    value = getattr(extent, "value", None)
    return sizes[getattr(extent, "name", "")] if value is None else int(value)


def gemm(m: Operand, n: Operand, k: Operand, dtype: DType = DType.FLOAT32) -> Kernel:
    a, b = placeholder("a", [m, k], dtype), placeholder("b", [k, n], dtype)
    p = reduce_axis("p", k)
    c = compute("c", [m, n], lambda i, j: sum_(a[i, p] * b[p, j], [p]))
    return Kernel([a, b, c], lambda left, right: left @ right)


def blocked_conv(channels: int, size: int, width: int, kernel: int = 3, stride: int = 1) -> Kernel:
    """A direct convolution in NCHW[16]c with bias and ReLU, on an input that is padded already."""
    blocks = channels // 16
    inner = stride * (size - 1) + kernel, stride * (width - 1) + kernel
    x = placeholder("x", [blocks, *inner, 16])
    w = placeholder("w", [blocks, blocks, kernel, kernel, 16, 16])
    bias = placeholder("bias", [blocks, 16])
    ci, cb = reduce_axis("ci", blocks), reduce_axis("cb", 16)
    kh, kw = reduce_axis("kh", kernel), reduce_axis("kw", kernel)
    conv = compute(
        "conv",
        [blocks, size, width, 16],
        lambda co, oh, ow, c: sum_(
            x[ci, oh * stride + kh, ow * stride + kw, cb] * w[co, ci, kh, kw, cb, c],
            [ci, kh, kw, cb],
        ),
    )
    out = compute(
        "out",
        [blocks, size, width, 16],
        lambda co, oh, ow, c: maximum(conv[co, oh, ow, c] + bias[co, c], 0.0),
    )

    def meaning(data: Array, weight: Array, offset: Array) -> Array:
        windows = np.lib.stride_tricks.sliding_window_view(data, (kernel, kernel), axis=(1, 2))
        windows = windows[:, ::stride, ::stride]
        total = np.einsum("ihwbyx,oiyxbc->ohwc", windows, weight)
        return np.maximum(total + offset[:, None, None, :], 0)

    return Kernel([x, w, bias, out], meaning)


def depthwise(channels: int, height: Operand, width: Operand) -> Kernel:
    """A 3 x 3 depthwise convolution in CHW with a border of zeros."""
    x, w = placeholder("x", [channels, height, width]), placeholder("w", [channels, 3, 3])
    h, v = term(height), term(width)
    pad = compute(
        "pad",
        [channels, h + 2, v + 2],
        lambda c, i, j: select(
            (i >= 1) & (i < h + 1) & (j >= 1) & (j < v + 1), x[c, i - 1, j - 1], 0.0
        ),
    )
    a, b = reduce_axis("a", 3), reduce_axis("b", 3)
    out = compute(
        "out",
        [channels, h, v],
        lambda c, i, j: sum_(pad[c, i + a, j + b] * w[c, a, b], [a, b]),
    )

    def meaning(data: Array, weight: Array) -> Array:
        padded = np.pad(data, ((0, 0), (1, 1), (1, 1)))
        windows = np.lib.stride_tricks.sliding_window_view(padded, (3, 3), axis=(1, 2))
        return np.einsum("chwyx,cyx->chw", windows, weight)

    return Kernel([x, w, out], meaning)


def max_pool(height: Operand, width: Operand, rows: Operand, columns: Operand) -> Kernel:
    """A 3 x 3 window with stride 2 and a border of one, which no maximum sees."""
    x = placeholder("x", [height, width])
    h, v = term(height), term(width)
    a, b = reduce_axis("a", 3), reduce_axis("b", 3)

    def seen(i: Operand, j: Operand) -> Operand:
        y, z = term(i) * 2 + a - 1, term(j) * 2 + b - 1
        inside = (y >= 0) & (y < h) & (z >= 0) & (z < v)
        return select(inside, x[y, z], float("-inf"))

    out = compute("out", [rows, columns], lambda i, j: max_(seen(i, j), [a, b]))

    def meaning(data: Array) -> Array:
        padded = np.pad(data, 1, constant_values=-np.inf)
        windows = np.lib.stride_tricks.sliding_window_view(padded, (3, 3))
        return windows[::2, ::2].max(axis=(2, 3))

    return Kernel([x, out], meaning)


def softmax(rows: Operand, columns: Operand) -> Kernel:
    x = placeholder("x", [rows, columns])
    k, p = reduce_axis("k", columns), reduce_axis("p", columns)
    peak = compute("peak", [rows], lambda i: max_(x[i, k], [k]))
    power = compute("power", [rows, columns], lambda i, j: call("exp", x[i, j] - peak[i]))
    total = compute("total", [rows], lambda i: sum_(power[i, p], [p]))
    out = compute("out", [rows, columns], lambda i, j: power[i, j] / total[i])

    def meaning(data: Array) -> Array:
        powers = np.exp(data - data.max(axis=1, keepdims=True))
        return np.asarray(powers / powers.sum(axis=1, keepdims=True))

    return Kernel([x, out], meaning)


def layer_norm(rows: Operand, columns: int) -> Kernel:
    x, scale = placeholder("x", [rows, columns]), placeholder("scale", [columns])
    k, p = reduce_axis("k", columns), reduce_axis("p", columns)
    total = compute("total", [rows], lambda i: sum_(x[i, k], [k]))
    mean = compute("mean", [rows], lambda i: total[i] * (1 / columns))
    centred = compute("centred", [rows, columns], lambda i, j: x[i, j] - mean[i])
    square = compute("square", [rows], lambda i: sum_(centred[i, p] * centred[i, p], [p]))
    factor = compute("factor", [rows], lambda i: call("rsqrt", square[i] * (1 / columns) + 1e-5))
    out = compute("out", [rows, columns], lambda i, j: centred[i, j] * factor[i] * scale[j])

    def meaning(data: Array, weight: Array) -> Array:
        middle = data - data.mean(axis=1, keepdims=True)
        deviation = np.sqrt((middle * middle).mean(axis=1, keepdims=True) + 1e-5)
        return np.asarray(middle / deviation * weight)

    return Kernel([x, scale, out], meaning)


def chain(length: Operand) -> Kernel:
    """Elementwise operators, one after the other."""
    x, y = placeholder("x", [length]), placeholder("y", [length])
    product = compute("product", [length], lambda i: x[i] * y[i])
    positive = compute("positive", [length], lambda i: maximum(product[i], 0.0))
    out = compute("out", [length], lambda i: positive[i] / (call("exp", y[i]) + 1.0))
    return Kernel([x, y, out], lambda one, other: np.maximum(one * other, 0) / (np.exp(other) + 1))

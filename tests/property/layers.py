"""Draws layers of networks (products, convolutions, normalisations, pooling, quantisation) and
the formulas that exporters write for them."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
from tests.property import data
from tests.property.elementwise import combine
from tests.property.sketch import (
    EXACT,
    FUZZY,
    LARGEST_BOUND,
    STRICT,
    Sketch,
    is_float,
    is_small,
    typical_extent,
)

from graft.base.dtypes import DType
from graft.ir.graph import Value
from graft.ir.types import Shape

LAYER_DTYPES = (DType.FLOAT32, DType.FLOAT32, DType.FLOAT64, DType.FLOAT16, DType.BFLOAT16)


def layer_input(s: Sketch, test: Callable[[Shape], bool], shape: Shape) -> Value:
    """Bounded floats whose shape passes the test, or new ones of the shape."""

    def fits(value: Value) -> bool:
        good = is_small(value) and value.dtype in data.WIDE_FLOATS and s.bound(value) <= 30
        return good and test(value.shape or ())

    found = s.find(fits)
    if found is not None and not s.chance(4):
        return found
    return s.source(s.pick(LAYER_DTYPES), shape, bounded=True)


def product_bound(s: Sketch, x: Value, terms: int) -> float:
    return s.bound(x) * data.TAME_BOUND * terms


def dense(s: Sketch) -> None:
    x = layer_input(s, lambda shape: bool(shape) and isinstance(shape[-1], int), (2, 3))
    depth = typical_extent((x.shape or ())[-1])
    units = s.number(1, 3)
    weight = s.tame_constant(x.dtype, (units, depth))
    y = s.add("nn.dense", x, weight, level=FUZZY, bound=product_bound(s, x, depth))
    follow(s, y, len(x.shape or ()) - 1, units)


def integer_dense(s: Sketch) -> None:
    weight = s.tame_constant(DType.INT32, (2, 3))
    x = s.find(lambda v: is_small(v) and v.dtype is DType.INT32 and (v.shape or ())[-1:] == (3,))
    s.add("nn.dense", x or s.source(DType.INT32, (2, 3)), weight, bound=math.inf)


def matmul(s: Sketch) -> None:
    def fits(shape: Shape) -> bool:
        return len(shape) >= 2 and all(isinstance(dim, int) for dim in shape[-2:])

    x = layer_input(s, fits, (2, 3, 2))
    rows, columns = (typical_extent(dim) for dim in (x.shape or ())[-2:])
    transpose_a, transpose_b = s.chance(3), s.chance(3)
    depth = rows if transpose_a else columns
    shape = (2, depth) if transpose_b else (depth, 2)
    other = s.tame_constant(x.dtype, shape)
    s.add(
        "nn.batch_matmul",
        x,
        other,
        level=FUZZY,
        bound=product_bound(s, x, depth),
        transpose_a=transpose_a,
        transpose_b=transpose_b,
    )


def convolution(s: Sketch) -> None:
    rank = s.pick((2, 2, 1))
    x = layer_input(
        s,
        lambda shape: len(shape) == rank + 2 and isinstance(shape[1], int) and 0 not in shape,
        (1, 2, 4, 3)[: rank + 2],
    )
    if s.chance(3):
        widths = [0, 0, *[1] * rank] * 2
        value = s.pick((None, 0, 0.0, 1.0))
        x = s.add("nn.pad", x, pad_width=widths, value=value, bound=max(s.bound(x), 1.0))
    channels = typical_extent((x.shape or ())[1])
    groups = channels if s.chance(4) else 1
    outputs = groups * s.number(1, 2)
    kernel = s.pick((1, 3))
    options = {"padding": [kernel // 2] * (2 * rank), "groups": groups}
    bound = product_bound(s, x, channels * kernel**rank)
    if s.chance(4):
        weight = s.tame_constant(x.dtype, (channels, outputs // groups, *[kernel] * rank))
        options["strides"] = [s.number(1, 2)] * rank
        name = f"nn.conv{rank}d_transpose"
    else:
        weight = s.tame_constant(x.dtype, (outputs, channels // groups, *[kernel] * rank))
        name = f"nn.conv{rank}d"
    y = s.add(name, x, weight, level=FUZZY, bound=bound, **options)
    follow(s, y, 1, outputs)


def follow(s: Sketch, y: Value, axis: int, channels: int) -> None:
    """What comes behind a linear layer: bias, scales, batch normalisation, activations."""
    rank = len(y.shape or ())
    for _ in range(s.number(0, 4)):
        if s.chance(6) and s.bound(y) <= LARGEST_BOUND:
            s.add("negative", y)  # another reader
        kind = s.pick(("bias", "scale", "norm", "relu", "add"))
        along, extent = axis, channels
        if s.chance(4):  # another axis than that of the channels
            along = s.number(0, rank - 1)
            extent = (y.shape or ())[along]  # type: ignore[assignment]
        if not isinstance(extent, int):
            continue
        if kind == "bias":
            vector = s.tame_constant(y.dtype, (extent,))
            y = s.add("nn.bias_add", y, vector, axis=along, bound=s.bound(y) + 2)
        elif kind == "norm":
            y = batch_norm_of(s, y, along - rank if s.chance(3) else along, extent)
        elif kind == "relu":
            y = s.add("nn.relu", y, level=EXACT)
        else:
            shape = [1] * (rank - axis)
            shape[0] = s.pick((channels, 1))
            if s.chance(3):
                shape = [1] * s.number(0, rank + 1)
            vector = s.tame_constant(y.dtype, shape)
            y = combine(s, "multiply" if kind == "scale" else "add", y, vector)
            if len(y.shape or ()) != rank:
                return


def batch_norm_of(s: Sketch, x: Value, axis: int, channels: int) -> Value:
    """Batch normalisation with statistics that make no number large."""
    if s.bound(x) * 4 + 8 > LARGEST_BOUND:
        return x
    gamma, beta, mean = (s.tame_constant(x.dtype, (channels,)) for _ in range(3))
    spread = np.abs(data.tame(x.dtype, (channels,), s.seed()).astype(np.float64)) + 0.5
    variance = s.constant(spread.astype(x.dtype.numpy))
    bound = (s.bound(x) + 2) * 3 + 2
    return s.add(
        "nn.batch_norm", x, gamma, beta, mean, variance, level=FUZZY, bound=bound, axis=axis
    )


def batch_norm(s: Sketch) -> None:
    x = layer_input(s, lambda shape: len(shape) >= 2 and isinstance(shape[1], int), (2, 3, 2))
    batch_norm_of(s, x, 1, typical_extent((x.shape or ())[1]))


def normalization(s: Sketch) -> None:
    x = layer_input(s, lambda shape: bool(shape) and isinstance(shape[-1], int), (3, 4))
    depth = typical_extent((x.shape or ())[-1])
    kind = s.number(0, 3)
    if kind == 0:
        parameters = [s.tame_constant(x.dtype, (depth,)) for _ in range(s.number(0, 2))]
        s.add("nn.layer_norm", x, *parameters, level=FUZZY, bound=2.0 * depth + 2)
    elif kind == 1:
        s.add("nn.rms_norm", x, level=FUZZY, bound=2.0 * depth)
    elif kind == 2:
        s.add("nn.softmax", x, level=FUZZY, bound=1.0, axis=s.pick((-1, 0)))
    else:
        s.add("nn.log_softmax", x, level=FUZZY, bound=2 * s.bound(x) + 5)


def pooling(s: Sketch) -> None:
    x = layer_input(s, lambda shape: len(shape) == 4, (1, 2, 5, 3))
    name = s.pick(("nn.max_pool2d", "nn.avg_pool2d", "nn.lp_pool2d"))
    window = {"pool_size": [2, 2], "strides": [s.number(1, 2)] * 2, "padding": [1] * 4}
    window["ceil_mode"] = s.chance(2)
    level = EXACT if name == "nn.max_pool2d" else FUZZY
    s.add(name, x, level=level, bound=4 * s.bound(x), **window)


def prelu(s: Sketch) -> None:
    x = layer_input(s, lambda shape: len(shape) <= 4, (2, 3))
    slope = s.tame_constant(x.dtype, (1,) * s.number(0, len(x.shape or ())))
    s.add("nn.prelu", x, slope, bound=2 * s.bound(x))


def quantization(s: Sketch) -> None:
    x = s.find(lambda v: v.dtype is DType.FLOAT32 and is_small(v) and s.level(v) > FUZZY)
    x = x or s.source(DType.FLOAT32, s.shape())
    dtype = s.pick((DType.INT8, DType.UINT8, DType.INT4))
    scale = s.constant(np.float32(s.pick((0.25, 0.3))))
    zero = s.tame_constant(dtype, ())
    quantized = s.add("qnn.quantize", x, scale, zero, dtype=dtype, bound=256.0)
    s.add("qnn.dequantize", quantized, scale, zero, level=EXACT, bound=100.0)


def gelu_formula(s: Sketch) -> None:
    x = layer_input(s, lambda shape: True, (2, 3))
    if s.bound(x) > 8:
        return
    rank = s.pick((0, 0, 1, len(x.shape or ()) + 1))

    def number(value: float) -> Value:
        return s.number_like(x, value, rank)

    def times(a: Value, b: Value, bound: float) -> Value:
        return s.add("multiply", *((a, b) if s.chance(2) else (b, a)), bound=bound)

    limit = s.bound(x)
    if s.chance(3):
        cube = s.add("power", x, number(3.0), level=FUZZY, bound=limit**3)
        inner = s.add("add", x, times(cube, number(0.044715), limit**3), bound=2 * limit**3 + 8)
        scaled = times(inner, number(math.sqrt(2 / math.pi)), 2 * limit**3 + 8)
        curve = s.add("tanh", scaled, level=FUZZY, bound=1.0)
    else:
        scaled = s.add("divide", x, number(2**0.5), bound=limit)
        curve = s.add("erf", scaled, level=FUZZY, bound=1.0)
    one_plus = s.add("add", curve, number(1.0), bound=2.0)
    order = s.number(0, 2)
    if order == 0:
        times(times(x, number(0.5), limit), one_plus, 2 * limit)
    elif order == 1:
        times(x, times(one_plus, number(0.5), 1.0), limit)
    else:
        times(times(x, one_plus, 2 * limit), number(0.5), limit)


def layer_norm_formula(s: Sketch) -> None:
    x = layer_input(
        s, lambda shape: bool(shape) and isinstance(shape[-1], int) and shape[-1] > 0, (3, 4)
    )
    depth = typical_extent((x.shape or ())[-1])
    limit = s.bound(x)
    axis = -1 if s.chance(3) else s.pick((-1, 0))
    if (x.shape or ())[axis] == 0 or not isinstance((x.shape or ())[axis], int):
        return
    mean = s.add("mean", x, axes=[axis], keepdims=True, level=FUZZY, bound=limit)
    centered = s.add("subtract", x, mean, bound=2 * limit)
    two = s.number_like(x, 2.0)
    square = (
        s.add("power", centered, two, level=FUZZY, bound=4 * limit**2)
        if s.chance(2)
        else s.add("multiply", centered, centered, bound=4 * limit**2)
    )
    variance = s.add("mean", square, axes=[axis], keepdims=True, level=FUZZY, bound=4 * limit**2)
    epsilon = s.number_like(x, 0.5, s.pick((0, 1, len(x.shape or ()) + 1)))
    shifted = s.add("add", variance, epsilon, bound=4 * limit**2 + 1)
    root = s.add("sqrt", shifted, level=FUZZY, bound=2 * limit + 1)
    y = s.add("divide", centered, root, bound=3 * limit)
    for name in ("multiply", "add")[: s.number(0, 2)]:
        y = combine(s, name, y, s.tame_constant(x.dtype, (depth,)))


def attention_formula(s: Sketch) -> None:
    dtype = s.pick((DType.FLOAT32, DType.FLOAT64, DType.FLOAT16))
    batch, heads, length, size = 1, 2, 3, 2
    query = s.source(dtype, (batch, heads, s.pick((length, 1)), size), bounded=True)
    keys = s.source(dtype, (batch, heads, size, length), bounded=True)
    values = s.source(dtype, (batch, s.pick((heads, 1)), length, 2), bounded=True)
    if s.chance(2):
        query = s.add("multiply", query, s.number_like(query, 0.5), bound=2.0)
        keys = s.add("multiply", keys, s.number_like(keys, 0.5), bound=2.0)
    scores = s.add("nn.batch_matmul", query, keys, level=FUZZY, bound=32.0)
    if s.chance(2):
        shapes = ((length, length), (1, length), (1, 1, length, length), (batch, heads, 1, length))
        mask = s.tame_constant(dtype, s.pick((*shapes, (length,), (2, 1, 1, 1))))
        scores = s.add("add", scores, mask, bound=34.0)
    weights = s.add("nn.softmax", scores, level=FUZZY, bound=1.0, axis=s.pick((-1, -1, 3, 2)))
    s.add("nn.batch_matmul", weights, values, level=FUZZY, bound=64.0)


def folded(s: Sketch) -> None:
    """Work on constants alone."""
    x = s.tame_constant(s.pick(LAYER_DTYPES), (2, 3))
    y = s.add("multiply", x, s.number_like(x, 2.0), bound=4.0)
    assert is_float(y)
    s.add("transpose", s.add("add", y, x, bound=6.0, level=STRICT), axes=[1, 0])


EMITTERS = (
    dense,
    dense,
    integer_dense,
    matmul,
    convolution,
    convolution,
    convolution,
    batch_norm,
    normalization,
    normalization,
    pooling,
    prelu,
    quantization,
    gelu_formula,
    layer_norm_formula,
    attention_formula,
    folded,
)

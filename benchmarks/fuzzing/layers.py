"""Emitters of convolutions, pooling, products, recurrent layers, and quantised arithmetic."""

from __future__ import annotations

from typing import Any

import numpy as np

from benchmarks.fuzzing.elementwise import is_exact
from benchmarks.fuzzing.emitters import emits
from benchmarks.fuzzing.reduction import image
from benchmarks.fuzzing.sketch import FLOATS, Sketch, Value

_BYTES = ("int8", "uint8")


def _window(s: Sketch, value: Value, dilate: bool = True) -> dict[str, Any]:
    """A sliding window: kernel, strides, padding and dilations, each there or not.

    It is no larger than the image with its padding: what would come of that, ONNX Runtime and
    ONNX's shape inference round towards zero, which makes an element of nothing."""
    rank = value.rank - 2
    spatial = [min(array.shape[axis + 2] for array in value.arrays) for axis in range(rank)]
    kernel = [s.draw.among((1, 2, 3, 3)) for _ in spatial]
    found: dict[str, Any] = {"kernel_shape": kernel}
    if s.draw.chance(0.5):
        found["strides"] = [s.draw.between(1, 3) for _ in range(rank)]
    if dilate and s.draw.chance(0.3):
        found["dilations"] = [s.draw.between(1, 2) for _ in range(rank)]
    if s.draw.chance(0.2):
        found["auto_pad"] = s.draw.among(("SAME_UPPER", "SAME_LOWER", "VALID"))
        found.pop("dilations", None)
        # Strides beyond the kernel would want less than no padding, which ONNX leaves open.
        steps = zip(found.get("strides", ()), kernel, strict=False)
        found["strides"] = [min(step, extent) for step, extent in steps]
    elif s.draw.chance(0.6):
        found["pads"] = [s.draw.between(0, max(0, k - 1)) for k in (*kernel, *kernel)]
    if 0 in spatial:  # a kernel of one does not fit either
        found.pop("strides", None)
    for axis, extent in enumerate(spatial):
        pads = found.get("pads", [0] * 2 * rank)
        room = extent + pads[axis] + pads[rank + axis]
        if (kernel[axis] - 1) * found.get("dilations", [1] * rank)[axis] + 1 > room:
            kernel[axis] = 1
            found["strides"] = [] if "auto_pad" in found else found.get("strides", [])
    if "pads" in found:
        pads = [min(n, k - 1) for n, k in zip(found["pads"], (*kernel, *kernel), strict=True)]
        found["pads"] = pads
    return found


def _groups(s: Sketch, channels: int) -> int:
    divisors = [n for n in range(1, channels + 1) if channels % n == 0]
    return s.draw.among([1, 1, *divisors]) if divisors else 1


@emits("Conv")
def convolution(s: Sketch, op: str) -> None:
    value = image(s)
    channels = value.shape[1]
    if not channels:
        return  # ONNX Runtime never comes back
    groups = _groups(s, channels)
    window = _window(s, value)
    results = groups * s.draw.among((1, 2, 3, 8))
    weight = s.fresh(value.dtype, (results, channels // groups, *window["kernel_shape"]))
    bias = [s.fresh(value.dtype, (results,))] if s.draw.chance(0.5) else []
    s.add(op, [value, weight, *bias], group=groups, **window)


@emits("ConvTranspose")
def transposed_convolution(s: Sketch, op: str) -> None:
    value = image(s)
    channels = value.shape[1]
    groups = _groups(s, channels)
    window = _window(s, value)
    results = s.draw.between(1, 3)
    strides = window.get("strides")
    if strides and s.draw.chance(0.3):
        window["output_padding"] = [s.draw.between(0, n - 1) for n in strides]
    weight = s.fresh(value.dtype, (channels, results, *window["kernel_shape"]))
    bias = [s.fresh(value.dtype, (results * groups,))] if s.draw.chance(0.5) else []
    s.add(op, [value, weight, *bias], group=groups, **window)


@emits("MaxPool")
def max_pool(s: Sketch, op: str) -> None:
    value = image(s, dtypes=("float32", "float64", "float16", *_BYTES))
    if _has_nan(value):
        return
    window = _window(s, value)
    places = s.draw.chance(0.3)
    ceil = s.draw.among((None, None, 1)) if "auto_pad" not in window else None
    s.add(op, [value], outputs=1 + places, jumps=places, rounds=False, ceil_mode=ceil, **window)


@emits("AveragePool", "LpPool")
def mean_pool(s: Sketch, op: str) -> None:
    value = image(s, dtypes=("float32", "float64", "float16"))
    window = _window(s, value, dilate=s.opset >= 19)
    if op == "AveragePool":
        window["count_include_pad"] = s.draw.among((None, 0, 1))
    else:
        window["p"] = s.draw.among((1, 2, 3))
    if s.opset >= 19 and "auto_pad" not in window:
        window["ceil_mode"] = s.draw.among((None, None, 1))
    s.add(op, [value], **window)


@emits("GlobalAveragePool", "GlobalMaxPool", "GlobalLpPool")
def global_pool(s: Sketch, op: str) -> None:
    value = image(s)
    if op != "GlobalMaxPool" or not _has_nan(value):
        s.add(op, [value], rounds=op != "GlobalMaxPool")


def _has_nan(value: Value) -> bool:
    """Whether there is a NaN, which the maxima of ONNX Runtime's windows mostly pass over."""
    return value.is_float and any(np.isnan(array).any() for array in value.arrays)


@emits("MatMul")
def product(s: Sketch, op: str) -> None:
    value = s.operand(
        ("float32", "float32", "float64", "float16", "int32", "int64"),
        lambda one: one.rank > 0 and not one.moves(one.rank - 1),
    )
    if not value.rank or value.moves(value.rank - 1):
        return
    inner = value.shape[-1]
    batch = [n for axis, n in enumerate(value.shape[:-2]) if not value.moves(axis)]
    whole = len(batch) == max(0, value.rank - 2) and s.draw.chance(0.4)
    lead = tuple(1 if s.draw.chance(0.3) else n for n in batch) if whole else ()
    columns = () if not lead and s.draw.chance(0.15) else (s.draw.extent(),)
    s.add(op, [value, s.fresh(value.dtype, (*lead, inner, *columns))])


@emits("Gemm")
def affine(s: Sketch, op: str) -> None:
    value = s.operand(("float32", "float64", "float16"), rank=2)
    transposed = s.draw.among((0, 1))
    axis = 0 if transposed else 1
    if value.moves(axis) or not value.shape[axis]:
        return  # of an empty product ONNX Runtime adds the bias without `beta`
    inner, columns, flipped = value.shape[axis], s.draw.extent(), s.draw.among((0, 1))
    weight = s.fresh(value.dtype, (columns, inner) if flipped else (inner, columns))
    rows = value.shape[1 - axis]
    shapes: list[tuple[int, ...]] = [(columns,), (1, columns), (1,), ()]
    if not value.moves(1 - axis):
        shapes += [(rows, columns), (rows, 1)]
    bias = [s.fresh(value.dtype, s.draw.among(shapes))] if s.draw.chance(0.7) else []
    scales: dict[str, Any] = {
        "alpha": s.draw.among((None, 0.5, 2.0)),
        "beta": s.draw.among((None, 0.25)),
    }
    s.add(op, [value, weight, *bias], transA=transposed or None, transB=flipped or None, **scales)


_EQUATIONS = (
    ("ij,jk->ik", 2),
    ("bij,bkj->bik", 2),
    ("...ij,jk->...ik", 2),
    ("ij->ji", 1),
    ("ij->i", 1),
    ("ijk,k->ij", 2),
    ("bhid,bhjd->bhij", 2),
    ("ij,kj", 2),
    ("i,j->ij", 2),
    ("ii->i", 1),
    ("abc,cd,de->abe", 3),
)


@emits("Einsum")
def einstein(s: Sketch, op: str) -> None:
    equation, count = s.draw.among(_EQUATIONS)
    dtype = s.draw.among(("float32", "float32", "float64", "int32"))
    extents = {letter: s.draw.extent(7) for letter in "abcdehijk"}
    if "h" in equation and not (extents["b"] and extents["h"]):
        return  # ONNX Runtime crashes
    terms = equation.split("->")[0].split(",")
    lead = (2,) if "..." in equation else ()
    operands = [
        s.fresh(dtype, (*(lead if "..." in term else ()), *(extents[x] for x in term.strip("."))))
        for term in terms[:count]
    ]
    shape = operands[0].shape
    found = s.find(lambda one: one.dtype == dtype and one.shape == shape and one.is_static)
    s.add(op, [found or operands[0], *operands[1:]], equation=equation)


@emits("RNN", "LSTM", "GRU")
def recurrent(s: Sketch, op: str) -> None:
    value = s.operand(("float32",), lambda one: not one.moves(2), rank=3)
    if value.moves(2) or 0 in value.shape:
        return  # ONNX Runtime aborts the process on empty sequences
    gates = {"RNN": 1, "LSTM": 4, "GRU": 3}[op]
    direction = s.draw.among(("forward", "reverse", "bidirectional"))
    ways, hidden = 1 + (direction == "bidirectional"), s.draw.between(1, 5)
    weights = [s.fresh("float32", (ways, gates * hidden, n)) for n in (value.shape[2], hidden)]
    bias = [s.fresh("float32", (ways, 2 * gates * hidden))] if s.draw.chance(0.5) else []
    extra: dict[str, Any] = {"linear_before_reset": s.draw.among((None, 1))} if op == "GRU" else {}
    s.add(
        op,
        [value, *weights, *bias],
        outputs=2 + (op == "LSTM"),
        hidden_size=hidden,
        direction=direction,
        **extra,
    )


def _scale(s: Sketch, shape: tuple[int, ...] = ()) -> Value:
    """Powers of two, whose quotients are exact."""
    return s.constant(np.full(shape, s.draw.among((0.125, 0.25, 0.0625)), np.float32))


def _zero(s: Sketch, dtype: str, shape: tuple[int, ...] = ()) -> Value:
    return s.constant(np.full(shape, s.draw.between(0, 5), dtype))


@emits("QuantizeLinear")
def quantization(s: Sketch, op: str) -> None:
    value = s.operand(("float32",), is_exact)
    dtype = s.draw.among(_BYTES)
    axis, shape = _channel_axis(s, value)
    zero = [_zero(s, dtype, shape)] if s.draw.chance(0.8) else []
    s.add(op, [value, _scale(s, shape), *zero], jumps=True, axis=axis)


@emits("DequantizeLinear")
def dequantization(s: Sketch, op: str) -> None:
    value = s.operand((*_BYTES, "int32"))
    axis, shape = _channel_axis(s, value)
    zero = [_zero(s, value.dtype, shape)] if s.draw.chance(0.8) and value.dtype != "int32" else []
    s.add(op, [value, _scale(s, shape), *zero], rounds=False, axis=axis)


def _channel_axis(s: Sketch, value: Value) -> tuple[int | None, tuple[int, ...]]:
    axes = [axis for axis in range(value.rank) if not value.moves(axis)]
    if not axes or s.draw.chance(0.5):
        return None, ()
    axis = s.draw.among(axes)
    return axis, (value.shape[axis],)


@emits("DynamicQuantizeLinear")
def dynamic_quantization(s: Sketch, op: str) -> None:
    s.add(op, [s.operand(("float32",), is_exact)], outputs=3, jumps=True)


@emits("MatMulInteger")
def integer_product(s: Sketch, op: str) -> None:
    value = s.operand(_BYTES, lambda one: not one.moves(one.rank - 1), rank=s.draw.among((2, 3)))
    if value.moves(value.rank - 1) or not value.shape[-1]:
        return  # what ONNX Runtime gives for empty products is not even the same every time
    other = s.fresh(s.draw.among(_BYTES), (value.shape[-1], s.draw.extent()))
    zeros = [_zero(s, value.dtype), _zero(s, other.dtype)][: s.draw.between(0, 2)]
    s.add(op, [value, other, *zeros])


@emits("QLinearMatMul")
def quantized_product(s: Sketch, op: str) -> None:
    value = s.operand(_BYTES, lambda one: not one.moves(1), rank=2)
    if value.moves(1) or not value.shape[1]:
        return
    other = s.fresh(value.dtype, (value.shape[-1], s.draw.extent()))
    sides = [part for one in (value, other) for part in (one, _scale(s), _zero(s, value.dtype))]
    s.add(op, [*sides, _scale(s), _zero(s, value.dtype)])


@emits("ConvInteger", "QLinearConv")
def integer_convolution(s: Sketch, op: str) -> None:
    value = image(s, low=4, high=4, dtypes=("uint8",))
    if not value.shape[1]:
        return  # ONNX Runtime does not write the results
    window = _window(s, value)
    results = s.draw.between(1, 4)
    weight = s.fresh("uint8", (results, value.shape[1], *window["kernel_shape"]))
    if op == "ConvInteger":
        zeros = [_zero(s, "uint8"), _zero(s, "uint8")][: s.draw.between(0, 2)]
        s.add(op, [value, weight, *zeros], **window)
        return
    sides = [part for one in (value, weight) for part in (one, _scale(s), _zero(s, "uint8"))]
    s.add(op, [*sides, _scale(s), _zero(s, "uint8")], **window)


@emits("GridSample", since=16)
def grid_sample(s: Sketch, op: str) -> None:
    value = image(s, low=4, high=4, dtypes=("float32",))
    if value.moves(0):
        return
    generator = np.random.default_rng(s.draw.between(0, 9999))
    grid = generator.uniform(-1.2, 1.2, (value.shape[0], 3, 5, 2)).astype(np.float32)
    mode = s.draw.among(("bilinear", "nearest") if s.opset < 20 else ("linear", "nearest"))
    padding = s.draw.among(("zeros", "border", "reflection"))
    s.add(
        op,
        [value, s.constant(grid)],
        mode=mode,
        padding_mode=padding,
        align_corners=s.draw.among((0, 1)),
    )


@emits("Det")
def determinant(s: Sketch, op: str) -> None:
    n = s.draw.between(1, 4)
    s.add(op, [s.operand(FLOATS, lambda one: one.rank > 1, shape=(n, n))])

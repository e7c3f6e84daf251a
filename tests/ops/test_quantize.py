"""Quantisation and its inverse, against ONNX Runtime and plain Python or NumPy."""

from __future__ import annotations

import math
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from onnx import TensorProto
from tests.ops.every_form import agree, by_graft, one_node

from graft.base.dims import symbol
from graft.base.dtypes import DType
from graft.base.errors import EvaluationError, GraftError, ModelError
from graft.frontends.onnx.importer import import_model
from graft.ir.attrs import make_attrs
from graft.ir.builder import Builder
from graft.ir.evaluate import run_op
from graft.ir.types import TensorType, tensor
from graft.ops import get_op

N = symbol("n")
F32 = np.float32
INF, NAN = np.inf, np.nan
RANGES = {
    "int2": (-2, 1),
    "uint2": (0, 3),
    "int4": (-8, 7),
    "uint4": (0, 15),
    "int8": (-128, 127),
    "uint8": (0, 255),
    "int16": (-32768, 32767),
    "uint16": (0, 65535),
}


def run(name: str, *operands: Any, **attrs: Any) -> Any:
    op = get_op(name)
    given = [None if operand is None else np.asarray(operand) for operand in operands]
    with np.errstate(all="ignore"):
        return run_op(op, make_attrs(op.attrs, attrs), given)[0]


def numbers(*shape: int, dtype: Any = F32) -> Any:
    drawn = np.random.default_rng(len(shape)).normal(size=shape) * 20
    return np.asarray(drawn).astype(dtype)


def whole(low: int, high: int, *shape: int, dtype: Any) -> Any:
    return np.random.default_rng(3).integers(low, high, shape).astype(dtype)


@pytest.mark.parametrize("name", RANGES)
@pytest.mark.parametrize("zero", [0, 1])
def test_integers_saturate_and_ties_go_to_even(name: str, zero: int) -> None:
    """Against Python's own rounding of exact quotients, one number at a time."""
    low, high = RANGES[name]
    x = [
        0.0,
        -0.0,
        0.5,
        1.5,
        2.5,
        -0.5,
        -1.5,
        -2.5,
        1e9,
        -1e9,
        3e38,
        INF,
        -INF,
        NAN,
        5.1,
        high,
        low,
    ]
    dtype = DType(name)
    zero_point = np.array(zero, dtype.numpy)
    found = run("qnn.quantize", np.array(x, F32), F32(1), zero_point, dtype=name)
    assert found.dtype == dtype.numpy
    for number, result in zip(x, found.astype(np.int64).tolist(), strict=True):
        if math.isnan(number):
            assert result == low
        else:
            rounded = number if math.isinf(number) else round(number)
            assert result == min(max(rounded + zero, low), high), number


GRANULARITIES: list[tuple[Any, Any, int, int]] = [
    # data, scale, axis, block_size
    ((3, 7), (), 1, 0),
    ((), (), 1, 0),
    ((5,), (1,), 1, 0),
    ((5,), (5,), 0, 0),
    ((3, 7), (1,), 0, 0),
    ((3, 7), (7,), 1, 0),
    ((3, 7), (3,), -2, 0),
    ((2, 3, 4), (3,), 1, 0),
    ((3, 7), (3, 3), 1, 3),
    ((3, 7), (2, 7), 0, 2),
    ((3, 7), (3, 1), -1, 9),
    ((2, 8, 3), (2, 2, 3), 1, 4),
    ((0, 7), (7,), 1, 0),
    ((7, 0), (0,), 1, 0),
    ((3, 0), (3, 0), 1, 2),
]


def spread(parameter: Any, shape: Any, axis: int, block: int) -> Any:
    """The parameter of each element, looked up index by index."""
    result = np.empty(shape)
    for index in np.ndindex(*shape):
        if parameter.size == 1:
            result[index] = parameter.reshape(-1)[0]
        elif block:
            at = list(index)
            at[axis] //= block
            result[index] = parameter[tuple(at)]
        else:
            result[index] = parameter[index[axis]]
    return result


@pytest.mark.each_value
@pytest.mark.parametrize(("shape", "scales", "axis", "block"), GRANULARITIES)
@pytest.mark.parametrize("name", ["int8", "uint16", "uint4"])
@pytest.mark.parametrize("with_zero", [False, True])
def test_granularities(
    shape: Any, scales: Any, axis: int, block: int, name: str, with_zero: bool
) -> None:
    low, high = RANGES[name]
    dtype = DType(name).numpy
    x, scale = numbers(*shape), np.random.default_rng(2).uniform(0.5, 3, scales).astype(F32)
    zero = whole(max(low, -5), min(high, 6), *scales, dtype=dtype)
    wide_scale = spread(scale, shape, axis, block)
    wide_zero = spread(zero.astype(np.int64), shape, axis, block) if with_zero else 0
    ratio = (x / wide_scale.astype(F32)).astype(np.float64)
    quantized = np.clip(np.rint(ratio) + wide_zero, low, high).astype(np.int64).astype(dtype)
    code = getattr(TensorProto, name.upper())
    chosen: dict[str, Any] = {"axis": axis, "block_size": block}
    operands = [x, scale, zero] if with_zero else [x, scale]
    given = chosen if with_zero else {**chosen, "output_dtype": code}
    agree("QuantizeLinear", operands, 21, [quantized], **given)
    real = ((quantized.astype(np.int64) - wide_zero) * wide_scale).astype(F32)
    agree("DequantizeLinear", [quantized, *operands[1:]], 21, [real], **chosen)


@pytest.mark.parametrize("opset", [10, 13, 19, 21, 23, 25])
@pytest.mark.parametrize("name", ["int8", "uint8"])
def test_every_version_agrees_with_onnxruntime(opset: int, name: str) -> None:
    x = np.array([[0, 2.5, 3.5, 1000], [-254, -1000, 0.1, 1e30]], F32)
    scale, zero = np.array(0.5, F32), np.array(7, name)
    agree("QuantizeLinear", [x, scale, zero], opset)
    agree("DequantizeLinear", [whole(0, 100, 2, 3, dtype=name), scale, zero], opset)
    integers = np.array([[-700, 3, 2**31 - 1, 5]], np.int32)
    bounds = np.iinfo(name)
    wanted = [max(bounds.min, -1393), 13, bounds.max, 17]
    agree("QuantizeLinear", [integers, scale, zero], opset, [np.array([wanted], name)])
    agree("DequantizeLinear", [integers, scale], opset)
    if opset >= 13:
        scales, zeros = np.array([0.5, 2], F32), np.array([1, 2], name)
        agree("QuantizeLinear", [x, scales, zeros], opset, axis=-2)


def test_without_zero_point_the_result_is_uint8() -> None:
    x = np.array([-3, 4, 300], F32)
    agree("QuantizeLinear", [x, np.array(1, F32)], 13, [np.array([0, 4, 255], np.uint8)])


# dtype, largest; what infinity becomes without saturation
FLOAT8 = [
    ("float8_e4m3fn", 448.0, NAN),
    ("float8_e4m3fnuz", 240.0, NAN),
    ("float8_e5m2", 57344.0, INF),
    ("float8_e5m2fnuz", 57344.0, NAN),
]


@pytest.mark.parametrize(("name", "largest", "beyond"), FLOAT8)
def test_float8(name: str, largest: float, beyond: float) -> None:
    x = np.array([0, 1, -1.5, 1e6, -1e6, INF, -INF, NAN, largest], F32)
    zero = np.array(0, DType(name).numpy)
    for saturate, over in [(1, largest), (0, beyond)]:
        found = run("qnn.quantize", x, F32(1), zero, dtype=name, saturate=saturate)
        expected = [0, 1, -1.5, over, -over, over, -over, NAN, largest]
        np.testing.assert_array_equal(found.astype(F32), np.array(expected, F32))
    back = run("qnn.dequantize", found[:3], F32(2), zero)
    np.testing.assert_array_equal(back, np.array([0, 2, -3], F32))


def test_float8_rounds_ties_to_even_and_keeps_the_sign_of_zero() -> None:
    x = np.array([1.0625, 1.1875, -0.0], F32)  # steps are of 1/8 here
    found = run("qnn.quantize", x, F32(1), np.array(0, ml_dtypes.float8_e4m3fn), dtype=FLOAT8[0][0])
    assert found.astype(F32).tolist() == [1.0, 1.25, 0.0]
    assert np.signbit(found[2])
    shifted = run(
        "qnn.quantize", x, F32(1), np.array(2, ml_dtypes.float8_e5m2), dtype="float8_e5m2"
    )
    assert shifted.astype(F32).tolist() == [3.0, 3.0, 2.0]


def test_float4() -> None:
    x = np.array([0, 0.25, 0.75, 5, 7, -100, INF, -INF], F32)
    expected = np.array([0, 0, 1, 4, 6, -6, 6, -6], F32)
    for saturate in (0, 1):
        found = run("qnn.quantize", x, F32(1), dtype="float4_e2m1fn", saturate=saturate)
        np.testing.assert_array_equal(found.astype(F32), expected)
    back = run("qnn.dequantize", found, F32(0.5))
    np.testing.assert_array_equal(back, expected / 2)


PRECISIONS = [
    # data, scale, precision, what one over the scale is divided in
    ("float32", "float32", None, "float32"),
    ("float32", "float16", None, "float16"),
    ("float16", "float32", None, "float32"),
    ("bfloat16", "bfloat16", None, "bfloat16"),
    ("float32", "float32", "float16", "float16"),
    ("float16", "float16", "float32", "float32"),
    ("int32", "int32", None, "float64"),
    ("int32", "float16", None, "float16"),
    ("float16", "float8_e8m0fnu", None, "float16"),
    ("int32", "float8_e8m0fnu", None, "float64"),
]


@pytest.mark.parametrize(("data", "scale", "precision", "divided_in"), PRECISIONS)
def test_precision_of_the_division(data: str, scale: str, precision: Any, divided_in: str) -> None:
    """The scale's dtype, unless an attribute names one, or the scale cannot hold a quotient."""
    x = np.arange(-3000, 3000, 7).astype(DType(data).numpy)
    divisor = np.array(4, DType(scale).numpy)
    wide = DType(divided_in).numpy
    quotient = x.astype(wide) / divisor.astype(wide)
    expected = np.rint(quotient.astype(np.float64)).astype(np.int16)
    found = run("qnn.quantize", x, divisor, dtype="int16", precision=precision)
    np.testing.assert_array_equal(found, expected)


def test_precision_and_types_as_onnx_attributes() -> None:
    x, scale = np.array([1000.6, -3.5], np.float16), np.array(0.3, F32)
    expected = np.rint(x / scale.astype(np.float16)).astype(np.int16)
    half, short = TensorProto.FLOAT16, TensorProto.INT16
    agree("QuantizeLinear", [x, scale], 23, [expected], precision=half, output_dtype=short)
    real = (expected * scale).astype(np.float16)
    agree("DequantizeLinear", [expected, scale], 23, [real], output_dtype=half)
    two = np.array(2, ml_dtypes.float8_e8m0fnu)
    agree("DequantizeLinear", [expected, two], 24, [expected * F32(2)], output_dtype=1)


def test_differences_and_products_do_not_overflow_on_the_way() -> None:
    shorts, zero = np.array([0, 65535], np.uint16), np.array(65535, np.uint16)
    found = run("qnn.dequantize", shorts, np.float16(0.5), zero)
    assert found.dtype == np.float16
    assert found.tolist() == [-32768.0, 0.0]
    integers = np.array([2**31 - 1, -(2**31)], np.int32)
    wide = run("qnn.dequantize", integers, np.float64(0.5), np.int32(-5))
    assert wide.tolist() == [(2**31 + 4) / 2, (5 - 2**31) / 2]


def made(name: str, *types: TensorType, **attrs: Any) -> TensorType:
    builder = Builder()
    inputs = [builder.input(f"x{i}", type_) for i, type_ in enumerate(types)]
    return builder(name, *inputs, **attrs).tensor


def test_types_with_symbols_and_unknown_rank() -> None:
    data, blocks = tensor("float32", N, 7), tensor("float32", N, (7 + 1) // 2)
    found = made("qnn.quantize", data, blocks, dtype="int4", block_size=2)
    assert found == tensor("int4", N, 7)
    along = tensor("float32", (N + 1) // 2, 7)
    assert made("qnn.quantize", data, along, dtype="int4", block_size=2, axis=0).shape == (N, 7)
    unranked = TensorType(DType.UINT8, None)
    real = made("qnn.dequantize", unranked, tensor("float16", N), axis=3)
    assert real == TensorType(DType.FLOAT16, None)
    back = made("qnn.dequantize", tensor("int8", N), tensor("float32"), dtype="bfloat16")
    assert back == tensor("bfloat16", N)


REFUSALS: list[tuple[str, tuple[TensorType, ...], dict[str, Any], str]] = [
    ("qnn.quantize", (tensor("float32", 2), tensor("float32")), {"dtype": "int32"}, "to int32"),
    ("qnn.quantize", (tensor("int8", 2), tensor("float32")), {"dtype": "int8"}, "quantize int8"),
    ("qnn.quantize", (tensor("float32", 2), tensor("int8")), {"dtype": "int8"}, "scale is int8"),
    (
        "qnn.quantize",
        (tensor("float32", 2), tensor("float32"), tensor("uint8")),
        {"dtype": "int8"},
        "the zero point is uint8, the result int8",
    ),
    (
        "qnn.quantize",
        (tensor("float32", 2, 3), tensor("float32", 2)),
        {"dtype": "int8"},
        "extents of the axis and the scale differ: 3 and 2",
    ),
    (
        "qnn.quantize",
        (tensor("float32", 3), tensor("float32", 3)),
        {"dtype": "int8"},
        "axis 1 is out of range for rank 1",
    ),
    (
        "qnn.quantize",
        (tensor("float32", 2, 3), tensor("float32", 3), tensor("int8", 2)),
        {"dtype": "int8"},
        r"the zero point is int8\[2\], the scale float32\[3\]",
    ),
    (
        "qnn.quantize",
        (tensor("float32", 2, 6), tensor("float32", 2, 3)),
        {"dtype": "int8"},
        "rank 2, but there is no block_size",
    ),
    (
        "qnn.quantize",
        (tensor("float32", 2, 6), tensor("float32", 2, 3)),
        {"dtype": "int8", "block_size": 4},
        "needed and given along axis 1 differ: 2 and 3",
    ),
    (
        "qnn.quantize",
        (tensor("float32", 2, 6), tensor("float32", 3)),
        {"dtype": "int8", "block_size": 2},
        "the scale has rank 1, the data 2",
    ),
    (
        "qnn.quantize",
        (tensor("float32", 2), tensor("float32")),
        {"dtype": "int8", "block_size": -1},
        "block_size is -1",
    ),
    (
        "qnn.quantize",
        (tensor("float32", 2), tensor("float32")),
        {"dtype": "int8", "precision": "int8"},
        "cannot divide in int8",
    ),
    ("qnn.dequantize", (tensor("float32", 2), tensor("float32")), {}, "dequantize float32 data"),
    ("qnn.dequantize", (tensor("int8", 2), tensor("int32")), {}, "the scale is int32"),
    ("qnn.dequantize", (tensor("int8", 2), tensor("float8_e8m0fnu")), {}, "to float8_e8m0fnu"),
    (
        "qnn.dequantize",
        (tensor("int8", 2), tensor("float32"), tensor("uint8")),
        {},
        "the zero point is uint8, the data int8",
    ),
]


@pytest.mark.parametrize(("name", "types", "attrs", "message"), REFUSALS)
def test_contradictions_are_refused(name: str, types: Any, attrs: Any, message: str) -> None:
    with pytest.raises(GraftError, match=message):
        made(name, *types, **attrs)


def test_contradictions_only_data_show_are_refused() -> None:
    x, scales = numbers(2, 3), np.ones(2, F32)
    model = one_node("QuantizeLinear", [x, scales], 13, "unranked")
    with pytest.raises(EvaluationError, match=r"qnn\.quantize"):
        by_graft(model, [x, scales])


def test_output_dtype_must_be_that_of_the_zero_point() -> None:
    operands = [numbers(2), np.array(1, F32), np.array(0, np.int8)]
    model = one_node("QuantizeLinear", operands, 21, output_dtype=TensorProto.UINT8)
    with pytest.raises(ModelError, match="output_dtype is uint8, but the zero point is int8"):
        import_model(model)


@pytest.mark.parametrize(
    "x", [[-1.5, 0, 3], [1, 2.5], [-7, -0.25], [[0.0], [0.0]], 5.0, [1e-3, 12345.678]]
)
def test_dynamic_quantize_linear(x: Any) -> None:
    """All zeros included, for which ONNX Runtime has a scale of 1."""
    agree("DynamicQuantizeLinear", [np.array(x, F32)], 11, outputs=3)

"""Activations on awkward operands, against ONNX Runtime and plain NumPy."""

from __future__ import annotations

import math
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from tests.ops.one_node import assert_same, by_graft, by_runtime, graph_of

from graft.base.dims import symbol
from graft.base.dtypes import Array
from graft.base.errors import UserError
from graft.ir.builder import Builder
from graft.ir.evaluate import run_op
from graft.ir.types import TensorType, tensor
from graft.ops import get_op

# Beside ordinary numbers: both zeros, a denormal, values whose exponential overflows or vanishes.
EDGES = [-0.0, 0.0, 1e-40, -1e-40, 0.5, -0.5, 20.5, -20.5, 88, -88, 700, -700, 1e30, -1e30]
AWKWARD = np.array([*EDGES, np.nan, np.inf], dtype=np.float32)

# operator, opset, attributes: run by ONNX Runtime as well
ELEMENTWISE: list[tuple[str, int, dict[str, float]]] = [
    ("Relu", 7, {}),
    ("Relu", 14, {}),
    ("LeakyRelu", 7, {}),
    ("LeakyRelu", 16, {"alpha": 2.5}),
    ("Elu", 7, {}),
    ("Elu", 7, {"alpha": 0.0}),
    ("Elu", 7, {"alpha": -1.5}),
    ("Selu", 7, {}),
    ("Selu", 7, {"alpha": 3.0, "gamma": 0.25}),
    ("Celu", 12, {}),
    ("Celu", 12, {"alpha": 0.3}),
    ("HardSigmoid", 7, {}),
    ("HardSigmoid", 7, {"alpha": 0.5, "beta": -0.25}),
    ("Softplus", 7, {}),
    ("Softsign", 7, {}),
    ("ThresholdedRelu", 10, {}),
    ("ThresholdedRelu", 10, {"alpha": -30.0}),
    ("Shrink", 9, {}),
    ("Shrink", 9, {"lambd": 0.25, "bias": 0.125}),
    ("Gelu", 20, {}),
    ("HardSwish", 14, {}),
    ("Mish", 18, {}),
]


@pytest.mark.parametrize(("op_type", "opset", "attributes"), ELEMENTWISE)
def test_elementwise_agrees_with_onnx_runtime(
    op_type: str, opset: int, attributes: dict[str, Any]
) -> None:
    ordinary = np.linspace(-9, 9, 45, dtype=np.float32)
    feeds = {"x": np.concatenate([ordinary, AWKWARD]).reshape(-1, 1)}
    expected = by_runtime(op_type, feeds, opset, **attributes)
    assert_same(by_graft(op_type, feeds, opset, **attributes), expected, 2e-6)


@pytest.mark.parametrize("shape", [(), (0,), (3, 0, 2)])
@pytest.mark.parametrize("op_type", ["Relu", "Elu", "Gelu", "Mish", "HardSwish", "Shrink"])
def test_elementwise_of_rank_0_and_of_nothing(op_type: str, shape: tuple[int, ...]) -> None:
    x = np.full(shape, -0.75, np.float32)
    single = by_graft(op_type, {"x": np.full(1, -0.75, np.float32)}, 22)[0].item()
    assert_same(by_graft(op_type, {"x": x}, 22), [np.full(shape, single, np.float32)], 0)
    (result,) = graph_of(op_type, {"x": x}, 22, shapes={"x": None}).outputs
    assert result.type == TensorType(result.dtype, None)


def _mish(x: Array) -> Any:
    return x * np.tanh(np.logaddexp(0, x))


def _gelu_by_tanh(x: Array) -> Any:
    return x / (1 + np.exp(-2 * math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))


def _swish(x: Array) -> Any:
    return x / (1 + np.exp(-1.5 * x))


# operator, opset, attributes, formula in float64
FORMULAS: list[tuple[str, int, dict[str, Any], Any]] = [
    ("Relu", 14, {}, lambda x: (x + abs(x)) / 2),
    ("LeakyRelu", 16, {"alpha": 0.25}, lambda x: 0.625 * x + 0.375 * abs(x)),
    ("Elu", 22, {"alpha": 2.0}, lambda x: np.maximum(x, 0) + 2 * np.expm1(np.minimum(x, 0))),
    ("Celu", 28, {"alpha": 2.0}, lambda x: np.maximum(x, 2 * np.expm1(np.minimum(x, 0) / 2))),
    ("Mish", 22, {}, _mish),
    ("Gelu", 20, {"approximate": "tanh"}, _gelu_by_tanh),
    ("Gelu", 20, {}, lambda x: x * np.vectorize(lambda t: math.erfc(-t / 2**0.5) / 2)(x)),
    ("Swish", 24, {"alpha": 1.5}, _swish),
    ("HardSwish", 22, {}, lambda x: x * np.median([x / 6 + 0.5, 0 * x, 0 * x + 1], axis=0)),
    ("Softplus", 22, {}, lambda x: np.logaddexp(0, x)),
    ("Softmax", 13, {}, lambda x: np.exp(x) / np.exp(x).sum()),
    ("LogSoftmax", 13, {}, lambda x: x - np.log(np.exp(x).sum())),
]
# dtype, what rounding may cost: some operations each round to the dtype
PRECISION = [
    (np.float64, 1e-12),
    (np.float32, 1e-6),
    (np.float16, 5e-3),
    (ml_dtypes.bfloat16, 4e-2),
]


@pytest.mark.parametrize(("dtype", "tolerance"), PRECISION)
@pytest.mark.parametrize(("op_type", "opset", "attributes", "formula"), FORMULAS)
def test_every_float_dtype(
    op_type: str, opset: int, attributes: dict[str, Any], formula: Any, dtype: Any, tolerance: float
) -> None:
    x = np.linspace(-11, 11, 47).astype(dtype)
    expected = np.asarray(formula(x.astype(np.float64))).astype(dtype)
    assert_same(by_graft(op_type, {"x": x}, opset, **attributes), [expected], tolerance)


def test_default_coefficients_are_the_float32_ones() -> None:
    x = np.array([-1.0])
    assert by_graft("LeakyRelu", {"x": x}, 16)[0].item() == -float(np.float32(0.01))


@pytest.mark.parametrize("dtype", [np.int8, np.int16, np.int32, np.int64])
def test_relu_of_integers(dtype: Any) -> None:
    smallest, largest = np.iinfo(dtype).min, np.iinfo(dtype).max
    x = np.array([smallest, -1, 0, 1, largest], dtype)
    assert_same(by_graft("Relu", {"x": x}, 14), [np.array([0, 0, 0, 1, largest], dtype)], 0)


def test_swiglu_gates_its_second_operand() -> None:
    a, b = np.array([[-2.0, 0.5], [3.0, 0.0]]), np.array([[1.0, -4.0], [0.5, 7.0]])
    expected = b * a / (1 + np.exp(-0.5 * a))
    assert_same(by_graft("SwiGLU", {"a": a, "b": b}, 28, alpha=0.5), [expected], 1e-12)


PRELU_SHAPES = [((), ()), ((0, 3), (3,)), ((2, 3, 4), (3, 1)), ((2, 3), (1, 1)), ((3,), (1,))]


@pytest.mark.parametrize(("shape", "slope_shape"), PRELU_SHAPES)
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_prelu_broadcasts_its_slope(
    shape: tuple[int, ...], slope_shape: tuple[int, ...], dtype: Any
) -> None:
    rng = np.random.default_rng(1)
    x = rng.normal(size=shape).astype(dtype)
    slope = rng.normal(size=slope_shape).astype(dtype)
    expected = np.maximum(x, 0) + slope * np.minimum(x, 0)
    assert_same(by_graft("PRelu", {"x": x, "slope": slope}, 16), [np.asarray(expected)], 1e-6)


def test_prelu_of_integers_is_exact() -> None:
    x = np.array([-(2**53) - 1, 5, -3], np.int64)
    slope = np.array([3], np.int64)
    expected = np.array([-3 * (2**53 + 1), 5, -9], np.int64)
    np.testing.assert_array_equal(by_graft("PRelu", {"x": x, "slope": slope}, 9)[0], expected)


PRELU_REFUSALS = [
    (tensor("float32", 2, 3), tensor("float32", 4), "extents of data and alpha differ: 3 and 4"),
    (tensor("float32", 3), tensor("float32", 2, 3), "alpha has rank 2, data only 1"),
    (tensor("float32", 3), tensor("float64", 3), "dtypes differ: float32, float64"),
    (tensor("bool", 3), tensor("bool", 3), "wants real operands, not bool"),
]


@pytest.mark.parametrize(("data", "alpha", "message"), PRELU_REFUSALS)
def test_prelu_refuses(data: TensorType, alpha: TensorType, message: str) -> None:
    builder = Builder()
    with pytest.raises(UserError, match=message):
        builder("nn.prelu", builder.input("x", data), builder.input("alpha", alpha))


def test_prelu_keeps_symbolic_extents() -> None:
    builder = Builder()
    data = builder.input("x", tensor("float32", symbol("n"), symbol("c")))
    for alpha in (tensor("float32", 7), tensor("float32", symbol("c")), TensorType(data.dtype)):
        assert builder("nn.prelu", data, builder.input("alpha", alpha)).type == data.type


# dtype, lambd, bias, operand, result; ONNX's own formula in the dtype's arithmetic
SHRINK: list[tuple[Any, float, float, list[int], list[int]]] = [
    (np.int8, 1.5, 0.0, [-128, -2, -1, 0, 1, 2, 127], [-128, -2, 0, 0, 0, 2, 127]),
    (np.int8, 1.5, 1.0, [-3, -2, -1, 1, 2, 3], [-2, -1, 0, 0, 1, 2]),
    (np.int8, 2.0, 0.5, [-3, -2, 2, 3], [-2, 0, 0, 2]),
    (np.int8, 1000.0, 1.0, [-128, 127], [0, 0]),
    (np.uint8, 3.0, 2.0, [0, 3, 4, 255], [0, 0, 2, 253]),
    (np.uint8, -1.0, 1.0, [0, 5], [1, 4]),
    (np.int64, 1.0, 1.0, [2**62 + 1, -(2**62) - 1], [2**62, -(2**62)]),
]


@pytest.mark.parametrize(("dtype", "threshold", "bias", "given", "expected"), SHRINK)
def test_shrink_of_integers(
    dtype: Any, threshold: float, bias: float, given: list[int], expected: list[int]
) -> None:
    x = np.array(given, dtype)
    result = by_graft("Shrink", {"x": x}, 9, lambd=threshold, bias=bias)[0]
    np.testing.assert_array_equal(result, np.array(expected, dtype))
    assert result.dtype == dtype


def test_gelu_refuses_an_unknown_approximation() -> None:
    x = np.zeros(3, np.float32)
    with pytest.raises(UserError, match="approximate is 'sine', neither none nor tanh"):
        by_graft("Gelu", {"x": x}, 20, approximate="sine")


# opset, shape, axis
SOFTMAX: list[tuple[int, tuple[int, ...], int | None]] = [
    (7, (3, 5), None),
    (7, (2, 3, 5), 1),
    (11, (2, 3, 5), -3),
    (11, (2, 3, 5), 2),
    (11, (2, 3, 4, 5), 2),
    (11, (7,), 0),
    (12, (1, 5, 1), 1),
    (13, (3, 5), None),
    (13, (2, 3, 5), 0),
    (13, (2, 3, 5), -2),
]


@pytest.mark.parametrize(("opset", "shape", "axis"), SOFTMAX)
@pytest.mark.parametrize("op_type", ["Softmax", "LogSoftmax"])
def test_softmax_of_each_opset(
    op_type: str, opset: int, shape: tuple[int, ...], axis: int | None
) -> None:
    x = np.random.default_rng(2).normal(size=shape).astype(np.float32) * 30
    attributes = {} if axis is None else {"axis": axis}
    expected = by_runtime(op_type, {"x": x}, opset, **attributes)
    assert_same(by_graft(op_type, {"x": x}, opset, **attributes), expected, 1e-5)
    names = {"x": [f"n{i}" for i in range(len(shape))]}
    symbolic = graph_of(op_type, {"x": x}, opset, shapes=names, **attributes)
    assert symbolic.outputs[0].type == symbolic.inputs[0].type
    assert_same(by_graft(op_type, {"x": x}, opset, shapes=names, **attributes), expected, 1e-5)


@pytest.mark.parametrize("opset", [11, 13])
@pytest.mark.parametrize("shape", [(0, 3, 4), (2, 0, 4), (2, 3, 0)])
@pytest.mark.parametrize("names", [None, ["a", "b", "c"]])
def test_softmax_of_nothing(opset: int, shape: tuple[int, ...], names: list[str] | None) -> None:
    x = np.zeros(shape, np.float32)
    shapes = None if names is None else {"x": names}
    result = by_graft("Softmax", {"x": x}, opset, axis=1, shapes=shapes)
    assert_same(result, [x], 0)


def test_softmax_lets_nan_and_infinity_through() -> None:
    inf, nan = np.inf, np.nan
    x = np.array([[1, nan, 2], [1, inf, 2], [1, -inf, 1], [-inf, -inf, -inf]], np.float32)
    expected = np.array([[nan] * 3, [nan] * 3, [0.5, 0, 0.5], [nan] * 3], np.float32)
    attrs = get_op("nn.softmax").attrs(axis=1)  # type: ignore[call-arg]
    with np.errstate(invalid="ignore"):
        np.testing.assert_array_equal(run_op(get_op("nn.softmax"), attrs, [x])[0], expected)
        logarithms = run_op(get_op("nn.log_softmax"), attrs, [x])[0]
    np.testing.assert_array_equal(np.isnan(logarithms), np.isnan(expected))
    np.testing.assert_allclose(logarithms[2], [-math.log(2), -inf, -math.log(2)], rtol=1e-6)


@pytest.mark.parametrize(
    ("opset", "shape", "axis", "message"),
    [
        (13, [2, 3], 2, "axis 2 is out of range for rank 2"),
        (13, [], -1, "axis -1 is out of range for rank 0"),
        (11, [2, 3], -3, "axis -3 is out of range for rank 2"),
        (11, None, 1, "wants to know the rank of 'x'"),
    ],
)
def test_softmax_refuses(opset: int, shape: list[int] | None, axis: int, message: str) -> None:
    x = np.zeros(shape or (), np.float32)
    with pytest.raises(UserError, match=message):
        by_graft("Softmax", {"x": x}, opset, axis=axis, shapes={"x": shape})


@pytest.mark.parametrize("opset", [11, 13])
def test_softmax_of_unknown_rank(opset: int) -> None:
    x = np.array([[0.0, 0.0]])
    actual = by_graft("Softmax", {"x": x}, opset, axis=-1, shapes={"x": None})
    assert_same(actual, [x + 0.5], 0)


@pytest.mark.parametrize("name", ["nn.relu", "nn.gelu", "nn.softmax", "nn.leaky_relu"])
def test_strings_and_booleans_are_refused(name: str) -> None:
    builder = Builder()
    for dtype in ("bool", "string"):
        with pytest.raises(UserError, match=f"operands, not {dtype}"):
            builder(name, builder.input("x", tensor(dtype, 3)))


def test_work_counts_operations_per_element() -> None:
    data = tensor("float32", symbol("n"), 10)
    softmax = get_op("nn.softmax")
    work = softmax.work(softmax.attrs(), [data], [data])
    assert work.flops == symbol("n") * 50
    assert work.bytes == symbol("n") * 80
    assert work.macs == 0

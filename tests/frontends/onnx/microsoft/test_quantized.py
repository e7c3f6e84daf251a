"""Operators on narrow integers: rounding, saturation, missing zero points, packed weights.

ONNX Runtime rounds in float32, at times in another order: where a result lies between two integers,
the two may take different ones. Weights are kept small where they are signed and the data are not,
since ONNX Runtime's products saturate on some machines.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from tests.frontends.onnx.microsoft.beside_runtime import (
    agrees,
    by_graft,
    by_runtime,
    floats,
    model,
    scalar,
    whole,
)

from graft.base.dtypes import Array
from graft.base.errors import ModelError, UnsupportedError
from graft.frontends.onnx.importer import import_model

NARROW = pytest.mark.parametrize("dtype", [np.uint8, np.int8])


def zero(number: int, dtype: Any) -> Array:
    """A zero point, counted from the smallest number."""
    return scalar(number + np.iinfo(dtype).min, dtype)


def small(*shape: int) -> Array:
    return whole(np.int8, *shape, low=-60, high=60)


@NARROW
@pytest.mark.parametrize(("op_type", "scale"), [("QLinearAdd", 0.05), ("QLinearMul", 0.1)])
@pytest.mark.parametrize(
    ("left", "right"), [((3, 4, 50), (3, 4, 50)), ((3, 4, 50), (4, 1)), ((1, 5), (3, 40, 1))]
)
def test_sums_and_products(op_type: str, scale: float, left: Any, right: Any, dtype: Any) -> None:
    a = whole(dtype, *left), scalar(0.031), zero(120, dtype)
    b = whole(dtype, *right), scalar(0.017), zero(130, dtype)
    result = scalar(scale), zero(100, dtype)
    agrees(op_type, *a, *b, *result, opened=False, off_by_one=0.03)


@NARROW
def test_results_saturate(dtype: Any) -> None:
    a = whole(dtype, 200), scalar(1.0), zero(128, dtype)
    result = scalar(0.5), zero(3, dtype)
    agrees("QLinearAdd", *a, *a, *result)
    (values,) = by_graft("QLinearAdd", [*a, *a, *result])
    info = np.iinfo(dtype)
    assert {info.min, info.max} <= set(values.tolist())


@NARROW
def test_tables(dtype: Any) -> None:
    every = np.arange(256).astype(np.uint8).view(dtype)
    x = every, scalar(0.05), zero(128, dtype)
    agrees("QLinearSigmoid", *x, scalar(1 / 256), zero(0, dtype))
    agrees("QLinearLeakyRelu", *x, scalar(0.03), zero(100, dtype), alpha=0.2)
    agrees("QLinearLeakyRelu", *x, scalar(0.05), zero(100, dtype))


@NARROW
@pytest.mark.parametrize(("opset", "axis"), [(13, -1), (13, 1), (12, 1), (12, -1), (13, 0)])
def test_softmax(opset: int, axis: int, dtype: Any) -> None:
    x = whole(dtype, 3, 7, 11), scalar(0.05), zero(128, dtype)
    result = scalar(1 / 256), zero(0, dtype)
    attributes = {"axis": axis, "opset_": opset}
    agrees("QLinearSoftmax", *x, *result, opened=False, off_by_one=0.01, **attributes)


@NARROW
@pytest.mark.parametrize(
    "window",
    [
        {"kernel_shape": [3, 2], "strides": [2, 2]},
        {"kernel_shape": [3, 3], "strides": [2, 2], "pads": [1, 1, 1, 1]},
        {"kernel_shape": [3, 3], "pads": [1, 1, 1, 1], "count_include_pad": 1},
        {"kernel_shape": [3, 3], "pads": [1, 1, 1, 1], "channels_last": 1},
        {"kernel_shape": [3, 3], "strides": [2, 2], "ceil_mode": 1},
        {"kernel_shape": [3, 3], "strides": [2, 2], "auto_pad": "SAME_UPPER"},
    ],
)
def test_average_pools(window: dict[str, Any], dtype: Any) -> None:
    x = whole(dtype, 2, 8, 9, 7), scalar(0.05), zero(128, dtype)
    result = scalar(0.04), zero(100, dtype)
    agrees("QLinearAveragePool", *x, *result, opened=False, off_by_one=0.06, **window)


@NARROW
@pytest.mark.parametrize("shape", [(2, 5, 7, 7), (2, 5, 2, 3, 4), (2, 5, 6)])
@pytest.mark.parametrize("last", [0, 1])
def test_global_average_pools(shape: Any, last: int, dtype: Any) -> None:
    x = whole(dtype, *shape), scalar(0.05), zero(128, dtype)
    result = scalar(0.043), zero(100, dtype)
    options = {"channels_last": last, "off_by_one": 0.2, "opened": False}
    agrees("QLinearGlobalAveragePool", *x, *result, **options)


@NARROW
@pytest.mark.parametrize("axis", [1, -1])
def test_concatenation(axis: int, dtype: Any) -> None:
    parts = [
        (whole(dtype, 2, width), scalar(scale), zero(number, dtype))
        for width, scale, number in ((3, 0.05, 100), (40, 0.02, 50), (1, 0.3, 7))
    ]
    flat = [operand for part in parts for operand in part]
    agrees("QLinearConcat", scalar(0.05), zero(100, dtype), *flat, axis=axis, opened=False)


def test_concatenation_of_parts_that_lack_something() -> None:
    operands = [scalar(0.05), zero(1, np.uint8), whole(np.uint8, 2, 3), scalar(0.05)]
    with pytest.raises(ModelError, match="wants data, scale and zero point of each part, has 2"):
        import_model(model("QLinearConcat", operands, axis=1))


@NARROW
def test_choice(dtype: Any) -> None:
    condition = np.array([[True], [False], [True]])
    x = whole(dtype, 3, 40), scalar(0.05), zero(100, dtype)
    y = whole(dtype, 40), scalar(0.02), zero(50, dtype)
    agrees("QLinearWhere", condition, *x, *y, scalar(0.03), zero(77, dtype), opened=False)


@pytest.mark.parametrize("last", [0, 1])
def test_convolution(last: int) -> None:
    data = whole(np.uint8, 1, *((7, 6, 4) if last else (4, 7, 6)))
    scales = np.abs(floats(6)) / 100 + np.float32(0.01)
    x = data, scalar(0.02), scalar(120, np.uint8)
    weight = small(6, 2, 3, 3), scales, np.zeros(6, np.int8)
    bias = whole(np.int32, 6, low=-1000, high=1000)
    operands = *x, *weight, scalar(0.1), scalar(99, np.uint8), bias
    options = {"group": 2, "pads": [1, 1, 0, 0], "channels_last": last}
    agrees("QLinearConv", *operands, constants=[3, 4, 5, 8], opened=False, **options)


@pytest.mark.parametrize("dtype", [np.uint8, np.int8, np.uint16, np.int16])
def test_quantisation_and_back(dtype: Any) -> None:
    ties = np.concatenate([np.arange(-40, 40) / 2, [1e9, -1e9, 0.49999]]).astype(np.float32)
    agrees("QuantizeLinear", ties, scalar(1.0), scalar(3, dtype))
    stored = whole(dtype, 3, 7)
    agrees("DequantizeLinear", stored, scalar(0.05), scalar(100, dtype))
    scales = np.abs(floats(3)) / 10 + np.float32(0.01)
    agrees("QuantizeLinear", floats(3, 40), scales, whole(dtype, 3), axis=0, opened=False)
    agrees("DequantizeLinear", stored, scales, whole(dtype, 3), axis=0, opened=False)


def test_quantisation_without_a_zero_point() -> None:
    agrees("QuantizeLinear", floats(3, 4) * 3, scalar(0.05))
    agrees("DequantizeLinear", whole(np.int32, 3, 4, low=-999, high=999), scalar(0.05))


WEIGHTS = {
    "signed": (small(9, 6), scalar(0.02), None),
    "signed, per column": (
        small(9, 6),
        np.abs(floats(6)) / 50 + np.float32(0.001),
        whole(np.int8, 6, low=-3, high=3),
    ),
    "unsigned": (whole(np.uint8, 9, 6), scalar(0.02), scalar(130, np.uint8)),
    "in batches": (small(3, 9, 6), scalar(0.01), None),
}


@pytest.mark.parametrize("weight", WEIGHTS)
@pytest.mark.parametrize("bias", [None, floats(6, seed=3)])
def test_product_with_data_quantised_on_the_way(weight: str, bias: Array | None) -> None:
    data = floats(3, 4, 9) * 2
    agrees("DynamicQuantizeMatMul", data, *WEIGHTS[weight], bias, opened=False)
    agrees("DynamicQuantizeMatMul", np.abs(data) + 1, *WEIGHTS[weight], bias, opened=False)
    agrees("DynamicQuantizeMatMul", data * 0, *WEIGHTS[weight], bias, opened=False)


@pytest.mark.parametrize("weight", WEIGHTS)
@pytest.mark.parametrize("a_zero", [None, scalar(100, np.uint8)])
def test_product_of_integers(weight: str, a_zero: Array | None) -> None:
    stored, b_scale, b_zero = WEIGHTS[weight]
    operands = whole(np.uint8, 3, 4, 9), stored, scalar(0.03), b_scale, a_zero, b_zero
    agrees("MatMulIntegerToFloat", *operands, floats(6, seed=3), opened=False)
    agrees("MatMulIntegerToFloat", *operands, opened=False)


def test_products_are_exact_where_bytes_are_large() -> None:
    a, b = np.full((1, 64), 255, np.uint8), np.full((64, 1), 127, np.int8)
    (result,) = by_graft("MatMulIntegerToFloat", [a, b, scalar(1.0), scalar(1.0)])
    assert result.item() == 64 * 255 * 127


@pytest.mark.parametrize("turned", [(0, 0), (0, 1), (1, 0), (1, 1)])
@pytest.mark.parametrize("bias", [None, (6,), (5, 1)])
def test_gemm(turned: tuple[int, int], bias: Any) -> None:
    a = whole(np.uint8, *((9, 5) if turned[0] else (5, 9))), scalar(0.02), scalar(120, np.uint8)
    stored = small(*((6, 9) if turned[1] else (9, 6)))
    scales = np.abs(floats(6)) / 50 + np.float32(0.01)
    b = stored, scales, whole(np.int8, 6, low=-3, high=3)
    c = None if bias is None else whole(np.int32, *bias, low=-999, high=999)
    flags = {"transA": turned[0], "transB": turned[1], "opened": False}
    result = scalar(0.1), scalar(99, np.uint8)
    agrees("QGemm", *a, *b, c, *result, alpha=0.7, off_by_one=0.04, **flags)
    agrees("QGemm", *a, stored, scalar(0.02), scalar(1, np.int8), c, **flags)


@pytest.mark.parametrize("bits", [2, 4, 8])
@pytest.mark.parametrize(("rows", "inputs", "block"), [(5, 64, 16), (3, 40, 16), (7, 33, 32)])
@pytest.mark.parametrize("points", ["none", "packed", "floats"])
def test_packed_weights(bits: int, rows: int, inputs: int, block: int, points: str) -> None:
    if (bits, points) == (8, "floats"):
        pytest.skip("ONNX Runtime has no such kernel")
    blocks = -(-inputs // block)
    packed = whole(np.uint8, rows, blocks, block * bits // 8)
    scales = np.abs(floats(rows, blocks)) + np.float32(0.01)
    zeros = {
        "none": None,
        "packed": whole(np.uint8, rows, -(-blocks * bits // 8)),
        "floats": floats(rows, blocks, seed=2) * 3,
    }[points]
    attributes = {"N": rows, "K": inputs, "block_size": block, "bits": bits}
    options = {"constants": [1, 2, 3], **attributes}
    agrees("MatMulNBits", floats(2, 3, inputs), packed, scales, zeros, **options)


def test_packed_weights_with_a_bias() -> None:
    packed, scales, zeros = whole(np.uint8, 5, 2, 16), np.abs(floats(10)), whole(np.uint8, 5, 1)
    operands = floats(2, 3, 64), packed, scales, zeros, None, floats(5, seed=3)
    attributes = {"N": 5, "K": 64, "block_size": 32, "bits": 4}
    agrees("MatMulNBits", *operands, constants=[1, 2, 3, 5], **attributes)
    agrees("MatMulNBits", *operands, opened=False, **attributes)
    with pytest.raises(ModelError, match="bits=3"):
        import_model(model("MatMulNBits", operands, **{**attributes, "bits": 3}))
    order = np.arange(64, dtype=np.int32)
    with pytest.raises(UnsupportedError, match="'g_idx' is not supported"):
        import_model(model("MatMulNBits", [*operands[:4], order], **attributes))


@pytest.mark.parametrize("bits", [2, 4, 8])
@pytest.mark.parametrize("points", [False, True])
@pytest.mark.parametrize("indices", [np.array([[3, 0], [-1, 3]]), np.array(2)])
def test_packed_tables(bits: int, points: bool, indices: Array) -> None:
    rows, width, block = 5, 48, 16
    packed, scales = whole(np.uint8, rows, width * bits // 8), np.abs(floats(rows, 3))
    zeros = whole(np.uint8, rows, -(-3 * bits // 8)) if points else None
    options = {"constants": [0, 2, 3], "bits": bits, "block_size": block}
    agrees("GatherBlockQuantized", packed, indices, scales, zeros, **options)
    operands = [packed, indices, scales, zeros]
    with pytest.raises(UnsupportedError, match="along axes"):
        import_model(model("GatherBlockQuantized", operands, gather_axis=1, bits=bits))


@pytest.mark.parametrize("direction", ["forward", "reverse", "bidirectional"])
@pytest.mark.parametrize("per_gate", [False, True])
@NARROW
def test_lstm(direction: str, per_gate: bool, dtype: Any) -> None:
    """ONNX Runtime also quantises the state, which costs it the third digit."""
    sides, steps, batch, inputs, hidden = 1 + (direction == "bidirectional"), 7, 3, 5, 4
    shape = (sides, 4 * hidden) if per_gate else (sides,)
    scales = np.abs(floats(*shape)) / 200 + np.float32(0.005)
    zeros = np.full(shape, 128 if dtype is np.uint8 else 0, dtype)
    low, high = (60, 190) if dtype is np.uint8 else (-60, 60)
    weight = whole(dtype, sides, inputs, 4 * hidden, low=low, high=high)
    recurrent = whole(dtype, sides, hidden, 4 * hidden, low=low, high=high)[..., ::-1].copy()
    states = [floats(sides, batch, hidden, seed=seed) / 3 for seed in (4, 5)]
    bias, peepholes = floats(sides, 8 * hidden, seed=3), floats(sides, 3 * hidden, seed=6) / 3
    lengths = np.array([3, 7, 1], np.int32)
    operands = floats(steps, batch, inputs), weight, recurrent, bias, lengths, *states, peepholes
    quantisation = scales, zeros, scales, zeros
    options = {"constants": [1, 2, 8, 9, 10, 11], "outputs": "y h c", "opened": False}
    attributes = {"direction": direction, "hidden_size": hidden}
    agrees("DynamicQuantizeLSTM", *operands, *quantisation, tolerance=5e-3, **options, **attributes)


def test_lstm_with_few_operands() -> None:
    scales, zeros = np.array([0.01], np.float32), np.array([0], np.int8)
    operands: list[Array | None] = [floats(4, 2, 5), small(1, 5, 12), small(1, 3, 12)]
    operands += [None] * 5 + [scales, zeros, scales, zeros]
    options: dict[str, Any] = {
        "constants": [1, 2, 8, 9, 10, 11],
        "outputs": "- h",
        "hidden_size": 3,
    }
    theirs = by_runtime("DynamicQuantizeLSTM", operands, **options)
    ours = by_graft("DynamicQuantizeLSTM", operands, **options)
    np.testing.assert_allclose(ours[0], theirs[0], atol=5e-3)

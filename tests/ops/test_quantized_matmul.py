"""Matrix products of quantised operands, against ONNX Runtime and exact integer arithmetic."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest
from tests.ops.every_form import agree, one_node

from graft.base.errors import ModelError
from graft.frontends.onnx.importer import import_model

RANKED = ("static", "symbolic")


def whole(low: int, high: int, *shape: int, dtype: Any) -> Any:
    return np.random.default_rng(3).integers(low, high, shape).astype(dtype)


INTEGER_CASES = [
    ((3, 4), (4, 5), (), ()),
    ((3, 4), (4, 5), (3,), (5,)),
    ((3, 4), (4, 5), (1,), (1,)),
    ((2, 3, 4), (2, 4, 5), (2, 3, 1), (2, 1, 5)),
    ((4,), (4, 5), (), (5,)),
    ((3, 4), (4,), (3,), ()),
    ((3, 0), (0, 5), (), None),
    ((3, 4), (4, 5), None, ()),
    ((3, 4), (4, 5), None, None),
]


@pytest.mark.parametrize(("left", "right", "left_zero", "right_zero"), INTEGER_CASES)
@pytest.mark.parametrize("dtypes", [(np.uint8, np.int8), (np.int8, np.uint8)])
def test_matmul_integer(
    left: Any, right: Any, left_zero: Any, right_zero: Any, dtypes: Any
) -> None:
    arrays: list[Any] = []
    for shape, dtype in zip((left, right, left_zero, right_zero), dtypes * 2, strict=True):
        info = np.iinfo(dtype)
        given = None if shape is None else whole(info.min, info.max + 1, *shape, dtype=dtype)
        arrays.append(given)
    a, b = (array.astype(np.int64) for array in arrays[:2])
    if left_zero is not None:
        zero = arrays[2].astype(np.int64)
        a = a - (zero[:, None] if zero.ndim == 1 and len(left) > 1 else zero)
    if right_zero is not None:
        b = b - arrays[3].astype(np.int64)
    agree("MatMulInteger", arrays, 10, [(a @ b).astype(np.int32)], RANKED)


QLINEAR_CASES = [
    ((3, 4), (4, 5), (), ()),
    ((3, 4), (4, 5), (3,), (5,)),
    ((2, 3, 4), (2, 4, 5), (2, 3, 1), (2, 1, 5)),
    ((4,), (4, 5), (1,), (5,)),
    ((3, 4), (4,), (3,), (1,)),
    ((4,), (4,), (), (1,)),
    ((0, 4), (4, 5), (), ()),
]


@pytest.mark.parametrize(("left", "right", "per_row", "per_column"), QLINEAR_CASES)
@pytest.mark.parametrize("dtype", [np.uint8, np.int8])
@pytest.mark.parametrize("scale_dtype", [np.float32, np.float16])
def test_qlinear_matmul(
    left: Any, right: Any, per_row: Any, per_column: Any, dtype: Any, scale_dtype: Any
) -> None:
    info, random = np.iinfo(dtype), np.random.default_rng(11)

    def quantized(shape: Any) -> Any:
        return random.integers(info.min, info.max + 1, shape).astype(dtype)

    def scale(shape: Any) -> Any:
        return np.asarray(random.uniform(0.01, 0.03, shape)).astype(scale_dtype)

    a, a_scale, a_zero = quantized(left), scale(per_row), quantized(per_row)
    b, b_scale, b_zero = quantized(right), scale(per_column), quantized(per_column)
    y_scale, y_zero = np.array([0.07], scale_dtype), np.array([3], dtype)
    rows = (a_zero[:, None], a_scale[:, None]) if len(per_row) == 1 else (a_zero, a_scale)
    wide_a = np.atleast_2d(a).astype(np.int64) - rows[0]
    wide_b = (b[:, None] if b.ndim == 1 else b).astype(np.int64) - b_zero
    scales = rows[1].astype(np.float64) * b_scale.astype(np.float64)
    real = wide_a @ wide_b * scales / y_scale.astype(np.float64)
    expected = np.clip(np.rint(real) + 3, info.min, info.max).astype(dtype)
    shape = np.matmul(np.zeros(left), np.zeros(right)).shape
    operands = [a, a_scale, a_zero, b, b_scale, b_zero, y_scale, y_zero]
    agree("QLinearMatMul", operands, 21, [expected.reshape(shape)], RANKED)


def test_qlinear_matmul_as_onnxruntime_and_with_ties() -> None:
    a, b = whole(0, 256, 3, 4, dtype=np.uint8), whole(-128, 128, 4, 2, dtype=np.int8)
    scales = [np.float32(x) for x in (0.5, 0.25, 4.0)]
    zeros = [np.uint8(128), np.int8(0), np.uint8(121)]
    operands = [a, scales[0], zeros[0], b, scales[1], zeros[1], scales[2], zeros[2]]
    agree("QLinearMatMul", [np.asarray(x) for x in operands], 10, shapes=RANKED)
    # 5 * 1 / 2 is a tie that goes to 2, not (with the zero point 1 added first) to 4 less 1.
    one, half = np.float32(1), np.float32(2)
    row, column = np.array([[5]], np.uint8), np.array([[1]], np.uint8)
    tied = [row, one, np.uint8(0), column, one, np.uint8(0), half, np.uint8(1)]
    agree("QLinearMatMul", [np.asarray(x) for x in tied], 10, [np.array([[3]], np.uint8)], RANKED)


def test_qlinear_matmul_of_float8() -> None:
    float8 = ml_dtypes.float8_e4m3fn
    a, b = whole(-9, 9, 3, 4, dtype=float8), whole(-9, 9, 4, 2, dtype=float8)
    scale, zero = np.array(0.5, np.float32), np.array(0, float8)
    expected = np.clip(a.astype(np.float32) @ b.astype(np.float32) * 0.5, -448, 448).astype(float8)
    agree("QLinearMatMul", [a, scale, zero, b, scale, zero, scale, zero], 21, [expected], RANKED)


def test_qlinear_matmul_wants_one_result_scale() -> None:
    byte, scale = np.zeros((2, 2), np.uint8), np.array(1, np.float32)
    zero, two = np.array(0, np.uint8), np.array([1, 1], np.float32)
    operands: list[Any] = [byte, scale, zero, byte, scale, zero, two, np.array([0, 0], np.uint8)]
    with pytest.raises(ModelError, match=r"scale or zero point is float32\[2\], not one number"):
        import_model(one_node("QLinearMatMul", operands, 10))

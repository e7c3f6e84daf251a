"""Clipping and powers, against ONNX Runtime and exact arithmetic."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest
from tests.ops.every_form import agree, one_node

from graft.base.dims import symbol
from graft.base.errors import TypeRuleError
from graft.frontends.onnx.importer import import_model
from graft.ir.builder import Builder
from graft.ir.evaluate import evaluate
from graft.ir.types import tensor

N = symbol("n")
X = np.array([[-3, -0.5, 0], [0.5, 7, 100]])


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64, np.int8, np.int64])
@pytest.mark.parametrize(("low", "high"), [(-1, 2), (None, 2), (-1, None), (None, None), (3, 1)])
def test_clip(dtype: Any, low: int | None, high: int | None) -> None:
    operands: list[Any] = [X.astype(dtype)]
    operands += [None if bound is None else np.array(bound, dtype) for bound in (low, high)]
    while operands[-1] is None:
        operands.pop()
    wanted = operands[0]
    wanted = wanted if low is None else np.maximum(wanted, dtype(low))
    wanted = wanted if high is None else np.minimum(wanted, dtype(high))
    agree("Clip", operands, 13, [wanted])
    if dtype is np.float32:
        bounds = {"min": low and float(low), "max": high and float(high)}
        given: dict[str, Any] = {name: b for name, b in bounds.items() if b is not None}
        agree("Clip", operands[:1], 7, [wanted], **given)


def test_clip_keeps_nan_and_exact_bounds() -> None:
    x = np.array([np.nan, -np.inf, np.inf, -0.0], np.float32)
    agree("Clip", [x, np.array(-1, np.float32), np.array(0.1, np.float32)], 12)
    huge = np.array([0, 2**64 - 1], np.uint64)
    agree("Clip", [huge, np.array(2**63 + 1, np.uint64)], 12, [np.maximum(huge, 2**63 + 1)])
    odd = X.astype(ml_dtypes.bfloat16)
    bound = np.array(0.3).astype(ml_dtypes.bfloat16)
    agree("Clip", [odd, bound], 13, [np.maximum(odd, bound)])
    agree("Clip", [X[:, :0], np.array(0.0)], 13, [X[:, :0]])


def test_constant_bounds_become_attributes() -> None:
    arrays = [X.astype(np.float32), np.array(0, np.float32), np.array(6, np.float32)]
    *_, clip = import_model(one_node("Clip", arrays, 13, constants=True)).nodes
    assert (clip.attrs.a_min, clip.attrs.a_max) == (0, 6)  # type: ignore[attr-defined]
    assert len(clip.inputs) == 1


def test_clip_follows_dims() -> None:
    builder = Builder()
    dims = builder("shape_of", builder.input("x", tensor("float32", N, 3)))
    known = builder.knowledge.known(builder("clip", dims, a_min=1, a_max=7))
    assert known is not None
    assert [str(dim) for dim in known] == ["min(max(n, 1), 7)", "3"]


REFUSED: list[tuple[str, tuple[str, ...], str]] = [
    ("clip", ("bool",), "wants real operands, not bool"),
    ("clip", ("float32", "float64"), "dtypes differ: float32, float64"),
    ("power", ("complex64", "float32"), "wants real operands, not complex64"),
    ("power", ("float32", "string"), "wants real operands, not string"),
]


@pytest.mark.parametrize(("name", "dtypes", "message"), REFUSED)
def test_refusals(name: str, dtypes: tuple[str, ...], message: str) -> None:
    builder = Builder()
    operands = [builder.input(f"x{i}", tensor(dtype)) for i, dtype in enumerate(dtypes)]
    with pytest.raises(TypeRuleError, match=message):
        builder(name, *operands)


def test_a_bound_is_one_number() -> None:
    builder = Builder()
    x = builder.input("x", tensor("float32", 3))
    with pytest.raises(TypeRuleError, match="a bound is not one number"):
        builder("clip", x, x)


PAIRS = [
    (np.float32, np.float32),
    (np.float32, np.int64),
    (np.float64, np.float32),
    (np.int32, np.int32),
    (np.int64, np.float32),
    (np.int32, np.float64),
]


@pytest.mark.parametrize(("base", "exponent"), PAIRS)
def test_power(base: Any, exponent: Any) -> None:
    x = np.array([[-3, -1, 0], [1, 2, 5]]).astype(base)
    agree("Pow", [x, np.array([2, 3, 1]).astype(exponent)], 15)
    agree("Pow", [x[1], np.array([[0], [4]]).astype(exponent)], 12)
    agree("Pow", [x[:0], np.array(2).astype(exponent)], 13)


def power(base: Any, exponent: Any) -> Any:
    builder = Builder()
    operands = [builder.input(n, tensor(str(a.dtype), *a.shape)) for n, a in
                (("a", base), ("b", exponent))]  # fmt: skip
    return evaluate(builder.build(builder("power", *operands)), [base, exponent])[0]


def test_power_of_special_numbers() -> None:
    x = np.array([np.nan, np.inf, -np.inf, -8, 0, 2, 1e30], np.float32)
    for exponent in (0.5, -1, 0, 2, np.inf, np.nan):
        y = np.array(exponent, np.float32)
        with np.errstate(all="ignore"):
            wanted = np.power(x.astype(np.float64), np.float64(y)).astype(np.float32)
        np.testing.assert_allclose(power(x, y), wanted, rtol=1e-6)
    assert power(np.array(2, ml_dtypes.bfloat16), np.array(3, np.int64)) == 8


def test_integer_powers_are_exact() -> None:
    three, large = np.array([3]), np.array([39])
    assert power(three, large).tolist() == [3**39]
    assert power(three, large + 1).tolist() == [(3**40 + 2**63) % 2**64 - 2**63]
    assert power(np.array([7], np.uint64), np.array([22], np.uint8)).tolist() == [7**22]
    signs = power(np.array([-1, -1, 1, 2, -5], np.int32), np.array([-3, -2, -4, -1, -1]))
    assert signs.tolist() == [-1, 1, 1, 0, 0]

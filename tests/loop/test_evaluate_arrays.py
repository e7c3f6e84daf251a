"""Scalar expressions on whole arrays, beside NumPy and beside themselves element by element."""

from __future__ import annotations

import numpy as np
import pytest

from graft.base.dtypes import DType
from graft.base.errors import EvaluationError
from graft.loop.build import Term, call, cast, load, maximum, select, variable
from graft.loop.evaluate_expr import compile_expr, evaluate_arrays
from graft.loop.ir import Buffer, Const

X, Y = variable("x", DType.FLOAT32), variable("y", DType.FLOAT32)
N, M = variable("n", DType.INT8), variable("m", DType.INT8)


def test_operands_broadcast() -> None:
    x, y = np.arange(3, dtype=np.float32)[:, None], np.arange(4, dtype=np.float32)
    found = evaluate_arrays((X * 2.0 - Y).expr, {"x": x, "y": y})
    np.testing.assert_array_equal(found, x * 2 - y)
    assert found.dtype == np.float32


@pytest.mark.parametrize("shape", [(), (0,), (2, 0, 3)])
def test_no_elements_and_no_axes(shape: tuple[int, ...]) -> None:
    found = evaluate_arrays(maximum(X, 0.0).expr, {"x": np.full(shape, -1, np.float32)})
    np.testing.assert_array_equal(found, np.zeros(shape, np.float32))


def test_integers_wrap_and_division_by_zero_is_zero() -> None:
    numbers = {"n": np.array([100, -128, 7], np.int8), "m": np.array([100, -1, 0], np.int8)}
    with np.errstate(all="ignore"):
        assert evaluate_arrays((N + M).expr, numbers).tolist() == [-56, 127, 7]
        assert evaluate_arrays((N // M).expr, numbers).tolist()[2] == 0
        assert evaluate_arrays((N % M).expr, numbers).tolist()[2] == 0


def test_elements_are_as_one_by_one() -> None:
    """The two meanings of an expression, of scalars and of arrays, agree."""
    expr = select(X < Y, call("exp", X) / (Y + 1.0), cast(DType.FLOAT32, cast(DType.INT32, X))).expr
    x = np.array([-2.5, 0.0, 3.75, 1e9, -0.0], np.float32)
    y = np.array([0.5, 0.0, -1.0, 2e9, 1.0], np.float32)
    one_by_one = compile_expr(expr)
    with np.errstate(all="ignore"):
        expected = [one_by_one({"x": a, "y": b}) for a, b in zip(x, y, strict=True)]
        np.testing.assert_array_equal(evaluate_arrays(expr, {"x": x, "y": y}), expected)


def test_shared_terms_are_computed_once() -> None:
    """Written out, this has 2**60 leaves."""
    total: Term = X
    for _ in range(60):
        total = total + total
    one = np.ones((), np.float32)
    assert evaluate_arrays(total.expr, {"x": one}) == 2.0**60


def test_arrays_are_not_indexed() -> None:
    buffer = Buffer("data", DType.FLOAT32, (Const(3),))
    with pytest.raises(EvaluationError, match="arrays have no Load"):
        evaluate_arrays(load(buffer, 0).expr, {})

"""Softmax and its logarithm on row-major tensors."""

from __future__ import annotations

import numpy as np
import pytest
from tests.backends.host.row_kernels import Case, check

from graft.backends.host.kernels.expression.template import expression


@pytest.mark.each_value
@pytest.mark.parametrize("op", ["nn.softmax", "nn.log_softmax"])
@pytest.mark.parametrize("shape", [(1,), (7, 1), (3, 21), (2, 3, 64), (5, 197), (1, 1000)])
def test_any_length(op: str, shape: tuple[int, ...]) -> None:
    case = Case()
    check(expression, case, case(op, case.input(*shape), axis=-1))


@pytest.mark.each_value
@pytest.mark.parametrize("op", ["nn.softmax", "nn.log_softmax"])
@pytest.mark.parametrize("length", [1, 2, 3, 4, 5, 8])
@pytest.mark.parametrize("rows", [15, 16, 17, 31, 100])
def test_short_rows_side_by_side(op: str, length: int, rows: int) -> None:
    case = Case()
    x = case.array(rows, length)
    x[0] = 1e30
    x[1] *= 300
    x[2, 0] = -np.inf
    x[3, -1] = np.nan
    x[4] = -np.inf
    x[5, 0] = np.inf
    check(expression, case, case(op, case.given(x), axis=1))


@pytest.mark.parametrize("op", ["nn.softmax", "nn.log_softmax"])
def test_large_numbers_infinities_and_nan(op: str) -> None:
    case = Case()
    x = case.array(5, 37)
    x[0] = 1e30
    x[1] *= 300
    x[2, 5] = -np.inf
    x[3, 36] = np.nan
    x[4, :36] = -np.inf
    check(expression, case, case(op, case.given(x), axis=1))


def test_float64() -> None:
    case = Case()
    check(expression, case, case("nn.softmax", case.input(4, 9, dtype="float64")), tolerance=1e-13)


def test_short_rows_of_float64() -> None:
    case = Case()
    x = case.input(3, 7, 3, dtype="float64")
    check(expression, case, case("nn.softmax", x, axis=-1), tolerance=1e-13)


@pytest.mark.each_value
@pytest.mark.parametrize("op", ["nn.softmax", "nn.log_softmax"])
@pytest.mark.parametrize("shape", [(37, 3), (50, 8), (3, 5, 197), (3, 21), (2, 1), (40, 5, 3)])
def test_other_axes(op: str, shape: tuple[int, ...]) -> None:
    for axis in (0, 1):
        case = Case()
        x = case.array(*shape)
        x[0], x[1, 0] = -np.inf, np.nan
        check(expression, case, case(op, case.given(x), axis=axis))

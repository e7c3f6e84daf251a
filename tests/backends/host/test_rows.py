"""Pointwise groups on row-major tensors, and how their axes are merged."""

from __future__ import annotations

import numpy as np
import pytest
from tests.backends.host.row_kernels import Case, check

from graft.backends.host.kernels.expression.template import expression
from graft.backends.host.kernels.views import merged


@pytest.mark.parametrize("shape", [(), (1,), (5,), (3, 1, 7), (2, 3, 5, 11), (5000,), (3, 1100)])
def test_any_shape(shape: tuple[int, ...]) -> None:
    case = Case()
    y = case("multiply", case("nn.gelu", case.input(*shape)), case.constant())
    check(expression, case, case("add", y, case.input(*shape)))


@pytest.mark.parametrize("batch", [1, 3])
def test_broadcasting(batch: int) -> None:
    case = Case()
    y = case("add", case.input(batch, 5, 1, 7), case.constant(6, 1))
    y = case("multiply", y, case.input(1, 7))
    y = case("nn.bias_add", y, case.constant(5), axis=1)
    check(expression, case, case("maximum", y, case.constant(1, 1, 1, 1)))


def test_operands_with_fewer_axes_than_the_result() -> None:
    case = Case()
    side = case("nn.bias_add", case.input(4, 5), case.constant(4), axis=0)
    check(expression, case, case("add", case.input(2, 3, 4, 5), side))


def test_nan_and_infinities() -> None:
    case = Case()
    x = case.array(3, 21)
    x[0, :3] = np.nan, np.inf, -np.inf
    y = case("clip", case("nn.relu", case.given(x)), a_min=0.0, a_max=6.0)
    check(expression, case, case("sigmoid", y))


def test_truth_values_and_integers() -> None:
    case = Case()
    x, y = case.input(4, 19), case.input(19)
    check(expression, case, case("where", case("greater", x, y), x, case("negative", y)))
    case = Case()
    check(expression, case, case("greater", case.input(1, 19), case.input(3, 1)))
    case = Case()
    count = case.given(np.arange(21))
    check(expression, case, case("add", count, case.builder.constant(np.array([2**40]))))


def test_float64() -> None:
    case = Case()
    x = case.input(33, dtype="float64")
    check(expression, case, case("exp", case("subtract", x, x)), tolerance=1e-14)


@pytest.mark.parametrize(
    ("shape", "operands", "apart", "extents"),
    [
        ((2, 3, 4), [(2, 3, 4), ()], 0, (24,)),
        ((2, 3, 4), [(4,)], 0, (6, 4)),
        ((2, 3, 4), [(3, 1)], 0, (2, 3, 4)),
        ((2, 1, 4), [(2, 1, 1)], 0, (2, 4)),
        ((1, 3, 4), [(3, 1)], 0, (3, 4)),
        ((2, 3, 1, 4), [(2, 1, 1, 4)], 0, (2, 3, 4)),
        ((2, 3, 1, 1, 4), [(2, 1, 1, 1, 1)], 0, (2, 12)),
        ((2, 3, 4), [(2, 3, 4)], 1, (6, 4)),
        ((1, 1), [], 0, (1,)),
        ((), [], 0, (1,)),
    ],
)
def test_merging_axes(
    shape: tuple[int, ...], operands: list[tuple[int, ...]], apart: int, extents: tuple[int, ...]
) -> None:
    assert merged(shape, operands, apart).extents == extents

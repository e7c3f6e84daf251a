"""Normalisation of rows."""

from __future__ import annotations

import pytest
from tests.backends.host.row_kernels import Case, check

from graft.backends.host.kernels.expression.template import expression


@pytest.mark.each_value
@pytest.mark.parametrize("length", [1, 3, 16, 77, 768])
@pytest.mark.parametrize("batch", [1, 3])
def test_any_length(length: int, batch: int) -> None:
    case = Case()
    x, gamma, beta = case.input(batch, 5, length), case.constant(length), case.constant(length)
    check(expression, case, case("nn.layer_norm", x, gamma, beta, epsilon=1e-6))


def test_parameters_may_be_absent() -> None:
    case = Case()
    check(expression, case, case("nn.layer_norm", case.input(3, 20)))
    case = Case()
    check(expression, case, case("nn.layer_norm", case.input(3, 20), case.constant(20)))
    case = Case()
    check(expression, case, case("nn.layer_norm", case.input(3, 20), None, case.input(20)))


def test_several_axes_and_a_large_mean() -> None:
    case = Case()
    x = case.given(case.array(2, 3, 4, 5) + 1000)
    y = case("nn.layer_norm", x, case.constant(4, 5), case.constant(1, 4, 5), axis=2)
    check(expression, case, y, tolerance=1e-3)


def test_root_of_mean_square() -> None:
    case = Case()
    check(expression, case, case("nn.rms_norm", case.input(3, 41), case.constant(41)))


def test_a_scale_need_not_be_one_row() -> None:
    case = Case()
    y = case("nn.layer_norm", case.input(3, 4), case.constant(3, 4))
    check(expression, case, y)

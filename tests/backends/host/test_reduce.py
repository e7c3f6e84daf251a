"""Reductions on row-major tensors."""

from __future__ import annotations

import numpy as np
import pytest
from tests.backends.host.row_kernels import Case, check, refusal

from graft.backends.host.kernels.reduce import reduce

OPS = ["sum", "mean", "max", "min", "prod"]


@pytest.mark.parametrize("op", OPS)
@pytest.mark.parametrize("axes", [None, (0,), (1,), (-1,), (0, 2), (1, 3), (0, 1), (2, 3)])
def test_any_axes(op: str, axes: tuple[int, ...] | None) -> None:
    case = Case()
    keepdims = op in ("sum", "max")
    check(reduce, case, case(op, case.input(3, 2, 5, 21), axes=axes, keepdims=keepdims))


@pytest.mark.parametrize("axes", [(0,), (1,), (0, 1)])
def test_long_axes(axes: tuple[int, ...]) -> None:
    case = Case()
    check(reduce, case, case("sum", case.input(150, 149), axes=axes), tolerance=1e-4)


@pytest.mark.parametrize("axes", [(1,), (2,), (1, 2)])
def test_pointwise_nodes_around_it(axes: tuple[int, ...]) -> None:
    case = Case()
    x = case.input(3, 7, 20)
    y = case("mean", case("multiply", case("subtract", x, case.constant(20)), x), axes=axes)
    extents = [int(dim) for dim in y.tensor.shape or () if isinstance(dim, int)]
    y = case("add", y, case.constant(*extents[-1:]))
    check(reduce, case, case("sqrt", case("abs", y)))


def test_nan_wins() -> None:
    case = Case()
    x = case.array(3, 40)
    x[1, 39] = np.nan
    check(reduce, case, case("max", case.given(x), axes=(1,)))


def test_axes_of_extent_one() -> None:
    case = Case()
    check(reduce, case, case("sum", case.input(4, 1, 9), axes=(1,)))


def test_refusals() -> None:
    case = Case()
    assert "there is no max or mean" in refusal(reduce, case, case("nn.relu", case.input(3)))
    case = Case()
    y = case("sum", case.given(np.arange(3)), axes=(0,))
    assert "the elements are int64" in refusal(reduce, case, y)


def test_what_leads_to_it_is_not_read_after_it() -> None:
    case = Case()
    size = case("abs", case.input())
    total = case("log", case("sum", size))
    assert "before and after" in refusal(reduce, case, case("divide", total, size))

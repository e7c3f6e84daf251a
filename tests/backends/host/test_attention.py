"""Fused attention."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from tests.backends.host.row_kernels import Case, check, refusal

from graft.backends.host.kernels.attention import attention


def _attention(
    case: Case, queries: int, keys: int, size: int, values: int, batch: int = 1, **attrs: Any
) -> Any:
    q, k = case.input(batch, 2, queries, size), case.input(batch, 2, keys, size)
    return case("nn.attention", q, k, case.input(batch, 2, keys, values), **attrs)


@pytest.mark.each_value
@pytest.mark.parametrize(
    ("queries", "keys", "size", "values"),
    [(1, 1, 1, 1), (1, 33, 20, 9), (37, 5, 7, 64), (32, 40, 16, 16), (50, 29, 8, 33)],
)
@pytest.mark.parametrize("batch", [1, 3])
def test_any_shape(queries: int, keys: int, size: int, values: int, batch: int) -> None:
    case = Case()
    check(attention, case, _attention(case, queries, keys, size, values, batch))


def test_scale_cap_and_large_scores() -> None:
    case = Case()
    check(attention, case, _attention(case, 19, 21, 6, 5, scale=50.0), tolerance=1e-4)
    case = Case()
    check(attention, case, _attention(case, 19, 21, 6, 5, softcap=2.0))


@pytest.mark.parametrize(
    "attrs",
    [{"causal": True}, {"causal": True, "offset": 3}, {"left_window": 2}, {"right_window": 1}],
)
def test_keys_out_of_sight(attrs: dict[str, Any]) -> None:
    """Some queries see no key at all: their results are zero."""
    case = Case()
    check(attention, case, _attention(case, 35, 20, 6, 5, **attrs))


@pytest.mark.parametrize("shape", [(1, 2, 19, 21), (19, 21), (3, 1, 1, 21), (2, 19, 1), (1,)])
def test_masks_that_are_added(shape: tuple[int, ...]) -> None:
    case = Case()
    operands = [case.input(3, 2, 19, 6), case.input(3, 2, 21, 6), case.input(3, 2, 21, 5)]
    mask = case.array(*shape)
    mask[mask > 0.7] = -np.inf
    check(attention, case, case("nn.attention", *operands, case.given(mask)))


def test_masks_of_truth_values() -> None:
    case = Case()
    operands = [case.input(1, 2, 19, 6), case.input(1, 2, 21, 6), case.input(1, 2, 21, 5)]
    mask = case.array(19, 21) > 0
    mask[4] = False
    check(attention, case, case("nn.attention", *operands, case.given(mask)))


def test_heads_that_share_keys() -> None:
    case = Case()
    q, k, v = case.input(2, 6, 18, 4), case.input(2, 3, 7, 4), case.input(2, 3, 7, 4)
    check(attention, case, case("nn.attention", q, k, v))


def test_epilogue() -> None:
    case = Case()
    y = _attention(case, 18, 7, 4, 20)
    check(attention, case, case("nn.relu", case("add", y, case.input(2, 1, 20))))


def test_refusals() -> None:
    case = Case()
    q, k, v = case.input(1, 2, 3, 4), case.input(1, 2, 5, 4), case.input(1, 2, 5, 4)
    lengths = case.given(np.array([4]))
    y = case("nn.attention", q, k, v, None, lengths)
    assert "run time" in refusal(attention, case, y)
    case = Case()
    y = case("nn.relu", case.input(3))
    assert "no nn.attention" in refusal(attention, case, y)

"""Detections in another order are the same detections; other ones are not."""

from __future__ import annotations

import numpy as np
import pytest

from graft.base.dims import symbol
from graft.base.dtypes import Array
from graft.cli.compare import Tolerance, in_expected_order
from graft.ir.builder import Builder
from graft.ir.graph import Graph
from graft.ir.types import tensor

BOXES = np.arange(12, dtype=np.float32).reshape(3, 4) * 10
SCORES = np.array([0.9, 0.5, 0.5], np.float32)
LABELS = np.array([1, 2, 3], np.int64)


def _detections() -> Graph:
    """Three outputs that share an extent which no input binds."""
    g = Builder()
    count = symbol("count")
    values = [
        g.input(name, type_)
        for name, type_ in (
            ("boxes", tensor("float32", count + 1, 4)),
            ("scores", tensor("float32", count + 1)),
            ("labels", tensor("int64", count + 1)),
        )
    ]
    return g.build(*values)


def _aligned(order: list[int], label_change: int = 0) -> tuple[list[Array], int]:
    actual = [BOXES[order] + 1e-5, SCORES[order], LABELS[order] + label_change]
    return in_expected_order(_detections(), actual, [BOXES, SCORES, LABELS], Tolerance())


def test_near_ties_may_change_places() -> None:
    aligned, moved = _aligned([0, 2, 1])
    assert moved == 2
    np.testing.assert_array_equal(aligned[2], LABELS)


def test_rows_in_order_stay() -> None:
    assert _aligned([0, 1, 2])[1] == 0


@pytest.mark.parametrize("order", [[0, 0, 1], [1, 1, 1]])
def test_a_missing_row_is_not_made_up(order: list[int]) -> None:
    aligned, moved = _aligned(order)
    assert moved == 0
    np.testing.assert_array_equal(aligned[2], LABELS[order])


def test_another_label_is_another_detection() -> None:
    assert _aligned([0, 2, 1], label_change=1)[1] == 0

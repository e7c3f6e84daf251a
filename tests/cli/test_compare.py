from __future__ import annotations

from dataclasses import replace
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from graft.base import compare as module
from graft.cli.compare import Difference, Tolerance, compare

LIMITS = Tolerance(relative=1e-3, absolute=1e-4)
NAN, INF = float("nan"), float("inf")


def floats(*numbers: float) -> Any:
    return np.array(numbers, dtype=np.float32)


@pytest.mark.parametrize(
    ("actual", "expected"),
    [
        (floats(1.0009), floats(1.0)),
        (floats(0.00009), floats(0.0)),
        (floats(NAN, INF, -INF), floats(NAN, INF, -INF)),
        (floats(), floats()),
        (np.float32(2), np.array(2, np.float32)),
        (np.array([1 + 1.0005j]), np.array([1 + 1j])),
        (np.array([1.0], ml_dtypes.bfloat16), np.array([1.05], ml_dtypes.bfloat16)),
        (np.array([1.0], np.float16), np.array([1.005], np.float16)),
        (np.array([7], np.int64), np.array([7], np.int64)),
        (np.array(["a", ""], object), np.array(["a", ""], object)),
        ([floats(1.0), floats()], [floats(1.0), floats()]),
        ({"k": 1.0}, {"k": 1.0001}),
        ([], []),
        (None, None),
    ],
)
def test_agreement(actual: Any, expected: Any) -> None:
    assert compare(actual, expected, LIMITS).agrees


@pytest.mark.parametrize(
    ("actual", "expected", "wrong"),
    [
        (floats(1.0012), floats(1.0), 1),
        (floats(0.00012), floats(0.0), 1),
        (floats(NAN, 1.0), floats(1.0, NAN), 2),
        (floats(INF, 1.0, INF), floats(-INF, INF, 1.0), 3),
        (floats(3.4e38), floats(-3.4e38), 1),
        (np.array([7, 8], np.int64), np.array([7, 9], np.int64), 1),
        (np.array([True]), np.array([False]), 1),
        (np.array(["a", "b"], object), np.array(["a", "c"], object), 1),
        (np.array([1.0], ml_dtypes.bfloat16), np.array([1.1], ml_dtypes.bfloat16), 1),
        ([floats(1.0), floats(2.0, 5.0)], [floats(1.0), floats(3.0, 5.0)], 1),
        ({"k": 1.0}, {"k": 2.0}, 1),
    ],
)
def test_mismatches_are_counted(actual: Any, expected: Any, wrong: int) -> None:
    found = compare(actual, expected, LIMITS)
    assert not found.agrees
    assert found.mismatches == wrong


@pytest.mark.parametrize(
    ("actual", "expected", "problem"),
    [
        (floats(1.0), floats(1.0, 1.0), "shape [1], not [2]"),
        (floats(1.0), np.float32(1.0), "shape [1], not []"),
        (floats(1.0), np.array([1.0]), "float32, not float64"),
        (np.array([1], np.int32), np.array([1], np.int64), "int32, not int64"),
        ([floats(1.0)], [], "1 items, not 0"),
        ([floats(1.0)], [floats()], "item 0: shape [1], not [0]"),
        ({"a": 1.0}, {"b": 1.0}, "other keys"),
        ([], floats(), "a sequence, not a tensor"),
        (floats(), None, "a tensor, not empty"),
        ({}, [], "a map, not a sequence"),
    ],
)
def test_what_cannot_be_compared(actual: Any, expected: Any, problem: str) -> None:
    found = compare(actual, expected, LIMITS)
    assert not found.agrees
    assert found.problem == problem


def test_figures_over_several_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_BLOCK", 4)
    expected = np.zeros((2, 5))
    actual = expected.copy()
    actual[0, 1], actual[1, 4] = 0.5, -3.0
    assert compare(actual, expected, LIMITS) == Difference(3.0, 3.0 / 1e-4, 2, 10)


def test_errors_of_integers_do_not_wrap_around() -> None:
    small, large = np.array([-128], np.int8), np.array([127], np.int8)
    assert compare(small, large, LIMITS) == Difference(255.0, 0.0, 1, 1, is_float=False)
    packed = np.array([7], ml_dtypes.int4), np.array([-8], ml_dtypes.int4)
    assert compare(*packed, LIMITS).max_absolute == 15.0


def test_tolerance_of_narrow_floats_unless_meant_literally() -> None:
    halves = np.array([1.0], np.float16), np.array([1.005], np.float16)
    assert compare(*halves, LIMITS).agrees
    assert not compare(*halves, replace(LIMITS, literally=True)).agrees
    assert not compare(halves[0].astype(np.float32), halves[1].astype(np.float32), LIMITS).agrees


def test_zero_tolerance() -> None:
    exact = Tolerance(0.0, 0.0, literally=True)
    assert compare(floats(0.0, 1.0), floats(0.0, 1.0), exact).agrees
    assert compare(floats(1e-30), floats(0.0), exact).max_relative == INF


@pytest.mark.parametrize(
    ("expected", "absolute"),
    [
        (floats(300.0, -300.0, INF, NAN), 0.03),
        (floats(0.1), 1e-4),
        (floats(), 1e-4),
        (np.array([1000]), 1e-4),
        ([floats(1000.0)], 1e-4),
    ],
)
def test_tolerance_grows_with_large_values(expected: Any, absolute: float) -> None:
    assert LIMITS.for_values_like(expected) == Tolerance(1e-3, pytest.approx(absolute))

"""What bounds allow, and how a difference is told."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from graft.base.compare import Bound, Difference, compare_arrays, together

NAN, INF = float("nan"), float("inf")


def floats(*numbers: float) -> Any:
    return np.array(numbers, np.float32)


@pytest.mark.parametrize(
    ("bound", "error"),
    [
        (Bound(absolute=0.5), 0.5),
        (Bound(relative=0.25), 0.5),  # of 2
        (Bound(of_largest=0.0625), 0.5),  # of 8
        (Bound(absolute=0.25, relative=0.0625, of_largest=0.015625), 0.5),
    ],
)
def test_parts_of_a_bound_add_up(bound: Bound, error: float) -> None:
    expected = floats(2, 8)
    assert compare_arrays(expected + floats(error, 0), expected, bound).agrees
    assert not compare_arrays(expected + floats(error * 1.01, 0), expected, bound).agrees


def test_what_is_not_finite_is_equal_or_wrong() -> None:
    loose = Bound(absolute=1e30, relative=1e30, of_largest=1e30)
    odd = floats(NAN, INF, -INF)
    assert compare_arrays(odd, odd).agrees
    for actual, expected, words in (
        (floats(NAN), floats(1), "is NaN where the host's is not, or the other way round, 1 times"),
        (floats(1), floats(NAN), "is NaN where the host's is not, or the other way round, 1 times"),
        (floats(INF), floats(1), "is not infinite where the host's is, or the other way round"),
        (floats(1), floats(INF), "is not infinite where the host's is, or the other way round"),
        (floats(INF), floats(-INF), "is not infinite where the host's is, or the other way round"),
    ):
        found = compare_arrays(actual, expected, loose)
        assert found.mismatches == 1
        assert found.words("the host's") == words


def test_what_moves_by_itself_may_differ() -> None:
    expected, nearby = floats(1, 1, NAN, 1, INF), floats(2, 1, 1, NAN, 1)
    actual = floats(4, 1, 7, INF, NAN)
    assert compare_arrays(actual, expected, Bound(movement=3), nearby).agrees
    assert compare_arrays(actual, expected, Bound(movement=2), nearby).mismatches == 1
    assert not compare_arrays(floats(NAN), floats(1), Bound(movement=9), floats(2)).agrees


def integers(*numbers: int, dtype: str = "int8") -> Any:
    return np.array(numbers, dtype)


def test_integers_may_be_steps_apart() -> None:
    expected = integers(*range(40))
    one, two = expected.copy(), expected.copy()
    one[:2] += 1
    two[:2] += 2
    assert compare_arrays(one, expected, Bound(steps=1)).agrees
    assert compare_arrays(two, expected, Bound(steps=1)).mismatches == 2
    assert compare_arrays(two, expected, Bound(steps=1)).max_absolute == 2
    assert compare_arrays(one, expected, Bound(absolute=9, relative=9)).mismatches == 2
    moved = expected.copy()
    moved[:2] += 1
    assert compare_arrays(two, expected, Bound(steps=1), moved).agrees
    assert compare_arrays(two, expected, nearby=moved).agrees
    assert not compare_arrays(two, expected, nearby=expected).agrees


def test_large_integers_do_not_overflow() -> None:
    low, high = integers(-(2**63), dtype="int64"), integers(2**63 - 1, dtype="int64")
    assert compare_arrays(low, high).max_absolute == pytest.approx(2.0**64)


def test_words() -> None:
    assert compare_arrays(floats(1, 2), floats(1, 2)).words("theirs") == ""
    far = compare_arrays(floats(1, 2.5), floats(1, 2))
    assert far.words("theirs") == "differs from theirs by 0.5 where the largest is 2"
    tipped = compare_arrays(integers(1, 2), integers(1, 3))
    assert tipped.words("theirs") == "differs from theirs in 1 of 2 elements"
    other = compare_arrays(floats(1), floats(1, 2))
    assert other.words("theirs") == "is shape [1], not [2]"


def test_parts_together() -> None:
    one, other = Difference(1.0, 0.5, 1, 10, largest=3.0), Difference(2.0, 0.1, 0, 5, largest=1.0)
    assert together(one, other) == Difference(2.0, 0.5, 1, 15, largest=3.0)
    empty = compare_arrays(floats(), floats())
    assert (empty.agrees, empty.size) == (True, 0)

"""The guards themselves: what leaves an array is seen, and what stays inside is not."""

from __future__ import annotations

import ctypes

import numpy as np
import pytest
from tests.backends.host.property.guarded import Guarded, guarded_copy, in_child

FLOAT = np.dtype(np.float32)


@pytest.mark.parametrize(("at_end", "distance"), [(True, 12), (False, -1)])
def test_reads_beyond_an_array_are_seen(at_end: bool, distance: int) -> None:
    array = Guarded((3,), FLOAT, 4, at_end).array
    with pytest.raises(AssertionError, match="SIGSEGV"):
        in_child([lambda: ctypes.string_at(array.ctypes.data + distance, 1)])


@pytest.mark.parametrize(("at_end", "distance"), [(True, -1), (True, 12), (False, 12)])
def test_writes_beside_an_array_are_seen(at_end: bool, distance: int) -> None:
    guarded = Guarded((3,), FLOAT, 64, at_end)
    in_child([lambda: ctypes.memset(guarded.array.ctypes.data + distance, 0, 1)])
    assert guarded.damaged() == [distance]


def test_results_come_back_and_errors_do_too() -> None:
    guarded = guarded_copy(np.arange(6, dtype=np.float32).reshape(2, 3))
    in_child([lambda: np.multiply(guarded.array, 2, out=guarded.array)])
    assert guarded.array.tolist() == [[0, 2, 4], [6, 8, 10]]
    assert not guarded.damaged()
    assert guarded.array.ctypes.data % 64 == 0
    with pytest.raises(AssertionError, match="cannot be run"):
        in_child([lambda: int("none")])

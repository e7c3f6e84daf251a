"""Constants compare and hash by content, to the bit, and do not change."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest

from graft.base.errors import UnsupportedError
from graft.ir.literal import Literal
from graft.ir.types import tensor

LARGE = np.arange(100_000, dtype=np.float32)


def changed(array: np.ndarray[Any, Any], position: int, value: Any) -> np.ndarray[Any, Any]:
    copy = array.copy()
    copy[position] = value
    return copy


EQUAL: list[tuple[Any, Any]] = [
    (np.float32(1), np.array(1, np.float32)),
    ([1, 2], np.array([1, 2])),
    (np.array([np.nan], np.float32), np.array([np.nan], np.float32)),
    (LARGE, LARGE.copy()),
    (LARGE[::2], LARGE[::2].copy()),
    (LARGE.reshape(10, -1).T, LARGE.reshape(10, -1).T.copy()),
    (np.zeros((0, 3)), np.zeros((0, 3))),
    (np.array(["a", "b"]), np.array(["a", "b"], object)),
    (np.array([True]), np.array([True])),
    (np.array([1], ml_dtypes.int4), np.array([1], ml_dtypes.int4)),
    (np.broadcast_to(np.float32(2), (3, 3)), np.full((3, 3), 2, np.float32)),
]
DIFFERENT: list[tuple[Any, Any]] = [
    (np.array([0.0]), np.array([-0.0])),
    (np.array([1.0], np.float32), np.array([1.0], np.float64)),
    (np.array([1]), np.array([[1]])),
    (np.array([1, 2]), np.array([1, 3])),
    (np.zeros((0, 3)), np.zeros((3, 0))),
    (LARGE, changed(LARGE, 54_321, -1)),  # between the elements that the hash looks at
    (np.array(["a"], object), np.array(["b"], object)),
    (
        np.array([0x7FC00000], np.uint32).view(np.float32),
        np.array([0xFFC00000], np.uint32).view(np.float32),
    ),
    (np.array([1], np.uint8), np.array([True])),
    (np.array([1, 0, 1, 0], np.int8), np.array([1, 0, 0, 1], np.int8)),
]


@pytest.mark.parametrize(("first", "second"), EQUAL)
def test_equal(first: Any, second: Any) -> None:
    one, other = Literal(np.asarray(first)), Literal(np.asarray(second))
    assert one == other
    assert hash(one) == hash(other)


@pytest.mark.parametrize(("first", "second"), DIFFERENT)
def test_different(first: Any, second: Any) -> None:
    assert Literal(first) != Literal(second)


def test_views_of_the_same_memory_that_differ() -> None:
    array = np.arange(6)
    assert Literal(array) != Literal(array[::-1])
    assert Literal(array.reshape(2, 3)) != Literal(array.reshape(2, 3).T.reshape(2, 3))


def test_compares_with_nothing_else() -> None:
    assert Literal(np.array(1)) != 1
    assert Literal(np.array(1)) != np.array(1)


def test_type() -> None:
    assert Literal(np.zeros((2, 0), np.int8)).type == tensor("int8", 2, 0)
    assert Literal(np.array("word")).type == tensor("string")
    assert Literal(np.array([1], ml_dtypes.bfloat16)).type == tensor("bfloat16", 1)
    assert Literal(np.zeros(3, np.float64)).nbytes == 24
    with pytest.raises(UnsupportedError, match="datetime64"):
        Literal(np.zeros(1, "datetime64[s]"))


def test_does_not_change() -> None:
    array = np.zeros(3)
    literal = Literal(array)
    with pytest.raises(AttributeError, match="does not change"):
        literal.array = array
    with pytest.raises(ValueError, match="read-only"):
        literal.array[0] = 1
    array[0] = 1  # whoever made the array may still write to it
    assert array.flags.writeable


def test_hash_reads_few_elements() -> None:
    """Large weights stay on disk until their content is wanted."""

    class Counting(np.ndarray):
        reads = 0

        def __getitem__(self, key: Any) -> Any:
            Counting.reads += np.size(key[0]) if isinstance(key, tuple) else 1
            return super().__getitem__(key)

    literal = Literal(LARGE)
    object.__setattr__(literal, "array", LARGE.view(Counting))
    hash(literal)
    assert 0 < Counting.reads <= 16

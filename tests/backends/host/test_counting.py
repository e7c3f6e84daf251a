"""Counts of n-grams as native code: skipped words, weights, columns with several or none."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import graft
from graft.base.dims import symbol
from graft.base.dtypes import Array, DType
from graft.ir.builder import Builder
from graft.ir.evaluate import evaluate
from graft.ir.literal import Literal
from graft.ir.types import TensorType

# Three 1-grams, three 2-grams and one 3-gram; column 4 gets nothing, column 2 two of them.
POOL = {
    "pool": Literal(np.array([2, 3, 5, 5, 4, 7, 8, 2, 3, 2, 3, 5], np.int64)),
    "counts": (0, 3, 9),
    "indexes": (0, 1, 2, 2, 6, 5, 3),
}
WEIGHTS = (2.0, 0.5, 1.0, 3.0, 0.25, 1.5, 4.0)
ROWS = np.array([[2, 3, 5, 4, 3, 2], [7, 8, 2, 5, 3, 5], [9, 9, 9, 9, 9, 9]])


def check(data: Array, **attrs: Any) -> None:
    shape = tuple(data.shape)
    for given in (shape, (*shape[:-1], symbol("words"))):
        builder = Builder()
        value = builder.input("x", TensorType(DType(str(data.dtype)), given))
        graph = builder.build(builder("nlp.tfidf", value, **{**POOL, **attrs}))
        (wanted,) = evaluate(graph, [data])
        (found,) = graft.compile(graph, strict=True, threads=2).run(None, {"x": data})
        assert found.dtype == wanted.dtype
        np.testing.assert_array_equal(found, wanted)


@pytest.mark.each_value
@pytest.mark.parametrize("mode", ["TF", "IDF", "TFIDF"])
@pytest.mark.parametrize("skip", [0, 1, 5, 9])
@pytest.mark.parametrize("lengths", [(1, 1), (2, 2), (1, 3)])
def test_modes_skips_and_lengths(mode: str, skip: int, lengths: tuple[int, int]) -> None:
    least, most = lengths
    attrs = {"mode": mode, "max_skip": skip, "min_length": least, "max_length": most}
    check(ROWS, weights=WEIGHTS, **attrs)


def test_one_row_of_other_integers_without_weights() -> None:
    check(ROWS[0].astype(np.int32), mode="TFIDF", min_length=1, max_length=2, max_skip=1)


def test_rows_shorter_than_n_grams_and_without_words() -> None:
    check(ROWS[:, :1], mode="TF", min_length=1, max_length=3, max_skip=2)
    check(ROWS[:, :0], mode="TF", min_length=1, max_length=3)
    check(ROWS[:0], mode="TF", min_length=1, max_length=3)

"""What is known of values while a graph is built: dims, plain integers, and strings."""

from __future__ import annotations

import numpy as np
import pytest

from graft.base.dims import symbol
from graft.base.dtypes import DType
from graft.ir.builder import Builder
from graft.ir.types import tensor
from graft.ir.verify import verify
from graft.passes.fold_constants import fold_constants

N = symbol("n")


@pytest.mark.parametrize("words", [["a", ""], []])
def test_strings_stay_strings(words: list[str]) -> None:
    """Dims are kept in arrays of objects too, and an empty array does not show what it is for."""
    g = Builder()
    texts = g.constant(np.array(words, dtype=object))
    for value in (
        g("reshape", texts, shape=[-1, 1]),
        g("strided_slice", texts, begin=[0], end=[0]),
        g("string.concat", texts, texts),
        g("concatenate", texts, texts, axis=0),
    ):
        known = g.knowledge.known(value)
        assert value.dtype is DType.STRING
        assert known is not None
        assert known.dtype == object
        assert known.shape == value.shape


def test_empty_strings_of_a_body_are_folded_as_strings() -> None:
    g = Builder()
    x = g.input("x", tensor("string", N))
    nothing = g("strided_slice", g.constant(np.array(["a", "b"], object)), begin=[2], end=[9])
    graph = fold_constants(g.build(g("concatenate", nothing, x, axis=0)))
    assert str(verify(graph).outputs[0].type) == "string[n]"


def test_dims_without_symbols_are_plain_integers() -> None:
    g = Builder()
    x = g.input("x", tensor("float32", N, 3))
    shape = g("shape_of", x)
    symbolic = g.knowledge.known(shape)
    assert symbolic is not None
    assert symbolic.tolist() == [N, 3]
    for indices, wanted in ((np.array([1]), [3]), (np.zeros(0, np.int64), [])):
        settled = g.knowledge.concrete(g("take", shape, g.constant(indices), axis=0))
        assert settled is not None
        assert settled.dtype == np.int64
        assert settled.tolist() == wanted

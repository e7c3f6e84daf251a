"""What integers may differ by that backends round from floats, each in an order of its own."""

from __future__ import annotations

import numpy as np
import pytest

from graft.base.dtypes import Array
from graft.byoc.tolerance import difference
from graft.ir.graph import Graph
from graft.ir.parser import from_text


def resized(dtype: str, method: str) -> Graph:
    return from_text(f"""
        graph @example(%x: {dtype}[1, 1, 1, 2]) {{
          %y: {dtype}[1, 1, 1, 7] = resize(%x) {{sizes=[1, 7], axes=[1, 3], method="{method}"}}
          %z: {dtype}[7] = reshape(%y) {{shape=[7]}}
          return %z
        }}
    """)


def judged(graph: Graph, expected: Array, error: int) -> str:
    actual = expected.copy()
    actual[2] += error
    return difference(graph, [actual], [expected])


def test_interpolated_integers_may_be_a_step_apart() -> None:
    graph, expected = resized("int32", "linear"), np.arange(7, dtype=np.int32)
    assert judged(graph, expected, 1) == ""
    assert "in 1 of 7 elements" in judged(graph, expected, 2)


def test_those_of_64_bits_have_the_rounding_of_doubles() -> None:
    graph, expected = resized("int64", "linear"), np.arange(7) - 2**57
    assert judged(graph, expected, 32) == ""  # a last bit there
    assert "in 1 of 7 elements" in judged(graph, expected, 2**32)


@pytest.mark.parametrize("dtype", ["int32", "int64"])
def test_copied_integers_are_equal(dtype: str) -> None:
    graph = resized(dtype, "nearest_neighbor")
    assert "in 1 of 7 elements" in judged(graph, np.arange(7).astype(dtype), 1)

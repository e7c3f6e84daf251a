"""Slices: ONNX's rules as the oracle, at every extent that a symbol may stand for."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.ops.every_form import agree, by_graft, one_node

from graft.base.dims import Dim, evaluate_dim, symbol
from graft.base.errors import EvaluationError, TypeRuleError
from graft.ir.builder import Builder
from graft.ir.evaluate import evaluate
from graft.ir.types import TensorType, tensor
from graft.ops.slicing import StridedSliceAttrs, slice_extent, slice_ranges

N, M = symbol("n"), symbol("m")
FAR = 2**63 - 1
X = np.arange(60, dtype=np.float32).reshape(3, 4, 5)


def ints(*values: int) -> Any:
    return np.array(values, np.int64)


# begins, ends, axes, strides
CASES: list[tuple[tuple[int, ...], ...]] = [
    ((0, 1), (2, 9), (), ()),
    ((1,), (FAR,), (1,), ()),
    ((-2, 0), (FAR, -1), (2, -3), (1, 1)),
    ((-1,), (-FAR,), (-1,), (-1,)),
    ((9, -1), (0, -9), (1, 2), (-2, -3)),
    ((3,), (1,), (0,), (1,)),
    ((0, 0, 0), (3, 4, 5), (0, 1, 2), (2, 3, 4)),
    ((-9,), (2,), (1,), (1,)),
    # backwards from before the front: one element
    ((-9, -6), (-FAR, -9), (1, 2), (-1, -2)),
    ((-FAR, -5), (-FAR, -9), (0, 1), (-2, -1)),
    ((-9, -9), (0, -4), (1, 0), (-1, -1)),
]


@pytest.mark.parametrize(("begin", "end", "axes", "strides"), CASES)
def test_slice(begin: Any, end: Any, axes: Any, strides: Any) -> None:
    operands = [X, ints(*begin), ints(*end)]
    operands += [ints(*listed) if listed else None for listed in (axes, strides)]
    while operands[-1] is None:
        operands.pop()
    agree("Slice", operands, 13)
    agree("Slice", operands, 10)
    short = [X, *(o if o is None else np.clip(o, -99, 99).astype(np.int32) for o in operands[1:])]
    agree("Slice", short, 11)
    if not strides:
        attributes = {"axes": axes} if axes else {}
        agree("Slice", [X], 7, starts=begin, ends=end, **attributes)


@pytest.mark.parametrize(("begin", "end", "axes", "strides"), CASES)
def test_ranges(begin: Any, end: Any, axes: Any, strides: Any) -> None:
    options = {"begin": begin, "end": end, "axes": axes or None, "strides": strides or None}
    g = Builder()
    graph = g.build(g("strided_slice", g.input("x", tensor("float32", 3, 4, 5)), **options))
    (expected,) = evaluate(graph, [X])
    ranges = slice_ranges(StridedSliceAttrs(**options), X.shape)
    np.testing.assert_array_equal(X[np.ix_(*(np.array(one, int) for one in ranges))], expected)


def test_slices_of_strings_and_of_nothing() -> None:
    words = np.array([["a", "b"], ["c", "d"]], object)
    agree("Slice", [words, ints(1), ints(9), ints(1)], 13, [words[:, 1:]])
    agree("Slice", [X[:0], ints(-1), ints(-9), ints(0), ints(-1)], 13, [X[:0]])


bounds = st.integers(-9, 9) | st.sampled_from([FAR, -FAR - 1, 2**31 - 1, -(2**31)])
linear = st.tuples(st.integers(-2, 2), st.integers(-4, 4)).map(lambda ab: ab[0] * N + ab[1])
strides_ = st.sampled_from([1, 2, 3, 7, -1, -2, -5])


@given(bounds | linear, bounds | linear, strides_, st.integers(1, 3), st.integers(0, 3))
def test_symbolic_extents_are_exact(
    begin: Dim, end: Dim, stride: int, factor: int, offset: int
) -> None:
    extent = factor * N + offset
    found = slice_extent(begin, end, stride, extent)
    for n in range(8):
        first, last, size = (evaluate_dim(dim, {"n": n}) for dim in (begin, end, extent))
        assert evaluate_dim(found, {"n": n}) == len(by_rule(first, last, stride, size))


def by_rule(begin: int, end: int, stride: int, extent: int) -> range:
    """The places that a slice takes, clamped as ONNX's text says."""
    if extent == 0:
        return range(0)
    begin, end = (bound + extent if bound < 0 else bound for bound in (begin, end))
    if stride > 0:
        return range(min(max(begin, 0), extent), min(max(end, 0), extent), stride)
    return range(min(max(begin, 0), extent - 1), min(max(end, -1), extent - 1), stride)


@given(bounds, bounds, strides_, st.integers(0, 5))
def test_type_and_value_follow_the_rule(begin: int, end: int, stride: int, extent: int) -> None:
    x = np.arange(extent, dtype=np.int32)
    wanted = x[list(by_rule(begin, end, stride, extent))]
    assert slice_extent(begin, end, stride, extent) == len(wanted)
    given = [x, *(ints(number) for number in (begin, end, 0, stride))]
    (found,) = by_graft(one_node("Slice", given, 13), given)
    assert found.tolist() == wanted.tolist()
    graph = Builder()
    cut = graph("strided_slice", graph.input("x", tensor("int32", extent)), begin=[begin],
                end=[end], strides=[stride])  # fmt: skip
    (again,) = evaluate(graph.build(cut), [x])
    assert again.tolist() == wanted.tolist()


READABLE: list[tuple[dict[str, Any], str]] = [
    ({"begin": [0], "end": [FAR]}, "n"),
    ({"begin": [1], "end": [FAR]}, "max(n - 1, 0)"),
    ({"begin": [-1], "end": [FAR]}, "min(n, 1)"),
    ({"begin": [0], "end": [-1]}, "max(n - 1, 0)"),
    ({"begin": [0], "end": [N - 1]}, "max(n - 1, 0)"),
    ({"begin": [0], "end": [M]}, "min(m, n)"),
    ({"begin": [0], "end": [512]}, "min(n, 512)"),
    ({"begin": [M], "end": [FAR]}, "max(-m + n, 0)"),
    ({"begin": [-1], "end": [-FAR], "strides": [-1]}, "n"),
    ({"begin": [-FAR], "end": [-FAR], "strides": [-1]}, "min(n, 1)"),
    ({"begin": [0], "end": [FAR], "strides": [2]}, "(n + 1)//2"),
]


@pytest.mark.parametrize(("attributes", "wanted"), READABLE)
def test_symbolic_extents_are_readable(attributes: dict[str, Any], wanted: str) -> None:
    builder = Builder()
    builder.input("y", tensor("int8", M))
    x = builder.input("x", tensor("int8", N, 3))
    assert str(builder("strided_slice", x, **attributes).type) == f"int8[{wanted}, 3]"


def test_what_is_not_known_stays_open() -> None:
    builder = Builder()
    x = builder.input("x", tensor("int8", N, 3, 4))
    two, three = (builder.input(f"i{k}", tensor("int64", k)) for k in (2, 3))
    unranked = builder.input("u", TensorType(x.dtype, None))
    shape = builder("strided_slice", x, two, two, axes=(0, 2)).shape
    assert shape is not None
    assert shape[1] == 3
    assert shape[2] != 4
    assert builder("strided_slice", x, two, two, two).shape != x.shape
    assert builder("strided_slice", unranked, begin=[0], end=[1]).shape is None
    with pytest.raises(TypeRuleError, match="begins, ends, axes and strides differ in number"):
        builder("strided_slice", x, two, three)


REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"begin": [0, 0], "end": [1]}, "begins, ends, axes and strides differ in number: [2, 1]"),
    ({"begin": [0], "end": [1], "strides": [0]}, "a stride is 0"),
    ({"begin": [0], "end": [1], "axes": [3]}, "axis 3 is out of range for rank 3"),
    ({"begin": [0, 0], "end": [1, 1], "axes": [0, -3]}, "an axis is named twice in [0, -3]"),
    ({"begin": [0] * 4, "end": [1] * 4}, "4 axes cut, rank 3"),
    ({"begin": [0]}, "ends are given neither as operand nor as attribute"),
]


@pytest.mark.parametrize(("attributes", "message"), REFUSED)
def test_contradictions_are_refused(attributes: dict[str, Any], message: str) -> None:
    builder = Builder()
    x = builder.input("x", tensor("int8", 3, 4, 5))
    with pytest.raises(TypeRuleError) as caught:
        builder("strided_slice", x, **attributes)
    assert message in caught.value.message


def test_a_stride_of_0_is_refused_at_run_time() -> None:
    arrays = [X, ints(0), ints(2), ints(0), ints(0)]
    with pytest.raises(EvaluationError, match="slice step cannot be zero"):
        by_graft(one_node("Slice", arrays, 13), arrays)

"""Finding the largest, the non-zero, the distinct and the chosen elements."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.ops.every_form import agree, by_graft, one_node

from graft.base.dims import UNKNOWN, dim_min, symbol
from graft.base.dtypes import DType
from graft.base.errors import EvaluationError, TypeRuleError
from graft.frontends.onnx.importer import import_model
from graft.ir.attrs import Attrs
from graft.ir.builder import Builder
from graft.ir.types import TensorType, tensor
from graft.ops import get_op
from graft.ops.search import TopKAttrs, UniqueAttrs

INF, NAN = np.inf, np.nan


def few(high: int, *shape: int) -> Any:
    """Whole numbers of a small range, so that some are equal."""
    return np.random.default_rng(5).integers(0, high, shape)


@pytest.mark.parametrize("largest", [0, 1])
@pytest.mark.parametrize("axis", [0, 1, -1])
@pytest.mark.parametrize("dtype", [np.float32, np.int64, np.float64])
def test_topk_breaks_ties_by_position(largest: int, axis: int, dtype: Any) -> None:
    x = few(4, 3, 7, 5).astype(dtype)
    for count in (0, 1, 3):
        k = np.array([count])
        flags = {"axis": axis, "largest": largest}
        agree("TopK", [x, k], 11, _by_sorting(x, count, **flags), outputs=2, **flags)
    agree("TopK", [x, np.array([x.shape[axis]])], 11, outputs=2, axis=axis, largest=largest)


def _by_sorting(x: Any, count: int, axis: int, largest: int) -> list[Any]:
    rows = np.moveaxis(x, axis, -1)
    found = np.zeros((*rows.shape[:-1], count), np.int64)
    for place in np.ndindex(*rows.shape[:-1]):
        row = rows[place].tolist()
        by_value = sorted(range(len(row)), key=lambda i, row=row: -row[i] if largest else row[i])
        found[place] = by_value[:count]
    found = np.moveaxis(found, -1, axis)
    return [np.take_along_axis(x, found, axis), found]


@pytest.mark.parametrize("dtype", [np.uint8, np.int8, np.uint64, np.float16, ml_dtypes.bfloat16])
@pytest.mark.parametrize("largest", [0, 1])
def test_topk_dtypes(dtype: Any, largest: int) -> None:
    numbers = np.array([3, 0, 255, 3, 128])
    x = (numbers - 128 if dtype is np.int8 else numbers).astype(dtype)
    order = np.array([2, 4, 0, 3, 1] if largest else [1, 0, 3, 4, 2])
    expected = [x[order], order]
    agree("TopK", [x, np.array([5])], 24, expected, outputs=2, largest=largest)


def test_topk_special_numbers_and_versions() -> None:
    x = np.array([1, NAN, INF, -INF, NAN, 0.0, -0.0], np.float32)
    down, up = np.array([1, 4, 2, 0, 5, 6, 3]), np.array([3, 5, 6, 0, 2, 1, 4])
    agree("TopK", [x, np.array([7])], 11, [x[down], down], outputs=2)
    agree("TopK", [x, np.array([7])], 11, [x[up], up], outputs=2, largest=0, sorted=0)
    y = few(9, 4, 3).astype(np.float32)
    agree("TopK", [y, np.array([2])], 10, outputs=2, axis=0)
    old = np.argsort(-y, axis=0, kind="stable")[:2]
    agree("TopK", [y], 8, [np.take_along_axis(y, old, 0), old], outputs=2, axis=0, k=2)


@given(st.lists(st.integers(-3, 3), max_size=8), st.booleans(), st.data())
def test_topk_is_a_stable_sort(row: list[int], largest: bool, data: st.DataObject) -> None:
    count = data.draw(st.integers(0, len(row)))
    x = np.array(row, np.float32)
    values, places = get_op("topk").evaluate(TopKAttrs(count, largest=largest), x, None)
    wanted = sorted(range(len(row)), key=lambda i: (-row[i] if largest else row[i], i))[:count]
    assert places.tolist() == wanted
    assert values.tolist() == [row[i] for i in wanted]


def test_topk_types() -> None:
    n = symbol("n")
    builder = Builder()
    x = builder.input("x", tensor("float32", 2, n))
    shape = builder("shape_of", x)
    last = builder("take", shape, builder.constant(np.array([1])))
    limit = builder("concatenate", last, builder.constant(np.array([1000])), axis=0)
    k = builder("min", limit, keepdims=True)
    for value in builder.call("topk", x, k):
        assert value.type.shape == (2, dim_min(n, 1000))
    op, data = get_op("topk"), tensor("float16", n, 3)
    unknown = op.result_types(TopKAttrs(axis=0), (data, tensor("int64", 1)))
    assert unknown == (tensor("float16", UNKNOWN, 3), tensor("int64", UNKNOWN, 3))
    unranked = op.result_types(TopKAttrs(2), (TensorType(DType.INT8, None),))
    assert unranked == (TensorType(DType.INT8, None), TensorType(DType.INT64, None))


NONZERO: list[Any] = [
    np.array([[1, 0, 2], [0, 0, 3]], np.int32),
    np.array([0.0, -0.0, NAN, INF], np.float32),
    np.array([[[True], [False]]]),
    np.zeros((2, 0, 3), np.float32),
    np.zeros((3, 2), np.uint8),
    np.array([0, 2, 0], np.float16),
    np.array(["", "a", "0"], object),
    np.array([0, 1, 0], ml_dtypes.bfloat16),
]


@pytest.mark.parametrize("x", NONZERO)
def test_nonzero(x: Any) -> None:
    places = [at for at in np.ndindex(*x.shape) if x[at]]
    wanted = np.array(places, np.int64).reshape(-1, x.ndim).T
    agree("NonZero", [x], 13, [wanted])


def test_nonzero_of_a_scalar() -> None:
    agree("NonZero", [np.array(5)], 13, [np.zeros((0, 1), np.int64)])
    agree("NonZero", [np.array(0)], 9, [np.zeros((0, 0), np.int64)])
    (type_,) = get_op("nonzero").result_types(Attrs(), (tensor("bool", symbol("n"), 3),))
    assert type_ == tensor("int64", 2, UNKNOWN)


@pytest.mark.parametrize("in_order", [0, 1])
@pytest.mark.parametrize("axis", [None, 0, 1, -1])
def test_unique(in_order: int, axis: int | None) -> None:
    x = few(2, 4, 2, 3).astype(np.float32)
    attributes = {"sorted": in_order} | ({} if axis is None else {"axis": axis})
    agree("Unique", [x], 11, outputs=4, **attributes)
    agree("Unique", [x.astype(np.int64)], 11, outputs=4, **attributes)
    model = one_node("Unique", [x], 11, outputs=4, **attributes)
    values, *places = by_graft(model, [x])
    for dtype in (np.float16, ml_dtypes.bfloat16, np.uint8):
        expected = [values.astype(dtype), *places]
        agree("Unique", [x.astype(dtype)], 28, expected, outputs=4, **attributes)


def test_unique_strings_and_not_a_number() -> None:
    names = np.array([["b", "a"], ["", "z"], ["b", "a"]], object)
    expected = [np.array([["", "z"], ["b", "a"]], object), [1, 0], [1, 0, 1], [1, 2]]
    agree("Unique", [names], 11, expected, outputs=4, axis=0)
    flat = [np.array(["b", "a", "", "z"], object), [0, 1, 2, 3], [0, 1, 2, 3, 0, 1], [2, 2, 1, 1]]
    agree("Unique", [names], 11, flat, outputs=4, sorted=0)
    x = np.array([NAN, 1, NAN, -INF], np.float32)
    found = [x[[3, 1, 0]], [3, 1, 0], [2, 1, 2, 0], [1, 1, 2]]
    agree("Unique", [x], 11, found, outputs=4)
    rows = [x[[3, 1, 0], None], [3, 1, 0], [2, 1, 2, 0], [1, 1, 2]]
    agree("Unique", [x[:, None]], 11, rows, outputs=4, axis=0)


def test_unique_of_nothing() -> None:
    none = np.zeros(0, np.int64)
    empty = np.zeros((0, 3), np.float32)
    agree("Unique", [empty], 11, [np.zeros(0, np.float32), none, none, none], outputs=4)
    agree("Unique", [empty], 11, [empty, none, none, none], outputs=4, axis=0)
    one = [empty[:, :1], [0], [0, 0, 0], [3]]  # three columns without a row are all alike
    agree("Unique", [empty], 11, one, outputs=4, axis=1)
    scalar = np.array(2.5, np.float32)
    agree("Unique", [scalar], 11, [scalar.reshape(1), [0], [0], [1]], outputs=4)


def test_unique_types() -> None:
    n, op = symbol("n"), get_op("unique")
    some = tensor("int64", UNKNOWN)
    flat = op.result_types(UniqueAttrs(), (tensor("int8", n, 3),))
    assert flat == (tensor("int8", UNKNOWN), some, tensor("int64", 3 * n), some)
    rows = op.result_types(UniqueAttrs(-2), (tensor("int8", n, 3),))
    assert rows == (tensor("int8", UNKNOWN, 3), some, tensor("int64", n), some)


@pytest.mark.parametrize("axis", [None, 0, 1, -1])
@pytest.mark.parametrize("condition", [[True, False, True], [False], [], [True, True]])
def test_compress(axis: int | None, condition: list[bool]) -> None:
    x = few(99, 3, 4)
    chosen = np.array(condition, np.bool_)
    attributes = {} if axis is None else {"axis": axis}
    agree("Compress", [x, chosen], 11, [np.compress(condition, x, axis)], **attributes)
    if axis != -1:
        agree("Compress", [x, chosen], 9, [np.compress(condition, x, axis)], **attributes)


def test_compress_beyond_the_end() -> None:
    arrays = [np.arange(2), np.array([True, False, True])]
    with pytest.raises(EvaluationError, match="index 2 is out of range for axis 0 of extent 2"):
        by_graft(one_node("Compress", arrays, 11, axis=0), arrays)


X = np.zeros((2, 3), np.float32)
REFUSALS: list[tuple[str, list[Any], dict[str, Any], str]] = [
    ("TopK", [X, np.array([4])], {}, "wants 4 elements of 3 along axis 1"),
    ("TopK", [X, np.array([-1])], {"axis": 0}, "wants -1 elements of 2 along axis 0"),
    ("TopK", [X, np.array([1])], {"axis": 2}, "axis 2 is out of range for rank 2"),
    ("TopK", [X.astype(np.bool_), np.array([1])], {}, "cannot order bool elements"),
    ("Unique", [X], {"axis": -3}, "axis -3 is out of range for rank 2"),
]


@pytest.mark.parametrize(("op_type", "arrays", "attributes", "message"), REFUSALS)
def test_refusals(op_type: str, arrays: Any, attributes: Any, message: str) -> None:
    model = one_node(op_type, arrays, 13, constants=True, outputs=2, **attributes)
    with pytest.raises(TypeRuleError, match=message):
        import_model(model)


def test_too_many_wanted_when_run() -> None:
    arrays = [X, np.array([4])]
    with pytest.raises(EvaluationError, match="wants 4 elements of 3 along axis 1"):
        by_graft(one_node("TopK", arrays, 11, outputs=2), arrays)

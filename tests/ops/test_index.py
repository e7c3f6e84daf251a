"""Reading and writing at positions that are data."""

from __future__ import annotations

from itertools import product
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.ops.every_form import agree, by_graft, one_node

from graft.base.dims import UNKNOWN, symbol
from graft.base.dtypes import DType
from graft.base.errors import EvaluationError, TypeRuleError
from graft.frontends.onnx.importer import import_model
from graft.ir.builder import Builder
from graft.ir.evaluate import evaluate
from graft.ir.types import TensorType, tensor
from graft.ops import get_op
from graft.ops.index import AxisAttrs, GatherNdAttrs, OneHotAttrs
from graft.ops.scatter import ScatterElementsAttrs, ScatterNdAttrs


def ramp(*shape: int, dtype: Any = np.float32) -> Any:
    return np.arange(int(np.prod(shape))).reshape(shape).astype(dtype)


def indices(low: int, high: int, *shape: int) -> Any:
    return np.asarray(np.random.default_rng(3).integers(low, high, shape))


@pytest.mark.parametrize("shape", [(), (4,), (2, 3), (0,), (2, 0)])
@pytest.mark.parametrize("axis", [0, 1, -1])
def test_take(shape: tuple[int, ...], axis: int) -> None:
    x = ramp(3, 4, 5)
    where = indices(-3, 3, *shape)
    agree("Gather", [x, where], 13, axis=axis)
    agree("Gather", [x, where.astype(np.int32)], 11, axis=axis)
    agree("Gather", [x, where % 3], 7, axis=axis)


ODD_DTYPES = [np.bool_, np.uint8, np.float16, ml_dtypes.bfloat16, np.complex64, object]


def odd(values: Any, dtype: Any) -> Any:
    if dtype is object:
        return np.array([f"s{v}" for v in values.reshape(-1)], object).reshape(values.shape)
    return values.astype(dtype)


@pytest.mark.parametrize("dtype", ODD_DTYPES)
def test_movement_keeps_every_dtype(dtype: Any) -> None:
    x = odd(ramp(3, 4), dtype)
    where = np.array([[2, -1], [0, 1]])
    agree("Gather", [x, np.array([2, -3])], 13, [x[[2, 0]]])
    agree("GatherElements", [x, where], 13, [np.take_along_axis(x[:, :2], where % 3, 0)])
    agree("GatherND", [x, where], 13, [x[[2, 0], [-1, 1]]])
    updates = odd(ramp(2) + 7, dtype)
    written = x.copy()
    written[2, 3], written[0, 1] = updates
    agree("ScatterND", [x, where, updates], 18, [written])
    pair = odd(ramp(2), dtype)
    agree("OneHot", [np.array([1]), np.array(2), pair], 28, [pair.reshape(1, 2)])


def test_take_of_nothing() -> None:
    empty = np.zeros((0, 3), np.float32)
    agree("Gather", [empty, np.zeros((2, 0), np.int64)], 13, [np.zeros((2, 0, 3), np.float32)])
    with pytest.raises(EvaluationError, match="index 0 is out of range for axis 0 of extent 0"):
        by_graft(one_node("Gather", [empty, np.array(0)], 13), [empty, np.array(0)])


def test_take_types_and_shape_arithmetic() -> None:
    n, m = symbol("n"), symbol("m")
    builder = Builder()
    x = builder.input("x", tensor("float32", n, 3, m))
    where = builder.input("where", tensor("int64", 2, symbol("k")))
    taken = builder("take", x, where, axis=1)
    assert taken.type == tensor("float32", n, 2, symbol("k"), m)
    shape = builder("shape_of", x)
    last = builder("take", shape, builder.constant(np.int64(-1)))
    assert builder.knowledge.known(last).tolist() == m
    both = builder("take", shape, builder.constant(np.array([[2], [0]])))
    assert builder.knowledge.known(both).tolist() == [[m], [n]]
    free = builder.input("free", TensorType(DType.FLOAT32, None))
    assert builder("take", free, where).type.shape is None
    graph = builder.build(taken, last, both)
    data, places = ramp(4, 3, 5), np.array([[0, -1, 2], [1, 1, -3]])
    results = evaluate(graph, [data, places, ramp(3)])
    np.testing.assert_array_equal(results[0], data[:, places])
    assert [r.tolist() for r in results[1:]] == [5, [[5], [4]]]


@pytest.mark.parametrize("axis", [0, 1, -1])
def test_gather_along_an_axis(axis: int) -> None:
    x = ramp(3, 3, 3)
    for shape in ((3, 3, 3), (2, 3, 1), (1, 2, 3), (0, 2, 2)):
        agree("GatherElements", [x, indices(-3, 3, *shape)], 13, axis=axis)
    longer = list(x.shape)
    longer[axis] = 7
    agree("GatherElements", [x, indices(-3, 3, *longer).astype(np.int32)], 11, axis=axis)


@pytest.mark.parametrize("batch", [0, 1, 2])
@pytest.mark.parametrize("length", [1, 2])
@pytest.mark.parametrize("places", [(), (3,), (2, 0), (4, 1)])
def test_gather_nd(batch: int, length: int, places: tuple[int, ...]) -> None:
    x = ramp(2, 3, 4, 5)
    where = indices(-4 if batch == 2 else -2, 2, *x.shape[:batch], *places, length)
    wanted = np.empty((*x.shape[:batch], *places, *x.shape[batch + length :]), np.float32)
    for at in np.ndindex(*where.shape[:-1]):
        wanted[at] = x[at[:batch]][tuple(where[at])]
    agree("GatherND", [x, where], 13, [wanted], batch_dims=batch)
    if batch == 0:
        agree("GatherND", [x, where], 11, [wanted])


def test_gather_nd_types() -> None:
    n = symbol("n")
    op, data = get_op("gather_nd"), tensor("float32", n, 3, 4)
    (type_,) = op.result_types(GatherNdAttrs(1), (data, tensor("int64", n, 7, 1)))
    assert type_ == tensor("float32", n, 7, 4)
    (type_,) = op.result_types(GatherNdAttrs(), (data, tensor("int64", 7, n)))
    assert type_ == TensorType(DType.FLOAT32, None)
    (type_,) = op.result_types(GatherNdAttrs(), (data, TensorType(DType.INT64, None)))
    assert type_ == TensorType(DType.FLOAT32, None)


REDUCTIONS = ("none", "add", "mul", "max", "min")


@pytest.mark.parametrize("reduction", REDUCTIONS)
@pytest.mark.parametrize("axis", [0, -1])
def test_scatter_elements(reduction: str, axis: int) -> None:
    x = ramp(3, 4)
    where = np.array([[0, -2, 2], [-1, 0, 1]])  # no entry twice along either axis
    updates = ramp(2, 3) * 1.5 - 2
    agree("ScatterElements", [x, where, updates], 18, axis=axis, reduction=reduction)
    nothing = [x, np.zeros((0, 4), np.int64), np.zeros((0, 4), np.float32)]
    agree("ScatterElements", nothing, 18, [x], axis=axis, reduction=reduction)


COMBINE: dict[str, Any] = {"add": np.add, "mul": np.multiply, "max": np.maximum, "min": np.minimum}


@pytest.mark.parametrize("reduction", REDUCTIONS[1:])
@pytest.mark.parametrize("dtype", [np.float32, np.float16, np.int32, np.uint8, np.bool_])
def test_updates_that_meet_combine(reduction: str, dtype: Any) -> None:
    x = (ramp(5) % 2).astype(dtype)
    where = np.array([0, 3, 0, 3, 0, -1])
    updates = np.array([2, 3, 1, 0, 4, 2]).astype(dtype)
    wanted = x.copy()
    for i, update in zip(where, updates, strict=True):
        wanted[i] = COMBINE[reduction](wanted[i], update)
    agree("ScatterElements", [x, where, updates], 18, [wanted], reduction=reduction)
    agree("ScatterND", [x, where[:, None], updates], 18, [wanted], reduction=reduction)
    if dtype is np.float32:
        agree("ScatterElements", [x, where, updates], 18, reduction=reduction)


def test_narrow_totals_are_rounded_once() -> None:
    x, where = np.zeros(2, np.float16), np.zeros(3000, np.int64)
    updates = np.full(3000, 0.1, np.float16)
    attrs = ScatterElementsAttrs(0, "add")
    result = get_op("scatter_elements").evaluate(attrs, x, where, updates)
    assert result.tolist() == [float(np.float16(3000 * float(updates[0]))), 0]
    few = [np.ones(3, ml_dtypes.bfloat16), np.array([1, 1]), np.full(2, 2, ml_dtypes.bfloat16)]
    wanted = np.array([1, 5, 1], ml_dtypes.bfloat16)
    agree("ScatterElements", few, 18, [wanted], reduction="add")


def test_scatter_of_older_opsets() -> None:
    x, where, updates = ramp(3, 3), np.array([[1, 0, 2], [0, 2, 1]]), -1 - ramp(2, 3)
    agree("Scatter", [x, where, updates], 9)
    agree("Scatter", [x, where, updates], 9, axis=1)
    agree("ScatterElements", [x, where, updates], 11, axis=1)
    agree("ScatterND", [x, where[:, :1], updates], 11)


@pytest.mark.parametrize("reduction", REDUCTIONS)
@pytest.mark.parametrize("length", [1, 2, 3])
def test_scatter_nd(reduction: str, length: int) -> None:
    x = ramp(3, 4, 2)
    chosen = np.array(list(product(range(-1, 2), (1, -4), (0, -1))))[[0, 5, 10], :length]
    where = chosen.reshape(3, 1, length)
    updates = -ramp(3, 1, *x.shape[length:]) - 1
    agree("ScatterND", [x, where, updates], 18, reduction=reduction)
    agree("ScatterND", [x, where[:0], updates[:0]], 18, [x], reduction=reduction)


def test_operands_are_not_modified() -> None:
    x, where, updates = ramp(3), np.array([-1, 0]), ramp(2)
    for reduction in REDUCTIONS:
        get_op("scatter_elements").evaluate(ScatterElementsAttrs(0, reduction), x, where, updates)
        nd = ScatterNdAttrs(reduction)
        get_op("scatter_nd").evaluate(nd, x, where[:, None], updates)
    assert x.tolist() == [0, 1, 2]
    assert where.tolist() == [-1, 0]


@given(st.integers(0, 2), st.data())
def test_scatter_undoes_gather(axis: int, data: st.DataObject) -> None:
    shape = data.draw(st.tuples(*[st.integers(1, 4)] * 3))
    x = ramp(*shape)
    order = np.argsort(np.random.default_rng(0).random(shape), axis=axis)
    gathered = get_op("gather").evaluate(AxisAttrs(axis), x, order)
    back = get_op("scatter_elements").evaluate(
        ScatterElementsAttrs(axis), np.zeros_like(x), order - shape[axis], gathered
    )
    np.testing.assert_array_equal(back, x)


@pytest.mark.parametrize("mode", ["linear", "circular"])
@pytest.mark.parametrize("axis", [1, -2, -1])
def test_tensor_scatter(mode: str, axis: int) -> None:
    x, start = ramp(2, 4, 5, 4), np.array([1, 2 if mode == "linear" else 3])
    shape = list(x.shape)
    shape[axis] = 2
    update = -1 - ramp(*shape)
    wanted = x.copy()
    for batch, i in product(range(2), range(2)):
        place = (start[batch] + i) % x.shape[axis]
        row = np.moveaxis(wanted[batch], axis if axis < 0 else axis - 1, 0)
        row[place] = np.moveaxis(update[batch], axis if axis < 0 else axis - 1, 0)[i]
    agree("TensorScatter", [x, update, start], 24, [wanted], axis=axis, mode=mode)


def test_tensor_scatter_from_the_start() -> None:
    x, update = ramp(2, 3, 4), -1 - ramp(2, 1, 4)
    wanted = np.concatenate([update, x[:, 1:]], axis=1)
    agree("TensorScatter", [x, update], 24, [wanted])
    agree("TensorScatter", [x, update[:, :0]], 24, [x])


@pytest.mark.parametrize("axis", [0, 1, -1, -2])
@pytest.mark.parametrize("dtype", [np.int64, np.int32, np.uint8, np.float32])
def test_one_hot(axis: int, dtype: Any) -> None:
    where = np.array([[1, 9, 0], [-1, -5, 4]])
    where = np.abs(where).astype(dtype) if dtype is np.uint8 else where.astype(dtype)
    values = np.array([-1, 3], np.float32)
    wrapped = np.where(where < 0, where + 5, where) if dtype is not np.uint8 else where
    at = axis % 3
    wanted = np.full((2, 3, 5), -1, np.float32)
    for (i, j), k in np.ndenumerate(wrapped):
        if 0 <= k < 5:
            wanted[i, j, int(k)] = 3
    wanted = np.moveaxis(wanted, -1, at)
    for depth in (np.array(5), np.array([5.7], np.float32), np.array([5], np.int8)):
        agree("OneHot", [where, depth, values], 11, [wanted], axis=axis)


def test_one_hot_corners() -> None:
    pair = np.array([0, 1], np.int32)
    agree("OneHot", [np.array(2), np.array(3), pair], 11, [np.array([0, 0, 1], np.int32)])
    empty = np.zeros((2, 0), np.int32)
    agree("OneHot", [np.array([0, 1]), np.array(0), pair], 11, [empty])
    huge = np.array([2**64 - 1, 0], np.uint64)  # not -1
    agree("OneHot", [huge, np.array(2), pair], 11, [np.array([[0, 0], [1, 0]], np.int32)])
    types = (tensor("int64", symbol("n")), tensor("float32", 2))
    (type_,) = get_op("one_hot").result_types(OneHotAttrs(3 * symbol("n"), 0), types)
    assert type_ == tensor("float32", 3 * symbol("n"), symbol("n"))
    (type_,) = get_op("one_hot").result_types(OneHotAttrs(), (*types, tensor("int64")))
    assert type_ == tensor("float32", symbol("n"), UNKNOWN)


# operator, operands, attributes, message
REFUSED_BY_TYPE: list[tuple[str, list[Any], dict[str, Any], str]] = [
    ("Gather", [ramp(2, 3), np.array(0)], {"axis": 2}, "axis 2 is out of range for rank 2"),
    ("Gather", [ramp(2, 3), np.array(0.5)], {}, "the indices are float64, not integers"),
    ("GatherElements", [ramp(2, 3), np.array([0])], {}, "indices have rank 1, the data 2"),
    ("GatherElements", [ramp(2, 3), np.zeros((1, 4), int)], {}, "reach to 4 along axis 1"),
    ("GatherND", [ramp(2, 3), np.zeros((1, 3), int)], {}, "name 3 axes, but there are 2"),
    ("GatherND", [ramp(2, 3), np.zeros((3, 1), int)], {"batch_dims": 1}, "batch extents differ"),
    ("ScatterElements", [ramp(2), np.array([0]), ramp(2)], {}, r"float32\[1\] are wanted"),
    ("ScatterElements", [ramp(2), np.array([0]), ramp(1)], {"reduction": "avg"}, "'avg', not no"),
    ("ScatterND", [ramp(2, 3), np.array([[1]]), ramp(2, 1)], {}, r"float32\[1, 3\] are wanted"),
    ("ScatterND", [ramp(2), np.array([[1]]), ramp(1, dtype=int)], {}, "dtypes differ"),
    ("TensorScatter", [ramp(2, 3, 4), ramp(2, 1, 5)], {}, r"float32\[2, 1, 4\] are wanted"),
    ("TensorScatter", [ramp(2, 3, 4), ramp(2, 1, 4)], {"axis": 0}, "axis 0 is the batch"),
    ("TensorScatter", [ramp(2, 3, 4), ramp(2, 1, 4)], {"mode": "odd"}, "mode is 'odd'"),
    ("TensorScatter", [ramp(2, 3), ramp(2, 1), np.array([0])], {"axis": 1}, "write indices and"),
    ("OneHot", [np.array([0]), np.array(2), ramp(3)], {}, "not a pair"),
    ("OneHot", [np.array([0]), np.array(2), ramp(2)], {"axis": 2}, "axis 2 is out of range"),
]


@pytest.mark.parametrize(("op_type", "arrays", "attributes", "message"), REFUSED_BY_TYPE)
def test_refused_by_type(op_type: str, arrays: Any, attributes: Any, message: str) -> None:
    with pytest.raises(TypeRuleError, match=message):
        import_model(one_node(op_type, arrays, 24, **attributes))


FAR = "is out of range for axis"
REFUSED_WHEN_RUN: list[tuple[str, list[Any], dict[str, Any], str]] = [
    ("Gather", [ramp(2, 3), np.array([1, 3])], {"axis": 1}, f"index 3 {FAR} 1 of extent 3"),
    ("Gather", [ramp(2, 3), np.array([1, -3])], {}, f"index -3 {FAR} 0 of extent 2"),
    ("GatherElements", [ramp(2, 3), np.array([[2]])], {}, f"index 2 {FAR} 0 of extent 2"),
    ("GatherElements", [ramp(2, 3), np.zeros((1, 4), int)], {}, "reach to 4 along axis 1"),
    ("GatherND", [ramp(2, 3), np.array([[1, 3]])], {}, f"index 3 {FAR} 1 of extent 3"),
    ("ScatterElements", [ramp(2), np.array([2]), ramp(1)], {}, f"index 2 {FAR} 0 of extent 2"),
    ("ScatterElements", [ramp(2), np.array([1]), ramp(2)], {}, r"float32\[2\], but float32\[1\]"),
    ("ScatterND", [ramp(2), np.array([[-3]]), ramp(1)], {}, f"index -3 {FAR} 0 of extent 2"),
    ("ScatterND", [ramp(2, 3), np.array([[1]]), ramp(1, 1)], {}, r"but float32\[1, 3\]"),
    ("TensorScatter", [ramp(1, 3, 4), ramp(1, 2, 4), np.array([2])], {}, "do not fit into axis 1"),
    ("TensorScatter", [ramp(1, 3, 4), ramp(1, 2, 1)], {}, r"but float32\[1, 2, 4\]"),
    ("GatherElements", [ramp(2, 3), np.array([0])], {}, "indices have rank 1, the data 2"),
    ("GatherND", [ramp(2, 3), np.zeros((1, 3), int)], {}, "name 3 axes, but there are 2"),
    ("GatherND", [ramp(2, 3), np.zeros((1, 1), int)], {"batch_dims": 1}, "batch extents differ"),
    ("OneHot", [np.array([0]), np.array(-1), ramp(2)], {}, "the depth is -1"),
]


@pytest.mark.parametrize(("op_type", "arrays", "attributes", "message"), REFUSED_WHEN_RUN)
def test_refused_when_run(op_type: str, arrays: Any, attributes: Any, message: str) -> None:
    with pytest.raises(EvaluationError, match=message):
        by_graft(one_node(op_type, arrays, 24, "unranked", **attributes), arrays)


def test_work_of_movement() -> None:
    types = tensor("float32", 8, 3), tensor("int64", 5), tensor("float32", 5, 3)
    work = get_op("take").work(AxisAttrs(), types[:2], types[2:])
    assert (work.flops, work.bytes) == (0, 2 * 5 * 3 * 4)
    nd = get_op("scatter_nd").work(ScatterNdAttrs(), types, types[:1])
    assert (nd.flops, nd.bytes) == (15, 2 * 96 + 40 + 60)

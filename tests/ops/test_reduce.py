"""Reductions, positions of extremes and running totals."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.ops.every_form import agree, by_graft, one_node

from graft.base.dims import UNKNOWN, symbol
from graft.base.errors import EvaluationError, TypeRuleError
from graft.frontends.onnx.importer import import_model
from graft.ir.builder import Builder
from graft.ir.evaluate import evaluate
from graft.ir.types import TensorType, tensor
from graft.ops import get_op
from graft.ops.reduce import ReduceAttrs

REDUCTIONS = ("sum", "prod", "mean", "max", "min")
ONNX_REDUCTIONS = (
    *("ReduceSum", "ReduceMean", "ReduceMax", "ReduceMin", "ReduceProd", "ReduceL1", "ReduceL2"),
    *("ReduceLogSum", "ReduceLogSumExp", "ReduceSumSquare"),
)
INF, NAN = np.inf, np.nan


def few(low: int, high: int, *shape: int) -> Any:
    """Whole numbers of a small range, so that some are equal."""
    return np.random.default_rng(7).integers(low, high, shape)


def positive(*shape: int, dtype: Any = np.float32) -> Any:
    """Numbers of which every reduction makes sense."""
    return np.asarray(np.random.default_rng(7).random(shape) * 3 + 0.25).astype(dtype)


@pytest.mark.each_value
@pytest.mark.parametrize("op_type", ONNX_REDUCTIONS)
@pytest.mark.parametrize("keepdims", [0, 1])
@pytest.mark.parametrize("axes", [[0], [-1, 0], [2, 1], None])
def test_axes_as_attribute_and_as_operand(op_type: str, keepdims: int, axes: Any) -> None:
    x = positive(3, 1, 5)
    agree(op_type, [x], 12, shapes=("static", "symbolic"), keepdims=keepdims, **_given(axes))
    operand = None if axes is None else np.array(axes, np.int64)
    agree(op_type, [x, operand] if axes else [x], 18, keepdims=keepdims)


def _given(axes: Any) -> dict[str, Any]:
    return {} if axes is None else {"axes": axes}


@pytest.mark.parametrize("op_type", ONNX_REDUCTIONS)
def test_rank_0_and_attribute_axes_before_18(op_type: str) -> None:
    agree(op_type, [positive()], 18, keepdims=1)
    agree(op_type, [positive(2, 3)], 13 if op_type != "ReduceSum" else 11, axes=[-2])


NOTHING = np.array([], np.int64)
# what each reduction does to single elements
POINTWISE: dict[str, Any] = {
    "ReduceL1": np.abs,
    "ReduceL2": np.abs,
    "ReduceLogSum": np.log,
    "ReduceSumSquare": np.square,
}


@pytest.mark.parametrize("op_type", ONNX_REDUCTIONS)
def test_empty_axes_reduce_nothing_or_everything(op_type: str) -> None:
    x = positive(2, 3)
    alone = POINTWISE.get(op_type, lambda array: array)(x)
    agree(op_type, [x, NOTHING], 18, [alone], noop_with_empty_axes=1)
    agree(op_type, [x], 18, [alone], noop_with_empty_axes=1)
    everything = by_graft(one_node(op_type, [x], 18), [x])
    agree(op_type, [x, NOTHING], 18, everything, noop_with_empty_axes=0)


# Reductions of an empty set: ONNX of today says which value; the mean is undefined.
@pytest.mark.parametrize(
    ("op_type", "dtype", "value"),
    [
        ("ReduceSum", np.float32, 0),
        ("ReduceProd", np.int32, 1),
        ("ReduceMax", np.float16, -INF),
        ("ReduceMax", np.int8, -128),
        ("ReduceMax", np.bool_, False),
        ("ReduceMin", np.float32, INF),
        ("ReduceMin", np.uint64, 2**64 - 1),
        ("ReduceMin", np.bool_, True),
        ("ReduceMean", np.float32, NAN),
        ("ReduceMean", np.int64, 0),
        ("ReduceL1", np.float32, 0),
        ("ReduceL2", np.float64, 0),
        ("ReduceLogSum", np.float32, -INF),
        ("ReduceLogSumExp", np.float32, -INF),
        ("ReduceSumSquare", np.int32, 0),
    ],
)
def test_empty_sets(op_type: str, dtype: Any, value: Any) -> None:
    data = np.zeros((2, 0, 3), dtype)
    wanted = np.full((2, 1, 3), value, dtype)
    agree(op_type, [data, np.array([1])], 20, [wanted])
    nothing = np.zeros((0, 4), dtype)  # no set at all, so no value either
    agree(op_type, [nothing, np.array([1])], 20, [np.zeros((0,), dtype)], keepdims=0)


@pytest.mark.parametrize(
    ("op_type", "data", "wanted"),
    [
        ("ReduceMax", [1, NAN, -INF], NAN),
        ("ReduceMin", [1, INF, -INF], -INF),
        ("ReduceSum", [INF, -INF, 1], NAN),
        ("ReduceLogSumExp", [1000, 1000, -INF], 1000 + np.log(2)),
        ("ReduceLogSumExp", [-INF, -INF, -INF], -INF),
        ("ReduceLogSumExp", [INF, 0, -INF], INF),
        ("ReduceLogSumExp", [NAN, 0, INF], NAN),
        ("ReduceL2", [3e-20, 4e-20, 0], 0),  # the squares are less than any float32
    ],
)
@pytest.mark.parametrize("keepdims", [0, 1])
def test_special_numbers(op_type: str, data: Any, wanted: float, keepdims: int) -> None:
    x = np.array(data, np.float32)
    result = np.full((1,) * keepdims, wanted, np.float32)
    agree(op_type, [x], 18, [result], keepdims=keepdims)


@pytest.mark.parametrize(
    "dtype",
    [np.float64, np.float16, ml_dtypes.bfloat16, np.int32, np.uint64, np.int8, ml_dtypes.int4],
)
@pytest.mark.parametrize("name", REDUCTIONS)
def test_dtypes_keep_and_totals_do_not_drift(name: str, dtype: Any) -> None:
    exact = np.array([[1, 3, 1], [2, 1, 1]])
    result = get_op(name).evaluate(ReduceAttrs((1,)), exact.astype(dtype), None)
    wanted = {"sum": [5, 4], "prod": [3, 2], "max": [3, 2], "min": [1, 1]}
    mean = [1, 1] if np.dtype(dtype).name[:3] in ("int", "uin") else [5 / 3, 4 / 3]
    assert result.dtype == dtype
    assert result.tolist() == np.array(wanted.get(name, mean)).astype(dtype).tolist()


def test_sums_are_rounded_once() -> None:
    many = np.full((4097, 2), 0.1, np.float16)
    (total,) = by_graft(one_node("ReduceSum", [many, np.array([0])], 13), [many, np.array([0])])
    assert total.dtype == np.float16
    assert total.tolist() == [[float(np.float16(4097 * float(np.float16(0.1))))] * 2]
    assert get_op("sum").evaluate(ReduceAttrs(), np.array([120, 120], np.int8), None) == -16


def test_integer_means_truncate() -> None:
    data = np.array([[-3, -4], [3, 4], [-(2**63), -(2**63) + 3]])
    mean = get_op("mean").evaluate(ReduceAttrs((1,)), data[:2], None)
    assert mean.tolist() == [-3, 3]
    agree("ReduceMean", [data[:2].astype(np.int32)], 12, axes=[1])
    one = get_op("mean").evaluate(ReduceAttrs((0,)), np.array([-(2**63)]), None)
    assert one == -(2**63)


@pytest.mark.parametrize("op_type", ["ReduceL2", "ReduceLogSum", "ReduceLogSumExp"])
def test_roots_and_logarithms_of_integers_lose_their_fraction(op_type: str) -> None:
    x = np.array([[3, 4], [5, 30]], np.int64)
    formula: dict[str, Any] = {
        "ReduceL2": lambda row: np.sqrt(np.sum(row * row)),
        "ReduceLogSum": lambda row: np.log(np.sum(row)),
        "ReduceLogSumExp": lambda row: np.log(np.sum(np.exp(row.astype(np.float64)))),
    }
    wanted = np.array([formula[op_type](row) for row in x]).astype(np.int64)
    agree(op_type, [x, np.array([1])], 18, [wanted], keepdims=0)


@pytest.mark.parametrize("name", REDUCTIONS)
def test_type_rule_follows_symbols(name: str) -> None:
    n, m = symbol("n"), symbol("m")
    builder = Builder()
    x = builder.input("x", tensor("float32", n, 3, m))
    assert builder(name, x, axes=[-1]).type == tensor("float32", n, 3)
    assert builder(name, x, axes=[0, 2], keepdims=True).type == tensor("float32", 1, 3, 1)
    assert builder(name, x).type == tensor("float32")
    free = builder.input("free", TensorType(x.dtype, None))
    assert builder(name, free).type == tensor("float32")
    assert builder(name, free, axes=[1]).type.shape is None


@pytest.mark.parametrize(
    ("length", "keepdims", "noop", "shape"),
    [
        (1, False, True, (UNKNOWN, UNKNOWN)),
        (1, True, True, (UNKNOWN, 1, UNKNOWN)),
        (3, False, True, ()),
        (3, True, True, (1, 1, 1)),
        (0, True, False, (1, 1, 1)),
        (UNKNOWN, True, True, (UNKNOWN, 1, UNKNOWN)),
        (UNKNOWN, False, True, None),
    ],
)
def test_type_rule_of_axes_that_are_data(
    length: Any, keepdims: bool, noop: bool, shape: Any
) -> None:
    attrs = ReduceAttrs(None, keepdims, noop)
    types = (tensor("float32", 4, 1, symbol("n")), TensorType(tensor("int64").dtype, (length,)))
    assert get_op("sum").result_types(attrs, types) == (TensorType(types[0].dtype, shape),)


def test_shape_arithmetic_flows_through() -> None:
    n, m = symbol("n"), symbol("m")
    builder = Builder()
    shape = builder("shape_of", builder.input("x", tensor("float32", n, 3, m)))
    wanted = {"sum": n + m + 3, "prod": 3 * n * m}
    for name, dim in wanted.items():
        assert builder.knowledge.known(builder(name, shape)).tolist() == dim
        kept = builder(name, shape, axes=[0], keepdims=True)
        assert builder.knowledge.known(kept).tolist() == [dim]
    for name, text in (("max", "max(m, n, 3)"), ("min", "min(m, n, 3)")):
        assert str(builder.knowledge.known(builder(name, shape))) == text
    empty = builder("shape_of", builder.input("y", tensor("float32")))
    assert builder.knowledge.known(builder("prod", empty)) == 1


def test_symbolic_evaluation_agrees() -> None:
    builder = Builder()
    x = builder.input("x", tensor("float32", symbol("n"), 3, symbol("m")))
    count = builder("prod", builder("shape_of", x))
    graph = builder.build(builder("sum", x, axes=[0]), builder("max", x, keepdims=True), count)
    data = positive(4, 3, 2)
    total, largest, size = evaluate(graph, [data])
    np.testing.assert_allclose(total, data.sum(axis=0), rtol=1e-6)
    assert largest.tolist() == [[[data.max()]]]
    assert size == 24


@pytest.mark.parametrize("op_type", ["ArgMax", "ArgMin"])
@pytest.mark.parametrize("keepdims", [0, 1])
@pytest.mark.parametrize("last", [0, 1])
def test_positions_of_extremes(op_type: str, keepdims: int, last: int) -> None:
    x = few(0, 3, 3, 4, 5).astype(np.float32)
    for axis in (0, 1, -1):
        attributes = {"axis": axis, "keepdims": keepdims, "select_last_index": last}
        agree(op_type, [x], 13, **attributes)
        agree(op_type, [x.astype(np.int8)], 13, **attributes)
        wanted = by_graft(one_node(op_type, [x], 13, **attributes), [x])
        agree(op_type, [x.astype(ml_dtypes.bfloat16)], 13, wanted, **attributes)
    agree(op_type, [x], 7, keepdims=keepdims)


def test_positions_of_special_numbers() -> None:
    x = np.array([[1, NAN, NAN], [-INF, INF, INF]], np.float32)
    agree("ArgMax", [x], 13, [np.array([1, 1])], axis=1, keepdims=0)
    agree("ArgMin", [x], 13, [np.array([1, 0])], axis=1, keepdims=0)
    empty = np.zeros((2, 0), np.float32)
    with pytest.raises(EvaluationError, match="argmax along axis 1, which is empty"):
        by_graft(one_node("ArgMax", [empty], 13, axis=1), [empty])


@pytest.mark.each_value
@pytest.mark.parametrize("exclusive", [0, 1])
@pytest.mark.parametrize("reverse", [0, 1])
@pytest.mark.parametrize("shape", [(5,), (3, 1, 4), (2, 0)])
def test_running_totals(exclusive: int, reverse: int, shape: tuple[int, ...]) -> None:
    flags = {"exclusive": exclusive, "reverse": reverse}
    x = positive(*shape)
    for axis in range(-len(shape), len(shape)):
        operand = np.array(axis, np.int32)
        agree("CumSum", [x, operand], 14, **flags)
        agree("CumSum", [x.astype(np.int64), operand], 11, **flags)
        agree("CumProd", [x, operand], 26, [_running_products(x, axis, **flags)], **flags)


def _running_products(x: Any, axis: int, exclusive: int, reverse: int) -> Any:
    result = np.ones_like(x)
    extent = x.shape[axis]
    for i in range(extent):
        low, high = (i + exclusive, extent) if reverse else (0, i + 1 - exclusive)
        part = np.take(x, range(low, max(high, low)), axis).prod(axis=axis)
        np.moveaxis(result, axis, 0)[i] = part
    return result


def test_running_totals_of_narrow_floats() -> None:
    x = np.full(3000, 0.1, np.float16)
    (total,) = by_graft(one_node("CumSum", [x, np.array(0)], 14), [x, np.array(0)])
    wanted = np.cumsum(x.astype(np.float64)).astype(np.float16)
    assert total.tolist() == wanted.tolist()


@pytest.mark.parametrize("dtype", [np.float32, np.float16, ml_dtypes.bfloat16])
def test_hardmax(dtype: Any) -> None:
    x = few(0, 3, 2, 3, 4).astype(dtype)
    ranked = x.astype(np.float32)
    for axis in (0, 1, -1):
        wanted = np.zeros(x.shape, dtype)
        np.put_along_axis(wanted, ranked.argmax(axis, keepdims=True), 1, axis)
        agree("Hardmax", [x], 13, [wanted], shapes=("static", "symbolic"), axis=axis)
    if dtype is np.float32:
        for axis in (0, 1, 2, -1):
            agree("Hardmax", [x], 11, shapes=("static", "symbolic"), axis=axis)
    for shape in ((2, 0), (0, 2), (0, 0)):
        nothing = np.zeros(shape, dtype)
        agree("Hardmax", [nothing], 13, [nothing], shapes=("static", "symbolic"), axis=1)


@given(st.lists(st.integers(0, 3), max_size=4), st.data())
def test_sum_and_max_of_any_axes(shape: list[int], data: st.DataObject) -> None:
    rank = len(shape)
    axes = tuple(data.draw(st.sets(st.integers(0, rank - 1)))) if rank else ()
    keepdims = data.draw(st.booleans())
    x = few(-9, 9, *shape).astype(np.int32)
    attrs = ReduceAttrs(axes, keepdims)
    for name, neutral in (("sum", 0), ("max", -(2**31))):
        result = get_op(name).evaluate(attrs, x, None)
        (type_,) = get_op(name).result_types(attrs, (tensor("int32", *shape),))
        assert isinstance(type_, TensorType)
        assert result.shape == type_.shape
        for place in np.ndindex(*result.shape):
            full = list(place) if keepdims else _reinserted(place, axes, rank)
            where = tuple(slice(None) if i in axes else at for i, at in enumerate(full))
            items = np.asarray(x[where]).reshape(-1).tolist()
            assert result[place] == (sum(items) if name == "sum" else max([*items, neutral]))


def _reinserted(place: tuple[int, ...], axes: tuple[int, ...], rank: int) -> list[int]:
    rest = iter(place)
    return [0 if i in axes else next(rest) for i in range(rank)]


REFUSALS: list[tuple[str, list[Any], dict[str, Any], str]] = [
    ("ReduceSum", [positive(2, 3), np.array([2])], {}, "axis 2 is out of range for rank 2"),
    ("ReduceMax", [positive(2, 3), np.array([1, -1])], {}, "an axis is named twice"),
    ("ReduceSum", [positive(2), np.array([0, 0, 0])], {}, "named twice"),
    ("ReduceSum", [np.array([True])], {}, "cannot reduce bool elements"),
    ("ArgMax", [positive(2, 3)], {"axis": 2}, "axis 2 is out of range for rank 2"),
    ("ArgMin", [np.array(["a"], object)], {}, "cannot order string elements"),
    ("CumSum", [positive(2, 3), np.array(-3)], {}, "axis -3 is out of range for rank 2"),
    ("CumSum", [positive(2, 3), np.array([0, 1])], {}, "the axis is not one number"),
]


@pytest.mark.parametrize(("op_type", "arrays", "attributes", "message"), REFUSALS)
def test_refusals(op_type: str, arrays: Any, attributes: Any, message: str) -> None:
    model = one_node(op_type, arrays, 20, constants=True, **attributes)
    with pytest.raises(TypeRuleError, match=message):
        import_model(model)


@pytest.mark.parametrize(("axes", "message"), [([3], "axis 3 is out of"), ([0, 0], "duplicate")])
def test_wrong_axes_found_when_run(axes: list[int], message: str) -> None:
    arrays = [positive(2, 3, 4), np.array(axes)]
    with pytest.raises(EvaluationError, match=message):
        by_graft(one_node("ReduceSum", arrays, 13), arrays)


@pytest.mark.parametrize(
    ("axes", "message"),
    [(np.array([0, 0]), "2 axes of a rank-1 tensor"), (np.array([[0]]), "of rank 2, not 1")],
)
def test_axes_of_wrong_shape(axes: Any, message: str) -> None:
    with pytest.raises(TypeRuleError, match=message):
        import_model(one_node("ReduceSum", [positive(2), axes], 13))


def test_work_counts_what_is_read() -> None:
    data, result = tensor("float32", 8, 3), tensor("float32", 8)
    work = get_op("sum").work(ReduceAttrs((1,)), (data,), (result,))
    assert (work.macs, work.flops, work.bytes) == (0, 24, 4 * (24 + 8))

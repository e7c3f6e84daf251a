"""Pooling on awkward operands, against ONNX Runtime and against loops over windows."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from tests.ops.one_node import assert_same, by_graft, by_runtime, graph_of

from graft.base.dims import dim_min, symbol
from graft.base.dtypes import Array
from graft.base.errors import TypeRuleError, UserError
from graft.ir.attrs import make_attrs
from graft.ir.builder import Builder
from graft.ir.evaluate import evaluate
from graft.ir.types import TensorType, tensor
from graft.ops import get_op

RANDOM = np.random.default_rng(13)


def floats(*shape: int) -> Array:
    return RANDOM.standard_normal(shape).astype(np.float32)


def run(name: str, data: Array, **given: Any) -> Any:
    op = get_op(name)
    return op.evaluate(make_attrs(op.attrs, given), data)


# data, attributes that all pools take
WINDOWS: list[tuple[tuple[int, ...], dict[str, Any]]] = [
    ((2, 3, 11), {"kernel_shape": [3], "strides": [2], "pads": [1, 0]}),
    ((1, 2, 10), {"kernel_shape": [4], "strides": [3], "pads": [2, 3]}),
    ((2, 3, 7, 9), {"kernel_shape": [3, 2], "strides": [2, 3], "pads": [1, 0, 2, 1]}),
    ((1, 2, 6, 6), {"kernel_shape": [6, 6]}),
    ((1, 2, 5, 6), {"kernel_shape": [1, 1], "strides": [2, 2]}),
    (
        (1, 2, 4, 5, 6),
        {"kernel_shape": [2, 3, 2], "strides": [1, 2, 2], "pads": [1, 0, 1, 0, 2, 0]},
    ),
    ((2, 2, 7, 8), {"kernel_shape": [3, 4], "strides": [2, 3], "auto_pad": "SAME_UPPER"}),
    ((2, 2, 7, 8), {"kernel_shape": [3, 4], "strides": [2, 3], "auto_pad": "SAME_LOWER"}),
    ((2, 2, 7), {"kernel_shape": [3], "auto_pad": "SAME_LOWER"}),
    ((1, 2, 10), {"kernel_shape": [3], "strides": [2], "auto_pad": "VALID"}),
]
CEILED: list[tuple[tuple[int, ...], dict[str, Any]]] = [
    ((1, 2, 10), {"kernel_shape": [3], "strides": [4]}),
    ((1, 2, 10), {"kernel_shape": [3], "strides": [4], "auto_pad": "VALID"}),
    ((1, 1, 5), {"kernel_shape": [2], "strides": [2], "pads": [1, 1]}),
    ((1, 2, 6, 7), {"kernel_shape": [3, 3], "strides": [2, 3], "pads": [1, 1, 1, 1]}),
    ((1, 1, 2, 2), {"kernel_shape": [1, 2], "strides": [2, 2], "pads": [0, 1, 0, 1]}),
    ((2, 2, 7, 8), {"kernel_shape": [3, 2], "strides": [2, 3], "auto_pad": "SAME_UPPER"}),
]
DILATED: list[tuple[tuple[int, ...], dict[str, Any]]] = [
    ((1, 2, 11), {"kernel_shape": [3], "dilations": [3], "pads": [2, 1]}),
    ((1, 2, 8, 9), {"kernel_shape": [2, 3], "dilations": [3, 2], "strides": [2, 2]}),
]


def in_all_forms(op_type: str, data: Array, opset: int, **options: Any) -> Iterator[list[Array]]:
    """Results with static, symbolic and unknown shapes."""
    symbolic = ["n", "c", *"hwd"[: data.ndim - 2]]
    for shape in (data.shape, symbolic, None):
        yield by_graft(op_type, {"x": data}, opset, shapes={"x": shape}, **options)


@pytest.mark.parametrize(("shape", "attributes"), WINDOWS)
@pytest.mark.parametrize(
    ("op_type", "opset", "more"),
    [
        ("MaxPool", 7, {}),
        ("MaxPool", 12, {}),
        ("AveragePool", 7, {}),
        ("AveragePool", 7, {"count_include_pad": 1}),
        ("LpPool", 11, {"p": 1}),
        ("LpPool", 11, {"p": 3}),
    ],
)
def test_as_onnx_runtime(
    shape: tuple[int, ...],
    attributes: dict[str, Any],
    op_type: str,
    opset: int,
    more: dict[str, Any],
) -> None:
    data = floats(*shape)
    expected = by_runtime(op_type, {"x": data}, opset, **attributes, **more)
    for found in in_all_forms(op_type, data, opset, **attributes, **more):
        assert_same(found, expected, 1e-5)


@pytest.mark.parametrize(("shape", "attributes"), CEILED)
@pytest.mark.parametrize(
    ("op_type", "opset", "more"),
    [
        ("MaxPool", 12, {}),
        ("AveragePool", 19, {}),
        ("AveragePool", 19, {"count_include_pad": 1}),
        ("LpPool", 18, {}),
    ],
)
def test_rounding_up_as_onnx_runtime(
    shape: tuple[int, ...],
    attributes: dict[str, Any],
    op_type: str,
    opset: int,
    more: dict[str, Any],
) -> None:
    data, more = floats(*shape), {**more, "ceil_mode": 1}
    expected = by_runtime(op_type, {"x": data}, opset, **attributes, **more)
    for found in in_all_forms(op_type, data, opset, **attributes, **more):
        assert_same(found, expected, 1e-5)


@pytest.mark.parametrize(("shape", "attributes"), DILATED)
@pytest.mark.parametrize("ceil_mode", [0, 1])
@pytest.mark.parametrize(
    ("op_type", "opset", "more"),
    [
        ("MaxPool", 12, {}),
        ("AveragePool", 19, {}),
        ("AveragePool", 19, {"count_include_pad": 1}),
        ("LpPool", 18, {"p": 2}),
    ],
)
def test_dilation_as_onnx_runtime(
    shape: tuple[int, ...],
    attributes: dict[str, Any],
    ceil_mode: int,
    op_type: str,
    opset: int,
    more: dict[str, Any],
) -> None:
    data, more = floats(*shape), {**more, "ceil_mode": ceil_mode}
    expected = by_runtime(op_type, {"x": data}, opset, **attributes, **more)
    for found in in_all_forms(op_type, data, opset, **attributes, **more):
        assert_same(found, expected, 1e-5)


@pytest.mark.parametrize(("shape", "attributes"), [*WINDOWS, *DILATED])
@pytest.mark.parametrize("storage_order", [0, 1])
def test_indices_as_onnx_runtime(
    shape: tuple[int, ...], attributes: dict[str, Any], storage_order: int
) -> None:
    """Few different values, so that many are largest at once: the first wins."""
    data = RANDOM.integers(0, 4, shape).astype(np.float32)
    options = {**attributes, "storage_order": storage_order, "outputs": 2}
    expected = by_runtime("MaxPool", {"x": data}, 12, **options)
    shapes: list[Any] = [shape, ["n", "c", *"hwd"[: len(shape) - 2]]]
    for declared in shapes:
        found = by_graft("MaxPool", {"x": data}, 12, shapes={"x": declared}, **options)
        assert_same(found, expected, 0)


@pytest.mark.parametrize("dtype", [np.int8, np.uint8])
@pytest.mark.parametrize("outputs", [1, 2])
def test_integers(dtype: Any, outputs: int) -> None:
    data = RANDOM.integers(np.iinfo(dtype).min, np.iinfo(dtype).max + 1, (2, 3, 7, 7)).astype(dtype)
    data[0, 0, :2, :2] = np.iinfo(dtype).min  # no more than padding, yet it has to win
    options = {"kernel_shape": [2, 2], "pads": [1, 1, 0, 0], "outputs": outputs}
    expected = by_runtime("MaxPool", {"x": data}, 12, **options)
    assert_same(by_graft("MaxPool", {"x": data}, 12, **options), expected, 0)


@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16, np.float64])
def test_other_floats(dtype: Any) -> None:
    """Sums that a narrow float would overflow or round on the way."""
    data = (np.abs(floats(1, 2, 9, 9)) * 200 + 100).astype(dtype)
    wide = data.astype(np.float64)
    windows = np.lib.stride_tricks.sliding_window_view(wide, (3, 3), axis=(2, 3))
    expected = {
        "nn.max_pool2d": windows.max(axis=(4, 5)),
        "nn.avg_pool2d": windows.mean(axis=(4, 5)),
        "nn.lp_pool2d": np.sqrt((windows**2).sum(axis=(4, 5))),
    }
    for name, values in expected.items():
        found = run(name, data, pool_size=(3, 3))
        assert found.dtype == dtype
        rounding = float(ml_dtypes.finfo(dtype).eps)
        np.testing.assert_allclose(found.astype(np.float64), values, rtol=rounding)
    values, _ = run("nn.max_pool2d_with_indices", data, pool_size=(3, 3))
    assert np.array_equal(values, expected["nn.max_pool2d"].astype(dtype))


def test_nan_and_infinity() -> None:
    data = np.array([[[1, np.nan, 2, -np.inf, -np.inf, np.inf, 3, np.nan, np.nan]]], np.float32)
    expected = [[[np.nan, np.nan, 2, -np.inf, np.inf, np.inf, np.nan, np.nan]]]
    assert_same([run("nn.max_pool1d", data, pool_size=(2,))], [np.array(expected, "f")], 0)
    values, indices = run("nn.max_pool1d_with_indices", data, pool_size=(2,))
    assert_same([values], [np.array(expected, "f")], 0)
    assert indices.tolist() == [[[1, 1, 2, 3, 5, 5, 7, 7]]]


def test_a_window_of_padding_alone() -> None:
    """It holds no largest element, and an average of nothing is no number."""
    data = np.ones((1, 1, 1), np.float32)
    given: dict[str, Any] = {"pool_size": (2,), "dilation": (3,), "padding": (2, 2)}
    values, indices = run("nn.max_pool1d_with_indices", data, **given)
    assert values.tolist() == [[[-np.inf, -np.inf]]]
    assert indices.tolist() == [[[-1, -1]]]
    assert run("nn.max_pool1d", data, **given).tolist() == [[[-np.inf, -np.inf]]]
    with np.errstate(invalid="ignore"):
        assert np.isnan(run("nn.avg_pool1d", data, **given)).all()
    assert run("nn.avg_pool1d", data, count_include_pad=True, **given).tolist() == [[[0, 0]]]


@pytest.mark.parametrize("name", ["max", "avg", "lp"])
@pytest.mark.parametrize(
    ("shape", "expected"),
    [((0, 2, 4, 4), (0, 2, 3, 3)), ((1, 0, 4, 4), (1, 0, 3, 3)), ((1, 2, 1, 4), (1, 2, 0, 3))],
)
def test_nothing_to_pool(name: str, shape: tuple[int, ...], expected: tuple[int, ...]) -> None:
    builder = Builder()
    x = builder.input("x", tensor("float32", *shape))
    graph = builder.build(builder(f"nn.{name}_pool2d", x, pool_size=(2, 2)))
    assert graph.outputs[0].type == tensor("float32", *expected)
    assert evaluate(graph, [np.ones(shape, np.float32)])[0].shape == expected
    values, indices = run("nn.max_pool2d_with_indices", np.ones(shape, "f"), pool_size=(2, 2))
    assert values.shape == indices.shape == expected


def test_results_are_no_views_of_the_data() -> None:
    data = floats(1, 1, 3)
    result = run("nn.max_pool1d", data, pool_size=(1,))
    result[:] = 9
    assert (data != 9).all()


@pytest.mark.parametrize(
    ("pads", "ceil_mode", "expected"),
    [
        ((1, 1), False, (symbol("n") - 1) // 2 + 1),
        ((0, 0), True, (symbol("n") - 2) // 2 + 1),
        ((0, 2), True, dim_min((symbol("n") + 1) // 2, symbol("n") // 2 + 1)),
    ],
)
def test_symbolic_extents(pads: tuple[int, int], ceil_mode: bool, expected: Any) -> None:
    builder = Builder()
    x = builder.input("x", tensor("float32", 1, 1, symbol("n")))
    given = {"pool_size": (3,), "strides": (2,), "padding": pads, "ceil_mode": ceil_mode}
    y = builder("nn.max_pool1d", x, **given)
    assert y.type == tensor("float32", 1, 1, expected)
    graph = builder.build(y)
    for extent in (3, 4, 7, 8):
        options = {"kernel_shape": [3], "strides": [2], "pads": pads, "ceil_mode": int(ceil_mode)}
        data = floats(1, 1, extent)
        assert_same(evaluate(graph, [data]), by_runtime("MaxPool", {"x": data}, 12, **options), 0)


@pytest.mark.parametrize("shape", [(2, 3, 5), (2, 3, 4, 5), (2, 3, 2, 3, 4), (1, 2, 2, 1, 3, 2)])
@pytest.mark.parametrize(
    ("op_type", "attributes", "oracle"),
    [
        ("GlobalAveragePool", {}, lambda x: x.mean(axis=2)),
        ("GlobalMaxPool", {}, lambda x: x.max(axis=2)),
        ("GlobalLpPool", {}, lambda x: np.sqrt((x**2).sum(axis=2))),
        ("GlobalLpPool", {"p": 3}, lambda x: (np.abs(x) ** 3).sum(axis=2) ** (1 / 3)),
    ],
)
def test_global_pools(
    shape: tuple[int, ...], op_type: str, attributes: dict[str, Any], oracle: Any
) -> None:
    data = floats(*shape)
    flat = oracle(data.reshape(*shape[:2], -1).astype(np.float64))
    expected = flat.reshape(*shape[:2], *(1,) * (len(shape) - 2)).astype(np.float32)
    for declared in (shape, ["n", "c", *"hwde"[: len(shape) - 2]]):
        found = by_graft(op_type, {"x": data}, 7, shapes={"x": declared}, **attributes)
        assert_same(found, [expected], 1e-5)


def test_global_pools_without_spatial_axes() -> None:
    data = floats(2, 3)
    for op_type, expected in (
        ("GlobalAveragePool", data),
        ("GlobalMaxPool", data),
        ("GlobalLpPool", np.abs(data)),
    ):
        assert_same(by_graft(op_type, {"x": data}, 22), [expected], 0)


def test_global_norm_of_a_narrow_float_does_not_overflow() -> None:
    data = np.full((1, 1, 4), 300, np.float16)
    assert by_graft("GlobalLpPool", {"x": data}, 22)[0].tolist() == [[[600]]]


@pytest.mark.parametrize(
    ("dtype", "shape", "name", "given", "message"),
    [
        (
            "float32",
            (1, 2, 5),
            "nn.max_pool2d",
            {"pool_size": (2, 2)},
            "the data has rank 3, not 4",
        ),
        ("float32", (1, 2, 5), "nn.max_pool1d", {}, "pool_size has not 1 entries"),
        ("float32", (1, 2, 5), "nn.max_pool1d", {"pool_size": (0,)}, r"the window \[0\] is empty"),
        ("bool", (1, 2, 5), "nn.max_pool1d", {"pool_size": (2,)}, "wants a real operand, not bool"),
        ("int8", (1, 2, 5), "nn.avg_pool1d", {"pool_size": (2,)}, "wants a floating-point operand"),
        ("float32", (1, 2, 5), "nn.lp_pool1d", {"pool_size": (2,), "p": 0}, "p is 0"),
        (
            "float32",
            (1, 2, 5),
            "nn.avg_pool1d",
            {"pool_size": (9,)},
            "a window that spans 9 does not",
        ),
    ],
)
def test_refusals(
    dtype: str, shape: tuple[int, ...], name: str, given: dict[str, Any], message: str
) -> None:
    builder = Builder()
    with pytest.raises(TypeRuleError, match=message):
        builder(name, builder.input("x", tensor(dtype, *shape)), **given)


@pytest.mark.parametrize(
    ("op_type", "shape", "attributes", "message"),
    [
        ("MaxPool", (1, 2), {"kernel_shape": [1]}, "MaxPool has 0 spatial axes; 1 to 3"),
        ("MaxPool", (1, 1, 2, 2, 2, 2), {"kernel_shape": [1] * 4}, "MaxPool has 4 spatial axes"),
        ("AveragePool", (1, 1, 5), {"kernel_shape": [2, 2]}, "kernel_shape has 2 entries, not 1"),
        ("LpPool", (1, 1, 5), {}, "LpPool lacks the attribute 'kernel_shape'"),
    ],
)
def test_models_that_break_the_rules(
    op_type: str, shape: tuple[int, ...], attributes: dict[str, Any], message: str
) -> None:
    with pytest.raises(UserError, match=message):
        graph_of(op_type, {"x": floats(*shape)}, 18, **attributes)


def test_indices_want_extents_for_automatic_padding() -> None:
    options: dict[str, Any] = {"kernel_shape": [3], "strides": [2], "outputs": 2}
    with pytest.raises(UserError, match="MaxPool with indices and auto_pad wants to know"):
        graph_of("MaxPool", {"x": floats(1, 1, 5)}, 12, shapes={"x": None},
                 auto_pad="SAME_UPPER", **options)  # fmt: skip


def test_unknown_rank_and_work() -> None:
    op = get_op("nn.max_pool2d")
    attrs = make_attrs(op.attrs, {"pool_size": (3, 2)})
    (found,) = op.result_types(attrs, (TensorType(tensor("int8").dtype, None),))
    assert found.rank == 4  # type: ignore[union-attr]
    ins, outs = [tensor("float32", 1, 2, 8, 8)], [tensor("float32", 1, 2, 6, 7)]
    work = op.work(attrs, ins, outs)
    assert (work.macs, work.flops, work.bytes) == (0, 2 * 42 * 6, 4 * (128 + 84))

"""Shapes, axes, bounds and counts that are operands: native code, whatever their numbers are."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from tests.backends.host.flows import check_flow

import graft
from graft.base.dims import symbol
from graft.base.dtypes import Array, DType
from graft.base.errors import GraftError
from graft.ir.builder import Builder
from graft.ir.evaluate import evaluate
from graft.ir.graph import Graph
from graft.ir.types import TensorType, tensor

FAR = 2**62


def graph_of(
    op: str, data: Array, *operands: Array | None, outputs: int = 1, **attrs: Any
) -> tuple[Graph, list[Array]]:
    """One node whose operands are all inputs, and what to feed it."""
    builder, feeds = Builder(), []
    given = []
    for number, array in enumerate((data, *operands)):
        if array is None:
            given.append(None)
            continue
        type_ = TensorType(DType(str(array.dtype)), array.shape)
        given.append(builder.input(f"x{number}", type_))
        feeds.append(array)
    results = builder.call(op, *given, **attrs)
    return builder.build(*results[:outputs]), feeds


def check(
    op: str,
    data: Array,
    *operands: Array | None,
    outputs: int = 1,
    tolerance: float = 1e-6,
    **attrs: Any,
) -> None:
    """Strictly native, with the evaluator's results."""
    graph, feeds = graph_of(op, data, *operands, outputs=outputs, **attrs)
    wanted = evaluate(graph, feeds)
    names = [value.name for value in graph.inputs]
    module = graft.compile(graph, strict=True)
    # Type rules may be asked, but nothing is computed on the evaluator.
    assert not list(module.program.evaluated)
    found = module.run(None, dict(zip(names, feeds, strict=True)))
    for mine, right in zip(found, wanted, strict=True):
        assert mine.dtype == right.dtype
        assert mine.shape == right.shape
        np.testing.assert_allclose(
            mine.astype(np.float64), right.astype(np.float64), tolerance, tolerance
        )


@pytest.mark.each_value
@pytest.mark.parametrize("bins", [0, 1, 8, 80])
@pytest.mark.parametrize("dtype", ["float32", "float64", "float16", "bfloat16", "int32"])
def test_mel_filters(bins: int, dtype: str) -> None:
    for length, lower, upper in ((64, 0.0, 4000.0), (401, 20.5, 3800.0), (1, 0.0, 1.0)):
        numbers = (np.array(number) for number in (bins, length, 8192))
        edges = np.array(lower, np.float32), np.array([upper], np.float64)
        check("mel_weight_matrix", *numbers, *edges, dtype=dtype)


def test_mel_filters_of_one_program() -> None:
    """Bins, lengths, rates and edges are numbers of a run; nothing is compiled for them."""
    builder = Builder()
    given = [builder.input(name, tensor("int64")) for name in ("bins", "length", "rate")]
    given += [builder.input(name, tensor("float32")) for name in ("lower", "upper")]
    graph = builder.build(builder("mel_weight_matrix", *given))
    random = np.random.default_rng(4)
    runs = []
    for _ in range(40):
        rate = int(random.choice([8000, 16000, 22050, 44100]))
        whole = random.integers(1, 100), random.integers(2, 600), rate
        hertz = random.choice([0, 20, 64]), random.uniform(100, rate / 2)
        runs.append([*(np.array(n) for n in whole), *(np.array(h, np.float32) for h in hertz)])
    check_flow(graph, *runs, tolerance=1e-6)


def ints(*values: int) -> Array:
    return np.array(values, np.int64)


def numbers(*shape: int, dtype: str = "float32") -> Array:
    random = np.random.default_rng(shape)
    return (random.standard_normal(shape) * 5).astype(DType(dtype).numpy)


@pytest.mark.each_value
@pytest.mark.parametrize("op", ["sum", "mean", "max", "min", "prod"])
@pytest.mark.parametrize("axes", [(0,), (-1,), (1, 2), (-3, 2), (0, 1, 2), ()])
@pytest.mark.parametrize("keepdims", [True, False])
def test_reductions(op: str, axes: tuple[int, ...], keepdims: bool) -> None:
    check(op, numbers(3, 5, 4), ints(*axes), keepdims=keepdims)


@pytest.mark.parametrize("dtype", ["int32", "uint8", "bool", "float16", "float64"])
def test_reductions_of_other_elements(dtype: str) -> None:
    data = np.abs(numbers(3, 4, 2)).astype(DType(dtype).numpy)
    check("max", data, ints(1))


def test_reductions_with_nan_and_without_elements() -> None:
    data = numbers(3, 4)
    data[1, 2] = np.nan
    check("max", data, ints(1))
    check("sum", np.zeros((2, 0, 3), np.float32), ints(1), keepdims=True)


def test_one_module_takes_other_axes_each_time() -> None:
    graph, _ = graph_of("sum", numbers(3, 4, 5), ints(0))
    data = numbers(3, 4, 5)
    check_flow(graph, *([data, ints(axis)] for axis in (0, 1, 2, -1, 0)), tolerance=1e-6)


SLICES: list[tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]]] = [
    ((1,), (4,), (1,)),
    ((-3,), (FAR,), (2,)),
    ((FAR,), (-FAR,), (-1,)),
    ((-FAR,), (3,), (1,)),
    ((-1,), (0,), (-2,)),
    ((4,), (2,), (1,)),
    ((-FAR,), (-FAR,), (-1,)),
    ((99,), (-99,), (-3,)),
]


@pytest.mark.parametrize(("begin", "end", "strides"), SLICES)
def test_slices(begin: tuple[int, ...], end: tuple[int, ...], strides: tuple[int, ...]) -> None:
    for axis in (0, -1):
        check("strided_slice", numbers(5, 6), ints(*begin), ints(*end), ints(axis), ints(*strides))
    check("strided_slice", numbers(5, 6), ints(*begin), ints(*end), None, ints(*strides))


@pytest.mark.each_value
@pytest.mark.parametrize("mode", ["constant", "edge", "reflect", "wrap"])
@pytest.mark.parametrize("widths", [(0, 2, 3, 1), (-1, 0, 0, -2), (4, -1, -2, 3)])
def test_pads(mode: str, widths: tuple[int, ...]) -> None:
    fill = np.array(7.5, np.float32) if mode == "constant" else None
    check("nn.pad", numbers(5, 6), fill, ints(*widths), mode=mode)


def test_pads_of_axes_that_are_data_and_of_nothing() -> None:
    check("nn.pad", numbers(3, 4), None, ints(1, 2), ints(-1))
    check("nn.pad", np.zeros((0, 2), np.float32), None, ints(2, 0, 1, 0))


@pytest.mark.each_value
@pytest.mark.parametrize("axis", [0, 1, -1])
@pytest.mark.parametrize("op", ["cumsum", "cumprod"])
@pytest.mark.parametrize("dtype", ["float32", "int32", "float16"])
def test_running_totals(op: str, axis: int, dtype: str) -> None:
    data = np.round(numbers(3, 7) / 4).astype(DType(dtype).numpy)
    for exclusive in (True, False):
        for reverse in (True, False):
            check(op, data, np.array(axis), exclusive=exclusive, reverse=reverse)


def test_long_running_totals_are_exact() -> None:
    builder = Builder()
    data = builder.input("x", tensor("float32", 3, 5000))
    graph = builder.build(builder("cumsum", data, axis=1))
    given = np.random.default_rng(0).random((3, 5000), np.float32)
    (found,) = graft.compile(graph, strict=True).run(None, {"x": given})
    np.testing.assert_allclose(found, np.cumsum(given.astype(np.float64), 1), 1e-6)


@pytest.mark.each_value
@pytest.mark.parametrize("is_symbolic", [False, True])
@pytest.mark.parametrize("dtype", ["float32", "float64", "int32", "float16"])
@pytest.mark.parametrize("shape", [(3, 100, 37), (2, 70, 16), (100,), (5, 3, 1), (0, 70, 3)])
def test_running_totals_of_lines_side_by_side(
    shape: tuple[int, ...], dtype: str, is_symbolic: bool
) -> None:
    dims = [symbol(name) for name in "abc"[: len(shape)]] if is_symbolic else shape
    given = np.round(np.random.default_rng(1).normal(size=shape) * 4).astype(dtype)
    for axis in range(len(shape)):
        for flags in (dict[str, bool](), {"exclusive": True}, {"reverse": True}):
            builder = Builder()
            data = builder.input("x", tensor(dtype, *dims))
            graph = builder.build(builder("cumsum", data, axis=axis, **flags))
            (found,) = graft.compile(graph, strict=True).run(None, {"x": given})
            np.testing.assert_array_equal(found, evaluate(graph, [given])[0])


@pytest.mark.parametrize("shape", [(4, 6), (-1, 3), (2, -1, 2), (24,)])
def test_reshapes(shape: tuple[int, ...]) -> None:
    check("reshape", numbers(2, 3, 4), ints(*shape))


def test_views_by_axes() -> None:
    check("squeeze", numbers(1, 3, 1), ints(-1))
    check("expand_dims", numbers(2, 3), ints(-1, 0))


def test_sizes_that_operands_tell() -> None:
    check("tile", numbers(2, 3), ints(3, 2))
    check("full", np.array(3, np.int32), ints(2, 0, 3))
    check("full", np.array(3, np.int32), ints(2, 3))
    check("split", numbers(7, 2), ints(3, 0, 4), outputs=3)
    check("topk", numbers(3, 5), ints(2), outputs=2, axis=1)
    check("one_hot", ints(0, -1, 9), np.array([2, 5], np.float32), np.array(4))


@pytest.mark.parametrize("numbers_", [(1.0, 5.0, 0.75), (5.0, 1.0, -2.0), (1.0, 1.0, 1.0)])
def test_ranges(numbers_: tuple[float, ...]) -> None:
    values = [np.array(value, np.float32) for value in numbers_]
    check("arange", *values, dtype=DType.FLOAT32)
    check("arange", *(value.astype(np.int64) for value in values[:2]), np.array(2))


def test_counts_that_are_too_large_are_refused() -> None:
    graph, _ = graph_of("topk", numbers(3, 5), ints(2), outputs=2, axis=1)
    module = graft.compile(graph, strict=True)
    with pytest.raises(GraftError, match="9"):
        module.run(None, {"x0": numbers(3, 5), "x1": ints(9)})


@pytest.mark.parametrize("padding", [(0, 0, 0, 0), (1, 0, 2, 1)])
def test_columns_of_windows(padding: tuple[int, ...]) -> None:
    """A condition on data decides which elements add up, another for every lane of a vector."""
    blocks = {(0, 0, 0, 0): 16, (1, 0, 2, 1): 35}[padding]
    attrs = {"padding": padding, "strides": (1, 1)}
    check("col2im", numbers(2, 12, blocks), ints(5, 6), ints(2, 3), **attrs)


# Positions are computed in float32 here and weights are multiplied axis by axis.
RESIZED = 1e-5
RESIZES: list[dict[str, Any]] = [
    {"method": "nearest_neighbor"},
    {"method": "linear"},
    {"method": "cubic", "coordinate_transformation_mode": "align_corners"},
    {"method": "linear", "coordinate_transformation_mode": "asymmetric"},
]


@pytest.mark.parametrize("attrs", RESIZES, ids=str)
def test_resizing(attrs: dict[str, Any]) -> None:
    scales = np.array([1, 1, 2.5, 0.6], np.float32)
    check("resize", numbers(1, 2, 4, 7), None, scales, tolerance=RESIZED, **attrs)
    check("resize", numbers(1, 2, 4, 7), None, None, ints(1, 2, 3, 9), tolerance=RESIZED, **attrs)


@pytest.mark.parametrize("policy", ["not_larger", "not_smaller"])
def test_resizing_that_keeps_the_aspect_ratio(policy: str) -> None:
    attrs = {"keep_aspect_ratio_policy": policy, "axes": (2, 3)}
    for sizes in (ints(7, 8), ints(3, 20)):
        check("resize", numbers(1, 1, 2, 3), None, None, sizes, tolerance=RESIZED, **attrs)


def test_resizing_of_a_region() -> None:
    attrs = {"method": "linear", "coordinate_transformation_mode": "tf_crop_and_resize"}
    roi = np.array([0, 0, 0.4, 0.6, 1, 1, 0.8, 1.3], np.float32)
    sizes = ints(1, 1, 3, 4)
    check("resize", numbers(1, 1, 6, 5), roi, None, sizes, tolerance=RESIZED, **attrs)


def test_what_follows_knows_the_sizes() -> None:
    builder = Builder()
    data = builder.input("x", TensorType(DType.FLOAT32, (symbol("n"), 4)))
    bounds = [builder.input(name, tensor("int64", 1)) for name in ("begin", "end")]
    part = builder("strided_slice", data, *bounds)
    graph = builder.build(builder("sum", builder("exp", part), axes=[0]))
    runs = [[numbers(6, 4), ints(1), ints(5)], [numbers(3, 4), ints(0), ints(99)]]
    check_flow(graph, *runs, tolerance=1e-5)
    assert graft.compile(graph, strict=True).placement is not None


BOUNDS = [([], [], []), ([1], [3], [1]), ([-2], [FAR], [-1]), ([1, 0], [4, 2], [2, 1])]


@pytest.mark.parametrize("with_strides", [False, True])
def test_slices_by_an_unknown_number_of_bounds(with_strides: bool) -> None:
    """Exporters cut bounds out of lists, with lengths that are data."""
    types = [tensor("int64", symbol(name)) for name in ("b", "e", "s")]
    builder = Builder()
    data = builder.input("data", tensor("float32", 5, 3))
    begin, end, strides = (builder.input(f"x{i}", type_) for i, type_ in enumerate(types))
    operands = [begin, end, None, strides] if with_strides else [begin, end]
    graph = builder.build(builder("strided_slice", data, *operands))
    module = graft.compile(graph, strict=True)
    array = np.arange(15, dtype=np.float32).reshape(5, 3)
    for lists in BOUNDS:
        bounds = [np.array(one, np.int64) for one in lists]
        feeds = {"data": array, **{f"x{i}": one for i, one in enumerate(bounds)}}
        (expected,) = evaluate(graph, list(feeds.values()))
        (found,) = module.run(None, feeds)
        np.testing.assert_array_equal(found, expected)
    for counts in ((1, 2, 1), (3, 3, 3)):
        wrong = {f"x{i}": np.ones(count, np.int64) for i, count in enumerate(counts)}
        with pytest.raises(GraftError):
            module.run(None, {"data": array, **wrong})


def test_identity_matrices_of_symbolic_extents() -> None:
    """The node that a group is built around may have no operands."""
    n, builder = symbol("n"), Builder()
    data = builder.input("data", tensor("float32", n, n))
    total = builder("add", data, builder("eye", shape=(n, n), dtype="float32"))
    graph = builder.build(total, builder("sum", total, axes=(1,)))
    module = graft.compile(graph, strict=True)
    for extent in (3, 1, 0):
        array = numbers(extent, extent)
        for found, right in zip(
            module.run(None, {"data": array}), evaluate(graph, [array]), strict=True
        ):
            np.testing.assert_allclose(found, right, rtol=1e-5, atol=1e-6)

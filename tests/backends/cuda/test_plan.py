"""Plans of regions mean what their graphs mean, in every precision."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
from tests.backends.cuda.cases import Case, Cases
from tests.backends.cuda.simulated import run_simulated

from graft.backends.cuda.operands import product_of, shape_of
from graft.backends.cuda.plan import Options, plan_region
from graft.base.dtypes import DType
from graft.byoc.region import for_backend
from graft.ir.builder import Builder
from graft.ir.evaluate import run_graph
from graft.ir.types import TensorType

OPTIONS = {
    "float32": Options(),
    "float16": Options(DType.FLOAT16),
    "bfloat16": Options(DType.BFLOAT16),
    "strict": Options(uses_tensor_cores=False),
}
TOLERANCE = {"float32": 5e-3, "float16": 5e-3, "bfloat16": 4e-2, "strict": 1e-5}


@pytest.mark.each_value
@pytest.mark.parametrize("precision", OPTIONS)
@pytest.mark.parametrize("case", list(Cases(small=True).all()), ids=lambda case: case[0])
def test_small_regions(case: Case, precision: str) -> None:
    name, graph = case
    if precision == "strict" and name == "heads":
        pytest.skip("the interpreter takes a minute for it")
    random = np.random.default_rng(1)
    shapes = [shape_of(value) for value in graph.inputs]
    inputs = [random.standard_normal(shape).astype(np.float32) for shape in shapes]
    (expected,) = (np.asarray(one) for one in run_graph(graph, inputs))
    (result,) = run_simulated(graph, inputs, OPTIONS[precision])
    assert np.isfinite(result).all()
    assert np.abs(result - expected).max() <= TOLERANCE[precision] * np.abs(expected).max()


@pytest.mark.parametrize("precision", ["float16", "bfloat16"])
def test_scores_of_attention_do_not_overflow(precision: str) -> None:
    builder = Builder("region")
    heads = [builder.input(name, TensorType(DType.FLOAT32, (1, 2, 3, 4))) for name in "qkv"]
    graph = builder.build(builder("nn.attention", *heads, scale=1.0))
    data = np.random.default_rng(2).uniform(190, 200, (3, 1, 2, 3, 4)).astype(np.float32)
    data = data.astype(OPTIONS[precision].dtype.numpy).astype(np.float32)
    (expected,) = run_graph(graph, list(data))
    (result,) = run_simulated(graph, list(data), OPTIONS[precision])
    np.testing.assert_allclose(result, expected, rtol=TOLERANCE[precision])


def test_reshapes_of_rows_are_no_launches() -> None:
    builder = Builder("region")
    x = builder.input("x", TensorType(DType.FLOAT32, (1, 4, 6)))
    made = builder("nn.relu", builder("reshape", builder("nn.relu", x), shape=(4, 6)))
    plan = plan_region(for_backend(builder.build(made)), Options())
    assert [launch.label for launch in plan.launches] == ["nn.relu+reshape+nn.relu"]


def test_epilogues_join_products() -> None:
    builder = Builder("region")
    x = builder.input("x", TensorType(DType.FLOAT32, (1, 16, 8, 8)))
    weight = builder.constant(np.ones((16, 16, 3, 3), np.float32))
    first = builder("nn.relu", builder("nn.conv2d", x, weight, padding=(1, 1, 1, 1)))
    second = builder("add", builder("nn.conv2d", first, weight, padding=(1, 1, 1, 1)), first)
    plan = plan_region(for_backend(builder.build(builder("nn.relu", second))), Options())
    labels = [launch.label for launch in plan.launches]
    assert labels == ["copy", "nn.conv2d+nn.relu", "nn.conv2d+add+nn.relu", "copy"]


def test_heads_of_attention_are_read_and_written_where_they_lie() -> None:
    (graph,) = (graph for name, graph in Cases(small=True).all() if name == "heads")
    plan = plan_region(for_backend(graph), Options(DType.FLOAT16))
    labels = [launch.label for launch in plan.launches]
    assert labels == ["copy", "nn.dense", "nn.attention", "nn.dense+add"]


def test_branches_are_written_into_their_concatenation() -> None:
    (graph,) = (graph for name, graph in Cases(small=True).all() if name == "branches")
    plan = plan_region(for_backend(graph), Options())
    labels = [launch.label for launch in plan.launches]
    assert labels == ["copy", *["nn.conv2d+nn.relu"] * 3, "nn.conv2d", "copy"]
    assert len({launch.buffers[-1] for launch in plan.launches[1:4]}) == 1


def test_equal_layers_share_code_and_weights() -> None:
    builder = Builder("region")
    value = builder.input("x", TensorType(DType.FLOAT32, (8, 64)))
    weight = builder.constant(np.ones((64, 64), np.float32))
    for _ in range(5):
        value = builder("nn.relu", builder("nn.dense", value, weight))
    plan = plan_region(for_backend(builder.build(value)), Options())
    assert len(plan.launches) == 5
    assert len(plan.code) == 3  # the first reads, and the last writes, what is not rounded
    assert len(plan.constants) == 1


def test_what_only_products_read_is_rounded_when_it_is_stored() -> None:
    builder = Builder("region")
    x = builder.input("x", TensorType(DType.FLOAT32, (1, 16, 8, 8)))
    weight = builder.constant(np.ones((16, 16, 3, 3), np.float32))
    pad: dict[str, Any] = {"padding": (1, 1, 1, 1)}
    window: dict[str, Any] = {"pool_size": (2, 2), "strides": (2, 2)}
    first = builder("nn.relu", builder("nn.conv2d", x, weight, **pad))  # read as it is, too
    second = builder("nn.conv2d", first, weight, **pad)
    pooled = builder("nn.max_pool2d", builder("nn.relu", second), **window)
    third = builder("nn.conv2d", pooled, weight, **pad)
    graph = for_backend(builder.build(third, builder("sigmoid", first)))
    for dtype in (DType.FLOAT32, DType.FLOAT16):
        plan = plan_region(graph, Options(dtype))
        products = [one.product for one in plan.launches if one.product is not None]
        rounds = dtype is DType.FLOAT32
        assert [one.is_rounded for one in products] == [rounds, False, rounds]
        assert [one.needs_rounding for one in products] == [False, rounds, False]


def test_buffers_that_live_at_once_do_not_overlap() -> None:
    builder = Builder("region")
    x = builder.input("x", TensorType(DType.FLOAT32, (8, 64)))
    weight = builder.constant(np.ones((64, 64), np.float32))
    first = builder("nn.dense", x, weight)
    second = builder("nn.dense", first, weight)
    third = builder("nn.softmax", builder("add", second, first))
    plan = plan_region(for_backend(builder.build(third)), Options())
    offsets, total = plan.offsets()
    assert total >= 2 * 8 * 64 * 4
    for launch in plan.launches:
        spans = sorted((offsets[n], plan.sizes[n]) for n in set(launch.buffers) if n in offsets)
        for (start, size), (following, _) in itertools.pairwise(spans):
            assert start + size <= following


@pytest.mark.parametrize(
    ("op", "left", "right", "is_product"),
    [
        ("nn.batch_matmul", (1, 64, 32), (1, 32, 64), True),
        ("nn.batch_matmul", (65535, 8, 8), (65535, 8, 8), True),
        ("nn.batch_matmul", (65536, 8, 8), (65536, 8, 8), False),  # rows of the grid
        ("nn.batch_matmul", (1, 1 << 15, 1 << 14), (1, 1 << 14, 8), False),  # 2 GB of A
        ("nn.dense", (1 << 10, 1 << 10), (1 << 19, 1 << 10), False),  # 2 GB of B
        ("nn.dense", (1 << 16, 8), (1 << 15, 8), False),  # 2^31 results
    ],
)
def test_products_are_counted_in_32_bits(
    op: str, left: tuple[int, ...], right: tuple[int, ...], is_product: bool
) -> None:
    builder = Builder("region")
    types = [TensorType(DType.FLOAT32, shape) for shape in (left, right)]
    made = builder(op, *(builder.input(n, t) for n, t in zip("ab", types, strict=True)))
    (node,) = builder.build(made).nodes
    assert (product_of(node, DType.FLOAT32, {}) is not None) == is_product

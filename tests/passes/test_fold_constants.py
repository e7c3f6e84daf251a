"""What does not depend on the inputs is computed, within limits; types become sharper."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from tests.passes.checking import (
    constant_of,
    data_for,
    graph_of,
    node_of,
    operators,
    run_pass,
)

from graft.base.dims import symbol
from graft.base.dtypes import DType
from graft.ir.builder import Builder
from graft.ir.evaluate import evaluate
from graft.ir.graph import Graph, Value
from graft.ir.parser import from_text
from graft.ir.types import tensor
from graft.ir.verify import verify
from graft.passes.eliminate_dead_code import eliminate_dead_code
from graft.passes.fold_constants import FoldOptions, fold_constants

X = tensor("float32", 2, 3)
N = symbol("n")


def test_arithmetic_on_constants() -> None:
    def build(g: Builder, x: Value) -> Value:
        two = g.constant(np.full((3,), 2, np.float32))
        return g("add", x, g("exp", g("multiply", two, two)))

    after = run_pass(fold_constants, graph_of(build, X))
    assert operators(after) == ["add"]
    expected = np.full(3, np.exp(np.float32(4)), np.float32)
    np.testing.assert_array_equal(constant_of(after, after.nodes[-1].inputs[1]), expected)


def test_several_results() -> None:
    def build(g: Builder, x: Value) -> tuple[Value, ...]:
        return g.call("topk", g.constant(np.array([3, 1, 2], np.int32)), k=2)

    after = run_pass(fold_constants, graph_of(build, X))
    assert operators(after) == []
    assert [constant_of(after, v).tolist() for v in after.outputs] == [[3, 2], [0, 2]]


@pytest.mark.parametrize("dtype", ["string", "int4", "bfloat16", "bool", "complex64"])
def test_every_dtype(dtype: str) -> None:
    array = np.array(["a", ""], object) if dtype == "string" else np.ones(2)
    graph = graph_of(
        lambda g, x: g("tile", g.constant(array.astype(DType(dtype).numpy)), reps=[2]), X
    )
    after = run_pass(fold_constants, graph)
    assert operators(after) == []
    assert after.outputs[0].type == tensor(dtype, 4)


def test_a_graph_without_constants_is_the_same_object() -> None:
    graph = graph_of(lambda g, x: g("exp", g("negative", x)), X)
    assert fold_constants(graph) is graph


def test_random_numbers_are_not_folded() -> None:
    graph = graph_of(lambda g, x: g("random.uniform", shape=(2,)), X)
    assert fold_constants(graph) is graph


def test_what_fails_is_left_to_fail_when_it_runs() -> None:
    def build(g: Builder, x: Value) -> Value:
        return g("take", g.constant(np.zeros(2, np.float32)), g.constant(np.array([5])))

    graph = graph_of(build, X)
    assert operators(verify(fold_constants(graph))) == ["take"]


# how many numbers there are, how many times they are repeated, options, whether it is folded
GROWTH: list[tuple[int, int, FoldOptions, bool]] = [
    (4, 1000, FoldOptions(), True),
    (4, 1 << 20, FoldOptions(), False),  # 16 MiB out of 16 bytes
    (1 << 19, 2, FoldOptions(), True),  # twice as large is fine
    (1 << 19, 3, FoldOptions(), False),
    (4, 1000, FoldOptions(always_bytes=15_999), False),
    (4, 1000, FoldOptions(always_bytes=16_000), True),
    (4, 1000, FoldOptions(always_bytes=0, growth=1000), True),
    (4, 256, FoldOptions(always_bytes=0), True),  # what may be a shape is always followed
]


@pytest.mark.parametrize(("count", "times", "options", "folds"), GROWTH)
def test_growth(count: int, times: int, options: FoldOptions, folds: bool) -> None:
    graph = graph_of(
        lambda g, x: g("tile", g.constant(np.ones(count, np.float32)), reps=[times]), X
    )
    after = verify(fold_constants(graph, options))
    assert operators(after) == ([] if folds else ["tile"])


@pytest.mark.parametrize(
    ("method", "options", "folds"),
    [
        ("cubic", FoldOptions(), True),
        ("nearest_neighbor", FoldOptions(), False),  # merely moves elements
        ("cubic", FoldOptions(costly_bytes=1 << 20), False),
    ],
)
def test_growth_of_what_takes_long(method: str, options: FoldOptions, folds: bool) -> None:
    def build(g: Builder, x: Value) -> Value:
        table = g.constant(np.ones((1, 96, 7, 7), np.float32))
        return g("resize", table, sizes=(64, 64), axes=(2, 3), method=method)

    graph = graph_of(build, X)
    after = verify(fold_constants(graph, options))
    assert operators(after) == ([] if folds else ["resize"])


def test_a_huge_broadcast_stays_a_computation() -> None:
    def build(g: Builder, x: Value) -> Value:
        zero = g.constant(np.float32(0))
        return g("sum", g("broadcast_to", zero, shape=[1 << 20, 1 << 20]), axes=[0, 1])

    assert operators(fold_constants(graph_of(build, X))) == ["broadcast_to", "sum"]


def test_a_filled_tensor_stays_a_computation() -> None:
    graph = graph_of(lambda g, x: g("full", g.constant(np.float32(0)), shape=[1 << 10, 1 << 10]), X)
    assert operators(fold_constants(graph)) == ["full"]


def test_operands_that_turn_out_constant_become_attributes() -> None:
    text = """graph @main(%x: float32[2, 3]) {
      %a: int64[1] = constant() {value=dense<int64[1]: 3>}
      %b: int64[1] = constant() {value=dense<int64[1]: 2>}
      %shape: int64[2] = concatenate(%a, %b)
      %y: float32[d0, d1] = reshape(%x, %shape)
      %z: float32[d0, d1] = negative(%y)
      return %z
    }"""
    graph = verify(from_text(text))
    after = run_pass(fold_constants, graph)
    node = node_of(after, "reshape")
    assert (node.inputs, node.attrs.shape) == (graph.inputs, (3, 2))
    assert [value.type for value in after.outputs] == [tensor("float32", 3, 2)]
    assert operators(after)[-2:] == ["reshape", "negative"]


@pytest.mark.parametrize("extent", [1, 4, 7])
def test_symbolic_shape_arithmetic(extent: int) -> None:
    text = """graph @main(%x: float32[n, 4]) {
      %shape: int64[2] = shape_of(%x)
      %i: int64[] = constant() {value=dense<int64[]: 0>}
      %rows: int64[] = take(%shape, %i)
      %two: int64[1] = constant() {value=dense<int64[1]: 2>}
      %row_list: int64[1] = expand_dims(%rows) {axes=[0]}
      %wanted: int64[3] = concatenate(%row_list, %two, %two)
      %y: float32[d0, d1, d2] = reshape(%x, %wanted)
      return %y
    }"""
    graph = verify(from_text(text))
    after = run_pass(fold_constants, graph, data_for(graph, {"n": extent}))
    assert node_of(after, "reshape").attrs.shape == (N, 2, 2)
    assert after.outputs[0].type == tensor("float32", N, 2, 2)


def test_shapes_that_are_known_are_constants() -> None:
    graph = graph_of(lambda g, x: g("multiply", g("shape_of", x), g("shape_of", x)), X)
    after = run_pass(fold_constants, graph)
    assert constant_of(after, after.outputs[0]).tolist() == [4, 9]


def test_extents_that_depend_on_data_stay() -> None:
    graph = graph_of(lambda g, x: g("shape_of", g("nonzero", x)), X)
    after = run_pass(fold_constants, graph)
    assert operators(after) == ["nonzero", "shape_of"]


def test_types_are_sharpened_and_never_blunted() -> None:
    text = """graph @main(%x: float32[2, 3]) {
      %y: float32[2, d0] = negative(%x)
      %z: float32[*] = exp(%y)
      return %z
    }"""
    after = run_pass(fold_constants, verify(from_text(text)))
    assert [node.output.type for node in after.nodes] == [X, X]


def _branch(value: float) -> Graph:
    g = Builder("branch")
    a = g.input("a", X)
    return g.build(g("multiply", a, g("exp", g.constant(np.float32(value)))))


def test_inside_a_branch() -> None:
    graph = graph_of(
        lambda g, x, on: g("if", on, x, then_branch=_branch(1), else_branch=_branch(2)),
        X,
        tensor("bool"),
    )
    after = run_pass(fold_constants, graph)
    for _, body in node_of(after, "if").graphs():
        assert operators(body) == ["multiply"]


SPECIAL: list[Any] = [np.nan, -np.nan, np.inf, -0.0, 1e-45]


@pytest.mark.parametrize("number", SPECIAL)
def test_special_numbers_survive(number: float) -> None:
    graph = graph_of(
        lambda g, x: g("reshape", g.constant(np.array([number], np.float32)), shape=[]), X
    )
    after = fold_constants(graph)
    found, expected = (
        np.asarray(evaluate(g, data_for(graph))[0]).tobytes() for g in (after, graph)
    )
    assert found == expected
    assert operators(after) == []


@pytest.mark.parametrize("is_summed", [True, False])
def test_what_is_small_again_is_folded_with_large_steps_between(is_summed: bool) -> None:
    """A table that is too large for a constant, whose sum is not."""
    rows = np.arange(64, dtype=np.float32).reshape(64, 1)

    def build(g: Builder, x: Value) -> Value:
        table = g("multiply", g.constant(rows), g.constant(rows.reshape(1, 64)))
        table = g("sin", g("add", table, table))
        return g("add", x, g("sum", table, axes=(0,)) if is_summed else table)

    graph = graph_of(build, tensor("float32", 64))
    after = run_pass(lambda g: fold_constants(g, FoldOptions(always_bytes=1024)), graph)
    after = eliminate_dead_code(after)
    assert operators(after) == (["add"] if is_summed else operators(graph))
    if is_summed:
        found = constant_of(after, after.nodes[-1].inputs[1])
        np.testing.assert_allclose(found, np.sin(2 * rows * rows.T).sum(0), rtol=1e-5, atol=1e-4)


def test_dequantised_constants_stay_whatever_is_made_of_them() -> None:
    def build(g: Builder, x: Value) -> Value:
        codes, scale = g.constant(np.ones((8, 3), np.int8)), g.constant(np.float32(0.5))
        return g("add", x, g("sum", g("qnn.dequantize", codes, scale), axes=(0,)))

    after = fold_constants(graph_of(build, tensor("float32", 3)))
    assert "qnn.dequantize" in operators(after)


@pytest.mark.parametrize("size", [8, 200])
@pytest.mark.parametrize("is_split", [True, False])
def test_transposed_dequantised_constants_are_dequantised_transposed_ones(
    size: int, is_split: bool
) -> None:
    """The weights of a MatMul, whose scales go along its columns, are integers to whoever looks."""
    draw = np.random.default_rng(0)
    codes = draw.integers(-128, 128, (size, 3), dtype=np.int8)
    count = (3,) if is_split else ()
    scale, zero = draw.uniform(0.1, 1, count).astype(np.float32), np.full(count, 3, np.int8)

    def build(g: Builder, x: Value) -> Value:
        constants = (g.constant(array) for array in (codes, scale, zero))
        return g("nn.dense", x, g("transpose", g("qnn.dequantize", *constants), axes=(1, 0)))

    graph = graph_of(build, tensor("float32", 2, size))
    after = eliminate_dead_code(fold_constants(graph))
    assert operators(after) == ["qnn.dequantize", "nn.dense"]
    data = [draw.standard_normal((2, size)).astype(np.float32)]
    np.testing.assert_array_equal(evaluate(after, data), evaluate(graph, data))


def test_transposed_blocks_stay() -> None:
    """Scales of blocks would have to be transposed, too."""

    def build(g: Builder, x: Value) -> Value:
        codes, scales = g.constant(np.ones((8, 300), np.int8)), np.ones((2, 300), np.float32)
        whole = g("qnn.dequantize", codes, g.constant(scales), axis=0, block_size=4)
        return g("nn.dense", x, g("transpose", whole, axes=(1, 0)))

    after = fold_constants(graph_of(build, tensor("float32", 2, 8)))
    assert operators(after) == ["qnn.dequantize", "transpose", "nn.dense"]


def test_folding_twice_changes_nothing() -> None:
    def build(g: Builder, x: Value) -> Value:
        return g("add", x, g("sqrt", g.constant(np.float32(2))))

    once = fold_constants(graph_of(build, X))
    assert fold_constants(once) is once

"""Tensors without elements become constants; concatenations skip them."""

from __future__ import annotations

import numpy as np
import pytest
from tests.passes.checking import data_for, graph_of, node_of, operators, run_pass

from graft.base.dims import symbol
from graft.base.dtypes import DType
from graft.ir.builder import Builder
from graft.ir.graph import Value
from graft.ir.types import tensor
from graft.passes.eliminate_zero_size import eliminate_zero_size

EMPTY = tensor("float32", 0, 3)
X = tensor("float32", 2, 3)


@pytest.mark.parametrize("dtype", ["float32", "int4", "string", "bool", "complex64"])
def test_work_on_nothing_becomes_a_constant(dtype: str) -> None:
    graph = graph_of(lambda g, x: g("transpose", g("tile", x, reps=[1, 2])), tensor(dtype, 0, 3))
    data = np.zeros((0, 3), DType(dtype).numpy)
    after = run_pass(eliminate_zero_size, graph, [data])
    assert operators(after) == []
    assert after.outputs[0].type == tensor(dtype, 6, 0)


def test_a_reduction_of_nothing_has_results_and_stays() -> None:
    graph = graph_of(lambda g, x: g("sum", x, axes=[0]), EMPTY)
    assert eliminate_zero_size(graph) is graph


def test_inputs_without_elements_stay() -> None:
    graph = graph_of(lambda g, x: x, EMPTY)
    assert eliminate_zero_size(graph) is graph


def test_concatenation_skips_what_is_empty_along_its_axis() -> None:
    graph = graph_of(lambda g, x, y: g("concatenate", y, x, y, x, axis=-2), X, EMPTY)
    after = run_pass(eliminate_zero_size, graph)
    assert node_of(after, "concatenate").inputs == (graph.inputs[0], graph.inputs[0])


def test_concatenation_of_empty_ones_along_another_axis_is_empty() -> None:
    graph = graph_of(lambda g, x: g("concatenate", x, x, axis=1), EMPTY)
    after = run_pass(eliminate_zero_size, graph)
    assert operators(after) == []
    assert after.outputs[0].shape == (0, 6)


def test_symbolic_extents_may_be_zero_but_need_not() -> None:
    n = symbol("n")
    type_ = tensor("float32", n, 3)
    graph = graph_of(lambda g, x, y: g("concatenate", x, y), type_, EMPTY)
    for extent in (0, 5):
        after = run_pass(eliminate_zero_size, graph, data_for(graph, {"n": extent}))
        assert len(node_of(after, "concatenate").inputs) == 1
    graph = graph_of(lambda g, x: g("negative", x), type_)
    assert eliminate_zero_size(graph) is graph


def test_a_node_of_which_one_result_has_elements_stays() -> None:
    def build(g: Builder, x: Value) -> tuple[Value, ...]:
        return g.call("split", x, sizes=[0, 2], axis=0)

    graph = graph_of(build, X)
    assert eliminate_zero_size(graph) is graph


def test_all_results_empty() -> None:
    graph = graph_of(lambda g, x: g.call("topk", x, k=0), X)
    after = run_pass(eliminate_zero_size, graph)
    assert [value.type for value in after.outputs] == [
        tensor("float32", 2, 0),
        tensor("int64", 2, 0),
    ]
    assert operators(after) == []


def test_random_operators_stay() -> None:
    graph = graph_of(lambda g, x: g("random.normal", shape=(0,)), X)
    assert eliminate_zero_size(graph) is graph


def test_inside_a_branch() -> None:
    def branch(name: str) -> object:
        g = Builder(name)
        a = g.input("a", EMPTY)
        return g.build(g("negative", a))

    graph = graph_of(
        lambda g, x, on: g(
            "reshape",
            g("if", on, x, then_branch=branch("yes"), else_branch=branch("no")),
            shape=[-1, 3],
        ),
        EMPTY,
        tensor("bool"),
    )
    after = run_pass(eliminate_zero_size, graph)
    assert operators(after) == []

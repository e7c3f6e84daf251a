"""Equal computations become one; what only looks equal does not."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from tests.passes.checking import Build, graph_of, node_of, operators, run_pass

from graft.ir.builder import Builder
from graft.ir.graph import Graph, Value
from graft.ir.types import tensor
from graft.passes.eliminate_common_subexpressions import eliminate_common_subexpressions

X = tensor("float32", 2, 3)


def _sum(one: Callable[[Builder, Value], Value], other: Callable[[Builder, Value], Value]) -> Build:
    return lambda g, x: g("subtract", one(g, x), other(g, x))


MERGED = {
    "the same": _sum(lambda g, x: g("exp", x), lambda g, x: g("exp", x)),
    "chains": _sum(lambda g, x: g("exp", g("abs", x)), lambda g, x: g("exp", g("abs", x))),
    "attributes in another order": _sum(
        lambda g, x: g("sum", x, axes=[0], keepdims=True),
        lambda g, x: g("sum", x, keepdims=True, axes=[0]),
    ),
    "commuted": _sum(
        lambda g, x: g("add", x, g.constant(np.float32(2))),
        lambda g, x: g("add", g.constant(np.float32(2)), x),
    ),
    "equal constants": _sum(
        lambda g, x: g("multiply", x, g.constant(np.full((2, 3), np.nan, np.float32))),
        lambda g, x: g("multiply", x, g.constant(np.full((2, 3), np.nan, np.float32))),
    ),
}
KEPT = {
    "operands change places": _sum(
        lambda g, x: g("subtract", x, g.constant(np.float32(2))),
        lambda g, x: g("subtract", g.constant(np.float32(2)), x),
    ),
    "other attributes": _sum(
        lambda g, x: g("sum", x, axes=[0], keepdims=True),
        lambda g, x: g("sum", x, axes=[1], keepdims=True),
    ),
    "zeros of both signs": _sum(
        lambda g, x: g("divide", x, g.constant(np.float32(0.0))),
        lambda g, x: g("divide", x, g.constant(np.float32(-0.0))),
    ),
    "constants of two dtypes": _sum(
        lambda g, x: g("power", x, g.constant(np.float32(2))),
        lambda g, x: g("power", x, g.constant(np.float64(2))),
    ),
    "constants of two shapes": _sum(
        lambda g, x: g("add", x, g.constant(np.ones((3,), np.float32))),
        lambda g, x: g("add", x, g.constant(np.ones((1, 3), np.float32))),
    ),
    "pads with zeros of both signs": _sum(
        lambda g, x: g("nn.pad", x, pad_width=[0, 1, 0, 0], value=0.0),
        lambda g, x: g("nn.pad", x, pad_width=[0, 1, 0, 0], value=-0.0),
    ),
}


@pytest.mark.parametrize("name", MERGED)
def test_merged(name: str) -> None:
    graph = graph_of(MERGED[name], X)
    after = run_pass(eliminate_common_subexpressions, graph)
    assert len(operators(after)) == (len(operators(graph)) + 1) // 2
    subtract = after.nodes[-1]
    assert subtract.inputs[0] is subtract.inputs[1]


@pytest.mark.parametrize("name", KEPT)
def test_kept(name: str) -> None:
    graph = graph_of(KEPT[name], X)
    after = run_pass(eliminate_common_subexpressions, graph)
    assert operators(after) == operators(graph)


def test_random_numbers_are_drawn_twice() -> None:
    def build(g: Builder, x: Value) -> tuple[Value, Value]:
        return g("random.normal", shape=(2,)), g("random.normal", shape=(2,))

    graph = graph_of(build, X)
    assert eliminate_common_subexpressions(graph) is graph


def test_both_outputs_become_one_value_under_two_names() -> None:
    g = Builder()
    x = g.input("x", X)
    graph = g.build(g("exp", x), g("exp", x), names=["a", "b"])
    after = run_pass(eliminate_common_subexpressions, graph)
    assert after.outputs[0] is after.outputs[1]
    assert after.output_names == ("a", "b")


def test_nodes_with_several_results() -> None:
    def build(g: Builder, x: Value) -> tuple[Value, Value]:
        return g.call("topk", x, k=1)[0], g.call("topk", x, k=1)[1]

    assert operators(run_pass(eliminate_common_subexpressions, graph_of(build, X))) == ["topk"]


def test_inside_a_branch() -> None:
    def branch() -> Graph:
        g = Builder("body")
        a = g.input("a", X)
        return g.build(g("add", g("exp", a), g("exp", a)))

    graph = graph_of(
        lambda g, x, on: g("if", on, x, then_branch=branch(), else_branch=branch()),
        X,
        tensor("bool"),
    )
    after = run_pass(eliminate_common_subexpressions, graph)
    for _, body in node_of(after, "if").graphs():
        assert operators(body) == ["exp", "add"]

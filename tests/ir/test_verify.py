"""What `verify` refuses, one broken rule at a time, and that it says where."""

from __future__ import annotations

import tomllib
from dataclasses import replace
from pathlib import Path

import pytest

from graft.base.errors import Location
from graft.ir.attrs import Attrs
from graft.ir.builder import Builder
from graft.ir.graph import Graph, Node, Value
from graft.ir.parser import from_text
from graft.ir.types import TensorType, tensor
from graft.ir.verify import VerifyError, verify
from graft.ops import get_op

ERRORS = tomllib.loads((Path(__file__).parent / "errors" / "verify.toml").read_text("utf-8"))
X = tensor("float32", 2)
PLACE = Location("model.onnx", "layer/1", "Abs")


@pytest.mark.parametrize("name", ERRORS)
def test_broken_rule(name: str) -> None:
    graph = from_text(ERRORS[name]["text"])
    with pytest.raises(VerifyError) as caught:
        verify(graph)
    assert caught.value.message == ERRORS[name]["message"]
    assert caught.value.location is not None
    assert caught.value.location.node == "layer/1"
    assert caught.value.location.source == "model.onnx"


def graph_with(*nodes: Node, inputs: tuple[Value, ...], outputs: tuple[Value, ...]) -> Graph:
    return Graph("g", inputs, nodes, outputs)


def node_of(op: str, *inputs: Value | None, out: Value, attrs: Attrs | None = None) -> Node:
    return Node(get_op(op), inputs, attrs or Attrs(), (out,), PLACE)


def refusal(graph: Graph) -> VerifyError:
    with pytest.raises(VerifyError) as caught:
        verify(graph)
    return caught.value


def test_a_value_read_before_it_is_defined() -> None:
    x, y, z = Value("x", X), Value("y", X), Value("z", X)
    nodes = node_of("abs", y, out=z), node_of("exp", x, out=y)
    error = refusal(graph_with(*nodes, inputs=(x,), outputs=(z,)))
    assert error.message == "abs reads %y before it is defined"
    assert error.location == PLACE


def test_a_value_of_another_graph() -> None:
    """Values are the same only if they are the same object, whatever their names."""
    x, y = Value("x", X), Value("y", X)
    graph = graph_with(node_of("abs", Value("x", X), out=y), inputs=(x,), outputs=(y,))
    assert refusal(graph).message == "abs reads %x before it is defined"


def test_two_values_of_one_name() -> None:
    x, y = Value("x", X), Value("x", X)
    error = refusal(graph_with(node_of("abs", x, out=y), inputs=(x,), outputs=(y,)))
    assert error.message == "%x is defined twice"
    assert error.location == PLACE
    assert refusal(graph_with(inputs=(x, y), outputs=(x,))).message == "%x is defined twice"


def test_one_value_defined_twice() -> None:
    x, y = Value("x", X), Value("y", X)
    nodes = node_of("abs", x, out=y), node_of("exp", x, out=y)
    assert refusal(graph_with(*nodes, inputs=(x,), outputs=(y,))).message == "%y is defined twice"


def test_an_output_that_is_not_defined() -> None:
    x = Value("x", X)
    error = refusal(graph_with(inputs=(x,), outputs=(Value("y", X),)))
    assert error.message == "output %y of graph 'g' is not defined"


def test_attributes_of_another_operator() -> None:
    x, y = Value("x", X), Value("y", X)
    error = refusal(graph_with(node_of("sum", x, out=y), inputs=(x,), outputs=(y,)))
    assert error.message == "sum wants ReduceAttrs, has Attrs"
    assert error.location == PLACE


def test_names_that_are_not_as_many_as_the_outputs() -> None:
    x = Value("x", X)
    graph = Graph("g", (x,), (), (x, x), ("only one",))
    assert refusal(graph).message == "graph 'g' has 2 outputs but 1 names for them"


GOOD = [
    # A declaration may say less than the type rule, or more, as long as both may be true.
    "graph @g(%x: float32[2]) { %y: float32[*] = abs(%x) return %y }",
    "graph @g(%x: float32[2]) { %y: float32[n] = abs(%x) return %y }",
    "graph @g(%x: float32[n]) { %y: float32[3] = abs(%x) return %y }",
    "graph @g(%x: float32[*]) { %y: float32[3, m] = abs(%x) return %y }",
    "graph @g() { return }",
    "graph @g(%x: float32[2]) { return %x, %x, %x }",
    "graph @g(%x: float32[n, n + 1]) { %y: float32[*] = reshape(%x) {shape=[-1, `n`]} return %y }",
]


@pytest.mark.parametrize("text", GOOD)
def test_kept_rules(text: str) -> None:
    graph = from_text(text)
    assert verify(graph) is graph


def test_nested_graphs_may_use_names_and_symbols_of_the_outer_one() -> None:
    inner = Builder("inner")
    body = inner.build(inner("exp", inner.input("x", X), out="y"))
    g = Builder()
    x = g.input("x", X)
    (made,) = g.call("composite", x, body=body, out=["y"])
    graph = g.build(made)
    assert verify(graph) is graph
    broken = replace(graph.nodes[0], inputs=())
    wrong = replace(graph, nodes=(broken,))
    assert "the body takes 1 operands" in refusal(wrong).message


def test_a_broken_body_is_refused_with_the_place_of_the_node_inside() -> None:
    x, y = Value("x", X), Value("y", TensorType(X.dtype, (3,)))
    body = graph_with(node_of("abs", x, out=y), inputs=(x,), outputs=(y,))
    g = Builder()
    g.location = Location("model.onnx", "outer", "Composite")
    (made,) = g.call("composite", g.input("x", X), body=body)
    error = refusal(g.build(made))
    assert error.message == "%y is declared float32[3] but abs gives float32[2]"
    assert error.location == PLACE

"""Structural equality: the same function written the same way, and what differs otherwise."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import graft.ops  # noqa: F401  (registers the operators)
from graft.base.errors import Location
from graft.ir.builder import Builder
from graft.ir.equal import difference, equal
from graft.ir.graph import Graph, Value
from graft.ir.types import tensor

X = tensor("float32", 2, 3)
Make = Callable[..., Any]


def graph_of(
    make: Make, names: tuple[str, ...] = (), inputs: tuple[str, ...] = ("x", "y")
) -> Graph:
    g = Builder()
    outputs = make(g, *(g.input(name, X) for name in inputs))
    return g.build(*(outputs if isinstance(outputs, tuple) else (outputs,)), names=names)


def plain(g: Builder, x: Value, y: Value) -> Value:
    return g("add", g("exp", x), y)


def renamed(g: Builder, x: Value, y: Value) -> Value:
    g.location = Location("elsewhere.onnx", "node", "Add")
    return g("add", g("exp", x, out="other name"), y, out="add")


def test_names_of_inner_values_and_places_do_not_count() -> None:
    assert equal(graph_of(plain), graph_of(renamed))


def test_a_graph_equals_itself() -> None:
    graph = graph_of(plain)
    assert equal(graph, graph)


def nested(op: str, name: str = "body") -> Graph:
    g = Builder(name)
    return g.build(g(op, g.input("a", X)))


def choice(op: str) -> Make:
    def make(g: Builder, x: Value, y: Value) -> Value:
        on = g.constant(np.array(True))
        return g("if", on, x, then_branch=nested(op), else_branch=nested("exp"))

    return make


DIFFERENCES: dict[str, tuple[Make, Make, str]] = {
    "operator": (
        lambda g, x, y: g("exp", x, out="z"),
        lambda g, x, y: g("log", x, out="z"),
        "operators differ",
    ),
    "operands": (
        lambda g, x, y: g("subtract", x, y),
        lambda g, x, y: g("subtract", y, x),
        "operands %x and %y differ",
    ),
    "operand counts": (
        lambda g, x, y: g("concatenate", x),
        lambda g, x, y: g("concatenate", x, y),
        "operand counts differ",
    ),
    "absent operand": (
        lambda g, x, y: g("clip", x, None, g("sum", y)),
        lambda g, x, y: g("clip", x, g("sum", y), g("sum", y)),
        "2 nodes and 3 nodes",
    ),
    "nodes": (lambda g, x, y: x, lambda g, x, y: g("exp", x), "outputs differ"),
    "outputs swapped": (
        lambda g, x, y: (g("exp", x, out="a"), g("exp", y, out="b")),
        lambda g, x, y: (g("exp", x, out="a"), g("exp", y, out="b"))[::-1],
        "outputs differ: ('a', 'b') and ('b', 'a')",
    ),
    "attribute": (
        lambda g, x, y: g("cumsum", x, axis=0),
        lambda g, x, y: g("cumsum", x, axis=1),
        "attribute 'axis': 0 and 1",
    ),
    "zeros of both signs": (
        lambda g, x, y: g("clip", x, a_min=0.0),
        lambda g, x, y: g("clip", x, a_min=-0.0),
        "attribute 'a_min': 0.0 and -0.0",
    ),
    "whole number and float": (
        lambda g, x, y: g("clip", x, a_min=1),
        lambda g, x, y: g("clip", x, a_min=1.0),
        "attribute 'a_min': 1 and 1.0",
    ),
    "constant": (
        lambda g, x, y: g.constant(np.array([0.0])),
        lambda g, x, y: g.constant(np.array([-0.0])),
        "attribute 'value'",
    ),
    "result types": (
        lambda g, x, y: g("nonzero", x),
        lambda g, x, y: (g.symbols(), g("nonzero", x))[1],
        "result types differ",
    ),
    "inside a branch": (choice("abs"), choice("negative"), "attribute 'then_branch'"),
}


@pytest.mark.parametrize("name", DIFFERENCES)
def test_difference(name: str) -> None:
    one, other, expected = DIFFERENCES[name]
    found = difference(graph_of(one), graph_of(other))
    assert found is not None
    assert expected in found
    assert not equal(graph_of(one), graph_of(other))
    assert equal(graph_of(one), graph_of(one))


def test_nan_attributes_are_equal() -> None:
    def make(g: Builder, x: Value, y: Value) -> Value:
        return g("nn.leaky_relu", x, alpha=float("nan"))

    assert equal(graph_of(make), graph_of(make))


def test_names_of_inputs_and_outputs_count() -> None:
    assert "inputs differ" in str(difference(graph_of(plain), graph_of(plain, inputs=("x", "z"))))
    assert "outputs differ" in str(difference(graph_of(plain), graph_of(plain, names=("sum",))))


def test_outputs_defined_by_different_nodes() -> None:
    def first(g: Builder, x: Value, y: Value) -> Value:
        exp, log = g("exp", x), g("log", x)
        assert log
        return exp

    def second(g: Builder, x: Value, y: Value) -> Value:
        exp, log = g("exp", x), g("log", x)
        assert exp
        return log

    found = difference(graph_of(first, names=("a",)), graph_of(second, names=("a",)))
    assert found == "outputs are defined by different nodes"

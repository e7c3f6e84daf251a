"""Transposes move down past elementwise work, where nothing else reads them."""

from __future__ import annotations

import numpy as np
import pytest
from tests.passes.checking import Build, graph_of, node_of, operators, run_pass

from graft.ir.builder import Builder
from graft.ir.graph import Value
from graft.ir.types import tensor
from graft.passes.pipeline import optimize
from graft.passes.sink_transposes import sink_transposes

X = tensor("float32", 2, 3, 4)
ORDER = [2, 0, 1]


def turned(g: Builder, x: Value) -> Value:
    return g("transpose", x, axes=ORDER)


SINKS: dict[str, tuple[Build, list[str]]] = {
    "unary": (lambda g, x, y: g("exp", turned(g, x)), ["exp", "transpose"]),
    "chain": (
        lambda g, x, y: g("nn.relu", g("abs", turned(g, x))),
        ["abs", "nn.relu", "transpose"],
    ),
    "both operands": (
        lambda g, x, y: g("add", turned(g, x), turned(g, y)),
        ["add", "transpose"],
    ),
    "one operand twice": (
        lambda g, x, y: g("multiply", *[turned(g, x)] * 2),
        ["multiply", "transpose"],
    ),
    "a number": (
        lambda g, x, y: g("add", turned(g, x), g.constant(np.float32(2))),
        ["add", "transpose"],
    ),
    "a number with axes": (
        lambda g, x, y: g("subtract", g.constant(np.ones((1, 1), np.float32)), turned(g, x)),
        ["subtract", "transpose"],
    ),
    "where": (
        lambda g, x, y: g(
            "where", g("less", turned(g, x), turned(g, y)), turned(g, x), turned(g, y)
        ),
        ["less", "where", "transpose"],
    ),
    "cast": (lambda g, x, y: g("cast", turned(g, x), dtype="int32"), ["cast", "transpose"]),
}
STAYS: dict[str, Build] = {
    "another order": lambda g, x, y: g(
        "add", turned(g, x), g("transpose", g("reshape", y, shape=[3, 4, 2]), axes=[1, 2, 0])
    ),
    "one operand only": lambda g, x, y: g("add", turned(g, x), g("reshape", y, shape=[4, 2, 3])),
    "a number with more axes": lambda g, x, y: g(
        "add", turned(g, x), g.constant(np.ones((1, 1, 1, 1), np.float32))
    ),
    "a vector": lambda g, x, y: g("add", turned(g, x), g.constant(np.ones(3, np.float32))),
    "bias along an axis": lambda g, x, y: g(
        "nn.bias_add", turned(g, x), g.constant(np.ones(2, np.float32)), axis=1
    ),
    "triangle": lambda g, x, y: g("trilu", turned(g, x)),
    "softmax": lambda g, x, y: g("nn.softmax", turned(g, x)),
    "axes not written out": lambda g, x, y: g("exp", g("transpose", x)),
}


@pytest.mark.parametrize("name", SINKS)
def test_sinks(name: str) -> None:
    build, expected = SINKS[name]
    after = run_pass(sink_transposes, graph_of(build, X, X))
    assert operators(after) == expected
    assert node_of(after, "transpose").attrs.axes == tuple(ORDER)  # type: ignore[attr-defined]


@pytest.mark.parametrize("name", STAYS)
def test_stays(name: str) -> None:
    graph = graph_of(STAYS[name], X, X)
    assert sink_transposes(graph) is graph


def test_a_transpose_that_others_read_stays() -> None:
    def build(g: Builder, x: Value) -> tuple[Value, Value]:
        y = turned(g, x)
        return g("exp", y), g("sum", y, axes=[0])

    graph = graph_of(build, X)
    assert sink_transposes(graph) is graph


def test_a_transpose_that_is_an_output_stays() -> None:
    def build(g: Builder, x: Value) -> tuple[Value, Value]:
        y = turned(g, x)
        return g("exp", y), y

    graph = graph_of(build, X)
    assert sink_transposes(graph) is graph


def test_pairs_meet_and_cancel() -> None:
    def build(g: Builder, x: Value) -> Value:
        y = g("nn.relu", g("add", turned(g, x), g.constant(np.float32(0.5))))
        return g("transpose", y, axes=[1, 2, 0])

    after = run_pass(optimize, graph_of(build, X))
    assert operators(after) == ["add", "nn.relu"]

"""Slices move up past layers that compute rows independently, and past nothing else."""

from __future__ import annotations

import numpy as np
import pytest
from tests.passes.checking import Build, graph_of, node_of, operators, run_pass

from graft.base.dims import symbol
from graft.ir.builder import Builder
from graft.ir.graph import Graph, Value
from graft.ir.types import tensor
from graft.passes.hoist_slices import hoist_slices

X = tensor("float32", 2, 6, 8)


def weight(g: Builder, units: int = 8, inputs: int = 8) -> Value:
    return g.constant(np.linspace(-1, 1, units * inputs, dtype=np.float32).reshape(units, inputs))


def vector(g: Builder, extent: int = 8) -> Value:
    return g.constant(np.linspace(1, 2, extent, dtype=np.float32))


def one(g: Builder, x: Value, index: int = 3, axis: int = 1) -> Value:
    return g("take", x, g.constant(np.array(index)), axis=axis)


def rows(g: Builder, x: Value, axis: int = 1) -> Value:
    return g("strided_slice", x, begin=(2,), end=(4,), axes=(axis,))


def heads(g: Builder, x: Value) -> Value:
    return g("transpose", g("reshape", x, shape=(2, 6, 4, 2)), axes=(0, 2, 1, 3))


def attention(g: Builder, x: Value) -> Value:
    mixed = g("nn.attention", *(heads(g, g(name, x)) for name in ("abs", "exp", "negative")))
    return g("reshape", g("transpose", mixed, axes=(0, 2, 1, 3)), shape=(2, 6, 8))


MOVES: dict[str, tuple[Build, list[str]]] = {
    "dense": (
        lambda g, x, y: rows(g, g("nn.dense", x, weight(g))),
        ["strided_slice", "nn.dense"],
    ),
    "one row": (
        lambda g, x, y: one(g, g("nn.dense", x, weight(g)), -1),
        ["reshape", "take", "nn.dense", "squeeze"],
    ),
    "units": (
        lambda g, x, y: rows(g, g("nn.dense", x, weight(g)), axis=2),
        ["strided_slice", "nn.dense"],
    ),
    "pointwise between": (
        lambda g, x, y: rows(
            g, g("exp", g("nn.bias_add", g("nn.dense", x, weight(g)), vector(g), axis=2))
        ),
        ["strided_slice", "nn.dense", "nn.bias_add", "exp"],
    ),
    "operands that broadcast": (
        lambda g, x, y: rows(g, g("add", g("nn.dense", x, weight(g)), vector(g))),
        ["strided_slice", "nn.dense", "add"],
    ),
    "norm": (
        lambda g, x, y: rows(g, g("nn.layer_norm", x, vector(g), vector(g))),
        ["strided_slice", "nn.layer_norm"],
    ),
    "softmax": (lambda g, x, y: rows(g, g("nn.softmax", x)), ["strided_slice", "nn.softmax"]),
    "residual connection": (
        lambda g, x, y: rows(g, g("add", g("exp", x), g("nn.softmax", g("exp", x)))),
        ["exp", "exp", "strided_slice", "strided_slice", "nn.softmax", "add"],
    ),
}
STAYS: dict[str, Build] = {
    "along the normalised axis": lambda g, x, y: rows(g, g("nn.softmax", x), axis=2),
    "along the axes of a norm": lambda g, x, y: rows(
        g, g("nn.layer_norm", x, vector(g), vector(g)), axis=2
    ),
    "most rows": lambda g, x, y: g(
        "strided_slice", g("nn.softmax", x), begin=(1,), end=(6,), axes=(1,)
    ),
    "another reader": lambda g, x, y: (lambda whole: (rows(g, whole), g("exp", whole)))(
        g("nn.softmax", x)
    ),
    "no layer": lambda g, x, y: rows(g, g("add", x, y)),
    "a reshape that joins the axis": lambda g, x, y: g(
        "strided_slice",
        g("reshape", g("nn.softmax", x), shape=(12, 8)),
        begin=(0,),
        end=(2,),
        axes=(0,),
    ),
}


@pytest.mark.parametrize("name", MOVES)
def test_moves(name: str) -> None:
    build, expected = MOVES[name]
    after = run_pass(hoist_slices, graph_of(build, X, X), tolerance=1e-6)
    assert operators(after) == expected


@pytest.mark.parametrize("name", STAYS)
def test_stays(name: str) -> None:
    before = graph_of(STAYS[name], X, X)
    assert hoist_slices(before) is before


def test_queries() -> None:
    """They are sliced; keys and values stay whole."""
    after = run_pass(hoist_slices, graph_of(lambda g, x: rows(g, attention(g, x)), X))
    query, key, value = node_of(after, "nn.attention").args
    assert query.shape == (2, 4, 2, 2)
    assert key.shape == value.shape == (2, 4, 6, 2)


def test_a_query_that_sees_earlier_keys_only() -> None:
    def build(g: Builder, x: Value) -> Value:
        queries = heads(g, x)
        mixed = g("nn.attention", queries, heads(g, g("exp", x)), heads(g, x), causal=True)
        return rows(g, mixed, axis=2)

    before = graph_of(build, X)
    assert hoist_slices(before) is before


def test_rows_of_any_number() -> None:
    """The last of symbolically many tokens: one is kept of two or more, so nothing moves."""

    def build(least: int) -> Graph:
        def body(g: Builder, x: Value) -> Value:
            return one(g, g("nn.dense", x, weight(g)), -1)

        return graph_of(body, tensor("float32", 1, symbol("t") + least, 8))

    few = build(0)
    assert hoist_slices(few) is few
    after = hoist_slices(build(2))
    assert operators(after) == ["reshape", "take", "nn.dense", "squeeze"]


def test_residual_layers_do_not_multiply() -> None:
    """A slice of 40 residual layers meets itself at each of them."""

    def build(g: Builder, x: Value) -> Value:
        for _ in range(40):
            x = g("add", x, g("tanh", g("nn.dense", x, weight(g))))
        return one(g, x)

    after = run_pass(hoist_slices, graph_of(build, X), tolerance=1e-4)
    assert operators(after).count("nn.dense") == 40
    assert node_of(after, "take").args[0] is after.inputs[0]

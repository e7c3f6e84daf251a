"""Factors of weights that are computed at run time move to the data and the result."""

from __future__ import annotations

import numpy as np
import pytest

import graft
from graft.backends.host.passes.move_modulation import move_modulation
from graft.ir.builder import Builder
from graft.ir.evaluate import evaluate
from graft.ir.graph import Graph, Node
from graft.ir.types import tensor
from graft.ir.verify import verify

DRAW = np.random.default_rng(7)


def _numbers(*shape: int) -> np.ndarray:
    return DRAW.normal(size=shape).astype(np.float32)


def _modulated(items: int, size: int) -> Graph:
    """A convolution whose weights are scaled by item and input, and normalised by output."""
    g = Builder()
    x = g.input("x", tensor("float32", items, 6, 9, 7))
    style = g.input("style", tensor("float32", items, 1, 6, 1, 1))
    scaled = g("multiply", g.constant(_numbers(1, 5, 6, size, size)), style)
    squares = g("sum", g("multiply", scaled, scaled), axes=(2, 3, 4), keepdims=True)
    norm = g("divide", g.constant(np.float32(1)), g("sqrt", squares))
    weight = g("reshape", g("multiply", scaled, norm), shape=(items * 5, 6, size, size))
    image = g("reshape", x, shape=(1, items * 6, 9, 7))
    padding = (size // 2,) * 4
    y = g("nn.conv2d", image, weight, padding=padding, groups=items)
    return g.build(g("reshape", y, shape=(items, 5, 9, 7)))


def _convolution(graph: Graph) -> Node:
    (node,) = (node for node in graph.nodes if node.op.name == "nn.conv2d")
    return node


@pytest.mark.parametrize("items", [1, 3])
@pytest.mark.parametrize("size", [1, 3])
def test_weights_become_constant(items: int, size: int) -> None:
    graph = _modulated(items, size)
    moved = verify(move_modulation(graph))
    node = _convolution(moved)
    assert node.attrs.groups == 1
    assert node.args[1] in moved.constants
    inputs = [_numbers(items, 6, 9, 7), _numbers(items, 1, 6, 1, 1)]
    (expected,) = evaluate(graph, inputs)
    np.testing.assert_allclose(evaluate(moved, inputs)[0], expected, rtol=1e-4, atol=1e-5)
    (found,) = graft.compile(graph, strict=True).run(
        None, dict(zip(("x", "style"), inputs, strict=True))
    )
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5)


def test_weights_without_an_axis_of_items() -> None:
    g = Builder()
    x, gate = (
        g.input("x", tensor("float32", 2, 6, 5, 5)),
        g.input("s", tensor("float32", 4, 1, 1, 1)),
    )
    weight = g("multiply", gate, g.constant(_numbers(4, 6, 3, 3)))
    graph = g.build(g("nn.conv2d", x, weight))
    moved = verify(move_modulation(graph))
    assert _convolution(moved).args[1] in moved.constants
    inputs = [_numbers(2, 6, 5, 5), _numbers(4, 1, 1, 1)]
    expected, found = evaluate(graph, inputs)[0], evaluate(moved, inputs)[0]
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    ("factor", "groups"), [((1, 6, 3, 1), 1), ((4, 6, 1, 1), 1), ((1, 3, 1, 1), 2)]
)
def test_other_weights_stay(factor: tuple[int, ...], groups: int) -> None:
    """Factors of pixels or of pairs of channels, and groups of channels."""
    g = Builder()
    x, gate = g.input("x", tensor("float32", 2, 6, 5, 5)), g.input("s", tensor("float32", *factor))
    weight = g("multiply", gate, g.constant(_numbers(4, 6 // groups, 3, 3)))
    graph = g.build(g("nn.conv2d", x, weight, groups=groups))
    assert move_modulation(graph) == graph

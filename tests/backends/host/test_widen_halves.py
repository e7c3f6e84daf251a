"""Layers of float16 that are computed in float32: what is widened, and where float16 is kept."""

from __future__ import annotations

import numpy as np
import pytest

import graft
from graft.backends.host.passes.widen_halves import widen_halves
from graft.base.dims import symbol
from graft.base.dtypes import DType
from graft.ir.builder import Builder
from graft.ir.evaluate import evaluate
from graft.ir.graph import Graph
from graft.ir.types import tensor
from graft.ir.verify import verify

DRAW = np.random.default_rng(3)


def _halves(*shape: int) -> np.ndarray:
    return (DRAW.normal(size=shape) * 0.3).astype(np.float16)


def _dtypes(graph: Graph, op: str) -> set[DType]:
    return {node.output.dtype for node in graph.nodes if node.op.name == op}


def _count(graph: Graph, op: str) -> int:
    return sum(node.op.name == op for node in graph.nodes)


def _network() -> Graph:
    """A convolution and a dense layer with what is usual around them."""
    g = Builder()
    x = g.input("x", tensor("float16", 1, 8, 6, 6))
    y = g("nn.conv2d", x, g.constant(_halves(16, 8, 3, 3)), padding=(1, 1, 1, 1))
    y = g("nn.relu", g("nn.bias_add", y, g.constant(_halves(16)), axis=1))
    y = g("reshape", g("mean", y, axes=(2, 3), keepdims=False), shape=(1, 16))
    y = g("nn.dense", y, g.constant(_halves(10, 16)))
    return g.build(g("nn.softmax", y))


def test_whole_networks_are_rounded_once() -> None:
    graph = _network()
    wide = verify(widen_halves(graph))
    assert _dtypes(wide, "nn.conv2d") == _dtypes(wide, "nn.dense") == {DType.FLOAT32}
    assert _dtypes(wide, "nn.softmax") == _dtypes(wide, "mean") == {DType.FLOAT32}
    assert _count(wide, "cast") == 2
    assert [value.type for value in wide.outputs] == [value.type for value in graph.outputs]
    assert wide.output_names == graph.output_names
    x = _halves(1, 8, 6, 6)
    (expected,) = evaluate(graph, [x])
    (found,) = graft.compile(graph, strict=True).run(None, {"x": x})
    assert found.dtype == np.float16
    np.testing.assert_allclose(found, expected, rtol=5e-3, atol=1e-3)


def test_large_sums_are_not_infinite() -> None:
    g = Builder()
    x = g.input("x", tensor("float16", 2, 64))
    large = g("nn.dense", x, g.constant(np.full((4, 64), 40, np.float16)))
    graph = g.build(g("multiply", large, g.constant(np.float16(0.001))))
    (found,) = graft.compile(graph).run(None, {"x": np.full((2, 64), 40, np.float16)})
    np.testing.assert_allclose(found, np.full((2, 4), 102.4), rtol=1e-3)


def test_without_layers_nothing_changes() -> None:
    g = Builder()
    x = g.input("x", tensor("float16", 3, 5))
    graph = g.build(g("transpose", g("nn.softmax", g("exp", x)), axes=(1, 0)))
    assert widen_halves(graph) is graph


def test_what_is_only_moved_is_not_widened() -> None:
    """A cache that grows by a row stays of float16."""
    g = Builder()
    x, past = g.input("x", tensor("float16", 1, 8)), g.input("past", tensor("float16", 20, 4))
    row = g("nn.dense", x, g.constant(_halves(4, 8)))
    wide = verify(widen_halves(g.build(g("concatenate", past, row, axis=0))))
    assert _dtypes(wide, "concatenate") == {DType.FLOAT16}
    assert _dtypes(wide, "nn.dense") == {DType.FLOAT32}


@pytest.mark.parametrize("reader", ["argmax", "cast"])
def test_other_readers_see_rounded_values(reader: str) -> None:
    g = Builder()
    x = g.input("x", tensor("float16", 2, 8))
    y = g("nn.dense", x, g.constant(_halves(4, 8)))
    attrs = {"axis": 1} if reader == "argmax" else {"dtype": DType.FLOAT64}
    wide = verify(widen_halves(g.build(g(reader, y, **attrs))))
    (node,) = [node for node in wide.nodes if node.outputs == wide.outputs]
    assert node.args[0].dtype is DType.FLOAT16


def test_symbolic_batches() -> None:
    g = Builder()
    x = g.input("x", tensor("float16", symbol("n"), 12))
    y = g("nn.relu", g("nn.dense", x, g.constant(_halves(7, 12))))
    graph = g.build(g("add", y, y))
    module = graft.compile(graph, strict=True)
    for count in (0, 1, 5, 40):
        data = _halves(count, 12)
        (expected,) = evaluate(graph, [data])
        (found,) = module.run(None, {"x": data})
        np.testing.assert_allclose(found, expected, rtol=5e-3, atol=2e-3)

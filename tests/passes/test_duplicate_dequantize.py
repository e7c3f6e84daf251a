"""Every reader gets a dequantisation of its own."""

from __future__ import annotations

from typing import Any

import numpy as np
from tests.passes.checking import graph_of, operators

from graft.ir.builder import Builder
from graft.ir.evaluate import evaluate
from graft.ir.graph import Graph, Value
from graft.ir.types import tensor
from graft.ir.verify import verify
from graft.passes.duplicate_dequantize import duplicate_dequantize

DATA = tensor("int8", 2, 3)


def dequantized(g: Builder, x: Value) -> Value:
    return g("qnn.dequantize", x, g.constant(np.float32(0.5)), g.constant(np.int8(3)))


def same(before: Graph, after: Graph) -> None:
    x = np.arange(-3, 3, dtype=np.int8).reshape(2, 3)
    expected = evaluate(before, [x])
    for ours, theirs in zip(evaluate(verify(after), [x]), expected, strict=True):
        np.testing.assert_array_equal(np.asarray(ours), np.asarray(theirs))


def test_two_readers() -> None:
    def build(g: Builder, x: Value) -> Any:
        real = dequantized(g, x)
        return g("nn.relu", real), g("exp", real)

    graph = graph_of(build, DATA)
    after = duplicate_dequantize(graph)
    assert operators(after) == ["qnn.dequantize", "nn.relu", "qnn.dequantize", "exp"]
    assert all(len(after.users[n.output]) == 1 for n in after.nodes if "dequant" in n.op.name)
    same(graph, after)


def test_a_reader_that_reads_twice_needs_one() -> None:
    def build(g: Builder, x: Value) -> Any:
        real = dequantized(g, x)
        return g("add", real, real)

    graph = graph_of(build, DATA)
    assert duplicate_dequantize(graph) is graph


def test_an_output_keeps_the_original() -> None:
    def build(g: Builder, x: Value) -> Any:
        real = dequantized(g, x)
        return real, g("exp", real)

    graph = graph_of(build, DATA)
    after = duplicate_dequantize(graph)
    assert after.outputs[0] is graph.outputs[0]
    assert operators(after).count("qnn.dequantize") == 2
    same(graph, after)


def test_nothing_to_do() -> None:
    graph = graph_of(lambda g, x: g("exp", dequantized(g, x)), DATA)
    assert duplicate_dequantize(graph) is graph

"""Winograd's algorithm: right on odd shapes, and as accurate as the documentation says."""

from __future__ import annotations

import numpy as np
import pytest

import graft
import graft.ops
from graft.base.dtypes import Array
from graft.ir.builder import Builder
from graft.ir.evaluate import evaluate
from graft.ir.graph import Graph
from graft.ir.types import tensor

GENERATOR = np.random.default_rng(3)


def _layer(batch: int, inputs: int, outputs: int, rows: int, columns: int, pad: int) -> Graph:
    g = Builder()
    x = g.input("x", tensor("float32", batch, inputs, rows, columns))
    weight = GENERATOR.standard_normal((outputs, inputs, 3, 3), dtype=np.float32)
    bias = GENERATOR.standard_normal(outputs, dtype=np.float32)
    y = g("nn.conv2d", x, g.constant(weight), padding=(pad,) * 4)
    return g.build(g("nn.leaky_relu", g("nn.bias_add", y, g.constant(bias)), alpha=0.1))


def _direct_in_float64(graph: Graph, x: Array) -> Array:
    weight, bias = (node.attrs.value.array for node in graph.nodes if node.op.name == "constant")
    g = Builder()
    data = g.input("x", tensor("float64", *x.shape))
    conv = next(node for node in graph.nodes if node.op.name == "nn.conv2d")
    y = g("nn.conv2d", data, g.constant(weight.astype(np.float64)), padding=conv.attrs.padding)
    y = g("nn.bias_add", y, g.constant(bias.astype(np.float64)))
    result: Array = evaluate(g.build(g("nn.leaky_relu", y, alpha=0.1)), [x.astype(np.float64)])[0]
    return result


@pytest.mark.parametrize(
    ("batch", "inputs", "outputs", "rows", "columns", "pad", "threads"),
    [
        (1, 32, 32, 16, 16, 1, 1),
        (1, 32, 48, 13, 17, 1, 2),
        (2, 64, 32, 15, 14, 1, 2),
        (1, 48, 64, 30, 19, 0, 3),
        (3, 32, 32, 9, 11, 2, 2),
        (1, 192, 64, 28, 28, 1, 2),
    ],
)
def test_error_is_small(
    batch: int, inputs: int, outputs: int, rows: int, columns: int, pad: int, threads: int
) -> None:
    graph = _layer(batch, inputs, outputs, rows, columns, pad)
    module = graft.compile(graph, target=["host"], strict=True, threads=threads)
    x = GENERATOR.standard_normal((batch, inputs, rows, columns), dtype=np.float32)
    (found,) = module.run(None, {"x": x})
    expected = _direct_in_float64(graph, x)
    assert np.abs(found - expected).max() < 5e-5 * expected.std()

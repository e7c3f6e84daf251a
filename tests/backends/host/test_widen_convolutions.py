"""Layers over one axis become layers on images of one row: same meaning, views only at the ends."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest

import graft
from graft.backends.host.passes.widen_convolutions import widen_convolutions
from graft.base.dims import Dim, symbol
from graft.base.dtypes import Array
from graft.ir.builder import Builder
from graft.ir.evaluate import evaluate
from graft.ir.graph import Graph, Value
from graft.ir.types import tensor
from graft.ir.verify import verify

GENERATOR = np.random.default_rng(11)


def _weights(*shape: int) -> Array:
    return GENERATOR.standard_normal(shape, dtype=np.float32) / np.float32(4)


def _inputs(graph: Graph) -> list[Array]:
    return [_weights(*(dim for dim in v.shape or () if isinstance(dim, int))) for v in graph.inputs]


def _network(batch: int) -> Graph:
    g = Builder()
    x = g.input("x", tensor("float32", batch, 16, 37))
    y = g("nn.conv1d", x, g.constant(_weights(32, 16, 5)), padding=(2, 1), strides=(2,))
    y = g("nn.relu", g("nn.bias_add", y, g.constant(_weights(32)), axis=-2))
    z = g("nn.conv1d", y, g.constant(_weights(32, 16, 3)), padding=(2, 2), dilation=(2,), groups=2)
    z = g("multiply", g("add", z, y), g.constant(_weights(32, 1)))
    z = g("add", g.constant(_weights(18)), z)
    z = g("nn.max_pool1d", z, pool_size=(3,), strides=(2,), padding=(1, 1))
    kernel = g.constant(_weights(32, 8, 4))
    up = g("nn.conv1d_transpose", z, kernel, strides=(2,), padding=(1, 1), output_padding=(1,))
    both = g("concatenate", up, g("nn.gelu", up), axis=-2)
    ends = g("concatenate", both, both, axis=2)
    return g.build(g("nn.avg_pool1d", ends, pool_size=(2,), strides=(2,), ceil_mode=True))


@pytest.mark.parametrize("batch", [1, 3])
def test_chain_of_layers_is_one_chain_of_images(batch: int) -> None:
    graph = _network(batch)
    wide = widen_convolutions(graph)
    verify(wide)
    counts = Counter(node.op.name for node in wide.nodes)
    assert counts["expand_dims"] == counts["squeeze"] == 1
    assert not any(name.endswith(("1d", "1d_transpose")) for name in counts)
    inputs = _inputs(graph)
    np.testing.assert_allclose(
        evaluate(wide, inputs), evaluate(graph, inputs), rtol=1e-5, atol=1e-5
    )


@pytest.mark.parametrize("batch", [1, 3])
def test_native_code_agrees(batch: int) -> None:
    graph = _network(batch)
    module = graft.compile(graph, strict=True, threads=2)
    inputs = _inputs(graph)
    found = module.run(None, {"x": inputs[0]})
    np.testing.assert_allclose(found, evaluate(graph, inputs), rtol=1e-4, atol=1e-4)


def _conv(g: Builder, x: Value) -> Value:
    return g("nn.conv1d", x, g.constant(_weights(8, 8, 3)), padding=(1, 1))


def test_what_works_along_an_axis_or_on_more_axes_sees_the_signal() -> None:
    g = Builder()
    x = g.input("x", tensor("float32", 2, 8, 9))
    y = _conv(g, x)
    softened = g("nn.softmax", y, axis=1)
    outer = g("add", y, g.input("r", tensor("float32", 3, 1, 1, 9)))
    graph = g.build(softened, outer)
    wide = widen_convolutions(graph)
    inputs = _inputs(graph)
    for mine, other in zip(evaluate(wide, inputs), evaluate(graph, inputs), strict=True):
        np.testing.assert_allclose(mine, other, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("keepdims", [False, True])
@pytest.mark.parametrize("op", ["max", "mean", "sum"])
def test_reductions_over_columns_see_images(op: str, keepdims: bool) -> None:
    g = Builder()
    x = g.input("x", tensor("float32", 2, 16, 37))
    y = g("nn.conv1d", x, g.constant(_weights(32, 16, 3)))
    graph = g.build(g(op, y, axes=(-1,), keepdims=keepdims), g(op, y, axes=(0, 2)))
    wide = widen_convolutions(graph)
    verify(wide)
    image, signal = (node for node in wide.nodes if node.op.name == op)
    assert (image.args[0].tensor.rank, signal.args[0].tensor.rank) == (4, 3)
    inputs = _inputs(graph)
    found = graft.compile(graph, strict=True).run(None, {"x": inputs[0]})
    for one, other in zip(found, evaluate(graph, inputs), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-4)


def test_operand_that_is_no_signal_yet_gets_a_view() -> None:
    g = Builder()
    x = g.input("x", tensor("float32", 2, 8, 9))
    graph = g.build(g("add", _conv(g, x), g.input("r", tensor("float32", 8, 9))))
    wide = widen_convolutions(graph)
    assert Counter(node.op.name for node in wide.nodes)["expand_dims"] == 2
    inputs = _inputs(graph)
    np.testing.assert_allclose(
        evaluate(wide, inputs), evaluate(graph, inputs), rtol=1e-5, atol=1e-5
    )


def test_symbolic_extents_are_kept() -> None:
    g = Builder()
    x = g.input("x", tensor("float32", symbol("n"), 8, symbol("t")))
    wide = widen_convolutions(g.build(g("nn.relu", _conv(g, x))))
    verify(wide)
    assert wide.outputs[0].shape == (symbol("n"), 8, symbol("t"))


def test_graph_without_such_layers_is_left_alone() -> None:
    g = Builder()
    x = g.input("x", tensor("float32", 2, 8, 9))
    graph = g.build(g("nn.relu", x))
    assert widen_convolutions(graph) is graph


@pytest.mark.parametrize("batch", [2, symbol("n")])
def test_images_of_one_column_become_rows(batch: Dim) -> None:
    """As some exporters write signals."""
    g = Builder()
    x = g.input("x", tensor("float32", batch, 16, 37, 1))
    y = g("nn.conv2d", x, g.constant(_weights(32, 16, 5, 1)), padding=(2, 0, 1, 0), strides=(2, 1))
    y = g("nn.relu", g("nn.bias_add", y, g.constant(_weights(32)), axis=1))
    y = g("add", y, g.constant(_weights(1, 32, 1, 1)))
    z = g("nn.conv2d", y, g.constant(_weights(32, 1, 3, 1)), dilation=(2, 1), groups=32)
    z = g("nn.max_pool2d", z, pool_size=(3, 1), strides=(2, 1), padding=(1, 0, 1, 0))
    graph = g.build(g("nn.avg_pool2d", z, pool_size=(2, 1), strides=(1, 3)))
    wide = widen_convolutions(graph)
    verify(wide)
    windows = [n for n in wide.nodes if n.op.name.startswith("nn.") and n.op.name.endswith("2d")]
    assert len(windows) == 4
    assert all((node.output.shape or ())[2] == 1 for node in windows)
    counts = Counter(node.op.name for node in wide.nodes)
    assert counts["expand_dims"] == counts["squeeze"] == 2
    data = [_weights(2, 16, 37, 1)]
    wanted = evaluate(graph, data)
    np.testing.assert_allclose(evaluate(wide, data), wanted, rtol=1e-5, atol=1e-5)
    found = graft.compile(graph, strict=True).run(None, {"x": data[0]})
    np.testing.assert_allclose(found, wanted, rtol=1e-4, atol=1e-4)


def test_columns_that_grow_or_have_neighbours_stay() -> None:
    g = Builder()
    x = g.input("x", tensor("float32", 1, 8, 9, 1))
    y = g("nn.conv2d", x, g.constant(_weights(8, 8, 3, 3)), padding=(1, 1, 1, 1))
    z = g("nn.conv2d", x, g.constant(_weights(8, 8, 3, 1)), padding=(1, 1, 1, 1))
    graph = g.build(y, z)
    assert widen_convolutions(graph) is graph


@pytest.mark.parametrize("shape", [(2, 8, 1, 1), (2, 8, 1), (1, 8, 2, 1), (0, 8, 1, 1)])
def test_single_pixels_are_rows_and_columns(shape: tuple[int, ...]) -> None:
    """As gates on the means of channels have them; the rules come to an end."""
    g = Builder()
    x = g.input("x", tensor("float32", *shape))
    ones = (1,) * (len(shape) - 2)
    conv = f"nn.conv{len(ones)}d"
    y = g("sigmoid", g(conv, x, g.constant(_weights(8, 8, *ones))))
    graph = g.build(g("multiply", g(conv, y, g.constant(_weights(8, 8, *ones))), x))
    verify(widen_convolutions(graph))
    inputs = _inputs(graph)
    found = graft.compile(graph, strict=True).run(None, {"x": inputs[0]})
    np.testing.assert_allclose(found, evaluate(graph, inputs), rtol=1e-4, atol=1e-5)

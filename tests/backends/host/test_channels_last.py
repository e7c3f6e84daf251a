"""Rows of channels and images in one block are one memory, and activations join convolutions."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

import graft
from graft.backends.host.lowering.assemble import Assembly, NativeStep
from graft.backends.host.lowering.segments import SegmentCompiler
from graft.backends.host.passes.recognize_layouts import recognize_layouts
from graft.backends.host.passes.sink_reshapes import sink_reshapes
from graft.backends.host.storage import shape_of
from graft.base.dims import Dim, symbol
from graft.base.dtypes import Array
from graft.byoc.executable import Accuracy
from graft.ir.builder import Builder
from graft.ir.evaluate import evaluate
from graft.ir.graph import Graph, Value
from graft.ir.types import tensor
from graft.ops.indexed import IndexRanges
from graft.target.target import host_target

GENERATOR = np.random.default_rng(3)
TO_IMAGE, TO_ROWS = (0, 2, 1), (0, 2, 1)


def _numbers(*shape: int) -> Array:
    return GENERATOR.standard_normal(shape, dtype=np.float32)


def _conv(g: Builder, image: Value, outputs: int, size: int = 3) -> Value:
    channels = shape_of(image)[1]
    assert isinstance(channels, int)
    weight = g.constant(_numbers(outputs, channels, size, size))
    return g("nn.conv2d", image, weight, padding=(size // 2,) * 4)


def _tokens_through_an_image(channels: int, batch: Dim, size: int = 3) -> Graph:
    """Rows, an image, a convolution, an activation behind the reshape, and rows again."""
    g = Builder()
    rows = g.input("x", tensor("float32", batch, 35, channels))
    image = g("reshape", g("transpose", rows, axes=TO_IMAGE), shape=(batch, channels, 5, 7))
    made = g("reshape", _conv(g, image, channels, size), shape=(batch, channels, 35))
    back = g("transpose", g("nn.gelu", made), axes=TO_ROWS)
    return g.build(g("add", back, rows))


def _assembled(graph: Graph) -> Assembly:
    compiler = SegmentCompiler(host_target(), Accuracy.DEFAULT, {})
    return compiler.assembled(graph, IndexRanges(graph), {})[1]


def _labels(graph: Graph) -> list[str]:
    return [one.label for one in _assembled(graph).steps if isinstance(one, NativeStep)]


def _check(graph: Graph, *inputs: Array) -> None:
    wanted = evaluate(graph, inputs)
    module = graft.compile(graph, strict=True, threads=2)
    feeds = dict(zip((value.name for value in graph.inputs), inputs, strict=True))
    for found, expected in zip(module.run(None, feeds), wanted, strict=True):
        np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-4)


@pytest.mark.each_value
@pytest.mark.parametrize("channels", [3, 16, 24, 40, 64])
@pytest.mark.parametrize("batch", [1, 3])
def test_rows_through_an_image(channels: int, batch: int) -> None:
    _check(_tokens_through_an_image(channels, batch), _numbers(batch, 35, channels))


def test_nothing_is_moved_but_into_blocks_and_out_of_them() -> None:
    assert _labels(_tokens_through_an_image(32, 1, size=1)) == [
        "relayout",
        "nn.conv2d+nn.gelu",
        "relayout",
        "reshape+add",
    ]


@pytest.mark.parametrize("batch", [1, 4])
def test_any_batch(batch: int) -> None:
    _check(_tokens_through_an_image(32, symbol("n")), _numbers(batch, 35, 32))


def test_the_rows_of_an_image_as_output() -> None:
    g = Builder()
    image = _conv(g, g.input("x", tensor("float32", 1, 16, 6, 5)), 48)
    _check(g.build(image, g("transpose", image, axes=(0, 2, 3, 1))), _numbers(1, 16, 6, 5))


def test_an_input_with_channels_last() -> None:
    g = Builder()
    rows = g.input("x", tensor("float32", 2, 9, 8, 3))
    image = g("transpose", rows, axes=(0, 3, 1, 2))
    _check(g.build(g("transpose", _conv(g, image, 20), axes=(0, 2, 3, 1))), _numbers(2, 9, 8, 3))


def test_one_image_as_rows_twice() -> None:
    g = Builder()
    image = _conv(g, g.input("x", tensor("float32", 1, 16, 6, 5)), 32)
    once = g("transpose", image, axes=(0, 2, 3, 1))
    again = g("transpose", g("reshape", image, shape=(1, 32, 30)), axes=TO_ROWS)
    _check(g.build(once, g("nn.relu", again)), _numbers(1, 16, 6, 5))


def _moved(build: Callable[[Builder, Value], Value], *shape: int) -> Graph:
    g = Builder()
    return g.build(build(g, g.input("x", tensor("float32", *shape))))


@pytest.mark.parametrize(
    ("build", "shape"),
    [
        (lambda g, x: g("transpose", x, axes=(0, 2, 1, 3)), (1, 4, 6, 8)),
        (lambda g, x: g("transpose", x, axes=(1, 0, 2, 3)), (4, 4, 6, 8)),
        (lambda g, x: g("transpose", x, axes=(0, 3, 2, 1)), (1, 4, 4, 8)),
        (lambda g, x: g("transpose", x, axes=(0, 3, 1, 2)), (1, 4, 4, 1)),
        (lambda g, x: g("transpose", x, axes=(0, 3, 1, 2)), (1, 0, 4, 8)),
    ],
)
def test_other_movement_is_another_matter(
    build: Callable[[Builder, Value], Value], shape: tuple[int, ...]
) -> None:
    graph = _moved(build, *shape)
    assert recognize_layouts(graph) is graph
    _check(graph, _numbers(*shape))


def test_a_reshape_that_others_read_stays() -> None:
    g = Builder()
    flat = g("reshape", _conv(g, g.input("x", tensor("float32", 1, 8, 4, 4)), 8), shape=(1, 128))
    graph = g.build(g("nn.relu", flat), g("exp", flat))
    assert sink_reshapes(graph) is graph


def test_operands_of_more_axes_keep_their_place() -> None:
    g = Builder()
    conv = _conv(g, g.input("x", tensor("float32", 1, 8, 4, 4)), 8)
    wide = g.constant(np.full((1, 1, 1, 1, 1), 3.0, np.float32))
    graph = g.build(g("multiply", g("reshape", conv, shape=(2, 64)), wide))
    assert sink_reshapes(graph) is graph
    _check(graph, _numbers(1, 8, 4, 4))

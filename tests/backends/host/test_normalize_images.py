"""Normalisations of images become what kernels for blocks of channels compute."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import graft
from graft.backends.host.passes.normalize_images import normalize_images
from graft.base.dims import Dim, symbol
from graft.base.dtypes import Array
from graft.ir.builder import Builder
from graft.ir.evaluate import evaluate
from graft.ir.graph import Graph
from graft.ir.types import tensor
from graft.ir.verify import verify

GENERATOR = np.random.default_rng(5)
TO_END, BACK = (0, 2, 3, 1), (0, 3, 1, 2)


def _numbers(*shape: int) -> Array:
    return GENERATOR.standard_normal(shape, dtype=np.float32)


def _moved(
    op: str = "nn.layer_norm",
    shape: tuple[Dim, ...] = (2, 24, 5, 7),
    parameters: int = 2,
    back: tuple[int, ...] = BACK,
    **attrs: Any,
) -> Graph:
    g = Builder()
    x = g.input("x", tensor("float32", *shape))
    lists = [g.constant(_numbers(int(str(shape[1])))) for _ in range(parameters)]
    moved = g(op, g("transpose", x, axes=TO_END), *lists, **attrs)
    return g.build(g("transpose", moved, axes=back))


def _pixels(op: str, shape: tuple[Dim, ...] = (2, 24, 5, 7), **attrs: Any) -> Graph:
    g = Builder()
    x = g.input("x", tensor("float32", *shape))
    lists = [g.constant(_numbers(int(str(shape[1])))) for _ in range(2)]
    return g.build(g(op, x, *lists, **attrs))


def _names(graph: Graph) -> list[str]:
    return [node.op.name for node in graph.nodes if node.op.name != "constant"]


def _same(one: Graph, other: Graph, *inputs: Array) -> None:
    verify(other)
    (expected,), (actual,) = evaluate(one, inputs), evaluate(other, inputs)
    np.testing.assert_allclose(actual, expected, rtol=1e-4, atol=1e-5)


NORMS = {
    "layer norm": _moved(),
    "without parameters": _moved(parameters=0, epsilon=0.1),
    "root of mean squares": _moved("nn.rms_norm", parameters=1),
    "axis from the front": _moved(axis=3),
}


@pytest.mark.parametrize("name", NORMS)
def test_channels_are_normalised_where_they_are(name: str) -> None:
    after = normalize_images(NORMS[name])
    assert "nn.channel_norm" in _names(after)
    _same(NORMS[name], after, _numbers(2, 24, 5, 7))


OTHERS = {
    "another order": _moved(shape=(2, 8, 8, 8), back=(0, 3, 2, 1)),
    "odd channels": _moved(shape=(2, 10, 5, 7)),
    "more axes": _moved(shape=(2, 8, 8, 8), parameters=0, axis=2),
    "odd channels in groups": _pixels("nn.group_norm", (2, 10, 5, 7), num_groups=2),
    "signals": _pixels("nn.instance_norm", (2, 8, 5)),
    "channels at the end": _pixels("nn.instance_norm", (2, 8, 8, 8), axis=3),
    "empty": _pixels("nn.instance_norm", (2, 8, 0, 3)),
}


@pytest.mark.parametrize("name", OTHERS)
def test_other_normalisations_stay(name: str) -> None:
    assert normalize_images(OTHERS[name]) is OTHERS[name]


@pytest.mark.parametrize("groups", [1, 3, 8, 24])
def test_group_norm(groups: int) -> None:
    graph = _pixels("nn.group_norm", num_groups=groups)
    _same(graph, normalize_images(graph), _numbers(2, 24, 5, 7))


def test_instance_norm_with_parameters_that_are_data() -> None:
    g = Builder()
    x = g.input("x", tensor("float32", 2, 8, 5, 7))
    lists = [g.input(name, tensor("float32", 8)) for name in ("gamma", "beta")]
    graph = g.build(g("nn.instance_norm", x, *lists, axis=-3))
    after = normalize_images(graph)
    assert "nn.instance_norm" not in _names(after)
    _same(graph, after, _numbers(2, 8, 5, 7), _numbers(8), _numbers(8))


@pytest.mark.parametrize("size", [1, 6, 17])
@pytest.mark.parametrize("batch", [1, 3])
def test_networks_of_any_size(size: int, batch: int) -> None:
    """Means far from zero, layers around the normalisations, epilogues behind them."""
    g = Builder()
    shape = (symbol("n"), 16, symbol("h"), symbol("w"))
    y = g.input("x", tensor("float32", *shape))
    for number, op in enumerate(("nn.layer_norm", "nn.group_norm", "nn.instance_norm")):
        y = g("nn.conv2d", y, g.constant(_numbers(16, 16, 3, 3) / 12), padding=(1, 1, 1, 1))
        y = g("nn.bias_add", y, g.constant(_numbers(16) + 3))
        lists = [g.constant(_numbers(16)) for _ in range(2)]
        if not number:
            moved = g(op, g("transpose", y, axes=TO_END), *lists)
            y = g("nn.gelu", g("transpose", moved, axes=BACK))
        else:
            attrs = {"num_groups": 4} if number == 1 else {}
            y = g("nn.relu", g(op, y, *lists, epsilon=1e-3, **attrs))
    graph = g.build(y)
    x = _numbers(batch, 16, size, size + 1)
    (actual,) = graft.compile(graph, strict=True).run(None, {"x": x})
    (expected,) = evaluate(graph, [x])
    np.testing.assert_allclose(actual, expected, rtol=2e-3, atol=2e-3)

"""Layers of 16-bit floats: kernels against the reference, and the pass that makes them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import graft
from graft.backends.host.passes.use_halves import use_halves
from graft.base.dtypes import DType
from graft.ir.builder import Builder
from graft.ir.evaluate import evaluate
from graft.ir.graph import Graph, Value
from graft.ir.types import tensor
from graft.target.target import Target, host_target

HALVES = (DType.BFLOAT16, DType.FLOAT16)
DRAW = np.random.default_rng(5)


def _rounded(half: DType, *shape: int) -> Any:
    scale = np.prod(shape[1:]) ** -0.5
    return DRAW.normal(size=shape, scale=scale).astype(half.numpy).astype(np.float32)


def _through(g: Builder, value: Value, half: DType) -> Value:
    return g("cast", g("cast", value, dtype=half), dtype=DType.FLOAT32)


def _ops(graph: Graph) -> list[str]:
    return [node.op.name for node in graph.nodes if node.op.name != "constant"]


def _agrees(graph: Graph, tolerance: float) -> None:
    inputs = [DRAW.normal(size=v.tensor.shape).astype(v.dtype.numpy) for v in graph.inputs]
    (expected,) = evaluate(graph, inputs)
    module = graft.compile(graph, strict=True)
    (found,) = module.run(None, dict(zip((v.name for v in graph.inputs), inputs, strict=True)))
    assert np.abs(found - expected).max() <= tolerance * np.abs(expected).max()


def _images(shape: tuple[int, ...], *layers: tuple[int, int, int, int]) -> Graph:
    """Convolutions (outputs, kernel, stride, groups), each on what bfloat16 leaves of its data."""
    g = Builder()
    x = g.input("x", tensor("float32", *shape))
    for outputs, size, stride, groups in layers:
        inputs = int((x.shape or ())[1]) // groups
        weight = g.constant(_rounded(DType.BFLOAT16, outputs, inputs, size, size))
        steps = {"strides": (stride, stride), "padding": (size // 2,) * 4, "groups": groups}
        x = g("nn.conv2d", _through(g, x, DType.BFLOAT16), weight, **steps)
        bias = g.constant(DRAW.normal(size=outputs).astype(np.float32))
        x = g("nn.relu", g("nn.bias_add", x, bias, axis=1))
    return g.build(x)


@pytest.mark.parametrize(
    "layers",
    [
        ((32, 1, 1, 1), (48, 1, 1, 1)),
        ((16, 3, 1, 1), (32, 3, 2, 1), (8, 5, 1, 1)),
        ((24, 7, 2, 1), (24, 3, 1, 4)),
    ],
)
def test_convolutions(layers: Any) -> None:
    graph = _images((2, 16, 14, 13), *layers)
    assert _ops(use_halves(graph, host_target())).count("mixed.conv2d") == len(layers)
    # where a sum is close to the middle of two bfloat16, its order decides
    _agrees(graph, 2e-2)


def test_channels_without_a_partner() -> None:
    graph = _images((1, 3, 9, 9), (16, 3, 1, 1))
    assert "nn.pad" in _ops(use_halves(graph, host_target()))
    _agrees(graph, 1e-5)


def test_pooling_between() -> None:
    g = Builder()
    x = g.input("x", tensor("float32", 1, 16, 12, 12))
    narrow = g("cast", x, dtype=DType.BFLOAT16)
    pooled = g("nn.max_pool2d", narrow, pool_size=(3, 3), strides=(2, 2), padding=(1, 1, 1, 1))
    weight = g.constant(_rounded(DType.BFLOAT16, 32, 16, 3, 3))
    wide = g("cast", pooled, dtype=DType.FLOAT32)
    _agrees(g.build(g("nn.conv2d", wide, weight, padding=(1, 1, 1, 1))), 1e-5)


@pytest.mark.each_value
@pytest.mark.parametrize("half", HALVES, ids=str)
@pytest.mark.parametrize("rows", [1, 3, 17])
@pytest.mark.parametrize("narrow", [True, False], ids=["narrow data", "float32 data"])
def test_dense_kernels(half: DType, rows: int, narrow: bool) -> None:
    g = Builder()
    x = g.input("x", tensor("float32", rows, 70))
    data = g("cast", x, dtype=half) if narrow else x
    weight = g.constant(_rounded(half, 37, 70).astype(half.numpy))
    y = g("mixed.dense", data, weight)
    _agrees(g.build(g("nn.relu", y)), 1e-5)


def test_dense_layers_on_rounded_data() -> None:
    g = Builder()
    x = g.input("x", tensor("float32", 5, 64))
    weight = g.constant(_rounded(DType.BFLOAT16, 20, 64))
    odd = g.constant(_rounded(DType.BFLOAT16, 10, 21))
    y = g("nn.dense", _through(g, x, DType.BFLOAT16), weight)
    y = g("concatenate", y, g("strided_slice", y, begin=(0,), end=(1,), axes=(1,)), axis=1)
    graph = g.build(g("nn.dense", _through(g, y, DType.BFLOAT16), odd))
    ops = _ops(use_halves(graph, host_target()))
    assert (ops.count("mixed.dense"), ops.count("nn.dense")) == (1, 1)
    _agrees(graph, 2e-2)


def _with_cache(target: Target, size: int) -> Target:
    caches = tuple(replace(cache, size=size) for cache in target.machine.caches)
    return replace(target, machine=replace(target.machine, caches=caches))


@pytest.mark.parametrize("half", HALVES, ids=str)
def test_weights_that_stream_are_stored_narrow(half: DType) -> None:
    """Where they are exact, the rows few and the cache too small; else nothing changes."""
    small, large = _with_cache(host_target(), 1 << 10), _with_cache(host_target(), 1 << 30)
    exact, inexact = _rounded(half, 30, 40), _rounded(DType.FLOAT32, 30, 40)
    cases = ((1, exact, small), (5, exact, small), (1, inexact, small), (1, exact, large))
    found = []
    for rows, weight, target in cases:
        g = Builder()
        graph = g.build(
            g("nn.dense", g.input("x", tensor("float32", rows, 40)), g.constant(weight))
        )
        found.append(_ops(use_halves(graph, target)))
    assert found == [["mixed.dense"], ["nn.dense"], ["nn.dense"], ["nn.dense"]]

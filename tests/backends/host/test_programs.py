"""Programs as a whole: odd graphs, several outputs, views, threads, and what is left over."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import graft
from graft.backends.host.kernels.expression import stages
from graft.base.dims import symbol
from graft.base.dtypes import Array
from graft.base.errors import ReferenceWarning
from graft.ir.builder import Builder
from graft.ir.evaluate import evaluate
from graft.ir.graph import Graph, Value
from graft.ir.types import tensor

GENERATOR = np.random.default_rng(0)


def _weights(*shape: int) -> Array:
    return GENERATOR.standard_normal(shape, dtype=np.float32)


def _conv(g: Builder, x: Value, channels: int, kernel: int = 3, stride: int = 1) -> Value:
    inputs = (x.shape or ())[1]
    assert isinstance(inputs, int)
    weight = g.constant(_weights(channels, inputs, kernel, kernel) / np.float32(kernel * 5))
    pad = (kernel // 2,) * 4
    y = g("nn.conv2d", x, weight, strides=(stride, stride), padding=pad)
    return g("nn.relu", g("nn.bias_add", y, g.constant(_weights(channels))))


def _check(graph: Graph, threads: int = 2, **counts: int) -> graft.Module:
    module = graft.compile(graph, target=["host"], threads=threads)
    feeds = {
        value.name: GENERATOR.standard_normal(value.shape or (), dtype=np.float32)
        for value in graph.inputs
    }
    expected = evaluate(graph, [feeds[value.name] for value in graph.inputs])
    for _ in range(3):
        for mine, other in zip(module.run(None, feeds), expected, strict=True):
            np.testing.assert_allclose(mine, other, rtol=1e-3, atol=1e-4)
    return module


@pytest.mark.each_value
@pytest.mark.parametrize("threads", [1, 2, 3])
@pytest.mark.parametrize("batch", [1, 2])
def test_residual_blocks_with_halos_of_different_widths(batch: int, threads: int) -> None:
    g = Builder()
    x = g.input("x", tensor("float32", batch, 3, 29, 31))
    stem = _conv(g, x, 32, kernel=5, stride=2)
    left = _conv(g, stem, 32)
    right = _conv(g, _conv(g, stem, 48, kernel=1), 32, kernel=5)
    total = g("nn.relu", g("add", left, right))
    pooled = g("nn.max_pool2d", total, pool_size=(3, 3), strides=(2, 2), padding=(1, 1, 1, 1))
    joined = g("concatenate", pooled, _conv(g, pooled, 16, kernel=1), axis=1)
    _check(g.build(joined, total), threads)


def test_outputs_that_are_inputs_views_and_twice_the_same() -> None:
    g = Builder()
    x = g.input("x", tensor("float32", 1, 16, 6, 6))
    y = _conv(g, x, 16)
    flat = g("reshape", y, shape=(16, 36))
    _check(g.build(x, y, flat, y, names=["a", "b", "c", "d"]))


def test_constant_output() -> None:
    g = Builder()
    x = g.input("x", tensor("float32", 3))
    _check(g.build(g("exp", x), g.constant(np.arange(5, dtype=np.float32))))


def test_what_has_no_native_code_runs_visibly_on_the_evaluator() -> None:
    g = Builder()
    x = g.input("x", tensor("float32", 1, 2, 4, 5))
    rois = g.constant(np.array([[0, 0, 0, 3, 2], [0, 1, 1, 4, 3]], np.float32))
    graph = g.build(g("exp", g("vision.roi_pool", x, rois, pooled_size=(2, 2))))
    module = _check(graph)
    assert module.placement.nodes["reference"] >= 1
    assert "roi_pool" in next(iter(module.placement.reasons))
    with pytest.raises(graft.UserError, match="strict=True refuses the reference evaluator"):
        graft.compile(graph, target=["host"], strict=True)


def test_dynamic_graph_runs_natively() -> None:
    g = Builder()
    x = g.input("x", tensor("float32", symbol("n"), 3))
    module = graft.compile(g.build(g("exp", x)), target=["host"])
    assert module.placement.nodes == {"host": 1}
    (result,) = module.run(None, {"x": np.zeros((2, 3), np.float32)})
    np.testing.assert_array_equal(result, np.ones((2, 3), np.float32))


def test_model_with_steps_on_the_evaluator_is_saved(tmp_path: Path) -> None:
    g = Builder()
    x = g.input("x", tensor("float32", 1, 2, 4, 5))
    rois = g.constant(np.array([[0, 0, 0, 3, 2]], np.float32))
    pooled = g("vision.roi_pool", x, rois, pooled_size=(2, 2))
    module = graft.compile(g.build(pooled), target=["host"])
    with pytest.warns(ReferenceWarning, match=r"operators vision\.roi_pool"):
        module.save(tmp_path / "model.graft")
    session = graft.load(tmp_path / "model.graft")
    feeds = {"x": np.arange(40, dtype=np.float32).reshape(1, 2, 4, 5)}
    np.testing.assert_array_equal(session.run(None, feeds)[0], module.run(None, feeds)[0])


def test_group_without_a_kernel_keeps_its_views(monkeypatch: pytest.MonkeyPatch) -> None:
    """Windows of an image as gathered rows and columns: too many nodes for one kernel."""
    monkeypatch.setattr(stages, "MOST_MOVED", stages.MOST_INLINED)
    g = Builder()
    x = g.input("x", tensor("float32", 1, 16, 12, 12))
    rows = g.constant(np.array([[0, 1, 2, 3, 4], [4, 5, 6, 7, 8], [9, 10, 11, 12, 13]], np.int64))
    padded = g("nn.pad", x, pad_width=(0, 0, 1, 1, 0, 0, 1, 1))
    high = g("transpose", g("take", padded, rows, axis=2), axes=(0, 1, 2, 4, 3))
    wide = g("transpose", g("take", high, rows, axis=3), axes=(0, 1, 2, 3, 5, 4))
    windows = g("transpose", g("reshape", wide, shape=(2, 8, 9, 25)), axes=(0, 2, 3, 1))
    module = _check(g.build(*g.call("split", windows, axis=3, sizes=(4, 4))))
    labels = [call.label for call in module.program.calls]
    assert "take" in labels
    assert "reshape" not in labels

"""Kernels lose the taps that only ever meet padding."""

from __future__ import annotations

import numpy as np
import pytest

from graft.ir.builder import Builder
from graft.ir.evaluate import evaluate
from graft.ir.graph import Graph
from graft.ir.types import tensor
from graft.passes.crop_kernels import crop_kernels


def _layer(side: int, kernel: int, padding: int, dilation: int, stride: int = 1) -> Graph:
    g = Builder()
    x = g.input("x", tensor("float32", 1, 4, side, side + 1))
    weight = np.random.default_rng(0).standard_normal((6, 4, kernel, kernel), np.float32)
    attrs = {"dilation": (dilation,) * 2, "strides": (stride,) * 2, "padding": (padding,) * 4}
    return g.build(g("nn.conv2d", x, g.constant(weight), **attrs))


@pytest.mark.parametrize(
    ("side", "kernel", "padding", "dilation", "stride", "left"),
    [
        (14, 3, 36, 36, 1, (1, 1)),
        (14, 3, 14, 14, 1, (1, 3)),  # the image is one column wider than a step
        (5, 7, 9, 3, 2, (3, 3)),
        (9, 3, 1, 1, 1, (3, 3)),
        (9, 3, 12, 6, 1, (3, 3)),  # results outside of the image read every tap
    ],
)
def test_dead_taps(
    side: int, kernel: int, padding: int, dilation: int, stride: int, left: tuple[int, int]
) -> None:
    graph = _layer(side, kernel, padding, dilation, stride)
    cropped = crop_kernels(graph)
    (conv,) = (node for node in cropped.nodes if node.op.name == "nn.conv2d")
    assert conv.args[1].shape is not None
    assert conv.args[1].shape[2:] == left
    assert (cropped is graph) == (left == (kernel, kernel))
    x = np.random.default_rng(1).standard_normal((1, 4, side, side + 1), np.float32)
    for one, other in zip(evaluate(cropped, [x]), evaluate(graph, [x]), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-5)


def test_weights_that_are_not_finite_stay() -> None:
    g = Builder()
    x = g.input("x", tensor("float32", 1, 1, 3, 3))
    weight = np.full((1, 1, 3, 3), np.inf, np.float32)
    graph = g.build(g("nn.conv2d", x, g.constant(weight), dilation=(9, 9), padding=(9, 9, 9, 9)))
    assert crop_kernels(graph) is graph

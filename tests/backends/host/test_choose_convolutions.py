"""Which algorithm a convolution gets: where Winograd's is possible, what pays, what is allowed."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from tests.backends.host.row_kernels import only_group

import graft
from graft.backends.host.group import Winograd
from graft.backends.host.templates import choose_algorithm
from graft.base.dims import symbol
from graft.byoc.executable import Accuracy
from graft.ir.builder import Builder
from graft.ir.evaluate import evaluate
from graft.ir.graph import Graph
from graft.ir.types import tensor
from graft.target.machine import MACHINES
from graft.target.target import Target, named_target

# A server's core: the choice must not depend on where the tests run.
SERVER = Target(
    "server",
    "x86_64-unknown-linux-gnu",
    "x86-64-v4",
    named_target("x86-64-v4").features,
    512,
    32,
    MACHINES["znver4"],
)


def _layer(
    inputs: int, outputs: int, side: int, batch: int = 1, kernel: int = 3, **attrs: Any
) -> Graph:
    g = Builder()
    x = g.input("x", tensor("float32", batch, inputs, side, side))
    shape = (outputs, inputs // attrs.get("groups", 1), kernel, kernel)
    weight = np.full(shape, 0.125, np.float32)
    attrs = {"padding": (1, 1, 1, 1), **attrs}
    return g.build(g("nn.conv2d", x, g.constant(weight), **attrs))


def _chosen(graph: Graph, target: Target = SERVER, accuracy: Accuracy = Accuracy.DEFAULT) -> int:
    """The side of the tiles; 0 for direct summation."""
    algorithm = choose_algorithm(only_group(graph), target, accuracy).algorithm
    return algorithm.tile if isinstance(algorithm, Winograd) else 0


@pytest.mark.parametrize(
    ("channels", "side", "batch", "tile"),
    [
        (64, 56, 1, 4),
        (128, 28, 1, 4),
        (256, 14, 1, 4),
        (64, 224, 1, 4),
        (512, 14, 1, 4),
        (64, 56, 8, 4),
        (256, 14, 8, 4),
        # at 7x7 a quarter of F(4x4)'s work is wasted, and its weights are four times as large
        (512, 7, 1, 2),
        (320, 7, 1, 2),
        # so few pixels do not even pay for sixteen numbers per pair of channels
        (512, 2, 1, 0),
        (256, 1, 1, 0),
    ],
)
def test_choice_by_cost(channels: int, side: int, batch: int, tile: int) -> None:
    assert _chosen(_layer(channels, channels, side, batch)) == tile


@pytest.mark.parametrize(
    ("channels", "side", "dilation", "tile"),
    [
        (256, 28, 2, 4),
        (512, 28, 4, 4),
        (256, 65, 2, 4),
        # most of what tiles would compute lies outside of the image
        (256, 28, 24, 0),
        (64, 9, 6, 0),
    ],
)
def test_dilated_layers(channels: int, side: int, dilation: int, tile: int) -> None:
    graph = _layer(channels, channels, side, padding=(dilation,) * 4, dilation=(dilation,) * 2)
    assert _chosen(graph) == tile


@pytest.mark.parametrize(("channels", "side", "tile"), [(64, 128, 4), (128, 56, 4), (256, 28, 2)])
def test_strided_layers(channels: int, side: int, tile: int) -> None:
    assert _chosen(_layer(channels, channels, side, strides=(2, 2))) == tile


@pytest.mark.parametrize(
    ("kernel", "side", "tile"),
    [((1, 7), 17, 4), ((7, 1), 17, 4), ((3, 1), 8, 4), ((5, 5), 35, 2)],
)
def test_other_kernels(kernel: tuple[int, int], side: int, tile: int) -> None:
    g = Builder()
    x = g.input("x", tensor("float32", 1, 64, side, side))
    weight = g.constant(np.full((64, 64, *kernel), 0.125, np.float32))
    padding = tuple(taps // 2 for taps in kernel) * 2
    assert _chosen(g.build(g("nn.conv2d", x, weight, padding=padding))) == tile


@pytest.mark.parametrize(
    "graph",
    [
        _layer(64, 64, 28, strides=(2, 1)),
        _layer(64, 64, 28, strides=(3, 3)),
        _layer(64, 64, 28, strides=(2, 2), dilation=(2, 2)),
        _layer(64, 64, 28, groups=2),
        _layer(64, 64, 28, kernel=7, padding=(3, 3, 3, 3)),
        _layer(64, 64, 28, kernel=5, strides=(2, 2)),
        _layer(8, 64, 28),
    ],
)
def test_impossible_ones_stay_direct(graph: Graph) -> None:
    assert _chosen(graph) == 0


@pytest.mark.parametrize("extent", [4, 10, 14, 28])
def test_weights_that_are_data_have_smaller_tiles_or_none(extent: int) -> None:
    """Their transform takes time whenever the model runs."""
    chosen: list[int] = []
    for is_constant in (False, True):
        g = Builder()
        x = g.input("x", tensor("float32", 1, 64, extent, extent))
        weight = np.zeros((64, 64, 3, 3), np.float32)
        w = g.constant(weight) if is_constant else g.input("w", tensor("float32", *weight.shape))
        chosen.append(_chosen(g.build(g("nn.conv2d", x, w, padding=(1, 1, 1, 1)))))
    assert chosen[0] <= chosen[1]
    assert chosen[0] > 0 or extent < 28


def test_channels_that_are_not_counted_yet_stay_direct() -> None:
    g = Builder()
    x = g.input("x", tensor("float32", 1, symbol("c"), 28, 28))
    weight = g.constant(np.full((64, 64, 3, 3), 0.125, np.float32))
    graph = g.build(g("nn.conv2d", x, weight, padding=(1, 1, 1, 1)))
    assert _chosen(graph) == 0
    pixels = np.random.default_rng(0).standard_normal((1, 64, 28, 28), dtype=np.float32)
    found = graft.compile(graph, strict=True).run(None, {"x": pixels})
    np.testing.assert_allclose(found[0], evaluate(graph, [pixels])[0], rtol=1e-4, atol=1e-4)


def test_machine_without_known_caches() -> None:
    assert _chosen(_layer(64, 64, 56), named_target("x86-64-v3")) == 4


def test_strict_accuracy_keeps_direct_summation() -> None:
    assert _chosen(_layer(64, 64, 56), accuracy=Accuracy.STRICT) == 0


@pytest.mark.parametrize("accuracy", ["default", "strict"])
def test_accuracy_of_compiled_models(accuracy: str) -> None:
    module = graft.compile(_layer(64, 64, 28), accuracy=accuracy, strict=True)
    labels = [call.label for call in module.program.calls]
    assert any("winograd" in label for label in labels) == (accuracy == "default")


def test_unknown_accuracy() -> None:
    with pytest.raises(graft.UserError, match="there is no accuracy 'sloppy'"):
        graft.compile(_layer(16, 16, 8), accuracy="sloppy")


@pytest.mark.parametrize("outputs", [126, 60, 18])
def test_channels_need_not_fill_blocks(outputs: int) -> None:
    assert _chosen(_layer(64, outputs, 32)) == 4

"""Convolutions of floats over three axes, as those of slices: where they pay, what they give."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from tests.backends.host.flows import check_flow

from graft.backends.host.passes.fold_depth import fold_depth
from graft.base.dims import Dim, symbol
from graft.ir.builder import Builder
from graft.ir.graph import Graph
from graft.ir.types import tensor

GENERATOR = np.random.default_rng(5)


def _layers(batch: Dim, channels: int = 16, groups: int = 1, **attrs: Any) -> Graph:
    """Two layers with a bias, an activation and an addition around them."""
    g = Builder()
    x = g.input("x", tensor("float32", batch, channels, 5, 9, 11))
    y = x
    for outputs in (24, 16):
        inputs = (y.shape or ())[1]
        assert isinstance(inputs, int)
        weight = GENERATOR.standard_normal((outputs, inputs // groups, 3, 3, 3)) / inputs
        bias = GENERATOR.standard_normal(outputs).astype(np.float32)
        y = g("nn.conv3d", y, g.constant(weight.astype(np.float32)), groups=groups, **attrs)
        y = g("nn.relu", g("nn.bias_add", y, g.constant(bias)))
    return g.build(g("nn.max_pool3d", y, pool_size=(1, 2, 2)))


def _names(graph: Graph) -> list[str]:
    return [node.op.name for node in fold_depth(graph).nodes]


@pytest.mark.parametrize("batch", [1, 2, symbol("n")])
@pytest.mark.parametrize(
    "attrs",
    [
        {"padding": (1,) * 6},
        {"padding": (2, 0, 1, 0, 1, 2)},
        {"padding": (1,) * 6, "strides": (2, 1, 1)},
        {"padding": (2, 1, 1, 2, 1, 1), "dilation": (2, 1, 1)},
        {"padding": (1,) * 6, "strides": (2, 2, 1)},
        {"padding": (1, 2, 2) * 2, "dilation": (1, 2, 2)},
    ],
)
def test_layers_become_layers_of_slices(batch: Dim, attrs: dict[str, Any]) -> None:
    graph = _layers(batch, **attrs)
    assert "nn.conv3d" not in _names(graph)
    assert _names(graph).count("nn.conv2d") == 2
    for count in (1, 3, 0) if not isinstance(batch, int) else (batch,):
        check_flow(
            graph, [GENERATOR.standard_normal((count, 16, 5, 9, 11), np.float32)], tolerance=2e-5
        )


def test_groups_are_added_tap_by_tap() -> None:
    graph = _layers(2, groups=4, padding=(1,) * 6, strides=(2, 1, 1))
    assert _names(graph).count("nn.conv2d") == 6
    check_flow(graph, [GENERATOR.standard_normal((2, 16, 5, 9, 11), np.float32)], tolerance=2e-5)


@pytest.mark.parametrize(
    "attrs",
    [{"groups": 8}, {"strides": (1, 3, 3)}],
)
def test_layers_without_much_to_save_stay(attrs: dict[str, Any]) -> None:
    graph = _layers(1, padding=(2,) * 6, **attrs)
    first = next(name for name in _names(graph) if "conv" in name)
    assert first == "nn.conv3d"


def _transposed(batch: Dim, kernel: tuple[int, int, int], **attrs: Any) -> Graph:
    g = Builder()
    x = g.input("x", tensor("float32", batch, 6, 4, 5, 7))
    weight = GENERATOR.standard_normal((6, 8, *kernel)).astype(np.float32)
    return g.build(g("nn.relu", g("nn.conv3d_transpose", x, g.constant(weight), **attrs)))


@pytest.mark.parametrize("batch", [2, symbol("n")])
@pytest.mark.parametrize(
    ("kernel", "attrs"),
    [
        ((2, 2, 2), {"strides": (2, 2, 2)}),
        ((3, 3, 3), {"strides": (2, 2, 2), "padding": (1,) * 6, "output_padding": (1, 1, 1)}),
        ((4, 3, 3), {"strides": (2, 1, 2), "padding": (2, 0, 1, 1, 1, 0)}),
        ((3, 1, 2), {"padding": (1, 0, 0, 1, 0, 0), "dilation": (1, 2, 1)}),
        ((5, 2, 2), {"strides": (3, 2, 2), "padding": (0, 0, 0, 4, 1, 0)}),
    ],
)
def test_transposed_layers_become_layers_of_phases(
    batch: Dim, kernel: tuple[int, int, int], attrs: dict[str, Any]
) -> None:
    graph = _transposed(batch, kernel, **attrs)
    phases = attrs.get("strides", (1,))[0]
    assert _names(graph).count("nn.conv2d_transpose") == phases
    data = GENERATOR.standard_normal((2, 6, 4, 5, 7), np.float32)
    check_flow(graph, [data], tolerance=1e-4)


def test_slices_without_a_tap_are_not_made() -> None:
    assert "nn.conv3d_transpose" in _names(_transposed(1, (1, 2, 2), strides=(2, 1, 1)))


@pytest.mark.parametrize("batch", [2, symbol("n")])
@pytest.mark.parametrize(
    ("taps", "attrs"),
    [
        (1, {}),
        (3, {"padding": (1, 0, 0, 1, 0, 0), "groups": 2}),
        (2, {"padding": (2, 0, 0, 1, 0, 0), "strides": (2, 1, 1), "dilation": (3, 1, 1)}),
    ],
)
def test_layers_along_depth_are_layers_of_images(
    batch: Dim, taps: int, attrs: dict[str, Any]
) -> None:
    g = Builder()
    x = g.input("x", tensor("float32", batch, 6, 5, 3, 7))
    weight = GENERATOR.standard_normal((8, 6 // attrs.get("groups", 1), taps, 1, 1))
    y = g("nn.conv3d", x, g.constant(weight.astype(np.float32)), **attrs)
    graph = g.build(g("nn.relu", y))
    assert "nn.conv2d" in _names(graph)
    assert "transpose" not in _names(graph)
    check_flow(graph, [GENERATOR.standard_normal((2, 6, 5, 3, 7), np.float32)], tolerance=1e-5)


def test_products_of_slices_stay_slices() -> None:
    """A layer of single pixels behind one of slices reads these."""
    g = Builder()
    x = g.input("x", tensor("float32", 1, 16, 5, 9, 11))
    first = g.constant(GENERATOR.standard_normal((16, 16, 3, 3, 3)).astype(np.float32))
    second = g.constant(GENERATOR.standard_normal((8, 16, 1, 1, 1)).astype(np.float32))
    y = g("nn.relu", g("nn.conv3d", x, first, padding=(1,) * 6))
    graph = g.build(g("nn.conv3d", y, second))
    assert _names(graph).count("nn.conv2d") == 2
    assert _names(graph)[-2:] == ["reshape", "transpose"]
    check_flow(graph, [GENERATOR.standard_normal((1, 16, 5, 9, 11), np.float32)], tolerance=1e-4)

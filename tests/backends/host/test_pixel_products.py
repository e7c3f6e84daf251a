"""Transposed convolutions of single pixels as matrix products."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from tests.backends.host.flows import check_flow

from graft.backends.host.passes.pixel_products import pixel_products
from graft.base.dims import Dim, symbol
from graft.ir.builder import Builder
from graft.ir.graph import Graph
from graft.ir.types import tensor

GENERATOR = np.random.default_rng(5)


def _layer(batch: Dim, extents: tuple[int, int] = (1, 1), **attrs: Any) -> Graph:
    g = Builder()
    x = g.input("x", tensor("float32", batch, 10, *extents))
    groups = attrs.get("groups", 1)
    weight = GENERATOR.standard_normal((10, 6 // groups, 4, 3)).astype(np.float32)
    bias = g.constant(GENERATOR.standard_normal(6).astype(np.float32))
    y = g("nn.bias_add", g("nn.conv2d_transpose", x, g.constant(weight), **attrs), bias)
    return g.build(g("nn.relu", y))


@pytest.mark.parametrize("batch", [3, symbol("n")])
@pytest.mark.parametrize(
    "attrs",
    [
        {},
        {"strides": (2, 3), "padding": (1, 0, 2, 1)},
        {"dilation": (2, 1), "output_padding": (0, 2), "strides": (3, 3)},
    ],
)
def test_products(batch: Dim, attrs: dict[str, Any]) -> None:
    graph = _layer(batch, **attrs)
    names = [node.op.name for node in pixel_products(graph).nodes]
    assert "nn.dense" in names
    assert "nn.conv2d_transpose" not in names
    check_flow(graph, [GENERATOR.standard_normal((3, 10, 1, 1), np.float32)], tolerance=1e-5)


@pytest.mark.parametrize(
    ("extents", "attrs"),
    [((1, 2), {}), ((1, 1), {"groups": 2}), ((1, 1), {"padding": (-1, 0, 0, 0)})],
)
def test_others_stay(extents: tuple[int, int], attrs: dict[str, Any]) -> None:
    nodes = pixel_products(_layer(1, extents, **attrs)).nodes
    assert "nn.conv2d_transpose" in [node.op.name for node in nodes]

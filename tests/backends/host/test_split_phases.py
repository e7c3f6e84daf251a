"""Transposed convolutions whose phases are outputs of an ordinary one."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from tests.backends.host.flows import check_flow

from graft.backends.host.passes.split_phases import split_phases
from graft.base.dims import Dim, symbol
from graft.ir.builder import Builder
from graft.ir.graph import Graph
from graft.ir.types import tensor

GENERATOR = np.random.default_rng(5)


def _layer(kernel: tuple[int, int], batch: Dim = 2, outputs: int = 12, **attrs: Any) -> Graph:
    g = Builder()
    x = g.input("x", tensor("float32", batch, 6, 5, 7))
    groups = attrs.get("groups", 1)
    weight = GENERATOR.standard_normal((6, outputs // groups, *kernel)).astype(np.float32)
    return g.build(g("nn.relu", g("nn.conv2d_transpose", x, g.constant(weight), **attrs)))


def _names(graph: Graph) -> list[str]:
    return [node.op.name for node in split_phases(graph).nodes]


@pytest.mark.parametrize("batch", [2, symbol("n")])
@pytest.mark.parametrize(
    ("kernel", "attrs"),
    [
        ((16, 16), {"strides": (8, 8), "padding": (4, 4, 4, 4), "groups": 6}),
        ((3, 2), {"strides": (2, 2), "groups": 6, "output_padding": (1, 0)}),
        ((8, 8), {"strides": (8, 8), "groups": 2}),
        ((5, 7), {"strides": (4, 5), "padding": (3, 0, 9, 6)}),
        ((3, 3), {"strides": (6, 4), "padding": (1, 2, 0, 1)}),
        ((4, 4), {"strides": (2, 2), "padding": (1, 1, 1, 1), "outputs": 2}),
    ],
)
def test_phases_become_outputs(kernel: tuple[int, int], attrs: dict[str, Any], batch: Dim) -> None:
    graph = _layer(kernel, batch, **attrs)
    assert "nn.conv2d" in _names(graph)
    assert "nn.conv2d_transpose" not in _names(graph)
    check_flow(graph, [GENERATOR.standard_normal((2, 6, 5, 7), np.float32)], tolerance=1e-5)


@pytest.mark.parametrize(
    "attrs",
    [{"strides": (2, 2)}, {"strides": (2, 2), "groups": 2}, {"groups": 6, "dilation": (2, 2)}],
)
def test_others_stay(attrs: dict[str, Any]) -> None:
    assert "nn.conv2d_transpose" in _names(_layer((3, 3), **attrs))

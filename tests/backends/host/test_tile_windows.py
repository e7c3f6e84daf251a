"""`col2im` of windows side by side as movement."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from tests.backends.host.flows import check_flow

from graft.backends.host.passes.tile_windows import tile_windows
from graft.base.dims import Dim, symbol
from graft.ir.builder import Builder
from graft.ir.graph import Graph
from graft.ir.types import tensor

TILES: dict[str, Any] = {"image_shape": (6, 8), "block_shape": (2, 4), "strides": (2, 4)}


def _columns(batch: Dim, windows: int, **attrs: Any) -> Graph:
    g = Builder()
    x = g.input("x", tensor("float32", batch, 24, windows))
    return g.build(g("col2im", x, **attrs))


def _names(graph: Graph) -> list[str]:
    return [node.op.name for node in tile_windows(graph).nodes]


@pytest.mark.parametrize("batch", [2, symbol("n")])
def test_tiles_are_moved(batch: Dim) -> None:
    graph = _columns(batch, 6, **TILES)
    assert _names(graph) == ["reshape", "transpose", "reshape"]
    check_flow(graph, [np.random.default_rng(0).standard_normal((2, 24, 6), np.float32)])


@pytest.mark.parametrize(
    ("windows", "changed"),
    [
        (9, {"strides": (2, 2)}),
        (9, {"image_shape": (6, 12), "padding": (0, 1, 0, 1), "strides": (2, 5)}),
        (9, {"image_shape": (7, 12)}),
    ],
)
def test_others_are_summed(windows: int, changed: dict[str, Any]) -> None:
    assert _names(_columns(1, windows, **{**TILES, **changed})) == ["col2im"]

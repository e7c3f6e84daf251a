"""Maxima over windows of volumes as those of images."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from tests.backends.host.flows import check_flow

from graft.backends.host.passes.split_pool import split_pool
from graft.base.dims import Dim, symbol
from graft.ir.builder import Builder
from graft.ir.graph import Graph
from graft.ir.types import tensor


def _pooled(attrs: dict[str, Any], batch: Dim, dtype: str = "float32") -> Graph:
    g = Builder()
    x = g.input("x", tensor(dtype, batch, 16, 6, 9, 11))
    return g.build(g("nn.max_pool3d", x, **attrs))


def _names(graph: Graph) -> list[str]:
    return [node.op.name for node in split_pool(graph).nodes if "pool" in node.op.name]


@pytest.mark.parametrize("batch", [2, symbol("n")])
@pytest.mark.parametrize(
    ("attrs", "steps"),
    [
        ({"pool_size": (3, 3, 3), "strides": (2, 2, 2), "padding": (1,) * 6}, 2),
        ({"pool_size": (2, 3, 2), "strides": (3, 2, 2), "padding": (0, 1, 1, 1, 0, 0)}, 2),
        ({"pool_size": (1, 3, 3), "strides": (1, 2, 2), "dilation": (1, 2, 1)}, 1),
        ({"pool_size": (3, 1, 1), "padding": (2, 0, 0, 0, 0, 0)}, 1),
        ({"pool_size": (3, 2, 2), "strides": (2, 2, 2), "ceil_mode": True}, 2),
    ],
)
def test_volumes_become_images(attrs: dict[str, Any], steps: int, batch: Dim) -> None:
    graph = _pooled(attrs, batch)
    assert _names(graph) == ["nn.max_pool2d"] * steps
    data = np.random.default_rng(0).standard_normal((2, 16, 6, 9, 11), np.float32)
    data[0, 0, 2, 3, 4] = np.nan
    check_flow(graph, [data])


def test_bytes() -> None:
    graph = _pooled({"pool_size": (2, 2, 2), "strides": (2, 2, 2)}, 2, "uint8")
    assert _names(graph) == ["nn.max_pool2d"] * 2
    data = np.random.default_rng(0).integers(0, 256, (2, 16, 6, 9, 11), np.uint8)
    check_flow(graph, [data])

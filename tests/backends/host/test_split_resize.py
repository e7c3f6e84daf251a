"""Resizes of volumes as those of images."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from tests.backends.host.flows import check_flow

from graft.backends.host.passes.split_resize import split_resize
from graft.base.dims import Dim, symbol
from graft.ir.builder import Builder
from graft.ir.graph import Graph
from graft.ir.types import tensor

LINEAR: dict[str, Any] = {"method": "linear"}


def _resized(attrs: dict[str, Any], batch: Dim = 2, dtype: str = "float32") -> Graph:
    g = Builder()
    x = g.input("x", tensor(dtype, batch, 16, 3, 5, 9))
    return g.build(g("resize", x, **attrs))


def _ranks(graph: Graph) -> list[int | None]:
    nodes = (node for node in split_resize(graph).nodes if node.op.name == "resize")
    return [node.output.tensor.rank for node in nodes]


@pytest.mark.parametrize(
    ("attrs", "steps"),
    [
        ({**LINEAR, "scales": (1.0, 1.0, 2.0, 2.0, 2.0)}, 2),
        ({**LINEAR, "sizes": (7, 4, 9), "axes": (2, -2, 4)}, 2),
        ({**LINEAR, "scales": (1.7, 2.0), "axes": (4, 2), "antialias": True}, 2),
        ({"method": "cubic", "sizes": (2, 16, 6, 5, 9), "exclude_outside": True}, 1),
        ({"scales": (1.0, 1.0, 1.0, 2.0, 3.0)}, 1),
        (
            {
                "scales": (1.0, 1.0, 1.1, 1.1, 1.1),
                "coordinate_transformation_mode": "tf_half_pixel_for_nn",
                "rounding_method": "round_prefer_ceil",
            },
            2,
        ),
    ],
)
def test_volumes_become_images(attrs: dict[str, Any], steps: int) -> None:
    graph = _resized(attrs)
    assert _ranks(graph) == [4] * steps
    data = np.random.default_rng(0).standard_normal((2, 16, 3, 5, 9), np.float32)
    check_flow(graph, [data], tolerance=1e-5)


def test_any_batch() -> None:
    graph = _resized({**LINEAR, "sizes": (6, 10, 18), "axes": (2, 3, 4)}, symbol("n"))
    assert _ranks(graph) == [4, 4]
    for count in (1, 3):
        data = np.random.default_rng(0).standard_normal((count, 16, 3, 5, 9), np.float32)
        check_flow(graph, [data], tolerance=1e-5)


@pytest.mark.parametrize(
    ("attrs", "dtype"),
    [
        ({**LINEAR, "scales": (1.0, 2.0, 2.0, 1.0, 1.0)}, "float32"),
        ({**LINEAR, "scales": (1.0, 1.0, 2.0, 2.0, 1.0)}, "uint8"),
        ({"sizes": (4, 9, 9), "axes": (2, 3, 4), "keep_aspect_ratio_policy": "not_larger"}, "int8"),
    ],
)
def test_others_stay(attrs: dict[str, Any], dtype: str) -> None:
    assert _ranks(_resized(attrs, dtype=dtype)) == [5]

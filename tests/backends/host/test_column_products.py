"""Transposed convolutions of few outputs as products whose columns are added up, and these sums."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from tests.backends.host.flows import check_flow
from tests.backends.host.symbolic import Sizes, check

from graft.backends.host.passes.column_products import column_products
from graft.base.dims import Dim, symbol
from graft.ir.builder import Builder
from graft.ir.graph import Graph, Value
from graft.ir.types import tensor

GENERATOR = np.random.default_rng(5)


def layer(kernel: tuple[int, int], batch: Dim = 2, outputs: int = 3, **attrs: Any) -> Graph:
    g = Builder()
    x = g.input("x", tensor("float32", batch, 6, 5, 19))
    weight = GENERATOR.standard_normal((6, outputs, *kernel)).astype(np.float32)
    return g.build(g("nn.relu", g("nn.conv2d_transpose", x, g.constant(weight), **attrs)))


def names(graph: Graph) -> list[str]:
    return [node.op.name for node in column_products(graph).nodes]


@pytest.mark.parametrize("batch", [2, symbol("n")])
@pytest.mark.parametrize(
    ("kernel", "attrs"),
    [
        ((4, 4), {"strides": (2, 2), "padding": (1, 1, 1, 1), "outputs": 1}),
        ((3, 3), {"strides": (2, 2), "padding": (1, 1, 1, 1), "output_padding": (1, 1)}),
        ((3, 3), {"strides": (1, 1), "padding": (0, 1, 2, 0)}),
        ((5, 2), {"strides": (3, 4), "padding": (4, 0, 0, 1)}),
        ((3, 3), {"strides": (2, 1), "dilation": (2, 3), "padding": (0, 5, 0, 1)}),
    ],
)
def test_windows_become_columns(kernel: tuple[int, int], attrs: dict[str, Any], batch: Dim) -> None:
    graph = layer(kernel, batch, **attrs)
    assert "col2im" in names(graph)
    check_flow(graph, [GENERATOR.standard_normal((2, 6, 5, 19), np.float32)], tolerance=1e-5)


@pytest.mark.parametrize(
    ("outputs", "attrs"),
    [(5, {"strides": (2, 2)}), (3, {"strides": (3, 3)}), (3, {"strides": (8, 8)})],
)
def test_others_stay(outputs: int, attrs: dict[str, Any]) -> None:
    assert "nn.conv2d_transpose" in names(layer((3, 3), outputs=outputs, **attrs))


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize(("stride", "dilation"), [(1, 1), (2, 1), (3, 2), (1, 3)])
def test_sums_of_columns_of_any_width(dtype: str, stride: int, dilation: int) -> None:
    reach = 3 * dilation + 1

    def build(s: Sizes) -> Value:
        data = s.input(s.b, 2 * 8, 4 * s.n, dtype=dtype)
        image = (3 * stride + dilation - 1, (s.n - 1) * stride + reach - 3)
        window = {"strides": (stride, stride), "dilation": (dilation, dilation)}
        padding = (1, 2, 1, 1)
        return s("col2im", data, image_shape=image, block_shape=(2, 4), padding=padding, **window)

    check(build, *({"b": b, "n": n} for b, n in [(1, 1), (2, 7), (1, 40), (0, 5)]))

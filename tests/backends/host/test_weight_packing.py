"""Convolutions whose weights are data: packed when the model runs, for the usual kernels."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from tests.backends.host.flows import check_flow
from tests.backends.host.images import Case, blocks_of, case, check, repacked, run

import graft
import graft.ops
from graft.backends.host.group import Winograd
from graft.backends.host.kernel import Repacked
from graft.backends.host.kernels import conv, conv_plan, winograd_matrices
from graft.backends.host.kernels import winograd as winograd_module
from graft.backends.host.kernels.conv import conv2d
from graft.backends.host.kernels.conv_plan import TRANSPOSED
from graft.backends.host.kernels.conv_schedule import ConvSchedule, choose_schedule
from graft.backends.host.kernels.image import not_pointwise
from graft.backends.host.kernels.winograd import winograd
from graft.backends.host.kernels.winograd_schedule import WinogradSchedule, default_schedule
from graft.backends.host.storage import Halo
from graft.base.dims import Dim, symbol
from graft.base.dtypes import Array
from graft.ir.builder import Builder
from graft.ir.evaluate import evaluate
from graft.ir.graph import Graph, Value
from graft.ir.types import tensor

GENERATOR = np.random.default_rng(11)

Shape = tuple[int, ...]


def _inputs(graph: Graph, sizes: dict[str, int] | None = None) -> list[Array]:
    """Numbers for the inputs, weights so that results are about as large as the data."""
    arrays = []
    for value in graph.inputs:
        shape = [
            dim if isinstance(dim, int) else (sizes or {})[str(dim)] for dim in value.shape or ()
        ]
        scale = np.prod(shape[1:]) ** 0.5 if value.name == "w" else 1
        arrays.append((GENERATOR.standard_normal(shape) / scale).astype(value.dtype.numpy))
    return arrays


def _case(
    shape: Shape,
    weight: Shape,
    name: str = "nn.conv2d",
    blocks: tuple[int, int] | None = None,
    tile: int = 0,
    **attrs: Any,
) -> Case:
    """A convolution of two inputs, whose data has exactly the halo it needs."""

    def write(g: Builder) -> Value:
        x, w = g.input("x", tensor("float32", *shape)), g.input("w", tensor("float32", *weight))
        return g("nn.relu", g(name, x, w, **attrs))

    outputs = weight[0] if name == "nn.conv2d" else weight[1] * attrs.get("groups", 1)
    fitting = tuple(blocks_of(n, (16, 8, n)) for n in (shape[1], outputs))
    block_in, block_out = blocks or fitting
    anchor = case(write, {}).group.sole_anchor
    halo: Halo = conv_plan.halo(anchor, weight[2:])
    if tile:
        halo = winograd_matrices.halo(anchor, tile)
    places = {"x": (block_in, halo), "result": (block_out, (1, 2, 0, 1))}
    return case(write, places, Winograd(tile) if tile else None)


def _packed(graph_case: Case, weight: Array, template: Any) -> Array:
    kernel = graph_case.kernel(template)
    (argument,) = (one for one in kernel.arguments if isinstance(one, Repacked))
    return repacked(argument, weight, threads=2)


@pytest.mark.each_value
@pytest.mark.parametrize(
    ("shape", "weight", "attrs"),
    [
        ((1, 3, 11, 13), (16, 3, 7, 7), {"strides": (2, 2), "padding": (3, 3, 3, 3)}),
        ((3, 16, 7, 5), (8, 16, 1, 1), {}),
        ((1, 24, 9, 8), (40, 24, 3, 5), {"padding": (0, 3, 2, 1)}),
        ((2, 8, 10, 9), (32, 8, 3, 3), {"dilation": (2, 3), "padding": (2, 3, 1, 0)}),
        ((1, 16, 9, 11), (32, 16, 3, 3), {"dilation": (6, 6), "padding": (6, 6, 6, 6)}),
        ((1, 8, 1, 70), (8, 8, 1, 5), {"padding": (0, 2, 0, 2)}),
        ((1, 32, 6, 5), (112, 32, 3, 3), {}),  # slabs that overlap
        ((1, 128, 7, 9), (128, 4, 3, 3), {"groups": 32}),  # groups that share a vector
        ((1, 192, 7, 9), (96, 64, 3, 3), {"groups": 3, "padding": (1, 1, 1, 1)}),
        ((1, 80, 5, 6), (40, 20, 3, 3), {"groups": 4}),  # groups that straddle vectors
        ((1, 40, 5, 6), (80, 10, 3, 1), {"groups": 4}),
        ((1, 16, 5, 6), (32, 1, 3, 3), {"groups": 16}),
        ((1, 24, 5, 6), (24, 8, 3, 3), {"groups": 3}),
        ((2, 16, 5, 6), (16, 24, 3, 3), {"name": TRANSPOSED, "strides": (2, 2)}),
        ((1, 32, 5, 6), (32, 8, 4, 4), {"name": TRANSPOSED, "strides": (2, 1), "groups": 2}),
    ],
)
def test_direct_convolution(shape: Shape, weight: Shape, attrs: dict[str, Any]) -> None:
    graph_case = _case(shape, weight, **attrs)
    check(graph_case, conv2d, threads=2, inputs=_inputs(graph_case.graph))


@pytest.mark.parametrize("split", [1, 2])
@pytest.mark.parametrize(("weight", "groups"), [((64, 48, 3, 3), 1), ((96, 32, 1, 3), 2)])
def test_order_is_that_of_constant_weights(
    weight: Shape, groups: int, split: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where the inputs of two vectors of weights lie in pairs."""

    def chosen(*arguments: Any) -> ConvSchedule:
        schedule = choose_schedule(*arguments)
        return replace(schedule, columns=3, split=2) if split == 2 else schedule

    monkeypatch.setattr(conv, "choose_schedule", chosen)
    array = GENERATOR.standard_normal(weight, dtype=np.float32)
    shape = (1, weight[1] * groups, 9, 9)

    def write(g: Builder) -> Value:
        x = g.input("x", tensor("float32", *shape))
        return g("nn.relu", g("nn.conv2d", x, g.constant(array), groups=groups))

    constant = case(write, {"x": 16, "result": (16, (1, 2, 0, 1))}).kernel(conv2d)
    (expected,) = (one for one in constant.arguments if isinstance(one, np.ndarray))
    found = _packed(_case(shape, weight, groups=groups), array, conv2d)
    np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize("kernel", winograd_matrices.TILES)
def test_transforms_are_those_of_constant_weights(kernel: tuple[int, int]) -> None:
    array = GENERATOR.standard_normal((40, 24, *kernel), dtype=np.float32)
    for tile in winograd_matrices.TILES[kernel]:
        graph_case = _case((1, 24, 13, 11), array.shape, tile=tile, padding=(1, 1, 1, 1))
        found = _packed(graph_case, array, winograd)
        matrices = winograd_matrices.transforms(tile, kernel)
        pack = winograd_matrices.pack_half if found.ndim == 5 else winograd_matrices.pack_weights
        expected = pack(matrices, array, found.shape[-1])
        scale = np.abs(expected).max()
        np.testing.assert_allclose(found / scale, expected / scale, atol=1e-6)


@pytest.mark.each_value
@pytest.mark.parametrize("half_rows", [0, 1])
@pytest.mark.parametrize("tile", [2, 4])
def test_winograd(tile: int, half_rows: int, monkeypatch: pytest.MonkeyPatch) -> None:
    def chosen(*arguments: Any) -> WinogradSchedule:
        return replace(default_schedule(*arguments), half_rows=half_rows)

    monkeypatch.setattr(winograd_module, "default_schedule", chosen)
    graph_case = _case((2, 32, 13, 11), (48, 32, 3, 3), tile=tile, padding=(1, 1, 1, 1))
    inputs = _inputs(graph_case.graph)
    found = run(graph_case, graph_case.kernel(winograd), inputs, threads=2)
    (wanted,) = evaluate(graph_case.graph, inputs)
    expected = graph_case.stores[graph_case.group.output].pack(wanted)
    np.testing.assert_allclose(found, expected, atol=5e-5)


def _layer(shape: tuple[Dim, ...], weight: Shape, dtype: str = "float32", **attrs: Any) -> Graph:
    """A convolution of two inputs with what stands around it in networks."""
    g = Builder()
    x, w = g.input("x", tensor(dtype, *shape)), g.input("w", tensor(dtype, *weight))
    y = g(attrs.pop("name", "nn.conv2d"), g("nn.relu", x), g("tanh", w), **attrs)
    return g.build(g("sigmoid", y))


def _labels(graph: Graph) -> list[str]:
    return [call.label for call in graft.compile(graph, strict=True).program.calls]


@pytest.mark.parametrize(
    ("shape", "weight", "attrs", "kernel"),
    [
        ((1, 64, 28, 28), (64, 64, 3, 3), {"padding": (1, 1, 1, 1)}, "nn.conv2d"),
        ((1, 64, 28, 28), (64, 64, 1, 1), {}, "nn.conv2d"),
        ((1, 128, 14, 14), (128, 32, 3, 3), {"groups": 4}, "nn.conv2d"),
        ((1, 20, 17, 15), (22, 20, 3, 3), {"strides": (2, 2)}, "nn.conv2d"),
        ((1, 32, 9, 9), (32, 32, 4, 4), {"name": TRANSPOSED, "strides": (2, 2)}, TRANSPOSED),
        ((2, 24, 50), (40, 24, 3), {"name": "nn.conv1d", "padding": (1, 1)}, "nn.conv2d"),
    ],
)
def test_layers_are_computed_in_blocks(
    shape: Shape, weight: Shape, attrs: dict[str, Any], kernel: str
) -> None:
    graph = _layer(shape, weight, **attrs)
    calls = list(graft.compile(graph, strict=True, threads=1).program.calls)
    (call,) = (one for one in calls if "conv" in one.label)
    assert call.label.startswith(kernel)
    assert any(one.label == "relayout" for one in calls)
    check_flow(graph, _inputs(graph), tolerance=1e-4)


@pytest.mark.parametrize(
    ("shape", "weight", "attrs"),
    [
        ((1, 16, 1, 1), (512, 16, 1, 1), {}),  # one pixel: a copy would take longer
        ((1, 64, 20, 20), (64, 1, 3, 3), {"groups": 64}),
        ((1, 16, 9, 9), (16, 16, 3, 3), {"dtype": "float64"}),
    ],
)
def test_layers_that_read_weights_as_they_lie(
    shape: Shape, weight: Shape, attrs: dict[str, Any]
) -> None:
    graph = _layer(shape, weight, **attrs)
    assert "relayout" not in _labels(graph)
    check_flow(graph, _inputs(graph), tolerance=1e-5)


@pytest.mark.parametrize(
    ("shape", "weight"), [((5, 4, 17, 16), (5, 4, 1, 7)), ((1, 12, 20, 9), (12, 12, 3, 7))]
)
def test_bias_that_is_computed_runs_along_the_channels(shape: Shape, weight: Shape) -> None:
    g = Builder()
    x, w, b = (
        g.input("x", tensor("float32", *shape)),
        g.input("w", tensor("float32", *weight)),
        g.input("b", tensor("float32", weight[0])),
    )
    y = g("nn.bias_add", g("nn.conv2d", g("nn.relu", x), w), g("tanh", b))
    graph = g.build(g("nn.relu", y))
    check_flow(graph, _inputs(graph), tolerance=1e-4)


def test_images_refuse_biases_computed_in_the_same_kernel() -> None:
    g = Builder()
    x, b = g.input("x", tensor("float32", 2, 16, 3, 16)), g.input("b", tensor("float32", 16))
    graph = g.build(g("nn.bias_add", x, g("tanh", b)))
    assert not_pointwise(graph.nodes[1:]) is None
    assert "the bias is computed" in (not_pointwise(graph.nodes) or "")


@pytest.mark.parametrize("name", ["nn.conv2d", TRANSPOSED])
def test_constant_images(name: str) -> None:
    g = Builder()
    image = np.random.default_rng(0).standard_normal((1, 32, 12, 12)).astype(np.float32)
    w = g.input("w", tensor("float32", 32, 32, 3, 3))
    graph = g.build(g(name, g.constant(image), g("tanh", w)))
    check_flow(graph, _inputs(graph), tolerance=1e-4)


def test_half_precision() -> None:
    graph = _layer((1, 32, 12, 12), (32, 32, 3, 3), "float16", padding=(1, 1, 1, 1))
    assert "relayout" in _labels(graph)
    check_flow(graph, _inputs(graph), tolerance=4e-3)


def test_images_of_any_size() -> None:
    batch, height, width = symbol("n"), symbol("h"), symbol("w")
    graph = _layer((batch, 32, height, width), (48, 32, 3, 3), padding=(1, 1, 1, 1))
    assert "relayout" in _labels(graph)
    sizes = [(1, 28, 28), (2, 9, 13), (3, 1, 1), (0, 5, 5)]
    runs = (_inputs(graph, dict(zip("nhw", size, strict=True))) for size in sizes)
    check_flow(graph, *runs, tolerance=1e-4)


def test_weights_are_packed_once() -> None:
    g = Builder()
    x, w = (
        g.input("x", tensor("float32", 1, 32, 12, 12)),
        g.input("w", tensor("float32", 32, 32, 3, 3)),
    )
    y = g("nn.conv2d", g("nn.conv2d", x, w, padding=(1, 1, 1, 1)), w, padding=(1, 1, 1, 1))
    graph = g.build(g("nn.conv2d", y, w, padding=(1, 1, 1, 1)))
    assert _labels(graph).count("relayout") == 3  # the weights, the first image, the last one
    check_flow(graph, _inputs(graph), tolerance=1e-4)


def test_kernels_that_differ_in_weights_share_code() -> None:
    g = Builder()
    y = g.input("x", tensor("float32", 1, 32, 12, 12))
    for number in range(3):
        w = g.input(f"w{number}", tensor("float32", 32, 32, 3, 3))
        y = g("nn.relu", g("nn.conv2d", y, w, padding=(1, 1, 1, 1)))
    graph = g.build(y)
    calls = list(graft.compile(graph, strict=True).program.calls)
    symbols = [call.symbol for call in calls if "conv" in call.label]
    assert len(symbols) == 3
    assert symbols[0] == symbols[1]  # the last one's result has no halo
    inputs = [0.1 * array for array in _inputs(graph)]
    check_flow(graph, inputs, tolerance=1e-4)

"""What the windows of a deformable convolution read, in blocks and in rows."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from tests.backends.host.images import Case, case, check

import graft
from graft.backends.host.kernels.deformable import SAMPLED_HALO, blocked_windows, windows
from graft.backends.host.layout import choose_layout
from graft.backends.host.passes.split_deformable import split_deformable
from graft.backends.host.storage import static_shape
from graft.base.dims import symbol
from graft.base.dtypes import Array
from graft.ir.builder import Builder
from graft.ir.evaluate import evaluate
from graft.ir.graph import Graph, Value
from graft.ir.types import tensor
from graft.passes.group_fusion import group_fusion
from graft.target.target import host_target, named_target

Shape = tuple[int, int, int, int]

# Data, extents of the result, elements of a window, attributes.
CASES: list[tuple[Shape, tuple[int, int], tuple[int, int], dict[str, Any]]] = [
    ((1, 32, 9, 21), (9, 21), (3, 3), {"padding": (1, 1, 1, 1)}),
    (
        (2, 64, 6, 7),
        (3, 7),
        (2, 1),
        {"strides": (2, 1), "groups": 2, "deformable_groups": 4},
    ),
    ((1, 48, 5, 40), (6, 37), (1, 3), {"padding": (1, 0, 0, 1), "dilation": (1, 2)}),
    ((1, 16, 1, 1), (1, 1), (1, 1), {}),
]


def sampled(
    data: Shape,
    counts: tuple[int, int],
    kernel: tuple[int, int],
    attrs: dict[str, Any],
    layout: dict[str, Any],
    mask: bool = True,
    dtype: str = "float32",
) -> Case:
    positions = kernel[0] * kernel[1] * attrs.get("deformable_groups", 1)

    def write(build: Builder) -> Value:
        x = build.input("x", tensor(dtype, *data))
        offset = build.input("offset", tensor(dtype, data[0], 2 * positions, *counts))
        extents = data[0], positions, *counts
        factors = [build.input("mask", tensor(dtype, *extents))] if mask else []
        return build("nn.deformable_windows", x, offset, *factors, kernel_size=kernel, **attrs)

    return case(write, layout)


def drawn(one: Case) -> list[Array]:
    """Positions between pixels, on them, just outside, far away and nowhere; an infinite pixel,
    which counts for those on its own place alone."""
    random = np.random.default_rng(0)
    data, offset, *mask = (random.uniform(-2, 2, static_shape(value)) for value in one.graph.inputs)
    flat = offset.reshape(-1)
    flat[::3] = np.round(flat[::3])
    flat[1::17], flat[2::19], flat[3::23] = 1e30, np.nan, -np.inf
    data[..., -1, -1] = np.inf
    dtype = one.graph.inputs[0].dtype.numpy
    return [array.astype(dtype) for array in (data, offset, *mask)]


@pytest.mark.parametrize("machine", ["host", "x86-64-v3"])
@pytest.mark.parametrize("block", [16, 8])
@pytest.mark.parametrize("mask", [True, False])
@pytest.mark.parametrize(("data", "counts", "kernel", "attrs"), CASES)
def test_blocks(
    data: Shape,
    counts: tuple[int, int],
    kernel: tuple[int, int],
    attrs: dict[str, Any],
    mask: bool,
    block: int,
    machine: str,
) -> None:
    layout = {"x": (block, (1, 2, 1, 1)), "result": block}
    one = sampled(data, counts, kernel, attrs, layout, mask)
    check(one, blocked_windows, 2, drawn(one), named_target(machine))


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("mask", [True, False])
@pytest.mark.parametrize(("data", "counts", "kernel", "attrs"), CASES)
def test_rows(
    data: Shape,
    counts: tuple[int, int],
    kernel: tuple[int, int],
    attrs: dict[str, Any],
    mask: bool,
    dtype: str,
) -> None:
    one = sampled(data, counts, kernel, attrs, {}, mask, dtype)
    check(one, windows, 3, drawn(one))


def test_blocks_of_several_groups_are_refused() -> None:
    layout = {"x": (16, SAMPLED_HALO), "result": 16}
    parts = sampled((1, 32, 3, 3), (3, 3), (1, 1), {"deformable_groups": 4}, layout)
    assert "several groups" in parts.refusal(blocked_windows)
    narrow = sampled((1, 32, 3, 3), (3, 3), (1, 1), {}, {**layout, "x": 16})
    assert "halo" in narrow.refusal(blocked_windows)


def _layer(height: Any, width: Any, channels: int) -> Graph:
    build, random = Builder(), np.random.default_rng(0)
    x = build.input("x", tensor("float32", 1, channels, height, width))
    offset = build.input("offset", tensor("float32", 1, 18, height, width))
    weight = build.constant(random.standard_normal((8, channels, 3, 3)).astype(np.float32))
    attrs = {"padding": (1, 1, 1, 1)}
    return build.build(build("nn.deformable_conv2d", build("nn.relu", x), offset, weight, **attrs))


def test_layers_are_made_in_blocks() -> None:
    graph = group_fusion(split_deformable(_layer(20, 20, 32)))
    constants = {n.output: n.attrs.value for n in graph.nodes if n.op.name == "constant"}
    layout = choose_layout(graph, constants, host_target())
    node = next(node for node in graph.nodes if node.op.name == "nn.deformable_windows")
    assert layout.storages[node.output].block


@pytest.mark.parametrize("channels", [5, 32])
def test_any_size(channels: int) -> None:
    graph, random = _layer(symbol("h"), symbol("w"), channels), np.random.default_rng(1)
    module = graft.compile(graph, strict=True)
    for height, width in ((3, 2), (7, 33), (20, 16)):
        x = random.standard_normal((1, channels, height, width)).astype(np.float32)
        offset = random.uniform(-3, 3, (1, 18, height, width)).astype(np.float32)
        (found,) = module.run(None, {"x": x, "offset": offset})
        (expected,) = evaluate(graph, [x, offset])
        np.testing.assert_allclose(found, expected, rtol=0, atol=1e-4)


@pytest.mark.parametrize("channels", [1, 16])
@pytest.mark.parametrize(
    "constants", [("data",), ("offset",), ("data", "mask"), ("offset", "mask")]
)
def test_constant_operands(channels: int, constants: tuple[str, ...]) -> None:
    random, build = np.random.default_rng(0), Builder()
    shapes: dict[str, Shape] = {
        "data": (1, channels, 5, 8),
        "offset": (1, 6, 5, 6),
        "weight": (channels, channels, 1, 3),
        "mask": (1, 3, 5, 6),
    }
    arrays = {name: random.standard_normal(shape, np.float32) for name, shape in shapes.items()}
    feeds = {name: array for name, array in arrays.items() if name not in (*constants, "weight")}
    operands = [
        build.input(name, tensor("float32", *array.shape))
        if name in feeds
        else build.constant(array)
        for name, array in arrays.items()
    ]
    graph = build.build(build("nn.deformable_conv2d", *operands))
    (expected,) = evaluate(graph, list(feeds.values()))
    (result,) = graft.compile(graph, strict=True).run(None, feeds)
    np.testing.assert_allclose(result, expected, atol=1e-5)

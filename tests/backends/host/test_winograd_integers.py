"""Winograd's algorithm on bytes: equal to direct sums bit for bit, or not chosen."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from tests.backends.host.images import Case, blocks_of, case
from tests.backends.host.row_kernels import only_group
from tests.backends.host.test_integers import _agrees, _requantized, _whole, every_target

import graft
from graft.backends.host.group import Winograd
from graft.backends.host.kernels.winograd import winograd
from graft.backends.host.kernels.winograd_integers import is_exact
from graft.backends.host.kernels.winograd_matrices import WHOLE_TILES, halo, whole_transforms
from graft.backends.host.storage import Storage
from graft.backends.host.templates import choose_algorithm
from graft.base.dtypes import Array, DType
from graft.byoc.executable import Accuracy
from graft.ir.builder import Builder
from graft.ir.evaluate import evaluate
from graft.ir.graph import Graph, Value
from graft.ir.types import tensor
from graft.target.target import Target, named_target

Shape = tuple[int, ...]
EVERY = [(kernel, tile) for kernel, tiles in WHOLE_TILES.items() for tile in tiles]
# The largest sums that F(4x4, 3x3) tells apart: 26 bits.
MOST = (1 << 25) - 1


def _case(
    shape: Shape, weight: Array, dtype: str, zero: int, tile: int, result: str, **attrs: Any
) -> Case:
    def write(g: Builder) -> Value:
        x = g.input("x", tensor(dtype, *shape))
        sums = g("qnn.conv2d", x, g.constant(weight), g.constant(np.array(zero, dtype)), **attrs)
        return _requantized(g, sums, "int8") if result == "int8" else sums

    anchor = case(write, {}).group.sole_anchor
    border = halo(anchor, tile)
    blocks = [blocks_of(count, (16, 8, count)) for count in (shape[1], len(weight))]
    layout = {"x": (blocks[0], border), "result": (blocks[1], (1, 0, 2, 1))}
    made = case(write, layout, Winograd(tile))
    stores = dict(made.stores)
    (data,), output = made.graph.inputs, made.group.output
    stores[data] = Storage(data.dtype, shape, blocks[0], border, fill=zero)
    stores[output] = Storage(
        output.dtype, stores[output].shape, blocks[1], (1, 0, 2, 1), fill=int(result == "int8")
    )
    return Case(made.graph, made.group, stores)


@pytest.mark.parametrize(("kernel", "tile"), EVERY)
@pytest.mark.parametrize("dtype", [DType.UINT8, DType.INT8])
def test_16_bits_hold_what_is_transformed(kernel: tuple[int, int], tile: int, dtype: DType) -> None:
    matrices, limits = whole_transforms(tile, kernel), np.iinfo(dtype.numpy)
    points = np.kron(matrices.down.data, matrices.across.data)
    above, below = np.maximum(points, 0).sum(axis=1), np.minimum(points, 0).sum(axis=1)
    assert (above * limits.max + below * limits.min).max() < 1 << 15
    assert (above * limits.min + below * limits.max).min() >= -1 << 15
    weights = np.kron(matrices.down.weight, matrices.across.weight)
    assert (abs(weights).sum(axis=1) * 128).max() < 1 << 15


@pytest.mark.parametrize("tile", [2, 4])
@pytest.mark.parametrize("taps", [1, 3])
def test_matrices_are_whole(taps: int, tile: int) -> None:
    axis = whole_transforms(tile, (taps, 1)).down
    for matrix in (axis.data, axis.weight, axis.result):
        np.testing.assert_array_equal(matrix, np.rint(matrix))
    data, weight = _whole(np.uint8, axis.side).astype(int), _whole(np.int8, taps).astype(int)
    wanted = [data[first : first + taps] @ weight for first in range(axis.out)]
    products = (axis.data @ data) * (axis.weight @ weight)
    np.testing.assert_array_equal(axis.result @ products, axis.scale * np.array(wanted))


@every_target
@pytest.mark.parametrize("tile", [2, 4])
@pytest.mark.parametrize(
    ("shape", "outputs", "kernel", "dtype", "zero", "attrs"),
    [
        ((1, 16, 12, 8), 16, (3, 3), "uint8", 0, {"padding": (1, 1, 1, 1)}),
        ((2, 24, 7, 13), 40, (3, 3), "uint8", 255, {"padding": (0, 1, 2, 1)}),
        ((1, 20, 9, 6), 24, (3, 3), "int8", -128, {"padding": (1, 1, 1, 1)}),
        ((3, 18, 5, 5), 8, (3, 3), "int8", 127, {"padding": (2, 2, 2, 2)}),
        ((1, 32, 6, 11), 20, (1, 3), "uint8", 131, {"padding": (0, 1, 0, 1)}),
        ((1, 16, 11, 4), 48, (3, 1), "int8", -7, {}),
        ((1, 16, 13, 14), 16, (3, 3), "uint8", 3, {"padding": (2, 3, 2, 3), "dilation": (2, 3)}),
    ],
)
def test_equals_direct_sums(
    shape: Shape,
    outputs: int,
    kernel: tuple[int, int],
    dtype: str,
    zero: int,
    attrs: dict[str, Any],
    tile: int,
    target: Target,
) -> None:
    """Odd extents, blocks that are not full, several images, padding by any zero point."""
    weight = _whole(np.int8, outputs, shape[1], *kernel)
    for threads, result in ((1, "int8"), (3, "int32")):
        made = _case(shape, weight, dtype, zero, tile, result, **attrs)
        _agrees(made, winograd, threads, target)


@every_target
@pytest.mark.parametrize("sign", [1, -1])
def test_the_largest_sums(sign: int, target: Target) -> None:
    """All bytes 255, by weights that add up to the most that is exact."""
    inputs = 128
    weight = np.zeros((16, inputs, 3, 3), np.int8)
    flat = weight.reshape(16, -1)
    most, rest = divmod(MOST // 255, flat.shape[1])
    flat[:] = most * sign
    flat[:, :rest] += sign
    assert is_exact(whole_transforms(4, (3, 3)), weight, DType.UINT8)
    assert abs(flat[0].astype(int).sum()) * 255 > MOST - 255
    made = _case((1, inputs, 8, 8), weight, "uint8", 0, 4, "int32", padding=(1, 1, 1, 1))
    _agrees(made, winograd, 1, target, [np.full((1, inputs, 8, 8), 255, np.uint8)])


def test_weights_that_add_up_to_more_are_not_exact() -> None:
    weight = np.full((1, 1, 1, MOST // 255 // 127), 127, np.int8)
    matrices = whole_transforms(4, (3, 3))
    assert is_exact(matrices, weight, DType.UINT8)
    more = np.full((1, 1, 1, MOST // 255 // 127 + 2), 127, np.int8)
    assert not is_exact(matrices, more, DType.UINT8)
    assert not is_exact(matrices, -more, DType.UINT8)
    assert is_exact(matrices, more, DType.INT8)
    assert is_exact(whole_transforms(2, (3, 3)), more, DType.UINT8)


def _layer(channels: int, side: int, value: int = 20, **attrs: Any) -> Graph:
    g = Builder()
    x = g.input("x", tensor("uint8", 1, channels, side, side))
    weight = g.constant(np.full((channels, channels, 3, 3), value, np.int8))
    return g.build(g("qnn.conv2d", x, weight, g.constant(np.uint8(5)), padding=(1,) * 4, **attrs))


def _chosen(graph: Graph, machine: str) -> int:
    group = choose_algorithm(only_group(graph), named_target(machine), Accuracy.DEFAULT)
    return group.algorithm.tile if isinstance(group.algorithm, Winograd) else 0


@pytest.mark.parametrize(
    ("machine", "channels", "side", "tile"),
    [
        ("znver5", 64, 56, 4),
        ("znver5", 128, 28, 4),
        ("znver5", 512, 7, 0),  # few tiles, and weights that memory gives too slowly
        ("znver3", 64, 56, 4),  # no VNNI: pairs of 16 bits are as fast as bytes
        ("neoverse-v1", 64, 56, 0),  # four bytes at a time, and no pairs
    ],
)
def test_chosen_where_it_pays(machine: str, channels: int, side: int, tile: int) -> None:
    assert _chosen(_layer(channels, side), machine) == tile


def test_not_chosen_where_it_is_not_exact_or_there_are_steps() -> None:
    assert _chosen(_layer(256, 28, value=127), "znver5") != 4
    assert _chosen(_layer(64, 56, strides=(2, 2)), "znver5") == 0


def test_other_halos_are_refused() -> None:
    weight = _whole(np.int8, 16, 16, 3, 3)
    made = _case((1, 16, 8, 8), weight, "uint8", 3, 4, "int8", padding=(1, 1, 1, 1))
    (data,) = made.graph.inputs
    stores = {**made.stores, data: Storage(data.dtype, (1, 16, 8, 8), 16, (1, 1, 1, 1))}
    assert "zero point" in Case(made.graph, made.group, stores).refusal(winograd)


def test_the_evaluator_agrees_with_a_whole_layer() -> None:
    """Through layouts and fusion, where the algorithm is chosen on its own."""
    graph = _layer(64, 17)
    image = _whole(np.uint8, 1, 64, 17, 17)
    module = graft.compile(graph, threads=2)
    (wanted,) = evaluate(graph, [image])
    np.testing.assert_array_equal(module.run(None, {"x": image})[0], wanted)

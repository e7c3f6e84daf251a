"""Winograd's algorithm: right on odd shapes, and as accurate as the documentation says."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.backends.host.images import case, check

import graft
import graft.ops
from graft.backends.host import layout
from graft.backends.host.group import Winograd
from graft.backends.host.kernels import winograd as winograd_module
from graft.backends.host.kernels.winograd import winograd
from graft.backends.host.kernels.winograd_matrices import (
    TILES,
    first_pixel,
    halo,
    tiles_along,
    transforms,
)
from graft.backends.host.kernels.winograd_schedule import (
    WinogradExtents,
    WinogradSchedule,
    default_schedule,
)
from graft.backends.host.kernels.winograd_vectors import GridTransform, shared_sums, transformed
from graft.base.dims import symbol
from graft.base.dtypes import Array, DType
from graft.ir.builder import Builder
from graft.ir.evaluate import evaluate
from graft.ir.graph import Graph, Value
from graft.ir.types import tensor
from graft.llvm.compile import assembly
from graft.loop.interpret import interpret
from graft.loop.ir import (
    Binary,
    BinaryKind,
    Block,
    Buffer,
    Const,
    Expr,
    For,
    Function,
    Load,
    Ramp,
    Stmt,
    Store,
)
from graft.loop.traverse import walk_all, walk_stmt
from graft.target.target import Target, host_target, named_target

GENERATOR = np.random.default_rng(3)

# The largest error by the side of the tiles, as a share of the results' standard deviation:
# what docs/decisions/0009-winograd-nodes.md promises for up to 512 channels.
BOUND = {2: 1.5e-5, 4: 5e-5}
BOUND_OF_SEVEN_TAPS = 1e-4
TAPS = [(2, 1), (3, 1), (3, 2), (5, 1), (7, 1)]
OTHERS = [(kernel, tile) for kernel in TILES if kernel != (3, 3) for tile in TILES[kernel]]


def _layer(
    shape: tuple[int, int, int, int],
    outputs: int,
    padding: tuple[int, ...],
    stride: int = 1,
    kernel: tuple[int, ...] = (3, 3),
) -> Graph:
    g = Builder()
    x = g.input("x", tensor("float32", *shape))
    weight = GENERATOR.standard_normal((outputs, shape[1], *kernel), dtype=np.float32)
    bias = GENERATOR.standard_normal(outputs, dtype=np.float32)
    y = g("nn.conv2d", x, g.constant(weight), padding=padding, strides=(stride, stride))
    return g.build(g("nn.leaky_relu", g("nn.bias_add", y, g.constant(bias)), alpha=0.1))


def _direct_in_float64(graph: Graph, x: Array) -> Array:
    weight, bias = (node.attrs.value.array for node in graph.nodes if node.op.name == "constant")
    conv = next(node for node in graph.nodes if node.op.name == "nn.conv2d")
    g = Builder()
    data = g.input("x", tensor("float64", *x.shape))
    attrs = {"padding": conv.attrs.padding, "strides": conv.attrs.strides}
    y = g("nn.conv2d", data, g.constant(weight.astype(np.float64)), **attrs)
    y = g("nn.bias_add", y, g.constant(bias.astype(np.float64)))
    result: Array = evaluate(g.build(g("nn.leaky_relu", y, alpha=0.1)), [x.astype(np.float64)])[0]
    return result


@pytest.mark.each_value
@pytest.mark.parametrize("tile", BOUND)
@pytest.mark.parametrize(
    ("shape", "outputs", "pad", "threads"),
    [
        ((1, 32, 16, 16), 32, 1, 1),
        ((1, 32, 13, 17), 48, 1, 2),
        ((2, 64, 15, 14), 32, 1, 2),
        ((1, 48, 30, 19), 64, 0, 3),
        ((3, 32, 9, 11), 32, 2, 2),
        ((1, 24, 5, 7), 40, 1, 2),  # blocks of eight channels
        ((1, 192, 28, 28), 64, 1, 2),
        ((1, 512, 7, 7), 64, 1, 2),
        ((2, 512, 14, 14), 32, 1, 3),
    ],
)
@pytest.mark.parametrize("stride", [1, 2])
def test_error_is_within_the_stated_bound(
    shape: tuple[int, int, int, int],
    outputs: int,
    pad: int,
    threads: int,
    tile: int,
    stride: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    _choose(Winograd(tile), monkeypatch)
    _check_error(_layer(shape, outputs, (pad,) * 4, stride), shape, threads, BOUND[tile])


def _choose(algorithm: Winograd, monkeypatch: pytest.MonkeyPatch) -> None:
    """Compute all anchors by the algorithm."""
    monkeypatch.setattr(
        layout, "choose_algorithm", lambda group, *_: replace(group, algorithm=algorithm)
    )


def _check_error(
    graph: Graph, shape: tuple[int, int, int, int], threads: int, bound: float
) -> None:
    module = graft.compile(graph, strict=True, threads=threads)
    assert any("winograd" in call.label for call in module.program.calls)
    x = GENERATOR.standard_normal(shape, dtype=np.float32)
    (found,) = module.run(None, {"x": x})
    expected = _direct_in_float64(graph, x)
    assert np.abs(found - expected).max() < bound * expected.std()


@pytest.mark.each_value
@pytest.mark.parametrize(("kernel", "tile"), OTHERS)
@pytest.mark.parametrize(
    ("shape", "outputs", "is_padded", "threads"),
    [
        ((1, 192, 17, 17), 64, True, 2),
        ((2, 24, 13, 9), 40, False, 3),
        ((1, 512, 8, 8), 32, True, 1),
    ],
)
def test_error_with_other_kernels(
    kernel: tuple[int, int],
    shape: tuple[int, int, int, int],
    outputs: int,
    is_padded: bool,
    threads: int,
    tile: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Tiles of two with five or seven taps have as many nodes as tiles of four with fewer."""
    _choose(Winograd(tile), monkeypatch)
    padding = tuple(taps // 2 if is_padded else 0 for taps in kernel) * 2
    bound = BOUND_OF_SEVEN_TAPS if max(kernel) == 7 else BOUND[4]
    _check_error(_layer(shape, outputs, padding, kernel=kernel), shape, threads, bound)


@pytest.mark.parametrize(("kernel", "tile"), OTHERS)
def test_other_kernels_with_halo_and_dilation(kernel: tuple[int, int], tile: int) -> None:
    weight = GENERATOR.standard_normal((24, 16, *kernel), dtype=np.float32) / np.float32(64)

    def write(g: Builder) -> Value:
        x = g.input("x", tensor("float32", 2, 16, 21, 19))
        attrs: dict[str, Any] = {"padding": (1, 0, 2, 3), "dilation": (2, 3)}
        y = g("nn.conv2d", x, g.constant(weight), **attrs)
        return g("nn.relu", g("add", y, g.input("r", y.type)))

    anchor = case(write, {}).group.anchor
    assert anchor is not None
    image = (8, (1, 2, 0, 3))
    layout = {"x": (16, halo(anchor, tile)), "r": image, "result": image}
    check(case(write, layout, Winograd(tile)), winograd, 2)


@pytest.mark.parametrize("tile", BOUND)
@pytest.mark.parametrize("threads", [1, 2, 5])
def test_halo_residual_and_uneven_blocks(tile: int, threads: int) -> None:
    weight = GENERATOR.standard_normal((24, 16, 3, 3), dtype=np.float32) / np.float32(64)

    def write(g: Builder) -> Value:
        x = g.input("x", tensor("float32", 2, 16, 9, 10))
        y = g("nn.conv2d", x, g.constant(weight), padding=(0, 1, 2, 1))
        return g("nn.relu", g("add", y, g.input("r", y.type)))

    image = (8, (1, 0, 2, 1))
    layout = {"x": (16, (2, 1, 6, 7)), "r": image, "result": image}
    check(case(write, layout, Winograd(tile)), winograd, threads)


@pytest.mark.each_value
@pytest.mark.parametrize("tile", BOUND)
@pytest.mark.parametrize("threads", [1, 3])
@pytest.mark.parametrize(
    ("shape", "dilation", "padding"),
    [
        ((1, 16, 28, 28), (2, 2), (2, 2, 2, 2)),
        ((2, 16, 13, 17), (2, 2), (0, 1, 3, 2)),
        ((1, 16, 7, 30), (4, 4), (4, 4, 4, 4)),
        ((2, 24, 9, 11), (1, 3), (1, 0, 2, 3)),
        ((1, 16, 26, 25), (12, 12), (12, 12, 12, 12)),
        ((1, 16, 5, 27), (24, 12), (24, 12, 24, 11)),
        ((3, 16, 5, 5), (2, 2), (0, 0, 0, 0)),  # a single result
    ],
)
def test_dilated(
    shape: tuple[int, int, int, int],
    dilation: tuple[int, int],
    padding: tuple[int, int, int, int],
    threads: int,
    tile: int,
) -> None:
    """Each result from its own pixels, at extents that no step and no tile divides."""
    weight = GENERATOR.standard_normal((24, shape[1], 3, 3), dtype=np.float32) / np.float32(64)
    attrs: dict[str, Any] = {"dilation": dilation, "padding": padding}

    def write(g: Builder) -> Value:
        y = g(
            "nn.conv2d",
            g.input("x", tensor("float32", *shape)),
            g.constant(weight),
            **attrs,
        )
        return g("nn.relu", y)

    anchor = case(write, {}).group.anchor
    assert anchor is not None
    layout = {"x": (8, halo(anchor, tile)), "result": (8, (1, 2, 0, 3))}
    check(case(write, layout, Winograd(tile)), winograd, threads)


@pytest.mark.each_value
@pytest.mark.parametrize("tile", BOUND)
@pytest.mark.parametrize("threads", [1, 3])
@pytest.mark.parametrize(
    ("shape", "padding"),
    [
        ((1, 16, 28, 28), (1, 1, 1, 1)),
        ((2, 24, 13, 18), (0, 1, 2, 1)),
        ((1, 16, 7, 30), (1, 0, 0, 1)),
        ((1, 8, 17, 9), (0, 0, 0, 0)),
        ((3, 16, 3, 4), (0, 0, 0, 0)),  # a single result
        ((1, 16, 1, 2), (1, 1, 1, 1)),
    ],
)
def test_strided(
    shape: tuple[int, int, int, int], padding: tuple[int, int, int, int], threads: int, tile: int
) -> None:
    """Every other pixel meets its own taps, at extents that no tile divides."""
    weight = GENERATOR.standard_normal((24, shape[1], 3, 3), dtype=np.float32) / np.float32(64)
    attrs: dict[str, Any] = {"strides": (2, 2), "padding": padding}

    def write(g: Builder) -> Value:
        x = g.input("x", tensor("float32", *shape))
        y = g("nn.conv2d", x, g.constant(weight), **attrs)
        return g("nn.relu", g("add", y, g.input("r", y.type)))

    anchor = case(write, {}).group.anchor
    assert anchor is not None
    image = (8, (1, 2, 0, 3))
    layout = {"x": (8, halo(anchor, tile)), "r": image, "result": image}
    check(case(write, layout, Winograd(tile)), winograd, threads)


@pytest.mark.each_value
@pytest.mark.parametrize("tile", BOUND)
@pytest.mark.parametrize("fills_beside_loads", [False, True])
@pytest.mark.parametrize("activation", ["sigmoid", "tanh", "nn.gelu", "exp"])
@pytest.mark.parametrize(
    ("shape", "attrs"),
    [
        ((1, 16, 8, 8), {"padding": (1, 1, 1, 1)}),  # whole tiles
        ((2, 40, 9, 14), {"padding": (1, 1, 1, 1)}),
        ((1, 16, 13, 18), {"padding": (0, 1, 2, 1), "strides": (2, 2)}),
        ((2, 16, 13, 17), {"padding": (0, 1, 3, 2), "dilation": (2, 2)}),
    ],
)
def test_epilogues_that_take_long_chains(
    shape: tuple[int, int, int, int],
    attrs: dict[str, Any],
    activation: str,
    fills_beside_loads: bool,
    tile: int,
) -> None:
    """Pixels are finished apart from the transform, within the image only, residuals included."""
    target = host_target()
    machine = replace(target.machine, fills_beside_loads=fills_beside_loads)
    weight = GENERATOR.standard_normal((24, shape[1], 3, 3), dtype=np.float32) / np.float32(64)

    def write(g: Builder) -> Value:
        y = g("nn.conv2d", g.input("x", tensor("float32", *shape)), g.constant(weight), **attrs)
        return g("add", g("multiply", y, g(activation, y)), g.input("r", y.type))

    anchor = case(write, {}).group.anchor
    assert anchor is not None
    image = (8, (1, 2, 0, 3))
    layout = {"x": (8, halo(anchor, tile)), "r": image, "result": image}
    check(case(write, layout, Winograd(tile)), winograd, 2, target=replace(target, machine=machine))


@pytest.mark.parametrize("tile", BOUND)
@pytest.mark.parametrize(
    ("stride", "activation"), [(1, "nn.relu"), (2, "nn.relu"), (1, "sigmoid"), (2, "sigmoid")]
)
def test_strides_and_epilogues_at_every_size(
    stride: int, activation: str, tile: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    _choose(Winograd(tile), monkeypatch)
    g = Builder()
    x = g.input("x", tensor("float32", symbol("n"), 32, symbol("h"), symbol("w")))
    weight = GENERATOR.standard_normal((48, 32, 3, 3), dtype=np.float32) / np.float32(64)
    attrs: dict[str, Any] = {"strides": (stride, stride), "padding": (1, 1, 1, 1)}
    y = g("nn.conv2d", x, g.constant(weight), **attrs)
    graph = g.build(g("multiply", y, g(activation, y)))
    module = graft.compile(graph, strict=True, threads=2)
    assert any("winograd" in call.label for call in module.program.calls)
    for batch, height, width in ((1, 1, 1), (2, 5, 9), (1, 13, 24), (3, 28, 31), (0, 6, 6)):
        data = GENERATOR.standard_normal((batch, 32, height, width), dtype=np.float32)
        (found,) = module.run(None, {"x": data})
        np.testing.assert_allclose(found, evaluate(graph, [data])[0], rtol=1e-4, atol=2e-5)


def test_dilated_at_every_size() -> None:
    g = Builder()
    x = g.input("x", tensor("float32", 1, 64, symbol("h"), symbol("w")))
    weight = GENERATOR.standard_normal((64, 64, 3, 3), dtype=np.float32) / np.float32(64)
    attrs: dict[str, Any] = {"dilation": (2, 3), "padding": (2, 3, 2, 3)}
    graph = g.build(g("nn.conv2d", x, g.constant(weight), **attrs))
    module = graft.compile(graph, strict=True, threads=2)
    assert any("winograd" in call.label for call in module.program.calls)
    for height, width in ((1, 1), (5, 9), (13, 24), (28, 31)):
        data = GENERATOR.standard_normal((1, 64, height, width), dtype=np.float32)
        (found,) = module.run(None, {"x": data})
        np.testing.assert_allclose(found, evaluate(graph, [data])[0], rtol=1e-4, atol=2e-5)


@pytest.mark.each_value
@pytest.mark.parametrize("tile", BOUND)
@pytest.mark.parametrize("panels", [1, 3, 100])
def test_weights_that_no_cache_holds(tile: int, panels: int) -> None:
    """They are half transformed, and finished for as many rows of points as the cache has room."""
    target = host_target()
    first, second, *_, last = target.machine.caches
    caches = (first, replace(second, size=panels * 24 * 32 * 4 * 3), replace(last, size=1 << 10))
    small = replace(target, machine=replace(target.machine, caches=caches))
    weight = GENERATOR.standard_normal((32, 24, 3, 3), dtype=np.float32) / np.float32(64)

    def write(g: Builder) -> Value:
        x = g.input("x", tensor("float32", 2, 24, 9, 14))
        return g("nn.conv2d", x, g.constant(weight), padding=(1, 1, 1, 1))

    extents = WinogradExtents(transforms(tile), 24, 24, 32, 8)
    schedule = default_schedule(small, 8, extents)
    assert schedule.half_rows
    assert (tile + 2) % schedule.half_rows == 0
    layout = {"x": (8, (1, 1, 4, 4)), "result": (8, (0, 1, 0, 1))}
    made = case(write, layout, Winograd(tile))
    check(made, winograd, 2, target=small)


@pytest.mark.parametrize(
    ("inputs", "outputs", "tiles"), [(32, 96, 81), (48, 96, 81), (16, 32, 1369)]
)
def test_two_threads_have_chunks_of_their_own(inputs: int, outputs: int, tiles: int) -> None:
    """Layers of Inception-v3 on bytes: three chunks in three shares would have one thread do five
    of nine jobs, and both transform the chunk in the middle."""
    layer = WinogradExtents(transforms(4, (3, 3), 1), tiles, inputs, outputs, 16, 2)
    schedule = default_schedule(named_target("znver5"), 16, layer)
    assert -(-tiles // schedule.chunk) % 2 == 0


@pytest.mark.parametrize("cores", [2, 4, 8, 16])
@pytest.mark.parametrize(
    ("channels", "tile", "tiles"), [(64, 4, 196), (128, 4, 49), (256, 2, 49), (512, 2, 16)]
)
def test_every_thread_has_a_job(cores: int, channels: int, tile: int, tiles: int) -> None:
    """Layers of ResNet-50; chunks that two threads share evenly gave sixteen threads eight jobs."""
    machine = replace(named_target("sapphirerapids").machine, cores=cores)
    target = replace(named_target("sapphirerapids"), machine=machine)
    layer = WinogradExtents(transforms(tile, (3, 3), 1), tiles, channels, channels, 16)
    schedule = default_schedule(target, 16, layer)
    assert -(-tiles // schedule.chunk) * schedule.shares >= cores


@pytest.mark.parametrize("last_cache", [20.0, 24.0, 32.0, 48.0])
def test_cores_without_a_common_cache_share_a_small_image_by_channels(last_cache: float) -> None:
    """Sixteen tiles of 256 channels: two chunks would have each thread read 9 MB of weights from
    memory, and however fast the last cache is, the other core's part is not in it."""
    target = named_target("znver5")
    *near, last = target.machine.caches
    caches = (*near, replace(last, bytes_per_cycle=last_cache))
    machine = replace(
        target.machine,
        cores=2,
        caches=caches,
        memory_bytes_per_cycle=16,
        crossing_bytes_per_cycle=8,
    )
    extents = WinogradExtents(transforms(4, (3, 3), 1), 16, 256, 256, 16)
    assert default_schedule(replace(target, machine=machine), 16, extents).chunk == 16


@pytest.mark.each_value
@pytest.mark.parametrize("tile", BOUND)
@pytest.mark.parametrize("half_rows", [0, 1])
@pytest.mark.parametrize("fills_beside_loads", [False, True])
def test_channels_in_blocks(
    tile: int, half_rows: int, fills_beside_loads: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All tiles of a chunk do some input channels before they go on to the next ones; on some
    machines lines are asked for before they are written."""
    target = host_target()
    machine = replace(target.machine, fills_beside_loads=fills_beside_loads)
    target = replace(target, machine=machine)

    def blocked(*arguments: Any) -> WinogradSchedule:
        return replace(default_schedule(*arguments), depth_block=8, half_rows=half_rows, split=1)

    monkeypatch.setattr(winograd_module, "default_schedule", blocked)
    weight = GENERATOR.standard_normal((32, 24, 3, 3), dtype=np.float32) / np.float32(64)

    def write(g: Builder) -> Value:
        x = g.input("x", tensor("float32", 2, 24, 9, 14))
        return g("nn.conv2d", x, g.constant(weight), padding=(1, 1, 1, 1))

    layout = {"x": (8, (1, 1, 4, 4)), "result": (8, (0, 1, 0, 1))}
    check(case(write, layout, Winograd(tile)), winograd, 2, target=target)


@pytest.mark.each_value
@pytest.mark.parametrize("tile", BOUND)
@pytest.mark.parametrize("half_rows", [0, 1, 2])
@pytest.mark.parametrize("block", [8, 16])
@pytest.mark.parametrize(("inputs", "outputs"), [(48, 32), (16, 24), (38, 7)])
def test_split_sums(
    tile: int,
    half_rows: int,
    block: int,
    inputs: int,
    outputs: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Elements are pairs of neighbouring channels, whose sums are added as a tile ends."""

    def split(target: Target, lanes: int, extents: WinogradExtents) -> WinogradSchedule:
        schedule = default_schedule(target, lanes, extents)
        if lanes < extents.block:  # several vectors, of which the sums are not split
            return schedule
        return replace(schedule, vectors=1, shares=1, half_rows=half_rows, depth_block=0, split=2)

    monkeypatch.setattr(winograd_module, "default_schedule", split)
    weight = GENERATOR.standard_normal((outputs, inputs, 3, 3), dtype=np.float32) / np.float32(64)

    def write(g: Builder) -> Value:
        x = g.input("x", tensor("float32", 2, inputs, 9, 14))
        return g("nn.conv2d", x, g.constant(weight), padding=(1, 1, 1, 1))

    layout = {"x": (block, (1, 1, 4, 4)), "result": (block, (0, 1, 0, 1))}
    check(case(write, layout, Winograd(tile)), winograd, 2)


def test_sums_are_split_where_loads_bound_a_single_vector() -> None:
    """One vector of results, on a Xeon: two vectors share each element, an odd number of inputs
    makes no pairs, and other cores load as many elements as they multiply."""
    layer = WinogradExtents(transforms(4), 400, 32, 16, 16, may_split=True)
    xeon, zen = named_target("icelake-server"), named_target("znver4")
    assert default_schedule(xeon, 16, layer).split == 2
    assert default_schedule(zen, 16, layer).split == 1
    assert default_schedule(xeon, 16, replace(layer, outputs=32)).split == 1
    assert default_schedule(xeon, 16, replace(layer, may_split=False)).split == 1


def test_addresses_of_a_tile_differ_by_displacements() -> None:
    """A tile's rows of products have one register for their addresses, not one each, most of which
    would be on the stack."""
    xeon = named_target("icelake-server")
    weight = GENERATOR.standard_normal((16, 16, 3, 3), dtype=np.float32)

    def write(g: Builder) -> Value:
        x = g.input("x", tensor("float32", 1, 16, 120, 120))
        return g("nn.conv2d", x, g.constant(weight), padding=(1, 1, 1, 1))

    made = case(write, {"x": (16, (1, 1, 4, 4)), "result": 16}, Winograd(4))
    text = assembly(made.kernel(winograd, xeon).function, xeon)
    assert text.count("leaq") < 40  # with a register each: 97


@given(st.integers(1, 70), st.integers(1, 6), st.integers(1, 30))
def test_tiles_cover_every_pixel_once(extent: int, out: int, dilation: int) -> None:
    tiles = range(tiles_along(extent, out, dilation))
    firsts = [first_pixel(tile, out, dilation) for tile in tiles]
    assert max(firsts) < extent
    pixels = [first + number * dilation for first in firsts for number in range(out)]
    assert sorted(pixel for pixel in pixels if pixel < extent) == list(range(extent))


@pytest.mark.parametrize("tile", BOUND)
@pytest.mark.parametrize(("taps", "stride"), TAPS)
def test_matrices_are_exact_and_compute_convolutions(tile: int, taps: int, stride: int) -> None:
    matrices = transforms(tile, (taps, taps), stride).down
    for matrix in (matrices.data, matrices.result):
        np.testing.assert_array_equal(matrix, matrix.astype(np.float32))
    kernel = GENERATOR.standard_normal(taps)
    data = GENERATOR.standard_normal(matrices.side)
    found = matrices.result @ ((matrices.weight @ kernel) * (matrices.data @ data))
    np.testing.assert_allclose(found, np.correlate(data, kernel)[::stride], rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("tile", BOUND)
@pytest.mark.parametrize(("taps", "stride"), TAPS)
def test_sums_that_share_parts(tile: int, taps: int, stride: int) -> None:
    """They are the matrix's products, with factors that float32 holds, and no more operations."""
    matrices = transforms(tile, (taps, taps), stride).down
    for matrix in (matrices.data, matrices.result):
        shared = shared_sums(matrix)
        values = GENERATOR.standard_normal(matrix.shape[1]).tolist()
        expected = matrix @ values
        for terms in shared.sums:
            assert all(np.float32(factor) == factor for factor, _ in terms)
            values.append(sum(factor * values[number] for factor, number in terms))
        found = [values[number] for number in shared.results]
        np.testing.assert_allclose(found, expected, rtol=1e-12, atol=1e-12)
        plain = int((matrix != 0).sum()) - len(matrix)
        assert sum(len(terms) - 1 for terms in shared.sums) <= plain


def _transform(tile: int, registers: int) -> tuple[Function, Array]:
    """The transform of two vectors of data with so many registers, and its matrix."""
    down = transforms(tile, (3, 3)).down
    ramp = Ramp(Const(0), 1, 8)

    def grid(number: int) -> GridTransform:
        def element(row: int, column: Expr) -> Expr:
            return Load(data, (Const(number), Const(row), column, ramp))

        def store(row: Expr, values: Sequence[Expr]) -> Stmt:
            places = ((Const(number), row, Const(n), ramp) for n in range(len(values)))
            return Block(tuple(map(Store, [result] * len(values), places, values)))

        return GridTransform(f"grid{number}", 8, down.data, down.data, element, store)

    extents = tuple(map(Const, (2, down.side, down.side, 8)))
    data, result = (Buffer(name, DType.FLOAT32, extents) for name in ("data", "result"))
    body = transformed([grid(0), grid(1)], registers)
    return Function("transform", (data, result), body), down.data


@pytest.mark.parametrize(("tile", "registers", "loops"), [(4, 16, 2), (4, 32, 0), (2, 16, 0)])
def test_transforms_are_loops_where_registers_are_few(
    tile: int, registers: int, loops: int
) -> None:
    """A column at a time where two of them and the factors have no room."""
    function, matrix = _transform(tile, registers)
    assert sum(isinstance(one, For) for one in walk_stmt(function.body)) == loops
    side = len(matrix)
    data = GENERATOR.standard_normal((2, side, side, 8)).astype(np.float32)
    result = np.zeros_like(data)
    interpret(function, {"data": data, "result": result})
    expected = np.einsum("ij,njkl,mk->niml", matrix, data.astype(np.float64), matrix)
    np.testing.assert_allclose(result, expected, rtol=1e-4, atol=1e-4)


def test_sums_do_not_begin_with_a_subtraction() -> None:
    """-a + f * b is one instruction, f * b - a."""
    function, _ = _transform(4, 32)
    negated = [
        one
        for one in walk_all(function.body)
        if isinstance(one, Binary)
        and one.kind is BinaryKind.SUBTRACT
        and one.left == Const(0.0, DType.FLOAT32, 8)
    ]
    assert not negated


def test_too_narrow_a_halo_is_refused() -> None:
    weight = np.zeros((16, 16, 3, 3), np.float32)

    def write(g: Builder) -> Value:
        x = g.input("x", tensor("float32", 1, 16, 6, 6))
        return g("nn.conv2d", x, g.constant(weight), padding=(1, 1, 1, 1))

    made = case(write, {"x": (16, (1, 1, 1, 1)), "result": 16}, Winograd(4))
    assert "halo" in made.refusal(winograd)

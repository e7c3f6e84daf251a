"""Direct convolution on blocked images: groups, phases of transposed ones, odd shapes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from tests.backends.host.images import Case, blocks_of, case, check, random_inputs, run

from graft.backends.host.kernels import conv, conv_plan, conv_schedule
from graft.backends.host.kernels.conv import conv2d
from graft.backends.host.kernels.conv_schedule import ConvExtents, ConvSchedule
from graft.backends.host.storage import Halo, Storage, static_shape
from graft.base.dtypes import Array
from graft.ir.builder import Builder
from graft.ir.evaluate import evaluate
from graft.ir.graph import Node, Value
from graft.ir.types import tensor
from graft.llvm.emit import llvm_text
from graft.loop.ir import Prefetch
from graft.loop.traverse import walk_stmt
from graft.target.machine import MACHINES
from graft.target.target import Target, host_target, named_target

GENERATOR = np.random.default_rng(5)


def _weights(*shape: int) -> Array:
    return GENERATOR.standard_normal(shape, dtype=np.float32) / np.float32(
        np.prod(shape[1:]) ** 0.5
    )


def _plain(_g: Builder, value: Value) -> Value:
    return value


def _anchor(graph_case: Case) -> Node:
    assert graph_case.group.anchor is not None
    return graph_case.group.anchor


def _case(
    shape: tuple[int, int, int, int],
    weight: tuple[int, int, int, int],
    name: str = "nn.conv2d",
    after: Callable[[Builder, Value], Value] = _plain,
    **attrs: Any,
) -> Case:
    """A convolution whose data has exactly the halo it needs, and whose result has one too."""
    array = _weights(*weight)

    def write(g: Builder) -> Value:
        x = g.input("x", tensor("float32", *shape))
        return after(g, g(name, x, g.constant(array), **attrs))

    outputs = weight[0] if name == "nn.conv2d" else weight[1] * attrs.get("groups", 1)
    block_in, block_out = (blocks_of(n, (16, 8, n)) for n in (shape[1], outputs))
    halo: Halo = conv_plan.halo(_anchor(case(write, {})), weight[2:])
    place = (block_out, (1, 2, 0, 1))
    layout = {"x": (block_in, halo), "r": place, "result": place}
    return case(write, layout)


@pytest.mark.each_value
@pytest.mark.parametrize("threads", [1, 3])
@pytest.mark.parametrize(
    ("shape", "weight", "attrs"),
    [
        ((1, 3, 11, 13), (16, 3, 7, 7), {"strides": (2, 2), "padding": (3, 3, 3, 3)}),
        ((3, 16, 7, 5), (8, 16, 1, 1), {}),
        ((1, 24, 9, 8), (40, 24, 3, 5), {"padding": (0, 3, 2, 1)}),
        ((2, 8, 10, 9), (32, 8, 3, 3), {"dilation": (2, 3), "padding": (2, 3, 1, 0)}),
        ((1, 16, 9, 9), (16, 16, 2, 2), {"strides": (3, 2)}),
        ((1, 8, 1, 70), (8, 8, 1, 5), {"padding": (0, 2, 0, 2)}),
        ((1, 8, 2, 701), (16, 8, 2, 3), {"padding": (0, 2, 1, 1)}),  # rows in segments
        # kernel rows and columns outside of the image are left out
        ((1, 16, 9, 11), (32, 16, 3, 3), {"dilation": (6, 6), "padding": (6, 6, 6, 6)}),
        ((2, 8, 5, 17), (16, 8, 3, 3), {"dilation": (4, 3), "padding": (9, 3, 1, 6)}),
        ((1, 8, 7, 6), (16, 8, 2, 3), {"dilation": (5, 2), "strides": (2, 2), "padding": (5,) * 4}),
    ],
)
def test_odd_shapes(
    shape: tuple[int, int, int, int],
    weight: tuple[int, int, int, int],
    attrs: dict[str, Any],
    threads: int,
) -> None:
    check(_case(shape, weight, **attrs), conv2d, threads)


@pytest.mark.each_value
@pytest.mark.parametrize("batch", [1, 3])
@pytest.mark.parametrize(
    ("channels", "outputs", "groups"),
    [
        (128, 128, 32),  # four channels each: two groups in a vector of eight
        (64, 64, 8),
        (32, 64, 2),
        (96, 48, 2),
        (48, 48, 3),
        (80, 40, 4),  # ten outputs each: groups straddle vectors
        (40, 80, 4),
        (16, 32, 16),  # one channel makes two
        (48, 24, 2),
    ],
)
def test_groups(channels: int, outputs: int, groups: int, batch: int) -> None:
    weight = (outputs, channels // groups, 3, 3)
    attrs: dict[str, Any] = {"groups": groups, "padding": (1, 1, 1, 1), "strides": (2, 1)}
    check(_case((batch, channels, 7, 9), weight, **attrs), conv2d, threads=2)


@pytest.mark.each_value
@pytest.mark.parametrize(
    ("kernel", "attrs"),
    [
        ((2, 2), {"strides": (2, 2)}),
        ((4, 4), {"strides": (2, 2), "padding": (1, 1, 1, 1)}),
        ((3, 3), {"strides": (2, 2), "padding": (1, 1, 1, 1), "output_padding": (1, 1)}),
        ((5, 3), {"strides": (3, 1), "padding": (2, 0, 1, 2), "output_padding": (2, 0)}),
        ((3, 3), {"strides": (1, 1), "padding": (1, 1, 1, 1)}),
        ((1, 1), {"strides": (3, 2)}),  # most of the result is what no pixel reaches
        ((3, 3), {"strides": (2, 2), "dilation": (2, 3), "padding": (1, 2, 1, 2)}),
        ((3, 3), {"strides": (4, 3), "dilation": (2, 2)}),
        ((2, 3), {"strides": (2, 2), "padding": (-1, 0, 0, -2)}),
        ((3, 3), {"strides": (4, 4), "padding": (1, 1, 1, 1), "output_padding": (3, 2)}),
    ],
)
@pytest.mark.parametrize("groups", [1, 2])
def test_transposed(kernel: tuple[int, int], attrs: dict[str, Any], groups: int) -> None:
    weight = (32, 24 // groups, *kernel)
    made = _case((2, 32, 5, 7), weight, "nn.conv2d_transpose", groups=groups, **attrs)
    check(made, conv2d, threads=2)


def _residual(g: Builder, value: Value) -> Value:
    bias = g.constant(_weights(32, 1).reshape(32))
    total = g("add", g("nn.bias_add", value, bias), g.input("r", value.type))
    return g("clip", g("nn.relu", total), a_min=0.0, a_max=0.75)


def _gelu(g: Builder, value: Value) -> Value:
    return g("nn.gelu", g("multiply", value, g.constant(_weights(32, 1, 1))))


@pytest.mark.parametrize("after", [_residual, _gelu])
@pytest.mark.parametrize("name", ["nn.conv2d", "nn.conv2d_transpose"])
def test_epilogues(name: str, after: Callable[[Builder, Value], Value]) -> None:
    attrs: dict[str, Any] = {"padding": (1, 1, 1, 1), "groups": 4}
    weight = (32, 8, 3, 3)
    check(_case((1, 32, 6, 9), weight, name, after, **attrs), conv2d)


@pytest.mark.each_value
@pytest.mark.parametrize("after", [_plain, _residual, _gelu])
@pytest.mark.parametrize("machine", ["icelake-server", "znver3", "znver4"])
@pytest.mark.parametrize("shape", [(1, 48, 7, 7), (2, 32, 5, 3), (1, 16, 1, 11), (1, 40, 14, 14)])
def test_tiles_go_on_from_row_to_row(
    shape: tuple[int, int, int, int], machine: str, after: Callable[[Builder, Value], Value]
) -> None:
    weight = (32, shape[1], 1, 1)
    made = _case(shape, weight, after=after)
    data = made.stores[made.graph.inputs[0]]
    assert conv_plan.data_in_one_row(_anchor(made), weight, data) is not None
    here = host_target()
    bits = min(here.vector_bits, MACHINES[machine].vector_bits)
    target = replace(here, machine=MACHINES[machine].with_vectors(bits))
    check(made, conv2d, threads=2, target=target)


@pytest.mark.each_value
@pytest.mark.parametrize(("threads", "bands"), [(1, 1), (3, 1), (2, 3)])
@pytest.mark.parametrize(
    ("shape", "weight", "attrs"),
    [
        ((1, 96, 7, 9), (48, 96, 1, 1), {}),
        ((2, 128, 14, 14), (64, 128, 1, 1), {"strides": (2, 2)}),
        ((1, 48, 30, 11), (80, 48, 3, 3), {"padding": (1, 0, 1, 2)}),
        ((1, 64, 1, 67), (32, 64, 1, 3), {"padding": (0, 1, 0, 1)}),
        ((1, 32, 7, 7), (48, 32, 3, 3), {"padding": (1, 1, 1, 1)}),
        ((2, 32, 13, 14), (16, 32, 3, 3), {"padding": (1, 1, 1, 1), "strides": (2, 2)}),
    ],
)
def test_depth_in_blocks(
    shape: tuple[int, int, int, int],
    weight: tuple[int, int, int, int],
    attrs: dict[str, Any],
    threads: int,
    bands: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """All tiles of a job do some input channels before they go on to the next ones."""

    def blocked(*arguments: Any) -> ConvSchedule:
        schedule = conv_schedule.choose_schedule(*arguments)
        return replace(schedule, vectors=1, depth_block=16, bands=bands)

    monkeypatch.setattr(conv, "choose_schedule", blocked)

    def after(g: Builder, value: Value) -> Value:
        return g("nn.relu", g("add", value, g.input("r", value.type)))

    check(_case(shape, weight, after=after, **attrs), conv2d, threads)


def test_depth_is_blocked_where_the_first_cache_is_filled_or_read() -> None:
    extents = ConvExtents(256, (1, 1), 1, 196, 64, 1, unit=16)
    xeon, zen = (named_target(name) for name in ("icelake-server", "znver4"))
    schedule = conv_schedule.choose_schedule(xeon, 16, extents)
    assert schedule.slab * schedule.depth_block * 4 <= xeon.cache_bytes[0] / 2
    assert schedule.depth_block
    assert not conv_schedule.choose_schedule(zen, 16, extents).depth_block


def test_jobs_have_several_tiles_where_the_depth_is_blocked() -> None:
    """Ten tiles of two slabs: blocks of weights are read by two or three of them."""
    extents = ConvExtents(960, (1, 1), 1, 49, 10, 1, unit=16)
    xeon = named_target("icelake-server")
    schedule = conv_schedule.choose_schedule(xeon, 16, extents)
    assert (schedule.vectors, schedule.columns, schedule.depth_block) == (5, 5, 64)
    assert conv_schedule.segments_of(xeon.machine, 2, 9, is_blocked=True) == 4
    assert conv_schedule.segments_of(xeon.machine, 2, 9, is_blocked=False) == 9


@pytest.mark.parametrize("vectors", [1, 2])
@pytest.mark.parametrize("depth_block", [0, 16])
@pytest.mark.parametrize(
    ("shape", "weight", "attrs"),
    [
        ((1, 32, 7, 9), (32, 32, 1, 1), {}),
        ((2, 48, 13, 14), (32, 48, 3, 3), {"padding": (1, 1, 1, 1), "strides": (2, 2)}),
        ((1, 64, 9, 5), (64, 32, 3, 1), {"padding": (1, 0, 1, 0), "groups": 2}),
        ((1, 7, 9, 5), (32, 7, 3, 3), {}),  # inputs that make no pairs
    ],
)
def test_sums_of_pairs_of_inputs(
    shape: tuple[int, int, int, int],
    weight: tuple[int, int, int, int],
    attrs: dict[str, Any],
    depth_block: int,
    vectors: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Elements are pairs, and sums of both halves are added before the epilogue."""

    def split(target: Target, lanes: int, extents: ConvExtents) -> ConvSchedule:
        columns = min(extents.columns, 5)
        block = depth_block if extents.unit % 16 == 0 else 0
        return ConvSchedule(lanes, vectors, 1, columns, block, 1, split=2)

    monkeypatch.setattr(conv, "choose_schedule", split)

    def after(g: Builder, value: Value) -> Value:
        return g("nn.relu", g("add", value, g.input("r", value.type)))

    check(_case(shape, weight, after=after, **attrs), conv2d, threads=2)


def test_tiles_are_parts_of_several_rows_where_a_row_has_too_few_sums() -> None:
    """Seven pixels are four and three in two vectors of sixteen registers, six or eight sums where
    two units ask for eight; 32 registers have room for a whole row of them."""
    short = ConvExtents(512, (1, 1), 7, 7, 256, 1)
    zen = conv_schedule.choose_schedule(named_target("znver3"), 8, short)
    assert (zen.vectors, zen.rows, zen.columns) == (2, 3, 2)
    xeon = conv_schedule.choose_schedule(named_target("icelake-server"), 16, short)
    assert xeon.columns == 7
    wide = conv_schedule.choose_schedule(named_target("znver3"), 8, replace(short, columns=14))
    assert wide.rows == 1


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize(
    ("shape", "weight", "attrs"),
    [
        ((1, 32, 7, 7), (32, 32, 1, 1), {}),
        ((2, 32, 7, 8), (32, 32, 3, 3), {"padding": (1, 1, 1, 1)}),
        ((1, 32, 9, 14), (48, 32, 3, 3), {"padding": (1, 1, 1, 1), "strides": (2, 2)}),
    ],
)
def test_parts_of_several_rows(
    shape: tuple[int, int, int, int],
    weight: tuple[int, int, int, int],
    attrs: dict[str, Any],
    threads: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def parts(target: Target, lanes: int, extents: ConvExtents) -> ConvSchedule:
        return replace(conv_schedule.choose_schedule(target, lanes, extents), rows=2, columns=3)

    monkeypatch.setattr(conv, "choose_schedule", parts)

    def after(g: Builder, value: Value) -> Value:
        return g("nn.relu", g("add", value, g.input("r", value.type)))

    check(_case(shape, weight, after=after, **attrs), conv2d, threads)


def test_sums_are_split_where_loads_bound_tiles_of_one_vector() -> None:
    """A Xeon's loads do, an Arm core multiplies by lanes; two vectors share each element."""
    narrow = ConvExtents(32, (1, 1), 112, 112, 1, 1, may_split=True)
    splits = {
        name: conv_schedule.choose_schedule(named_target(name), lanes, narrow).split
        for name, lanes in (("icelake-server", 16), ("znver4", 16), ("neoverse-v1", 4))
    }
    assert splits == {"icelake-server": 2, "znver4": 1, "neoverse-v1": 1}
    xeon = named_target("icelake-server")
    assert conv_schedule.choose_schedule(xeon, 16, replace(narrow, vectors=2)).split == 1
    assert conv_schedule.choose_schedule(xeon, 16, replace(narrow, may_split=False)).split == 1


def test_data_of_strides_as_long_as_the_kernel_are_read_once() -> None:
    """2x2 windows with a stride of 2 (ConvNeXt's downsampling): each element is read for one result
    only, so that tiles of many pixels wait for lines; and rows of one tile read all weights again,
    so that blocks of the depth gain nothing."""
    xeon = named_target("icelake-server")
    layer = ConvExtents(40, (2, 2), 28, 28, 5, 1, may_overlap=True, may_split=True, stride=2)
    schedule = conv_schedule.choose_schedule(xeon, 16, layer)
    assert (schedule.vectors, schedule.columns, schedule.split) == (5, 5, 1)
    overlapping = conv_schedule.choose_schedule(xeon, 16, replace(layer, stride=1))
    assert overlapping.columns > 5
    small = ConvExtents(160, (2, 2), 7, 7, 20, 1, 1, True, 16, may_split=True, stride=2)
    assert not conv_schedule.choose_schedule(xeon, 16, small).depth_block


def test_loops_over_taps_stay_rolled_where_a_prefetcher_follows_steps() -> None:
    made = _case((1, 40, 16, 16), (80, 40, 2, 2), strides=(2, 2))
    for name, is_kept in (("icelake-server", True), ("znver4", False)):
        target = named_target(name)
        text = llvm_text(made.kernel(conv2d, target).function, target)
        loops = text.count(", !llvm.loop")
        assert (loops > 3) if is_kept else not loops


def test_a_first_slab_that_is_waited_for_is_small() -> None:
    """Nothing asks for its weights ahead: more slabs, or blocks of the depth, make it smaller."""
    extents = ConvExtents(960, (1, 1), 1, 49, 10, 1)
    xeon, cycles = named_target("icelake-server"), conv_schedule.conv_cycles
    assert cycles(xeon, 16, extents) > cycles(xeon, 16, replace(extents, asked_for=True))
    assert conv_schedule.choose_schedule(xeon, 16, extents).vectors == 2
    zen = named_target("znver4")
    assert cycles(zen, 16, extents) == cycles(zen, 16, replace(extents, asked_for=True))


def test_slabs_come_first_where_the_second_cache_holds_weights_and_data() -> None:
    """On cores that wait for bursts from beyond it; elsewhere rows do."""
    small, wide = (ConvExtents(160, (1, 1), 1, pixels, 60, 1, unit=16) for pixels in (49, 3136))
    xeon, zen = (named_target(name) for name in ("icelake-server", "znver3"))
    zen = replace(zen, machine=replace(zen.machine, caches=xeon.machine.caches))
    assert conv_schedule.choose_schedule(xeon, 16, small).bands == 1
    assert not conv_schedule.choose_schedule(xeon, 16, wide).bands
    assert not conv_schedule.choose_schedule(zen, 16, small).bands


@pytest.mark.parametrize(
    ("depth", "vectors", "pixels", "bands"),
    [(1024, 16, (14, 14), 2), (2048, 32, (7, 7), 1), (64, 16, (56, 56), 0)],
    ids=["more data", "more weights", "weights in the second cache"],
)
def test_bands_follow_from_what_threads_would_wait_for(
    depth: int, vectors: int, pixels: tuple[int, int], bands: int
) -> None:
    extents = ConvExtents(depth, (1, 1), *pixels, vectors, 1, unit=16)
    assert conv_schedule.choose_schedule(named_target("znver5"), 16, extents).bands == bands


@pytest.mark.parametrize("bands", [1, 2, 3, 7, 50])
@pytest.mark.parametrize("threads", [1, 3])
@pytest.mark.parametrize(
    ("shape", "weight"), [((2, 32, 7, 9), (80, 32, 1, 1)), ((1, 16, 11, 5), (32, 16, 3, 3))]
)
def test_any_bands(
    shape: tuple[int, int, int, int],
    weight: tuple[int, int, int, int],
    threads: int,
    bands: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def banded(*arguments: Any) -> ConvSchedule:
        return replace(conv_schedule.choose_schedule(*arguments), bands=bands)

    monkeypatch.setattr(conv, "choose_schedule", banded)
    padding = (weight[2] // 2,) * 4
    check(_case(shape, weight, padding=padding), conv2d, threads)


@pytest.mark.parametrize(
    ("outputs", "pixels", "asks"),
    [(960, (7, 7), True), (960, (1, 1), False), (32, (7, 7), False)],
    ids=["several tiles", "one tile", "one slab"],
)
def test_weights_are_asked_for_ahead_of_their_slab(
    outputs: int, pixels: tuple[int, int], asks: bool
) -> None:
    """Where there is a next slab, and more than one tile to ask for parts of it."""
    made = _case((1, 160, *pixels), (outputs, 160, 1, 1))
    kernel = made.kernel(conv2d, named_target("icelake-server"))
    every = [one for one in walk_stmt(kernel.function.body) if isinstance(one, Prefetch)]
    asked = [one for one in every if one.buffer.name == "weights"]
    assert all(one.level == 2 for one in asked)
    assert bool(asked) == asks


@pytest.mark.parametrize(("outputs", "asks"), [(256, True), (16, False)])
def test_weights_of_the_first_row_are_asked_for(outputs: int, asks: bool) -> None:
    """Where all slabs of a row come before the next row: even by single tiles."""
    made = _case((1, 160, 8, 8), (outputs, 160, 1, 1))
    kernel = made.kernel(conv2d, named_target("znver5"))
    every = [one for one in walk_stmt(kernel.function.body) if isinstance(one, Prefetch)]
    assert any(one.buffer.name == "weights" for one in every) == asks


def test_gate_per_channel_is_read_as_the_image_of_one_pixel_that_it_is() -> None:
    made = _case((2, 16, 6, 5), (16, 16, 3, 3), after=_gated, padding=(1, 1, 1, 1))
    gate = next(value for value in made.stores if value.name == "gate")
    stores = {**made.stores, gate: Storage(gate.dtype, static_shape(gate), 16, (1, 1, 1, 1))}
    check(Case(made.graph, made.group, stores), conv2d)


def _gated(g: Builder, value: Value) -> Value:
    return g("multiply", value, g.input("gate", tensor("float32", 2, 16, 1, 1)))


def test_narrower_vectors_than_this_machine_has() -> None:
    made = _case((1, 32, 6, 6), (32, 8, 3, 3), groups=4, padding=(1, 1, 1, 1))
    for name in ("x86-64", "x86-64-v3"):
        check(made, conv2d, target=named_target(name), inputs=random_inputs(made.graph))


@pytest.mark.parametrize(
    ("made", "reason"),
    [
        (_case((1, 32, 6, 6), (32, 1, 3, 3), groups=32), "depthwise"),
        (_case((1, 64, 6, 6), (16, 4, 3, 3), groups=16), "too narrow"),
        (_case((1, 16, 3, 3), (16, 8, 5, 5), "nn.conv2d_transpose", strides=(5, 4)), "phases"),
        (_case((1, 32, 3, 3), (32, 1, 4, 4), "nn.conv2d_transpose", groups=32), "too narrow"),
    ],
)
def test_refusals(made: Case, reason: str) -> None:
    assert reason in made.refusal(conv2d)


@pytest.mark.parametrize("machine", ["host", "icelake-server", "x86-64-v3"])
@pytest.mark.parametrize(
    ("groups", "inputs", "outputs"), [(6, 24, 24), (10, 40, 24), (6, 120, 40), (2, 8, 8)]
)
def test_groups_that_end_within_slabs(groups: int, inputs: int, outputs: int, machine: str) -> None:
    """Slabs of two groups read the inputs of both, all others those of one."""
    here = host_target()
    bits = min(here.vector_bits, named_target(machine).vector_bits)
    target = replace(here, machine=named_target(machine).machine.with_vectors(bits))
    shape, weight = (2, groups * inputs, 5, 7), (groups * outputs, inputs, 3, 3)
    made = _case(shape, weight, groups=groups, padding=(1, 1, 1, 1))
    check(made, conv2d, threads=2, target=target)


def test_wide_units_get_whole_vectors() -> None:
    """Where they would be half idle, channels of two groups share a vector."""
    weight = (720, 120, 3, 3)
    slabs = [
        conv_plan.channels_of(weight, 6, 16, 16, named_target(name))
        for name in ("icelake-server", "znver5", "znver4", "x86-64-v3")
    ]
    assert [one.slab for one in slabs if one] == [16, 16, 8, 8]
    assert slabs[0] is not None
    assert (slabs[0].count, slabs[0].mean_count) == (240, 128)


@pytest.mark.parametrize(("channels", "groups"), [(24, 3), (40, 5)])
def test_groups_that_do_not_fill_the_last_slab(channels: int, groups: int) -> None:
    """In blocks of 16, of which two groups of eight channels share one."""
    weight = _weights(channels, 8, 3, 3)

    def write(g: Builder) -> Value:
        x = g.input("x", tensor("float32", 1, channels, 5, 6))
        return g("nn.conv2d", x, g.constant(weight), groups=groups)

    graph_case = case(write, {"x": 16, "result": 16})
    inputs = random_inputs(graph_case.graph)
    found = run(graph_case, graph_case.kernel(conv2d), inputs)
    (wanted,) = evaluate(graph_case.graph, inputs)
    unpacked = np.moveaxis(found, -1, 2).reshape(1, -1, *wanted.shape[2:])[:, :channels]
    np.testing.assert_allclose(unpacked, wanted, rtol=1e-5, atol=1e-5)

"""A pointwise and a depthwise convolution in one kernel, which never writes what is between."""

from __future__ import annotations

import math
import re
from dataclasses import replace
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper
from tests.backends.host.chains import (
    Step,
    chain,
    clipped,
    compiled,
    interpreted,
    numbers,
    price,
    same,
    silu,
)
from tests.backends.host.images import check, random_inputs, run

import graft
from graft.backends.host.kernels import expand_depthwise as kernels
from graft.backends.host.kernels.chain_schedule import (
    ExpandSchedule,
    choose_expand_schedule,
    expand_extents,
    expand_saving,
)
from graft.backends.host.kernels.expand_depthwise import expand_depthwise
from graft.backends.host.passes.fuse_chains import fuse_chains
from graft.backends.host.passes.pipeline import prepare
from graft.backends.host.storage import NO_HALO, Storage, static_shape
from graft.base.dims import symbol
from graft.ir.builder import Builder
from graft.ir.evaluate import evaluate
from graft.ir.graph import Graph, Value
from graft.ir.types import tensor
from graft.ir.verify import verify
from graft.loop.ir import Prefetch
from graft.loop.traverse import walk_stmt
from graft.passes.group_fusion import group_fusion
from graft.target.target import Target, host_target, named_target


def pair_graph(
    shape: tuple[Any, ...],
    channels: int,
    kernel: tuple[int, int] = (3, 3),
    steps: tuple[Step, Step] = (clipped, clipped),
    **attrs: Any,
) -> Graph:
    builder = Builder()
    data = builder.input("data", tensor("float32", *shape))
    value = builder("nn.conv2d", data, numbers(builder, channels, shape[1], 1, 1))
    value = steps[0](builder, builder("nn.bias_add", value, numbers(builder, channels)))
    weight = numbers(builder, channels, 1, *kernel)
    value = builder("nn.conv2d", value, weight, groups=channels, **attrs)
    value = steps[1](builder, builder("nn.bias_add", value, numbers(builder, channels)))
    return builder.build(value)


def with_rows(monkeypatch: pytest.MonkeyPatch, rows: int) -> None:
    """Let jobs make so many rows."""

    def choose(*args: Any) -> ExpandSchedule:
        return replace(choose_expand_schedule(*args), rows=rows)

    monkeypatch.setattr(kernels, "choose_expand_schedule", choose)


PADDED = {"padding": (1, 1, 1, 1)}


@pytest.mark.each_value
@pytest.mark.parametrize("threads", [1, 7])
@pytest.mark.parametrize("stride", [1, 2])
@pytest.mark.parametrize(("inputs", "channels", "side"), [(16, 96, 20), (24, 144, 14), (32, 64, 7)])
def test_layers_of_mobile_networks(
    inputs: int, channels: int, side: int, stride: int, threads: int
) -> None:
    graph = pair_graph((1, inputs, side, side), channels, strides=(stride, stride), **PADDED)
    check(chain(graph), expand_depthwise, threads)


@pytest.mark.each_value
@pytest.mark.parametrize("rows", [1, 3, 13])
@pytest.mark.parametrize(
    ("kernel", "attrs"),
    [
        ((1, 1), {}),
        ((3, 3), {}),
        ((5, 3), {"padding": (2, 1, 2, 1)}),
        ((7, 7), {"padding": (3, 3, 3, 3), "strides": (2, 2)}),
        ((2, 4), {"padding": (0, 3, 1, 2), "strides": (2, 3)}),
        ((3, 3), {"padding": (2, 4, 2, 4), "dilation": (2, 4)}),
        ((3, 5), {"padding": (4, 0, 5, 2), "strides": (1, 3)}),
    ],
)
def test_any_window_and_any_rows_of_a_job(
    kernel: tuple[int, int], attrs: dict[str, Any], rows: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    with_rows(monkeypatch, rows)
    made = chain(pair_graph((2, 8, 13, 19), 24, kernel, **attrs), (8, 8), (NO_HALO, (1, 2, 0, 3)))
    check(made, expand_depthwise, 2)


@pytest.mark.parametrize("bands", [1, 2, 4])
@pytest.mark.parametrize(("tile_rows", "rows"), [(2, 1), (2, 3), (3, 4), (4, 13)])
def test_tiles_of_several_rows(
    tile_rows: int, rows: int, bands: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rows that make up no tile, or lie outside of the image, come one by one."""

    def choose(*args: Any) -> ExpandSchedule:
        chosen = choose_expand_schedule(*args)
        tile = replace(chosen.tile, vectors=1, rows=tile_rows, columns=5, bands=bands)
        return ExpandSchedule(tile, rows)

    monkeypatch.setattr(kernels, "choose_expand_schedule", choose)
    made = chain(pair_graph((2, 16, 13, 5), 48, (5, 3), padding=(2, 1, 2, 1)))
    check(made, expand_depthwise, 3)


@pytest.mark.each_value
@pytest.mark.parametrize(("inputs", "channels"), [(3, 20), (5, 33), (24, 40), (17, 100), (1, 7)])
@pytest.mark.parametrize("blocks", [(16, 16), (8, 16), (16, 8)])
def test_channels_that_fill_no_blocks(inputs: int, channels: int, blocks: tuple[int, int]) -> None:
    graph = pair_graph((1, inputs, 6, 9), channels, **PADDED)
    made = chain(graph, blocks)
    inputs_ = random_inputs(graph)
    (wanted,) = evaluate(graph, inputs_)
    found = run(made, made.kernel(expand_depthwise), inputs_, 2)
    whole = np.moveaxis(found, -1, 2).reshape(1, -1, *wanted.shape[2:])[:, :channels]
    np.testing.assert_allclose(whole, wanted, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("shape", [(1, 16, 1, 1), (3, 16, 1, 5), (2, 16, 7, 1), (1, 16, 2, 2)])
def test_images_of_few_pixels(shape: tuple[int, int, int, int]) -> None:
    graph = pair_graph(shape, 32, (5, 5), padding=(2, 2, 2, 2))
    check(chain(graph, halos=((1, 1, 1, 1), (2, 0, 0, 1))), expand_depthwise, 3)


@pytest.mark.parametrize("step", [same, silu])
def test_other_steps_behind_each_convolution(step: Step) -> None:
    check(chain(pair_graph((1, 16, 9, 9), 48, steps=(step, step), **PADDED)), expand_depthwise, 2)


def test_a_second_image_in_the_epilogue() -> None:
    def add(builder: Builder, value: Value) -> Value:
        return builder("add", value, builder.input("other", tensor("float32", 1, 32, 5, 5)))

    graph = pair_graph((1, 16, 10, 10), 32, steps=(clipped, add), strides=(2, 2), **PADDED)
    made = chain(graph)
    other = graph.inputs[1]
    stores = {**made.stores, other: Storage(other.dtype, static_shape(other), 16)}
    check(replace(made, stores=stores), expand_depthwise, 2)


@pytest.mark.each_value
@pytest.mark.parametrize("number", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("at", [(0, 0), (5, 4), (10, 10)])
def test_numbers_that_are_none_reach_their_window_only(number: float, at: tuple[int, int]) -> None:
    graph = pair_graph((1, 16, 11, 11), 32, steps=(same, same), **PADDED)
    (image,) = random_inputs(graph)
    image[0, 3, *at] = number
    made = chain(graph)
    found = run(made, made.kernel(expand_depthwise), [image], 2)
    (wanted,) = evaluate(graph, [image])
    np.testing.assert_allclose(found, made.stores[made.group.output].pack(wanted), 1e-5, 1e-6)
    assert np.isfinite(found).any()


@pytest.mark.parametrize("machine", ["x86-64-v3", "x86-64-v4", "neoverse-v1", "cortex-a55"])
def test_code_for_other_machines_means_the_same(machine: str) -> None:
    """By the interpreter of loops, which needs no such machine."""
    graph = pair_graph((1, 8, 5, 6), 24, strides=(2, 1), **PADDED)
    made = chain(graph, (8, 8))
    kernel = made.kernel(expand_depthwise, named_target(machine))
    (image,) = random_inputs(graph)
    result = interpreted(made, kernel, image)
    (wanted,) = evaluate(graph, [image])
    packed = made.stores[made.group.output].pack(wanted)
    np.testing.assert_allclose(result, packed, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"kernel": (1, 1), "strides": (2, 2)}, "skips pixels that would be computed"),
        ({"groups": 1}, "the second convolution is not depthwise"),
    ],
)
def test_what_is_refused(change: dict[str, Any], reason: str) -> None:
    builder = Builder()
    data = builder.input("data", tensor("float32", 1, 16, 8, 8))
    value = builder("nn.conv2d", data, numbers(builder, 32, 16, 1, 1))
    groups = change.get("groups", 32)
    weight = numbers(builder, 32, 32 // groups, *change.get("kernel", (3, 3)))
    strides = change.get("strides", (1, 1))
    value = builder("nn.conv2d", value, weight, groups=groups, strides=strides)
    assert re.search(reason, chain(builder.build(value)).refusal(expand_depthwise))


def test_a_first_convolution_with_neighbours_is_refused() -> None:
    builder = Builder()
    data = builder.input("data", tensor("float32", 1, 16, 8, 8))
    value = builder("nn.conv2d", data, numbers(builder, 32, 16, 3, 3))
    value = builder("nn.conv2d", value, numbers(builder, 32, 1, 3, 3), groups=32)
    reason = chain(builder.build(value)).refusal(expand_depthwise)
    assert reason == "the first convolution is not pointwise"


@pytest.mark.each_value
@pytest.mark.parametrize("threads", [1, 3])
@pytest.mark.parametrize("stride", [1, 2])
def test_sums_are_those_of_two_kernels(
    stride: int, threads: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Bit for bit: the same products are added in the same order."""
    shape = (2, 24, 15, 17)
    graph = pair_graph(shape, 56, steps=(silu, silu), strides=(stride, stride), **PADDED)
    image = np.random.default_rng(1).standard_normal(shape, np.float32)
    apart, together = (
        compiled(graph, monkeypatch, fused, threads=threads) for fused in (False, True)
    )
    labels = [call.label for call in together.program.calls if "conv2d" in call.label]
    assert len(labels) == 1
    assert labels[0].count("nn.conv2d") == 2
    results = [one.run(None, {"data": image})[0] for one in (apart, together)]
    np.testing.assert_array_equal(*results)


def _onnx_blocks() -> onnx.ModelProto:
    """Inverted residuals: one with a sum, one with steps of two, and a grouped one in between."""
    generator = np.random.default_rng(2)
    weights: list[onnx.TensorProto] = []
    nodes: list[onnx.NodeProto] = []

    def conv(
        source: str, name: str, shape: tuple[int, ...], clip: bool = True, **attrs: Any
    ) -> str:
        weight = generator.standard_normal(shape).astype(np.float32) / np.sqrt(np.prod(shape[1:]))
        bias = generator.standard_normal(shape[0]).astype(np.float32)
        weights.extend(
            numpy_helper.from_array(one.astype(np.float32), f"{name}.{part}")
            for one, part in ((weight, "w"), (bias, "b"))
        )
        inputs = [source, f"{name}.w", f"{name}.b"]
        nodes.append(helper.make_node("Conv", inputs, [name], **attrs))
        if clip:
            nodes.append(helper.make_node("Clip", [name, "low", "high"], [f"{name}.clip"]))
        return f"{name}.clip" if clip else name

    value = "x"
    for number, (channels, side, stride) in enumerate([(48, 3, 1), (72, 5, 2), (36, 3, 2)]):
        wide = conv(value, f"expand{number}", (channels, 12, 1, 1))
        pads = [side // 2] * 4
        deep = conv(
            *(wide, f"deep{number}", (channels, 1, side, side)),
            group=channels,
            pads=pads,
            strides=[stride, stride],
        )
        last = conv(deep, f"project{number}", (12, channels, 1, 1), clip=False)
        if stride == 1:
            nodes.append(helper.make_node("Add", [last, value], [f"sum{number}"]))
            last = f"sum{number}"
        value = last
    for name, number in (("low", 0.0), ("high", 6.0)):
        weights.append(numpy_helper.from_array(np.array(number, np.float32), name))
    nodes[-1].output[0] = "y"
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, [2, 12, 21, 18])
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, None)
    graph = helper.make_graph(nodes, "blocks", [x], [y], weights)
    opsets = [helper.make_opsetid("", 17)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=8)


def test_inverted_residuals_beside_onnx_runtime(monkeypatch: pytest.MonkeyPatch) -> None:
    model = _onnx_blocks()
    image = np.random.default_rng(3).standard_normal((2, 12, 21, 18)).astype(np.float32)
    module = compiled(model, monkeypatch, fused=True, threads=2)
    labels = [call.label for call in module.program.calls]
    assert sum(label.count("nn.conv2d") == 3 for label in labels) == 3
    peer = onnxruntime.InferenceSession(model.SerializeToString())
    (found,), (wanted,) = module.run(None, {"x": image}), peer.run(None, {"x": image})
    np.testing.assert_allclose(found, wanted, rtol=1e-4, atol=1e-4)


def _is_fused(graph: Graph, target: Target) -> bool:
    nodes = prepare(graph, target).nodes
    return any(
        node.op.name == "composite" and node.attrs.label.count("conv2d") == 2 for node in nodes
    )


@pytest.mark.parametrize(
    ("machine", "inputs", "channels", "side", "stride", "fused"),
    [
        ("icelake-server", 16, 96, 112, 2, True),
        ("sapphirerapids", 24, 144, 56, 1, True),
        ("znver4", 64, 384, 14, 1, True),
        ("znver3", 160, 960, 7, 1, False),
    ],
)
def test_where_it_pays(
    machine: str, inputs: int, channels: int, side: int, stride: int, fused: bool
) -> None:
    """Where threads wait longer for what others have in their caches than they compute again."""
    graph = pair_graph((1, inputs, side, side), channels, strides=(stride, stride), **PADDED)
    assert _is_fused(graph, named_target(machine)) is fused


def test_the_ring_fits_the_first_cache_and_threads_have_enough_jobs() -> None:
    graph = pair_graph((1, 32, 28, 28), 192, **PADDED)
    target = named_target("icelake-server")
    extents = expand_extents(chain(graph).group, 16, target)
    schedule = choose_expand_schedule(target, extents)
    ring = extents.ring_rows(schedule.rows) * 28 * schedule.tile.slab * 4
    assert ring <= target.cache_bytes[0]
    assert -(-28 // schedule.rows) * -(-192 // schedule.tile.slab) >= 32
    assert expand_saving(target, replace(extents, batch=64)) > expand_saving(target, extents)


@pytest.mark.parametrize(
    ("inputs", "channels", "side", "stride", "bands"),
    [(160, 960, 7, 1, 1), (96, 576, 14, 1, 1), (24, 144, 56, 2, 4)],
)
def test_bands_where_little_is_computed_again(
    inputs: int, channels: int, side: int, stride: int, bands: int
) -> None:
    """Two rows of seven cost more than what other cores have; one of 56 does not."""
    strides = {"strides": (stride, stride)}
    graph = pair_graph((1, inputs, side, side), channels, **strides, **PADDED)
    target = named_target("icelake-server")
    schedule = choose_expand_schedule(target, expand_extents(chain(graph).group, 16, target))
    assert schedule.tile.bands == bands


def test_short_rows_share_tiles() -> None:
    graph = pair_graph((1, 160, 7, 7), 960, **PADDED)
    target = named_target("icelake-server")
    extents = expand_extents(chain(graph).group, 16, target)
    tile = choose_expand_schedule(target, extents).tile
    assert (tile.rows, tile.columns) == (2, 7)
    long = replace(extents, expansion=replace(extents.expansion, columns=14))
    assert choose_expand_schedule(target, long).tile.rows == 1


def test_shares_ask_for_the_weights_of_the_next() -> None:
    made = chain(pair_graph((1, 64, 14, 14), 384, **PADDED))
    kernel = made.kernel(expand_depthwise, named_target("icelake-server"))
    every = [one for one in walk_stmt(kernel.function.body) if isinstance(one, Prefetch)]
    weights = kernel.function.buffer("weights")
    assert any(one.buffer == weights and one.level == 2 for one in every)


def test_merging_keeps_the_meaning_and_the_graph_in_order(monkeypatch: pytest.MonkeyPatch) -> None:
    price(monkeypatch, math.inf)
    graph = pair_graph((1, 8, 6, 6), 24, **PADDED)
    fused = group_fusion(graph)
    merged = fuse_chains(fused, host_target())
    verify(merged)
    assert len(merged.nodes) < len(fused.nodes)
    image = random_inputs(graph)
    np.testing.assert_array_equal(*(evaluate(one, image)[0] for one in (graph, merged)))


@pytest.mark.parametrize("reader", ["output", "second reader", "residual"])
def test_an_image_that_others_read_is_written(reader: str, monkeypatch: pytest.MonkeyPatch) -> None:
    price(monkeypatch, math.inf)
    builder = Builder()
    data = builder.input("data", tensor("float32", 1, 8, 6, 6))
    middle = builder("nn.conv2d", data, numbers(builder, 16, 8, 1, 1))
    deep = builder("nn.conv2d", middle, numbers(builder, 16, 1, 3, 3), groups=16, **PADDED)
    outputs = {
        "output": [middle, deep],
        "second reader": [deep, builder("nn.max_pool2d", middle, pool_size=(2, 2))],
        "residual": [builder("add", deep, middle)],
    }[reader]
    graph = builder.build(*outputs)
    module = graft.compile(graph, strict=True)
    assert not any(call.label.count("nn.conv2d") == 2 for call in module.program.calls)
    image = random_inputs(graph)
    for one, other in zip(
        module.run(None, {"data": image[0]}), evaluate(graph, image), strict=True
    ):
        np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-5)


def test_images_of_any_size_are_not_fused() -> None:
    graph = pair_graph((1, 16, symbol("h"), 224), 96, **PADDED)
    assert not _is_fused(graph, named_target("icelake-server"))

"""An expansion, a depthwise convolution and a projection in one kernel."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from tests.backends.host.chains import (
    Step,
    chain,
    clipped,
    compiled,
    interpreted,
    numbers,
    same,
    silu,
)
from tests.backends.host.images import check, random_inputs, run

from graft.backends.host.kernels import inverted_residual as kernels
from graft.backends.host.kernels.chain_schedule import InvertedSchedule, choose_inverted_schedule
from graft.backends.host.kernels.inverted_residual import inverted_residual
from graft.backends.host.passes.pipeline import prepare
from graft.backends.host.storage import NO_HALO, Storage, static_shape
from graft.ir.builder import Builder
from graft.ir.evaluate import evaluate
from graft.ir.graph import Graph, Value
from graft.ir.types import tensor
from graft.target.target import Target, named_target

PADDED = {"padding": (1, 1, 1, 1)}
STEPS = (clipped, clipped, same)


def block_graph(
    shape: tuple[Any, ...],
    channels: int,
    outputs: int,
    kernel: tuple[int, int] = (3, 3),
    steps: tuple[Step, Step, Step] = STEPS,
    **attrs: Any,
) -> Graph:
    builder = Builder()
    value = builder.input("data", tensor("float32", *shape))
    layers: tuple[tuple[tuple[int, ...], dict[str, Any]], ...] = (
        ((channels, shape[1], 1, 1), {}),
        ((channels, 1, *kernel), {"groups": channels, **attrs}),
        ((outputs, channels, 1, 1), {}),
    )
    for (weight, options), step in zip(layers, steps, strict=True):
        value = builder("nn.conv2d", value, numbers(builder, *weight), **options)
        value = step(builder, builder("nn.bias_add", value, numbers(builder, weight[0])))
    return builder.build(value)


def with_rows(monkeypatch: pytest.MonkeyPatch, rows: int, step: int) -> None:
    """Let jobs make so many rows, some at a time."""

    def choose(*args: Any) -> InvertedSchedule:
        return replace(choose_inverted_schedule(*args), rows=rows, step=step)

    monkeypatch.setattr(kernels, "choose_inverted_schedule", choose)


@pytest.mark.parametrize("threads", [1, 2, 7])
@pytest.mark.parametrize("stride", [1, 2])
@pytest.mark.parametrize(
    ("inputs", "channels", "outputs", "side"), [(16, 96, 24, 20), (24, 144, 24, 14), (8, 40, 56, 7)]
)
def test_layers_of_mobile_networks(
    inputs: int, channels: int, outputs: int, side: int, stride: int, threads: int
) -> None:
    attrs = {"strides": (stride, stride), **PADDED}
    graph = block_graph((1, inputs, side, side), channels, outputs, **attrs)
    check(chain(graph), inverted_residual, threads)


@pytest.mark.parametrize(("rows", "step"), [(1, 1), (3, 1), (3, 2), (13, 5), (13, 13)])
@pytest.mark.parametrize(
    ("kernel", "attrs"),
    [
        ((1, 1), {}),
        ((5, 3), {"padding": (2, 1, 2, 1)}),
        ((2, 4), {"padding": (0, 3, 1, 2), "strides": (2, 3)}),
        ((3, 3), {"padding": (2, 4, 2, 4), "dilation": (2, 4)}),
    ],
)
def test_any_window_and_any_rows_of_a_job(
    kernel: tuple[int, int],
    attrs: dict[str, Any],
    rows: int,
    step: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with_rows(monkeypatch, rows, step)
    graph = block_graph((2, 8, 13, 19), 24, 16, kernel, **attrs)
    check(chain(graph, (8, 8), (NO_HALO, (1, 2, 0, 3))), inverted_residual, 2)


@pytest.mark.parametrize(("inputs", "channels", "outputs"), [(20, 33, 3), (3, 100, 40), (7, 8, 20)])
@pytest.mark.parametrize("blocks", [(16, 16), (8, 8)])
def test_channels_that_fill_no_blocks(
    inputs: int, channels: int, outputs: int, blocks: tuple[int, int]
) -> None:
    graph = block_graph((1, inputs, 6, 9), channels, outputs, **PADDED)
    made = chain(graph, blocks)
    images = random_inputs(graph)
    (wanted,) = evaluate(graph, images)
    found = run(made, made.kernel(inverted_residual), images, 2)
    whole = np.moveaxis(found, -1, 2).reshape(1, -1, *wanted.shape[2:])[:, :outputs]
    np.testing.assert_allclose(whole, wanted, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("shape", [(1, 16, 1, 1), (2, 16, 7, 1)])
def test_images_of_few_pixels(shape: tuple[int, int, int, int]) -> None:
    steps = (silu, same, clipped)
    graph = block_graph(shape, 48, 16, (5, 5), steps, padding=(2, 2, 2, 2))
    check(chain(graph, halos=(NO_HALO, (2, 0, 0, 1))), inverted_residual, 3)


def test_a_residual() -> None:
    def add(builder: Builder, value: Value) -> Value:
        return builder("add", value, builder.input("other", tensor("float32", 1, 16, 10, 10)))

    graph = block_graph((1, 16, 10, 10), 96, 16, steps=(clipped, clipped, add), **PADDED)
    made, other = chain(graph), graph.inputs[1]
    stores = {**made.stores, other: Storage(other.dtype, static_shape(other), 16)}
    check(replace(made, stores=stores), inverted_residual, 2)


def test_numbers_that_are_none_reach_their_window_only() -> None:
    graph = block_graph((1, 16, 11, 11), 48, 32, steps=(same, same, same), **PADDED)
    (image,) = random_inputs(graph)
    image[0, 3, 0, 10] = np.nan
    made = chain(graph)
    found = run(made, made.kernel(inverted_residual), [image], 2)
    (wanted,) = evaluate(graph, [image])
    packed = made.stores[made.group.output].pack(wanted)
    np.testing.assert_allclose(found, packed, 1e-5, 1e-5)
    assert np.isnan(packed).sum() == 4 * 32


@pytest.mark.parametrize("machine", ["x86-64-v3", "neoverse-v1", "icelake-server"])
def test_code_for_other_machines_means_the_same(machine: str) -> None:
    graph = block_graph((1, 16, 5, 6), 32, 16, **PADDED)
    made = chain(graph)
    kernel = made.kernel(inverted_residual, named_target(machine))
    (image,) = random_inputs(graph)
    (wanted,) = evaluate(graph, [image])
    packed = made.stores[made.group.output].pack(wanted)
    np.testing.assert_allclose(interpreted(made, kernel, image), packed, 1e-4, 1e-4)


def test_what_is_refused() -> None:
    graph = block_graph((1, 16, 8, 8), 32, 16, strides=(4, 4))
    reason = chain(graph).refusal(inverted_residual)
    assert reason == "the second convolution skips pixels that would be computed"


@pytest.mark.parametrize("stride", [1, 2])
def test_sums_are_those_of_three_kernels(stride: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Bit for bit: the same products are added in the same order."""
    shape = (2, 24, 15, 17)
    graph = block_graph(shape, 56, 40, steps=(silu, silu, same), strides=(stride, 1), **PADDED)
    image = np.random.default_rng(1).standard_normal(shape, np.float32)
    apart, together = (compiled(graph, monkeypatch, fused, threads=3) for fused in (False, True))
    labels = [call.label for call in together.program.calls if "conv2d" in call.label]
    assert [label.count("nn.conv2d") for label in labels] == [3]
    results = [one.run(None, {"data": image})[0] for one in (apart, together)]
    np.testing.assert_array_equal(*results)


def _merged(graph: Graph, target: Target) -> list[int]:
    """How many convolutions the kernels of a graph compute."""
    groups = (node for node in prepare(graph, target).nodes if node.op.name != "constant")
    return [str(getattr(node.attrs, "label", node.op.name)).count("nn.conv2d") for node in groups]


@pytest.mark.parametrize(
    ("machine", "channels", "side", "merged"),
    [
        ("icelake-server", 24, 56, [3]),
        ("znver5", 24, 56, [3]),
        ("icelake-server", 160, 7, [2, 1]),
        ("znver3", 160, 7, [1, 1, 1]),
    ],
)
def test_where_it_pays(machine: str, channels: int, side: int, merged: list[int]) -> None:
    """Not where threads would compute most rows twice."""
    shape = (1, channels, side, side)
    graph = block_graph(shape, 6 * channels, channels, **PADDED)
    assert _merged(graph, named_target(machine)) == merged


@pytest.mark.parametrize("side", [14, 56, 112])
def test_steps_fit_the_first_cache(side: int) -> None:
    """The rows of a share that windows cover, if there is room for those of one row."""
    target = named_target("icelake-server")
    group = chain(block_graph((4, 24, side, side), 144, 24, **PADDED)).group
    extents = kernels.inverted_extents(group, 16, target)
    schedule = choose_inverted_schedule(target, extents)
    row = side * schedule.expansion.slab * 4
    held = extents.expand.ring_rows(schedule.step) * row
    assert held <= target.cache_bytes[0] or schedule.step == 1
    assert 1 <= schedule.step <= schedule.rows


def test_ring_and_rows_fit_the_second_cache() -> None:
    target = named_target("znver5")
    group = chain(block_graph((1, 24, 56, 56), 144, 24, **PADDED)).group
    extents = kernels.inverted_extents(group, 16, target)
    schedule = choose_inverted_schedule(target, extents)
    assert extents.bytes_of(schedule.rows, schedule.step) <= target.cache_bytes[1] / 2
    assert 56 // schedule.rows >= 16

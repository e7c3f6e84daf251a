"""A depthwise and a pointwise convolution in one kernel, which never writes what is between."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from tests.backends.host.chains import Step, chain, clipped, compiled, numbers, same, silu
from tests.backends.host.images import check, random_inputs, run

from graft.backends.host.kernels import depthwise_project as kernels
from graft.backends.host.kernels.chain_schedule import ProjectSchedule, choose_project_schedule
from graft.backends.host.kernels.depthwise_project import depthwise_project
from graft.backends.host.passes.pipeline import prepare
from graft.backends.host.storage import NO_HALO, Halo, Storage, static_shape
from graft.ir.builder import Builder
from graft.ir.evaluate import evaluate
from graft.ir.graph import Graph, Value
from graft.ir.types import tensor
from graft.target.target import Target, named_target

PADDED = {"padding": (1, 1, 1, 1)}
BORDER = (1, 1, 1, 1)


def pair_graph(
    shape: tuple[int, ...],
    outputs: int,
    kernel: tuple[int, int] = (3, 3),
    steps: tuple[Step, Step] = (clipped, same),
    **attrs: Any,
) -> Graph:
    builder = Builder()
    data, channels = builder.input("data", tensor("float32", *shape)), shape[1]
    weight = numbers(builder, channels, 1, *kernel)
    value = builder("nn.conv2d", data, weight, groups=channels, **attrs)
    value = steps[0](builder, builder("nn.bias_add", value, numbers(builder, channels)))
    value = builder("nn.conv2d", value, numbers(builder, outputs, channels, 1, 1))
    value = steps[1](builder, builder("nn.bias_add", value, numbers(builder, outputs)))
    return builder.build(value)


def with_rows(monkeypatch: pytest.MonkeyPatch, rows: int) -> None:
    """Let jobs make so many rows."""

    def choose(*args: Any) -> ProjectSchedule:
        return replace(choose_project_schedule(*args), rows=rows)

    monkeypatch.setattr(kernels, "choose_project_schedule", choose)


@pytest.mark.each_value
@pytest.mark.parametrize("threads", [1, 7])
@pytest.mark.parametrize("stride", [1, 2])
@pytest.mark.parametrize(("channels", "outputs", "side"), [(32, 16, 20), (144, 48, 9)])
def test_layers_of_mobile_networks(
    channels: int, outputs: int, side: int, stride: int, threads: int
) -> None:
    graph = pair_graph((1, channels, side, side), outputs, strides=(stride, stride), **PADDED)
    check(chain(graph, halos=(BORDER, NO_HALO)), depthwise_project, threads)


@pytest.mark.each_value
@pytest.mark.parametrize("rows", [1, 4, 13])
@pytest.mark.parametrize(
    ("kernel", "attrs"),
    [
        ((1, 1), {"strides": (2, 3)}),
        ((5, 3), {"padding": (2, 1, 2, 1)}),
        ((2, 4), {"padding": (0, 3, 1, 2), "strides": (2, 3)}),
        ((3, 3), {"padding": (2, 4, 2, 4), "dilation": (2, 4)}),
    ],
)
def test_any_window_and_any_rows_of_a_job(
    kernel: tuple[int, int], attrs: dict[str, Any], rows: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    with_rows(monkeypatch, rows)
    halo: Halo = attrs.get("padding", NO_HALO)
    graph = pair_graph((2, 24, 13, 19), 8, kernel, **attrs)
    check(chain(graph, (8, 8), (halo, (1, 2, 0, 3))), depthwise_project, 2)


@pytest.mark.parametrize(("channels", "outputs"), [(20, 3), (33, 40), (7, 100)])
@pytest.mark.parametrize("blocks", [(16, 16), (8, 16), (16, 8)])
def test_channels_that_fill_no_blocks(channels: int, outputs: int, blocks: tuple[int, int]) -> None:
    graph = pair_graph((1, channels, 6, 9), outputs, **PADDED)
    made = chain(graph, blocks, (BORDER, NO_HALO))
    inputs = random_inputs(graph)
    (wanted,) = evaluate(graph, inputs)
    found = run(made, made.kernel(depthwise_project), inputs, 2)
    whole = np.moveaxis(found, -1, 2).reshape(1, -1, *wanted.shape[2:])[:, :outputs]
    np.testing.assert_allclose(whole, wanted, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("shape", [(1, 16, 1, 1), (2, 16, 7, 1)])
def test_images_of_few_pixels(shape: tuple[int, int, int, int]) -> None:
    graph = pair_graph(shape, 32, (5, 5), steps=(silu, clipped), padding=(2, 2, 2, 2))
    check(chain(graph, halos=((2, 2, 2, 2), (2, 0, 0, 1))), depthwise_project, 3)


def test_a_residual() -> None:
    def add(builder: Builder, value: Value) -> Value:
        return builder("add", value, builder.input("other", tensor("float32", 1, 16, 10, 10)))

    graph = pair_graph((1, 32, 10, 10), 16, steps=(clipped, add), **PADDED)
    made = chain(graph, halos=(BORDER, NO_HALO))
    other = graph.inputs[1]
    stores = {**made.stores, other: Storage(other.dtype, static_shape(other), 16)}
    check(replace(made, stores=stores), depthwise_project, 2)


def test_numbers_that_are_none_reach_their_window_only() -> None:
    graph = pair_graph((1, 16, 11, 11), 32, steps=(same, same), **PADDED)
    (image,) = random_inputs(graph)
    image[0, 3, 0, 10] = np.nan
    made = chain(graph, halos=(BORDER, NO_HALO))
    found = run(made, made.kernel(depthwise_project), [image], 2)
    (wanted,) = evaluate(graph, [image])
    packed = made.stores[made.group.output].pack(wanted)
    np.testing.assert_allclose(found, packed, 1e-5, 1e-5)
    assert np.isnan(packed).sum() == 4 * 32


def test_what_is_refused() -> None:
    builder = Builder()
    data = builder.input("data", tensor("float32", 1, 16, 8, 8))
    value = builder("nn.conv2d", data, numbers(builder, 16, 1, 3, 3), groups=16)
    value = builder("nn.conv2d", value, numbers(builder, 32, 16, 3, 3))
    reason = chain(builder.build(value)).refusal(depthwise_project)
    assert reason == "the second convolution is not pointwise"
    reason = chain(pair_graph((1, 16, 8, 8), 32, **PADDED)).refusal(depthwise_project)
    assert reason == "the halo of the data is narrower than the padding"


@pytest.mark.parametrize("stride", [1, 2])
def test_sums_are_those_of_two_kernels(stride: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Bit for bit: the same products are added in the same order."""
    shape = (2, 56, 33, 17)
    graph = pair_graph(shape, 24, strides=(stride, stride), **PADDED)
    image = np.random.default_rng(1).standard_normal(shape, np.float32)
    apart, together = (compiled(graph, monkeypatch, fused, threads=3) for fused in (False, True))
    labels = [call.label for call in together.program.calls if "conv2d" in call.label]
    assert [label.count("nn.conv2d") for label in labels] == [2]
    results = [one.run(None, {"data": image})[0] for one in (apart, together)]
    np.testing.assert_array_equal(*results)


def _merged(graph: Graph, target: Target, count: int = 2) -> list[tuple[Any, ...]]:
    """The results of the kernels that compute so many convolutions, by channels and rows."""
    groups = [node for node in prepare(graph, target).nodes if node.op.name == "composite"]
    pairs = (node for node in groups if node.attrs.label.count("nn.conv2d") == count)
    return [node.output.tensor.shape[1:3] for node in pairs if node.output.tensor.shape]


@pytest.mark.parametrize(
    ("machine", "side", "merged"),
    [("icelake-server", 112, True), ("icelake-server", 14, False), ("znver4", 112, True)],
)
def test_where_it_pays(machine: str, side: int, merged: bool) -> None:
    graph = pair_graph((1, 32, side, side), 16, **PADDED)
    assert _merged(graph, named_target(machine)) == ([(16, side)] if merged else [])


def test_of_chains_that_overlap_the_one_that_gains_most_is_merged() -> None:
    """The depthwise convolution could go with the one before, the one behind, or both."""
    builder = Builder()
    value = builder.input("data", tensor("float32", 1, 16, 112, 112))
    value = clipped(builder, builder("nn.conv2d", value, numbers(builder, 96, 16, 1, 1)))
    weight = numbers(builder, 96, 1, 3, 3)
    value = builder("nn.conv2d", value, weight, groups=96, strides=(2, 2), **PADDED)
    value = builder("nn.conv2d", clipped(builder, value), numbers(builder, 24, 96, 1, 1))
    assert _merged(builder.build(value), named_target("icelake-server"), 3) == [(24, 56)]

"""Layers of narrow integers: kernels against the reference, and the pass that makes them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from tests.backends.host.images import Case, case, run

from graft.backends.host.kernels import conv_plan
from graft.backends.host.kernels.conv import conv2d
from graft.backends.host.kernels.dense import dense
from graft.backends.host.kernels.depthwise import depthwise_conv2d
from graft.backends.host.kernels.images.pool import pool2d
from graft.backends.host.storage import Storage, blocks_of
from graft.base.dtypes import Array
from graft.ir.builder import Builder
from graft.ir.evaluate import evaluate
from graft.ir.graph import Value
from graft.ir.types import tensor

GENERATOR = np.random.default_rng(11)
Shape = tuple[int, ...]


def _whole(dtype: Any, *shape: int) -> Array:
    limits = np.iinfo(dtype)
    return GENERATOR.integers(limits.min, limits.max, shape, dtype, endpoint=True)


def _requantized(g: Builder, sums: Value, dtype: str) -> Value:
    """A bias, a factor per channel, rounding: what follows an integer layer."""
    channels = sums.tensor.shape[1]
    axes = (1,) * (len(sums.tensor.shape) - 2)
    factor = GENERATOR.uniform(1e-4, 1e-3, (channels, *axes)).astype(np.float32)
    biased = g("nn.bias_add", sums, g.constant(_whole(np.int16, channels).astype(np.int32)))
    real = g("multiply", g("cast", biased, dtype="float32"), g.constant(factor))
    limits = np.iinfo(dtype)
    rounded = g("clip", g("round", real), a_min=float(limits.min), a_max=float(limits.max))
    return g("cast", rounded, dtype=dtype)


def _conv_case(
    shape: Shape, weight: Shape, dtype: str, zero_point: int, result: str, **attrs: Any
) -> Case:
    array = _whole(np.int8, *weight)

    def write(g: Builder) -> Value:
        x = g.input("x", tensor(dtype, *shape))
        zero = g.constant(np.array(zero_point, dtype))
        return _requantized(g, g("qnn.conv2d", x, g.constant(array), zero, **attrs), result)

    plain = case(write, {})
    assert plain.group.anchor is not None
    halo = conv_plan.halo(plain.group.anchor, weight[2:])
    block_in, block_out = (blocks_of(n, (16, 8, n)) for n in (shape[1], weight[0]))
    made = case(write, {"x": (block_in, halo), "result": (block_out, (1, 0, 2, 1))})
    stores = dict(made.stores)
    (data,) = made.graph.inputs
    stores[data] = Storage(data.dtype, shape, block_in, halo, fill=zero_point)
    output = made.group.output
    stores[output] = Storage(output.dtype, stores[output].shape, block_out, (1, 0, 2, 1), fill=7)
    return Case(made.graph, made.group, stores)


def _agrees(graph_case: Case, template: Any, threads: int = 1) -> None:
    """Exactly, the halo included."""
    inputs = [_whole(value.dtype.numpy, *value.tensor.shape) for value in graph_case.graph.inputs]
    (wanted,) = evaluate(graph_case.graph, inputs)
    found = run(graph_case, graph_case.kernel(template), inputs, threads)
    packed = graph_case.stores[graph_case.group.output].pack(wanted)
    np.testing.assert_array_equal(found, packed)


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize(("dtype", "zero"), [("uint8", 0), ("uint8", 131), ("int8", -7)])
@pytest.mark.parametrize(
    ("shape", "weight", "attrs"),
    [
        ((1, 4, 11, 13), (16, 4, 7, 7), {"strides": (2, 2), "padding": (3, 3, 3, 3)}),
        ((2, 16, 7, 5), (8, 16, 1, 1), {}),
        ((1, 24, 9, 8), (40, 24, 3, 5), {"padding": (0, 3, 2, 1)}),
        ((1, 8, 10, 9), (32, 8, 3, 3), {"dilation": (2, 3), "padding": (2, 3, 1, 0)}),
        ((1, 32, 6, 6), (32, 8, 3, 3), {"groups": 4, "padding": (1, 1, 1, 1)}),
    ],
)
def test_convolution(
    shape: Shape, weight: Shape, attrs: dict[str, Any], dtype: str, zero: int, threads: int
) -> None:
    _agrees(_conv_case(shape, weight, dtype, zero, "int8", **attrs), conv2d, threads)


@pytest.mark.parametrize(("dtype", "zero"), [("uint8", 0), ("uint8", 131), ("int8", -7)])
@pytest.mark.parametrize("strides", [(1, 1), (2, 1)])
def test_depthwise_convolution(dtype: str, zero: int, strides: tuple[int, int]) -> None:
    attrs = {"groups": 24, "padding": (1, 1, 1, 1), "strides": strides}
    made = _conv_case((2, 24, 7, 9), (24, 1, 3, 3), dtype, zero, "uint8", **attrs)
    _agrees(made, depthwise_conv2d)


@pytest.mark.parametrize(("dtype", "zero"), [("uint8", 0), ("uint8", 131), ("int8", -7)])
@pytest.mark.parametrize(("rows", "inputs", "units"), [(1, 64, 1000), (7, 36, 33), (50, 128, 17)])
def test_dense_layer(dtype: str, zero: int, rows: int, inputs: int, units: int) -> None:
    weight = _whole(np.int8, units, inputs)

    def write(g: Builder) -> Value:
        x = g.input("x", tensor(dtype, rows, inputs))
        zero_point = g.constant(np.array(zero, dtype))
        return _requantized(g, g("qnn.dense", x, g.constant(weight), zero_point), "int8")

    _agrees(case(write, {}), dense, 2)


@pytest.mark.parametrize("dtype", ["uint8", "int8"])
def test_maximum_pooling(dtype: str) -> None:
    """Windows that reach beyond the image, whose halo is not what pads them."""

    def write(g: Builder) -> Value:
        x = g.input("x", tensor(dtype, 1, 16, 9, 7))
        attrs: dict[str, Any] = {"pool_size": (3, 3), "strides": (2, 2), "padding": (1, 1, 1, 1)}
        return g("nn.max_pool2d", x, **attrs)

    _agrees(case(write, {"x": (16, (1, 1, 1, 1)), "result": (16, (0, 1, 0, 1))}), pool2d)


def test_bytes_that_are_no_fours_are_refused() -> None:
    made = _conv_case((1, 6, 5, 5), (8, 6, 3, 3), "uint8", 0, "uint8")
    assert "no fours" in made.refusal(conv2d)


def test_a_halo_of_something_else_is_refused() -> None:
    made = _conv_case((1, 8, 5, 5), (8, 8, 3, 3), "uint8", 3, "uint8", padding=(1, 1, 1, 1))
    stores = dict(made.stores)
    (data,) = made.graph.inputs
    stores[data] = Storage(data.dtype, (1, 8, 5, 5), 8, (1, 1, 1, 1))
    assert "halo" in Case(made.graph, made.group, stores).refusal(conv2d)


@pytest.mark.parametrize(
    ("outputs", "slab", "block", "begins"),
    [(9, 16, 16, [0]), (32, 16, 16, [0, 16]), (9, 4, 16, [0, 4, 8, 12]), (24, 16, 8, [0, 8])],
)
def test_starts_of_sums_lie_in_the_slabs_of_the_weights(
    outputs: int, slab: int, block: int, begins: list[int]
) -> None:
    """Whatever a slab or a block lacks is zero; slabs that do not make up the blocks overlap."""
    starts = np.arange(1, outputs + 1, dtype=np.int32)
    channels = conv_plan.Channels(1, outputs, 1, slab, 1, 1)
    rows = conv_plan.pack_starts(starts, channels, block)
    padded = np.pad(starts, (0, 64))
    np.testing.assert_array_equal(rows, [padded[begin : begin + slab] for begin in begins])
    weights = conv_plan.pack_weights(starts.reshape(-1, 1, 1, 1), channels, block)
    np.testing.assert_array_equal(weights.reshape(rows.shape), rows)

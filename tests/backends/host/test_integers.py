"""Layers of narrow integers: kernels against the reference, and the pass that makes them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from tests.backends.host.images import Case, blocks_of, case, run

from graft.backends.host.kernels import conv_plan
from graft.backends.host.kernels.conv import conv2d
from graft.backends.host.kernels.dense import dense
from graft.backends.host.kernels.depthwise_bytes import WordWindows, depthwise_bytes, pack_words
from graft.backends.host.kernels.images.pool import pool2d
from graft.backends.host.kernels.images.reduce import image_reduce
from graft.backends.host.storage import Storage
from graft.base.dtypes import Array
from graft.ir.builder import Builder
from graft.ir.evaluate import evaluate
from graft.ir.graph import Value
from graft.ir.types import tensor
from graft.target.target import Target, host_target, named_target

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
    shape: Shape,
    weight: Shape,
    dtype: str,
    zero_point: int,
    result: str,
    blocks: Shape = (),
    **attrs: Any,
) -> Case:
    array = _whole(np.int8, *weight)

    def write(g: Builder) -> Value:
        x = g.input("x", tensor(dtype, *shape))
        zero = g.constant(np.array(zero_point, dtype))
        return _requantized(g, g("qnn.conv2d", x, g.constant(array), zero, **attrs), result)

    plain = case(write, {})
    assert plain.group.anchor is not None
    halo = conv_plan.halo(plain.group.anchor, weight[2:])
    block_in, block_out = blocks or (blocks_of(n, (16, 8, n)) for n in (shape[1], weight[0]))
    made = case(write, {"x": (block_in, halo), "result": (block_out, (1, 0, 2, 1))})
    stores = dict(made.stores)
    (data,) = made.graph.inputs
    stores[data] = Storage(data.dtype, shape, block_in, halo, fill=zero_point)
    output = made.group.output
    stores[output] = Storage(output.dtype, stores[output].shape, block_out, (1, 0, 2, 1), fill=7)
    return Case(made.graph, made.group, stores)


# This machine, and others that it can stand for: with fewer instructions for bytes.
_MACHINES = (
    "host",
    "icelake-server",
    "cascadelake",
    "alderlake",
    "x86-64-v4",
    "x86-64-v3",
    "plain",
)
_FEW = ("host", "x86-64-v3")
TARGETS = [
    target
    for target in map(named_target, _MACHINES)
    if target.architecture == host_target().architecture
    and {*target.features} <= {*host_target().features}
]


# By default, the first and AVX2.
every_target = pytest.mark.parametrize(
    "target",
    [
        pytest.param(one, id=one.name, marks=[] if one.name in _FEW else pytest.mark.full)
        for one in TARGETS
    ],
)


def _agrees(
    graph_case: Case,
    template: Any,
    threads: int = 1,
    target: Target | None = None,
    inputs: list[Array] | None = None,
) -> None:
    """Exactly, the halo included."""
    if inputs is None:
        values = graph_case.graph.inputs
        inputs = [_whole(value.dtype.numpy, *value.tensor.shape) for value in values]
    (wanted,) = evaluate(graph_case.graph, inputs)
    kernel = graph_case.kernel(template, target)
    found = run(graph_case, kernel, inputs, threads, target)
    packed = graph_case.stores[graph_case.group.output].pack(wanted)
    np.testing.assert_array_equal(found, packed)


@pytest.mark.each_value
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


@every_target
@pytest.mark.parametrize(
    ("channels", "kernel", "attrs", "dtype", "zero"),
    [
        (24, (3, 3), {"padding": (1, 1, 1, 1)}, "uint8", 0),
        (20, (3, 3), {"padding": (1, 1, 1, 1)}, "int8", 127),
        (16, (3, 3), {"padding": (0, 1, 1, 0), "strides": (2, 2)}, "uint8", 255),
        (20, (5, 5), {"padding": (2, 2, 2, 2)}, "int8", -128),
        (16, (1, 7), {"padding": (0, 3, 0, 3), "strides": (1, 3)}, "uint8", 131),
        (16, (4, 2), {}, "int8", 0),
        (8, (3, 1), {"padding": (1, 0, 1, 0)}, "uint8", 7),
        (16, (3, 3), {"padding": (2, 2, 2, 2), "dilation": (2, 2)}, "int8", -7),
    ],
)
def test_depthwise_convolution(
    channels: int,
    kernel: tuple[int, int],
    attrs: dict[str, Any],
    dtype: str,
    zero: int,
    target: Target,
) -> None:
    weight = (channels, 1, *kernel)
    shape = (2, channels, 7, 31)
    made = _conv_case(shape, weight, dtype, zero, "uint8", groups=channels, **attrs)
    _agrees(made, depthwise_bytes, 2, target)


@every_target
@pytest.mark.parametrize(("groups", "template"), [(1, conv2d), (16, depthwise_bytes)])
def test_products_that_would_saturate_16_bits(groups: int, template: Any, target: Target) -> None:
    """Pairs of 255 times 127, and of 255 times -128."""
    array = np.full((16, 16 // groups, 3, 3), 127, np.int8)
    array[::2] = -128

    def write(g: Builder) -> Value:
        x = g.input("x", tensor("uint8", 1, 16, 5, 6))
        attrs: dict[str, Any] = {"groups": groups, "padding": (1, 1, 1, 1)}
        sums = g("qnn.conv2d", x, g.constant(array), g.constant(np.uint8(0)), **attrs)
        return g("cast", sums, dtype="float32")

    anchor = case(write, {}).group.anchor
    assert anchor is not None
    halo = conv_plan.halo(anchor, (3, 3))
    made = case(write, {"x": (16, halo), "result": 16})
    _agrees(made, template, 1, target, [np.full((1, 16, 5, 6), 255, np.uint8)])


@pytest.mark.parametrize(
    ("taps", "stride"), [(2, 1), (3, 1), (3, 2), (4, 1), (5, 1), (7, 1), (7, 3)]
)
def test_words_of_depthwise_weights(taps: int, stride: int) -> None:
    """In each window's words, its taps lie at its pixels, and zeros elsewhere."""
    windows = WordWindows.of(taps, stride)
    assert (windows.windows - 1) * stride + taps <= 4 * windows.words
    assert windows.windows * stride + taps > 4 * windows.words
    weight = np.arange(1, 9 * taps + 1, dtype=np.int8).reshape(9, 1, 1, taps)
    words = pack_words(weight, 8, windows)
    assert words.shape == (2, 1, windows.windows, windows.words, 8)
    rows = np.moveaxis(words, 4, 1)[..., None].view(np.int8).reshape(16, windows.windows, -1)
    for window in range(windows.windows):
        first = window * stride
        np.testing.assert_array_equal(rows[:9, window, first : first + taps], weight[:, 0, 0])
    assert np.count_nonzero(rows) == 9 * taps * windows.windows


@every_target
@pytest.mark.parametrize(
    ("weight", "groups", "template"),
    [
        ((40, 24, 3, 3), 1, conv2d),
        ((20, 24, 1, 1), 1, conv2d),
        ((24, 1, 3, 3), 24, depthwise_bytes),
    ],
)
def test_last_blocks_that_are_not_full(
    weight: Shape, groups: int, template: Any, target: Target
) -> None:
    """Lanes without a channel hold any bytes, and reach no channel."""
    padding = (weight[2] // 2,) * 4
    attrs: dict[str, Any] = {"groups": groups, "padding": padding}
    made = _conv_case((1, 24, 6, 7), weight, "int8", -7, "uint8", (16, 16), **attrs)
    (data,) = made.graph.inputs
    array = _whole(np.int8, 1, 24, 6, 7)
    kernel = made.kernel(template, target)
    (wanted,) = evaluate(made.graph, [array])
    results = []
    for stray in (0, 77):
        with_strays = made.stores[data].pack(array)
        with_strays[:, -1, ..., 8:] = stray
        packed = {data: with_strays}
        results.append(_channels(run(made, kernel, [array], 1, target, packed), weight[0]))
    np.testing.assert_array_equal(results[0], results[1])
    stored = made.stores[made.group.output].pack(wanted)
    np.testing.assert_array_equal(results[0], _channels(stored, weight[0]))


def _channels(image: Array, count: int) -> Array:
    """The channels of an image in blocks, without lanes that are none."""
    moved = np.moveaxis(image, -1, 2)
    return moved.reshape(image.shape[0], -1, *image.shape[2:4])[:, :count]


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


def _dequantized(g: Builder, *shape: int) -> Value:
    """Bytes as the numbers they stand for."""
    real = g("cast", g.input("x", tensor("uint8", *shape)), dtype="float32")
    return g("multiply", real, g.constant(np.float32(0.25)))


@pytest.mark.parametrize("counts_padding", [True, False])
def test_mean_pooling_from_bytes_to_bytes(counts_padding: bool) -> None:
    """Powers of two, so that no rounding depends on the order of sums."""

    def write(g: Builder) -> Value:
        attrs: dict[str, Any] = {"pool_size": (2, 2), "padding": (1, 1, 0, 0)}
        x = _dequantized(g, 1, 24, 6, 7)
        mean = g("nn.avg_pool2d", x, count_include_pad=counts_padding, **attrs)
        return g("qnn.saturate", mean, g.constant(np.float32(3)), dtype="uint8")

    _agrees(case(write, {"x": (8, (1, 1, 1, 2)), "result": (8, (0, 1, 0, 1))}), pool2d)


@pytest.mark.parametrize("threads", [1, 2])
def test_means_of_images_from_bytes_to_bytes(threads: int) -> None:
    def write(g: Builder) -> Value:
        mean = g("mean", _dequantized(g, 2, 20, 4, 8), axes=(2, 3), keepdims=True)
        return g("qnn.saturate", mean, g.constant(np.float32(-128)), dtype="int8")

    _agrees(case(write, {"x": 16}), image_reduce, threads)


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

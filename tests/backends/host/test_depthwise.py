"""Depthwise convolution on blocked images."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from tests.backends.host.images import Case, case, check

from graft.backends.host.kernels.depthwise import default_schedule, depthwise_conv2d
from graft.backends.host.storage import Halo
from graft.base.dtypes import DType
from graft.ir.builder import Builder
from graft.ir.graph import Value
from graft.ir.types import tensor
from graft.loop.ir import Prefetch
from graft.loop.traverse import walk_stmt
from graft.target.target import named_target

Epilogue = Callable[[Builder, Value], Value]


def vector(builder: Builder, length: int, dtype: str = "float32") -> Value:
    generator = np.random.default_rng(length)
    return builder.constant(generator.standard_normal(length).astype(dtype))


def weight(builder: Builder, channels: int, *kernel: int, dtype: str = "float32") -> Value:
    generator = np.random.default_rng(channels)
    return builder.constant(generator.standard_normal((channels, 1, *kernel)).astype(dtype))


def depthwise(
    shape: tuple[int, int, int, int],
    kernel: tuple[int, int] = (3, 3),
    block: int = 8,
    halo: Halo | None = None,
    result_halo: Halo = (0, 0, 0, 0),
    dtype: str = "float32",
    epilogue: Epilogue = lambda builder, value: value,
    **attrs: object,
) -> Case:
    def write(builder: Builder) -> Value:
        data = builder.input("data", tensor(dtype, *shape))
        factors = weight(builder, shape[1], *kernel, dtype=dtype)
        result = builder("nn.conv2d", data, factors, groups=shape[1], **attrs)
        return epilogue(builder, result)

    padding = attrs.get("padding", (0, 0, 0, 0))
    layout = {"data": (block, halo or padding), "result": (block, result_halo), "other": block}
    return case(write, layout)  # type: ignore[arg-type]


@pytest.mark.each_value
@pytest.mark.parametrize("threads", [1, 2, 3])
@pytest.mark.parametrize("stride", [1, 2])
@pytest.mark.parametrize("size", [7, 14, 33])
def test_mobile_network_layers(size: int, stride: int, threads: int) -> None:
    shape = (1, 32, size, size)
    padding = (1, 1, 1, 1)
    made = depthwise(shape, block=16, padding=padding, strides=(stride, stride))
    check(made, depthwise_conv2d, threads)


@pytest.mark.parametrize(
    ("kernel", "attrs"),
    [
        ((1, 1), {}),
        ((5, 3), {"padding": (2, 1, 2, 1)}),
        ((2, 4), {"padding": (0, 3, 1, 2), "strides": (3, 2)}),
        ((3, 3), {"padding": (2, 4, 2, 4), "dilation": (2, 4)}),
        ((7, 11), {"padding": (1, 0, 0, 2), "strides": (1, 3), "dilation": (1, 1)}),
        ((3, 3), {"padding": (3, 3, 3, 3)}),
    ],
)
def test_any_window(kernel: tuple[int, int], attrs: dict[str, object]) -> None:
    check(depthwise((3, 8, 13, 19), kernel, result_halo=(1, 2, 0, 3), **attrs), depthwise_conv2d, 2)


@pytest.mark.parametrize(("channels", "block"), [(3, 3), (5, 1), (24, 24), (20, 10), (64, 64)])
def test_any_block(channels: int, block: int) -> None:
    made = depthwise((2, channels, 5, 6), block=block, padding=(1, 1, 1, 1), result_halo=(1,) * 4)
    check(made, depthwise_conv2d)


def test_a_halo_wider_than_the_padding() -> None:
    check(depthwise((1, 8, 6, 5), padding=(1, 0, 0, 1), halo=(2, 3, 1, 2)), depthwise_conv2d)


def test_double_precision() -> None:
    made = depthwise((1, 16, 6, 5), padding=(1, 1, 1, 1), dtype="float64")
    check(made, depthwise_conv2d)


def biased_and_clipped(builder: Builder, value: Value) -> Value:
    biased = builder("nn.bias_add", value, vector(builder, 16))
    return builder("clip", biased, a_min=0.0, a_max=6.0)


def added_to_another(builder: Builder, value: Value) -> Value:
    return builder("nn.relu", builder("add", value, builder.input("other", value.type)))


def gated(builder: Builder, value: Value) -> Value:
    return builder("nn.gelu", builder("multiply", value, builder("sigmoid", value)))


def scaled_by_a_row_major_image(builder: Builder, value: Value) -> Value:
    return builder("multiply", value, builder.input("rows", value.type))


@pytest.mark.parametrize(
    "epilogue", [biased_and_clipped, added_to_another, gated, scaled_by_a_row_major_image]
)
def test_epilogues(epilogue: Epilogue) -> None:
    made = depthwise((3, 16, 9, 10), padding=(1, 1, 1, 1), epilogue=epilogue)
    check(made, depthwise_conv2d, 3)


def test_fewer_registers_make_smaller_tiles() -> None:
    small, large = named_target("x86-64-v3"), named_target("x86-64-v4")
    schedules = [default_schedule(target, DType.FLOAT32, 16, 3) for target in (small, large)]
    assert [(one.lanes, one.pixels) for one in schedules] == [(8, 11), (16, 27)]
    check(depthwise((1, 16, 9, 40), padding=(1, 1, 1, 1), block=16), depthwise_conv2d, target=small)


def test_tiles_have_enough_sums_for_wide_windows() -> None:
    target = named_target("znver3")  # 16 registers
    schedule = default_schedule(target, DType.FLOAT32, 8, 7)
    assert schedule.pixels == target.machine.accumulators == 8
    assert default_schedule(target, DType.FLOAT32, 8, 3).pixels == 11
    assert default_schedule(target, DType.FLOAT32, 8, 31).pixels == 4


def test_taps_come_one_by_one_where_tiles_would_have_too_few_sums() -> None:
    """Rows of 14 are two tiles of 7, which is fewer than 8; of 56, seven of 8."""
    target = named_target("znver3")
    schedule = default_schedule(target, DType.FLOAT32, 8, 7, 14)
    assert (schedule.pixels, schedule.taps) == (14, 1)
    assert default_schedule(target, DType.FLOAT32, 8, 7, 56).taps == 7
    assert default_schedule(named_target("znver5"), DType.FLOAT32, 16, 7, 14).taps == 7
    for shape in ((1, 16, 5, 14), (2, 16, 3, 28)):
        made = depthwise(shape, (7, 7), padding=(3, 3, 3, 3), block=8)
        check(made, depthwise_conv2d, threads=2, target=target)


@pytest.mark.parametrize(("machine", "asks"), [("icelake-server", True), ("znver5", False)])
def test_tiles_ask_for_the_data_of_the_next_where_loads_wait(machine: str, asks: bool) -> None:
    """Once for each line that a row of the window has: blocks of eight have two pixels in one. So
    they do for the lines that they write."""
    for block, lines in ((16, 9), (8, 4)):
        made = depthwise((1, 32, 7, 7), block=block, padding=(1, 1, 1, 1))
        body = made.kernel(depthwise_conv2d, named_target(machine)).function.body
        asked = [one for one in walk_stmt(body) if isinstance(one, Prefetch)]
        of_data = [one for one in asked if one.buffer.name == "data"]
        assert len(of_data) == (lines if asks else 0)
        assert len(asked) - len(of_data) == (7 * block // 16 + block % 16 // 8 if asks else 0)


def test_refusals() -> None:
    made = depthwise((1, 8, 6, 5), padding=(1, 1, 1, 1), halo=(1, 1, 1, 0))
    assert made.refusal(depthwise_conv2d) == "the halo of the data is narrower than the padding"
    made = depthwise((1, 8, 6, 5), block=0)
    assert made.refusal(depthwise_conv2d) == "there is no blocked image"

    def relu(builder: Builder) -> Value:
        return builder("nn.relu", builder.input("data", tensor("float32", 1, 8, 6, 5)))

    assert case(relu, {}).refusal(depthwise_conv2d) == "there is no nn.conv2d or qnn.conv2d"

    def full(builder: Builder) -> Value:
        data = builder.input("data", tensor("float32", 1, 8, 6, 5))
        return builder("nn.conv2d", data, builder.constant(np.ones((8, 8, 1, 1), np.float32)))

    made = case(full, {"data": 8, "result": 8})
    assert made.refusal(depthwise_conv2d) == "the convolution is not depthwise"

    def unknown(builder: Builder) -> Value:
        data = builder.input("data", tensor("float32", 1, 8, 6, 5))
        given = builder.input("weight", tensor("float32", 8, 1, 1, 1))
        return builder("nn.conv2d", data, given, groups=8)

    made = case(unknown, {"data": 8, "result": 8})
    assert made.refusal(depthwise_conv2d) == "the weights are not constant"


def test_an_operand_in_other_blocks_is_refused() -> None:
    def write(builder: Builder) -> Value:
        data = builder.input("data", tensor("float32", 1, 16, 6, 5))
        result = builder("nn.conv2d", data, weight(builder, 16, 1, 1), groups=16)
        return builder("add", result, builder.input("other", result.type))

    made = case(write, {"data": 16, "other": 8, "result": 16})
    assert "%other is in other blocks" in made.refusal(depthwise_conv2d)


@pytest.mark.parametrize("columns", [33, 48, 300])
def test_kernels_as_long_as_a_signal(columns: int) -> None:
    """Taps come in a loop: written out, hundreds of them nest too deeply to be compiled."""
    shape, padding = (1, 8, 1, 310), (0, columns - 1, 0, 0)
    check(depthwise(shape, (1, columns), padding=padding), depthwise_conv2d)

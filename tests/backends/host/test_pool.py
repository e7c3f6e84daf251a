"""Maximum and mean pooling on blocked images."""

from __future__ import annotations

import numpy as np
import pytest
from tests.backends.host.images import Case, case, check, random_inputs

from graft.backends.host.kernels.images.pool import pool2d
from graft.base.dtypes import Array
from graft.ir.builder import Builder
from graft.ir.graph import Value
from graft.ir.types import tensor
from graft.target.target import named_target

POOLS = ["nn.max_pool2d", "nn.avg_pool2d"]


def pooled(
    op: str, shape: tuple[int, ...], block: int = 8, dtype: str = "float32", **attrs: object
) -> Case:
    def write(builder: Builder) -> Value:
        return builder(op, builder.input("data", tensor(dtype, *shape)), **attrs)

    return case(write, {"data": (block, (1, 0, 2, 1)), "result": (block, (0, 1, 1, 2))})


def negative(made: Case) -> list[Array]:
    """Inputs that every zero of a halo would win against."""
    return [-np.abs(array) - 1 for array in random_inputs(made.graph)]


@pytest.mark.each_value
@pytest.mark.parametrize("threads", [1, 2, 3])
@pytest.mark.parametrize("op", POOLS)
@pytest.mark.parametrize(
    ("size", "attrs"),
    [
        (35, {"pool_size": (3, 3), "padding": (1, 1, 1, 1)}),
        (17, {"pool_size": (3, 3), "strides": (2, 2)}),
        (56, {"pool_size": (3, 3), "strides": (2, 2), "padding": (1, 1, 1, 1)}),
        (14, {"pool_size": (2, 2), "strides": (2, 2)}),
        (7, {"pool_size": (7, 7)}),
    ],
)
def test_network_layers(op: str, size: int, attrs: dict[str, object], threads: int) -> None:
    made = pooled(op, (1, 32, size, size), 16, **attrs)
    check(made, pool2d, threads, negative(made))


@pytest.mark.each_value
@pytest.mark.parametrize(
    ("op", "extra"),
    [(POOLS[0], {}), (POOLS[1], {}), (POOLS[1], {"count_include_pad": True})],
)
@pytest.mark.parametrize("ceil_mode", [False, True])
@pytest.mark.parametrize(
    "attrs",
    [
        {"pool_size": (1, 1), "strides": (3, 2)},
        {"pool_size": (2, 5), "strides": (2, 3), "padding": (1, 2, 0, 3)},
        {"pool_size": (3, 3), "strides": (2, 2), "padding": (1, 1, 1, 1), "dilation": (2, 3)},
        {"pool_size": (4, 3), "strides": (5, 4), "padding": (0, 1, 3, 2)},
        {"pool_size": (9, 11), "padding": (8, 10, 8, 10)},
        {"pool_size": (2, 2), "strides": (7, 7), "padding": (1, 1, 1, 1)},
        {"pool_size": (5, 40), "strides": (1, 3), "padding": (2, 20, 2, 20), "dilation": (3, 1)},
    ],
)
def test_any_window(
    op: str, extra: dict[str, object], ceil_mode: bool, attrs: dict[str, object]
) -> None:
    made = pooled(op, (3, 8, 13, 22), ceil_mode=ceil_mode, **attrs, **extra)
    check(made, pool2d, 2, negative(made))


@pytest.mark.parametrize("op", POOLS)
def test_windows_that_lie_in_the_padding(op: str) -> None:
    made = pooled(op, (1, 8, 2, 2), pool_size=(2, 2), padding=(3, 3, 3, 3))
    with np.errstate(invalid="ignore"):
        check(made, pool2d)


@pytest.mark.parametrize("op", POOLS)
@pytest.mark.parametrize(("channels", "block"), [(3, 3), (5, 1), (24, 24), (64, 64)])
def test_any_block(op: str, channels: int, block: int) -> None:
    check(pooled(op, (2, channels, 6, 7), block, pool_size=(3, 2), padding=(1, 1, 1, 0)), pool2d)


@pytest.mark.parametrize("op", POOLS)
def test_double_precision_and_few_registers(op: str) -> None:
    attrs = {"pool_size": (3, 3), "padding": (1, 1, 1, 1), "strides": (2, 1)}
    made = pooled(op, (1, 8, 9, 40), dtype="float64", **attrs)
    check(made, pool2d, target=named_target("x86-64-v3"))


@pytest.mark.parametrize("op", POOLS)
def test_nan_wins(op: str) -> None:
    made = pooled(op, (1, 8, 9, 9), pool_size=(3, 3), padding=(1, 1, 1, 1))
    (data,) = random_inputs(made.graph)
    data[0, 2, 0, 0] = data[0, 3, 4, 5] = np.nan
    data[0, 4, 8, 8], data[0, 5, 3, 3] = np.inf, -np.inf
    check(made, pool2d, inputs=[data])


@pytest.mark.parametrize("op", POOLS)
def test_work_before_and_after(op: str) -> None:
    def write(builder: Builder) -> Value:
        data = builder.input("data", tensor("float32", 2, 16, 9, 11))
        shift = builder.input("shift", tensor("float32", 16, 1, 1))
        before = builder("nn.relu", builder("subtract", data, shift))
        result = builder(op, before, pool_size=(3, 3), strides=(2, 2), padding=(1, 1, 1, 1))
        added = builder("add", result, builder.input("other", result.type))
        return builder("tanh", added)

    made = case(write, {"data": (16, (0, 0, 0, 0)), "other": 16, "result": (16, (1, 1, 1, 1))})
    check(made, pool2d, 3)


def test_refusals() -> None:
    def write(builder: Builder) -> Value:
        data = builder.input("data", tensor("float32", 1, 16, 6, 5))
        return builder("nn.max_pool2d", data, pool_size=(2, 2))

    plain = case(write, {"data": 16})
    assert plain.refusal(pool2d) == "the result is no blocked image, or empty"
    assert case(write, {"result": 16}).refusal(pool2d) == "the data is no blocked image"
    other = case(write, {"data": 8, "result": 16})
    assert "%data is in other blocks" in other.refusal(pool2d)

    def of_norms(builder: Builder) -> Value:
        data = builder.input("data", tensor("float32", 1, 16, 6, 5))
        return builder("nn.lp_pool2d", data, pool_size=(2, 2))

    made = case(of_norms, {"data": 16, "result": 16})
    assert made.refusal(pool2d) == "there is no nn.avg_pool2d or nn.max_pool2d"

    def whole_numbers(builder: Builder) -> Value:
        data = builder.input("data", tensor("int32", 1, 16, 6, 5))
        return builder("nn.max_pool2d", data, pool_size=(2, 2))

    made = case(whole_numbers, {"data": 16, "result": 16})
    assert made.refusal(pool2d) == "the result is int32"

"""Pointwise nodes on blocked images."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from tests.backends.host.images import case, check

from graft.backends.host.kernels.images.pointwise import image_pointwise
from graft.ir.builder import Builder
from graft.ir.graph import Value
from graft.ir.types import tensor


@pytest.mark.parametrize("threads", [1, 2, 3])
@pytest.mark.parametrize(
    ("shape", "block"),
    [
        ((1, 32, 14, 14), 16),
        ((3, 8, 1, 1), 8),
        ((2, 6, 5, 9), 3),
        ((1, 5, 3, 7), 1),
        ((1, 48, 4, 6), 48),
    ],
)
def test_residual_addition(shape: tuple[int, ...], block: int, threads: int) -> None:
    def write(builder: Builder) -> Value:
        one, other = (builder.input(name, tensor("float32", *shape)) for name in ("one", "other"))
        return builder("nn.relu", builder("add", one, other))

    layout = {"one": (block, (1, 0, 0, 2)), "other": block, "result": (block, (1, 2, 1, 0))}
    check(case(write, layout), image_pointwise, threads)


Operand = tuple[tuple[int, ...], int]


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize(
    "operand",
    [
        ((), 0),
        ((7,), 0),
        ((5, 1), 0),
        ((16, 1, 1), 0),
        ((1, 16, 1, 1), 0),
        ((2, 16, 1, 1), 8),
        ((1, 16, 5, 7), 8),
        ((2, 16, 5, 1), 8),
        ((2, 1, 5, 7), 0),
        ((2, 16, 5, 7), 0),
    ],
)
def test_broadcast_operands(operand: Operand, dtype: str) -> None:
    shape, block = operand

    def write(builder: Builder) -> Value:
        data = builder.input("data", tensor(dtype, 2, 16, 5, 7))
        gate = builder("sigmoid", builder.input("gate", tensor(dtype, *shape)))
        return builder("multiply", data, gate)

    layout = {"data": (8, (1, 1, 1, 1)), "gate": (block, (0, 1, 1, 0)) if block else 0, "result": 8}
    check(case(write, layout), image_pointwise, 2)


def chain(builder: Builder, data: Value) -> Value:
    """Each node reads the one before it twice."""
    for _ in range(7):
        data = builder("multiply", data, builder("clip", data, a_min=-1.0, a_max=1.0))
    return data


def chosen(builder: Builder, data: Value) -> Value:
    zero = builder.constant(np.float32(0))
    return builder("where", builder("greater", data, zero), data, builder("exp", data))


def biased(builder: Builder, data: Value) -> Value:
    bias = builder.constant(np.arange(16, dtype=np.float32))
    return builder("nn.leaky_relu", builder("nn.bias_add", data, bias), alpha=0.25)


@pytest.mark.parametrize("write", [chain, chosen, biased])
def test_several_nodes(write: Callable[[Builder, Value], Value]) -> None:
    def whole(builder: Builder) -> Value:
        return write(builder, builder.input("data", tensor("float32", 2, 16, 5, 7)))

    check(case(whole, {"data": 16, "result": (16, (1, 1, 1, 1))}), image_pointwise)


def test_refusals() -> None:
    def add(builder: Builder) -> Value:
        shape = tensor("float32", 1, 16, 5, 7)
        return builder("add", builder.input("one", shape), builder.input("other", shape))

    made = case(add, {"one": 16, "other": 8, "result": 16})
    assert "%other is in other blocks" in made.refusal(image_pointwise)
    made = case(add, {"one": 16, "other": 16})
    assert made.refusal(image_pointwise) == "the result is no blocked image, or empty"

    def pool(builder: Builder) -> Value:
        data = builder.input("data", tensor("float32", 1, 16, 5, 7))
        return builder("nn.max_pool2d", data, pool_size=(1, 1))

    made = case(pool, {"data": 16, "result": 16})
    assert made.refusal(image_pointwise) == "there is more than pointwise nodes"

    def whole_numbers(builder: Builder) -> Value:
        data = builder.input("data", tensor("int64", 1, 16, 5, 7))
        return builder("cast", data, dtype="float32")

    made = case(whole_numbers, {"data": 16, "result": 16})
    assert made.refusal(image_pointwise) == "cast is not on float32, float64 or small integers"

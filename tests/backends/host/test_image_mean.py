"""Means over the pixels of blocked images."""

from __future__ import annotations

import numpy as np
import pytest
from tests.backends.host.images import Case, case, check

from graft.backends.host.kernels.image_mean import image_mean
from graft.ir.builder import Builder
from graft.ir.graph import Value
from graft.ir.types import tensor
from graft.target.target import named_target


def mean(
    shape: tuple[int, ...],
    block: int,
    keepdims: bool = True,
    axes: tuple[int, ...] = (2, 3),
    dtype: str = "float32",
) -> Case:
    def write(builder: Builder) -> Value:
        data = builder.input("data", tensor(dtype, *shape))
        return builder("mean", data, axes=axes, keepdims=keepdims)

    return case(write, {"data": (block, (1, 0, 2, 1))})


@pytest.mark.parametrize("keepdims", [True, False])
@pytest.mark.parametrize("threads", [1, 2, 3])
@pytest.mark.parametrize(
    ("shape", "block"),
    [
        ((1, 512, 7, 7), 16),
        ((3, 24, 8, 1), 8),
        ((2, 6, 1, 5), 3),
        ((1, 5, 33, 41), 1),
        ((1, 48, 17, 19), 48),
    ],
)
def test_mean(shape: tuple[int, ...], block: int, keepdims: bool, threads: int) -> None:
    check(mean(shape, block, keepdims), image_mean, threads)


def test_axes_from_behind_and_double_precision() -> None:
    check(mean((2, 8, 5, 6), 8, axes=(-1, -2), dtype="float64"), image_mean)


def test_few_registers() -> None:
    check(mean((2, 32, 9, 30), 16), image_mean, target=named_target("x86-64-v3"))


def test_work_before_and_after() -> None:
    def write(builder: Builder) -> Value:
        data = builder.input("data", tensor("float32", 3, 16, 5, 9))
        before = builder(
            "nn.relu", builder("add", data, builder.input("row", tensor("float32", 9)))
        )
        result = builder("mean", before, axes=(2, 3), keepdims=True)
        bias = builder.constant(np.linspace(-1, 1, 16, dtype=np.float32))
        return builder("nn.gelu", builder("nn.bias_add", result, bias))

    check(case(write, {"data": (8, (1, 1, 1, 1))}), image_mean, 2)


def test_refusals() -> None:
    assert "not over the rows" in mean((1, 8, 4, 4), 8, axes=(1, 2)).refusal(image_mean)
    assert "no blocked image" in mean((1, 8, 4, 4), 0).refusal(image_mean)

    def summed(builder: Builder) -> Value:
        return builder("sum", builder.input("data", tensor("float32", 1, 8, 4, 4)), axes=(2, 3))

    assert case(summed, {"data": 8}).refusal(image_mean) == "there is no mean"

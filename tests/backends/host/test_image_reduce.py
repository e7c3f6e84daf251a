"""Reductions over the pixels of blocked images."""

from __future__ import annotations

import numpy as np
import pytest
from tests.backends.host.images import Case, case, check, run

from graft.backends.host.kernels.images.reduce import image_reduce
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
    op: str = "mean",
) -> Case:
    def write(builder: Builder) -> Value:
        data = builder.input("data", tensor(dtype, *shape))
        return builder(op, data, axes=axes, keepdims=keepdims)

    return case(write, {"data": (block, (1, 0, 2, 1))})


@pytest.mark.each_value
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
    check(mean(shape, block, keepdims), image_reduce, threads)


@pytest.mark.parametrize("op", ["mean", "sum"])
def test_sums_of_large_images_round_little(op: str) -> None:
    """All but equal numbers add up their roundings; a variance beside them would be lost."""
    shape = (1, 16, 601, 590)
    image = np.random.default_rng(0).uniform(3.1, 3.2, shape).astype(np.float32)
    made = mean(shape, 16, op=op)
    result = run(made, made.kernel(image_reduce), [image], threads=2)
    exact = getattr(np, op)(image, axis=(2, 3), dtype=np.float64)
    np.testing.assert_allclose(result.reshape(exact.shape), exact, rtol=2e-7)


@pytest.mark.parametrize("op", ["max", "min", "sum"])
@pytest.mark.parametrize(("shape", "block"), [((2, 32, 7, 9), 16), ((1, 20, 1, 33), 16)])
def test_other_reductions(op: str, shape: tuple[int, ...], block: int) -> None:
    made = mean(shape, block, op=op)
    check(made, image_reduce, 2)
    image = np.random.default_rng(0).standard_normal(shape).astype(np.float32)
    image[0, 3, 0, 1], image[0, 5, 0, 0], image[0, 6] = np.nan, np.inf, -np.inf
    check(made, image_reduce, inputs=[image])


@pytest.mark.each_value
@pytest.mark.parametrize("op", ["mean", "max", "min", "sum"])
@pytest.mark.parametrize(
    ("shape", "block"),
    [((2, 32, 7, 9), 16), ((1, 20, 3, 33), 16), ((2, 24, 1, 1), 8), ((1, 5, 4, 6), 16)],
)
@pytest.mark.parametrize("keepdims", [True, False])
def test_channels(op: str, shape: tuple[int, ...], block: int, keepdims: bool) -> None:
    made = mean(shape, block, keepdims, (1,), op=op)
    check(made, image_reduce, 2)
    check(made, image_reduce, target=named_target("x86-64-v3"))
    image = np.random.default_rng(0).standard_normal(shape).astype(np.float32)
    image[0, 3, 0, 0], image[0, :, -1, -1] = np.nan, -np.inf
    check(made, image_reduce, inputs=[image])


def test_work_before_and_after_channels() -> None:
    def write(builder: Builder) -> Value:
        data = builder.input("data", tensor("float32", 3, 16, 5, 9))
        squares = builder("multiply", data, data)
        total = builder("sum", squares, axes=(1,), keepdims=True)
        return builder("add", builder("sqrt", total), builder.input("row", tensor("float32", 9)))

    check(case(write, {"data": (8, (1, 1, 1, 1))}), image_reduce, 2)


def test_norms() -> None:
    def write(builder: Builder) -> Value:
        data = builder.input("data", tensor("float32", 3, 16, 5, 9))
        squares = builder("multiply", data, data)
        return builder("sqrt", builder("sum", squares, axes=(2, 3), keepdims=True))

    check(case(write, {"data": (8, (1, 1, 1, 1))}), image_reduce, 2)


def test_axes_from_behind_and_double_precision() -> None:
    check(mean((2, 8, 5, 6), 8, axes=(-1, -2), dtype="float64"), image_reduce)


def test_few_registers() -> None:
    check(mean((2, 32, 9, 30), 16), image_reduce, target=named_target("x86-64-v3"))


def test_work_before_and_after() -> None:
    def write(builder: Builder) -> Value:
        data = builder.input("data", tensor("float32", 3, 16, 5, 9))
        before = builder(
            "nn.relu", builder("add", data, builder.input("row", tensor("float32", 9)))
        )
        result = builder("mean", before, axes=(2, 3), keepdims=True)
        bias = builder.constant(np.linspace(-1, 1, 16, dtype=np.float32))
        return builder("nn.gelu", builder("nn.bias_add", result, bias))

    check(case(write, {"data": (8, (1, 1, 1, 1))}), image_reduce, 2)


def test_refusals() -> None:
    assert "along all of its pixels" in mean((1, 8, 4, 4), 8, axes=(1, 2)).refusal(image_reduce)
    assert "no blocked image" in mean((1, 8, 4, 4), 0).refusal(image_reduce)

    def multiplied(builder: Builder) -> Value:
        return builder("prod", builder.input("data", tensor("float32", 1, 8, 4, 4)), axes=(2, 3))

    assert (
        case(multiplied, {"data": 8}).refusal(image_reduce)
        == "there is no max or mean or min or sum"
    )

"""Denormal results of kernels are zeros, except in programs of strict accuracy."""

from __future__ import annotations

import platform

import numpy as np
import pytest

import graft
from graft.base.dtypes import Array, DType
from graft.ir.builder import Builder
from graft.ir.evaluate import evaluate
from graft.ir.graph import Graph
from graft.ir.types import tensor
from graft.llvm.narrow import FORMATS
from graft.target.target import host_target, named_target

COUNT = 1 << 20  # that two threads share
TINY = np.float32(1e-40)

pytestmark = pytest.mark.skipif(platform.machine() != "x86_64", reason="denormals are kept there")


def doubled() -> Graph:
    build = Builder()
    x, y = (build.input(name, tensor(dtype, COUNT)) for name, dtype in KINDS.items())
    return build.build(build("add", x, x), build("add", y, y))


KINDS = {"x": "float32", "y": "float64"}
LEAST = {"x": TINY, "y": np.float64(5e-324)}


def results(accuracy: str, threads: int) -> list[Array]:
    module = graft.compile(doubled(), accuracy=accuracy, threads=threads)
    return module.run(None, {name: np.full(COUNT, one) for name, one in LEAST.items()})


@pytest.mark.parametrize("threads", [1, 2])
def test_denormals_are_zeros(threads: int) -> None:
    for result in results("default", threads):
        assert not result.any()


@pytest.mark.parametrize("threads", [1, 2])
def test_strict_programs_keep_denormals(threads: int) -> None:
    for result, one in zip(results("strict", threads), LEAST.values(), strict=True):
        assert (result == one + one).all()


@pytest.mark.parametrize("dtype", [*FORMATS, DType.FLOAT8E8M0FNU])
@pytest.mark.parametrize("target", ["host", "x86-64"])
def test_narrow_floats_are_widened_exactly(dtype: DType, target: str) -> None:
    """Their own denormal numbers are normal ones in float32, but for one of an exponent alone."""
    if not set(named_target(target).features) <= set(host_target().features):
        pytest.skip(f"this machine cannot run code for {target}")
    kind = np.uint16 if dtype is DType.FLOAT16 else np.uint8
    data = np.arange(1 << dtype.bits).astype(kind).view(dtype.numpy)
    build = Builder()
    graph = build.build(build("cast", build.input("x", tensor(dtype, len(data))), dtype="float32"))
    (result,) = graft.compile(graph, machine=target).run(None, {"x": data})
    np.testing.assert_array_equal(result, data.astype(np.float32))


@pytest.mark.parametrize("round_mode", ["up", "down", "nearest"])
def test_zeros_become_the_least_power_of_two(round_mode: str) -> None:
    data = np.array([0.0, -0.0, 2.0**-126, 1.5 * 2.0**-126, 3e38, np.nan, -1.0], np.float32)
    build = Builder()
    x = build.input("x", tensor("float32", len(data)))
    exponents = build("cast", x, dtype=DType.FLOAT8E8M0FNU, round_mode=round_mode)
    graph = build.build(exponents)
    (result,) = graft.compile(graph).run(None, {"x": data})
    (expected,) = evaluate(graph, [data])
    np.testing.assert_array_equal(result.view(np.uint8), expected.view(np.uint8))


def test_denormal_operands_are_not_zeros() -> None:
    build = Builder()
    x = build.input("x", tensor("float32", 3))
    graph = build.build(build("nn.relu", x), build("less", x, build.constant(np.float32(0))))
    data = np.array([TINY, -TINY, 0], np.float32)
    kept, negative = graft.compile(graph).run(None, {"x": data})
    np.testing.assert_array_equal(kept, [TINY, 0, 0])
    np.testing.assert_array_equal(negative, [False, True, False])


def test_the_caller_keeps_denormals() -> None:
    results("default", 2)
    assert np.multiply(TINY, np.float32(1)) == TINY


def test_numbers_next_to_denormals_are_kept() -> None:
    build = Builder()
    x = build.input("x", tensor("float32", 4))
    graph = build.build(build("add", x, x))
    data = np.array([np.finfo(np.float32).tiny, -1.2e-38, np.inf, np.nan], np.float32)
    (result,) = graft.compile(graph).run(None, {"x": data})
    np.testing.assert_array_equal(result, data + data)

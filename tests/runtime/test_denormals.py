"""Denormal floats are zeros while kernels run, except in programs of strict accuracy."""

from __future__ import annotations

import platform

import numpy as np
import pytest

import graft
from graft.base.dtypes import Array
from graft.ir.builder import Builder
from graft.ir.graph import Graph
from graft.ir.types import tensor

COUNT = 1 << 20  # that two threads share
TINY = np.float32(1e-40)

pytestmark = pytest.mark.skipif(
    platform.machine() not in {"x86_64", "aarch64"}, reason="there is no such mode"
)


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

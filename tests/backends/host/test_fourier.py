"""Fourier transforms of lengths that only a run tells: factors, primes, few signals and many."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest

import graft
from graft.backends.host.passes.fourier_products import fourier_products
from graft.base.dims import Dim, symbol
from graft.base.dtypes import Array
from graft.ir.builder import Builder
from graft.ir.evaluate import evaluate
from graft.ir.graph import Graph
from graft.ir.types import tensor
from graft.module import Module
from graft.target.target import host_target

# Powers of two, of other factors, with primes up to 61, and with larger ones.
LENGTHS = (1, 2, 3, 4, 6, 8, 17, 30, 61, 64, 67, 77, 128, 201, 400, 509)


def graph_of(shape: Sequence[Dim], dtype: str = "float32", **attrs: Any) -> Graph:
    g = Builder()
    return g.build(g("dft", g.input("x", tensor(dtype, *shape)), **attrs))


def check(module: Module, graph: Graph, data: Array, tolerance: float = 3e-6) -> None:
    (expected,) = evaluate(graph, [data])
    (result,) = module.run(None, {"x": data})
    assert result.dtype == data.dtype
    assert result.shape == expected.shape
    scale = np.abs(expected).max(initial=1e-9)
    np.testing.assert_allclose(result / scale, expected / scale, atol=tolerance)


def random(shape: Sequence[int], dtype: str = "float32") -> Array:
    return np.random.default_rng(sum(shape)).standard_normal(shape).astype(dtype)


@pytest.mark.each_value
@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize(
    ("axis", "shape"),
    [
        (1, lambda n: (3, n)),  # fewer signals than lanes, each in one piece
        (1, lambda n: (2, n, 37)),  # neighbours at each sample, and vectors across two batches
        (0, lambda n: (n,)),
        (1, lambda n: (40, n)),
    ],
)
@pytest.mark.parametrize(
    ("parts", "attrs"),
    [
        (1, {}),
        (2, {}),
        (2, {"inverse": True}),
        (1, {"inverse": True}),
        (1, {"onesided": True}),
        (2, {"inverse": True, "onesided": True}),
    ],
)
def test_lengths(
    axis: int,
    shape: Callable[[Dim], tuple[Dim, ...]],
    parts: int,
    attrs: dict[str, bool],
    threads: int,
) -> None:
    graph = graph_of((*shape(symbol("n")), parts), axis=axis, **attrs)
    module = graft.compile(graph, strict=True, threads=threads)
    assert [call.label for call in module.program.calls] == ["dft"]
    least = 2 if attrs.get("inverse") and attrs.get("onesided") else 1
    for length in LENGTHS:
        if length >= least:
            sizes = [int(n) for n in shape(length)]
            check(module, graph, random((*sizes, parts)))


@pytest.mark.parametrize(("dtype", "tolerance"), [("float64", 1e-13), ("float16", 2e-3)])
def test_other_dtypes(dtype: str, tolerance: float) -> None:
    graph = graph_of((symbol("b"), symbol("n"), 2), dtype, axis=1)
    module = graft.compile(graph, strict=True)
    for batch, length in ((1, 24), (5, 67), (20, 60)):
        check(module, graph, random((batch, length, 2), dtype), tolerance)


@pytest.mark.parametrize("length", [20, 67, 128])
@pytest.mark.parametrize("attrs", [{}, {"inverse": True}, {"onesided": True}])
def test_signals_are_cut_or_filled_with_zeros(length: int, attrs: dict[str, bool]) -> None:
    parts = 1 if attrs.get("onesided") else 2
    graph = graph_of((symbol("b"), symbol("n"), parts), axis=1, dft_length=length, **attrs)
    module = graft.compile(graph, strict=True)
    for size in (1, 50, 200):
        check(module, graph, random((4, size, parts)))


@pytest.mark.parametrize("onesided", [False, True])
def test_length_is_an_operand(onesided: bool) -> None:
    g = Builder()
    x, n = g.input("x", tensor("float32", 3, symbol("t"), 1)), g.input("n", tensor("int64"))
    graph = g.build(g("dft", x, n, axis=1, onesided=onesided))
    module = graft.compile(graph, strict=True)
    for length, samples in ((8, 8), (67, 80), (31, 5)):
        data, size = random((3, samples, 1)), np.array(length)
        (expected,) = evaluate(graph, [data, size])
        (result,) = module.run(None, {"x": data, "n": size})
        np.testing.assert_allclose(result, expected, atol=2e-5)


def test_no_signals() -> None:
    graph = graph_of((symbol("b"), symbol("n"), 1), axis=1)
    module = graft.compile(graph, strict=True)
    (result,) = module.run(None, {"x": np.zeros((0, 5, 1), np.float32)})
    assert result.shape == (0, 5, 2)


def test_long_transforms_without_factors() -> None:
    """Known, but a matrix of its factors would be too large."""
    graph = graph_of((1, 10007, 1), axis=1, onesided=True)
    assert [node.op.name for node in fourier_products(graph, host_target()).nodes] == ["dft"]
    check(graft.compile(graph, strict=True), graph, random((1, 10007, 1)))

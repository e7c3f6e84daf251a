"""Fourier transforms of known length are matrix products, in one step or two."""

from __future__ import annotations

import numpy as np
import pytest
from tests.backends.host.flows import check_flow
from tests.passes.checking import graph_of

import graft
from graft.backends.host.passes.fourier_products import fourier_products
from graft.base.dims import Dim, symbol
from graft.ir.builder import Builder
from graft.ir.evaluate import evaluate
from graft.ir.graph import Graph
from graft.ir.types import tensor
from graft.target.target import host_target

LENGTHS = [1, 2, 5, 16, 77, 512, 521, 600, 1000, 2048]


def transform(shape: tuple[Dim, ...], dtype: str = "float32", **attrs: object) -> Graph:
    return graph_of(lambda g, x: g("dft", x, **attrs), tensor(dtype, *shape))


def check(graph: Graph, *shape: int, tolerance: float = 2e-6) -> None:
    noise = np.random.default_rng(0)
    data = noise.standard_normal(shape).astype(graph.inputs[0].dtype.numpy)
    changed = fourier_products(graph, host_target())
    assert "dft" not in {node.op.name for node in changed.nodes}
    (expected,) = evaluate(graph, [data])
    scale = max(np.abs(expected).max(), 1e-30) if expected.size else 1
    (result,) = graft.compile(graph).run(None, {"x0": data})
    for actual in (evaluate(changed, [data])[0], result):
        assert actual.shape == expected.shape
        assert actual.dtype == expected.dtype
        np.testing.assert_allclose(actual / scale, expected / scale, atol=tolerance, rtol=0)


@pytest.mark.parametrize("inverse", [False, True])
@pytest.mark.parametrize("length", LENGTHS)
def test_complex_signals(length: int, inverse: bool) -> None:
    check(transform((3, length, 2), inverse=inverse), 3, length, 2)


@pytest.mark.parametrize("length", LENGTHS)
def test_real_signals_and_back(length: int) -> None:
    check(transform((3, length, 1), onesided=True), 3, length, 1)
    half = length // 2 + 1
    back = transform((3, half, 2), onesided=True, inverse=True, dft_length=length)
    check(back, 3, half, 2)


@pytest.mark.parametrize("length", [4, 9, 1024])
def test_signals_that_are_cut_or_filled_up(length: int) -> None:
    check(transform((2, 7, 2), dft_length=length), 2, 7, 2)
    check(transform((2, 7, 1), dft_length=length, onesided=True), 2, 7, 1)
    check(transform((2, 7, 2), dft_length=length, onesided=True, inverse=True), 2, 7, 2)


@pytest.mark.parametrize("axis", [0, 1, -2])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_any_axis(axis: int, dtype: str) -> None:
    check(transform((4, 6, 5, 2), dtype, axis=axis), 4, 6, 5, 2)


@pytest.mark.parametrize("length", [12, 1200])
@pytest.mark.parametrize("batch", [0, 1, 5])
def test_any_number_of_signals(batch: int, length: int) -> None:
    check(transform((symbol("n"), 3, length, 1), onesided=True), batch, 3, length, 1)


def test_numbers_that_are_not_finite_reach_every_frequency_of_their_signal() -> None:
    graph = transform((2, 600, 1))
    data = np.ones((2, 600, 1), np.float32)
    data[0, 5] = np.nan
    (result,) = graft.compile(graph).run(None, {"x0": data})
    assert np.isnan(result[0]).all()
    assert np.isfinite(result[1]).all()


@pytest.mark.parametrize("length", [1499, 2 * 1499])
def test_long_prime_factors_stay(length: int) -> None:
    graph = transform((1, length, 2))
    assert fourier_products(graph, host_target()) is graph


@pytest.mark.parametrize("onesided", [False, True])
@pytest.mark.parametrize("window", ["none", "constant", "data"])
@pytest.mark.parametrize("is_known", [False, True])
def test_frames_are_convolutions(onesided: bool, window: str, is_known: bool) -> None:
    g = Builder()
    x = g.input("x", tensor("float32", 2, 90 if is_known else symbol("t"), 1))
    values = np.hanning(20).astype(np.float32)
    weights = {
        "none": lambda: None,
        "constant": lambda: g.constant(values),
        "data": lambda: g.input("w", tensor("float32", 20)),
    }[window]()
    graph = g.build(g("stft", x, None, weights, frame_step=7, frame_length=20, onesided=onesided))
    after = fourier_products(graph, host_target())
    assert "stft" not in [node.op.name for node in after.nodes]
    feeds = [values] if window == "data" else []
    for samples in (90,) if is_known else (90, 20, 26, 27):
        data = np.random.default_rng(samples).standard_normal((2, samples, 1), np.float32)
        check_flow(graph, [data, *feeds], tolerance=2e-5)

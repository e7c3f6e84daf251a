"""Rounded weights: what is made up for, and moments of what layers multiply."""

from __future__ import annotations

import itertools
import warnings

import numpy as np
import pytest

from graft.base.dtypes import Array, DType
from graft.ir.builder import Builder
from graft.ir.graph import Node
from graft.ir.types import tensor
from graft.ops.conv import convolve
from graft.quantize.moments import Blocks, Moments
from graft.quantize.weights import compensated, quantize_weight


def layer(weight: Array, *shape: int, **attrs: object) -> Node:
    """A layer on data of a shape."""
    g = Builder()
    x = g.input("x", tensor("float32", *shape))
    name = {2: "nn.dense", 3: "nn.conv1d", 4: "nn.conv2d", 5: "nn.conv3d"}[weight.ndim]
    return g.build(g(name, x, g.constant(weight), **attrs)).nodes[-1]


def correlated(draw: np.random.Generator, rows: int, columns: int, mean: float = 1.0) -> Array:
    """Rows that a few numbers decide on, with some noise."""
    mixture = np.random.default_rng(9).normal(size=(3, columns))
    causes = draw.normal(size=(rows, 3)) @ mixture
    return (causes + 0.1 * draw.normal(size=(rows, columns)) + mean).astype(np.float32)


def test_errors_make_up_for_each_other() -> None:
    draw = np.random.default_rng(0)
    weight = draw.normal(size=(16, 64)).astype(np.float32)
    moments = Moments(layer(weight, 1, 64), weight)
    for _ in range(16):
        moments.add(correlated(draw, 100, 64))
    unseen = correlated(draw, 100, 64)
    for dtype in (DType.INT8, DType.INT4):
        errors = []
        for given in (None, moments):
            rounded = quantize_weight(weight, dtype, given)
            assert np.abs(rounded.integers.astype(int)).max() <= (1 << dtype.bits - 1) - 1
            difference = unseen @ (rounded.values - weight).T - rounded.shift
            errors.append(float(np.std(difference)))
        assert errors[1] < 0.5 * errors[0]


def test_small_problems_are_close_to_the_best() -> None:
    """Beside every rounding up or down of five weights."""
    draw = np.random.default_rng(2)
    excess = []
    for _ in range(100):
        data = correlated(draw, 200, 5, 0.0)
        covariance = np.cov(data.T, bias=True)[None]
        weight = draw.normal(size=(1, 1, 5)).astype(np.float32)
        scale = np.full((1, 1, 1), 0.1, np.float32)

        def loss(codes: Array, given: Array = weight, own: Array = covariance[0]) -> float:
            error = (codes * 0.1 - given).reshape(-1)
            return float(error @ own @ error)

        floor = np.floor(weight / 0.1)
        best = min(loss(floor + np.array(up)) for up in itertools.product((0, 1), repeat=5))
        nearest = loss(np.rint(weight / 0.1))
        excess.append((loss(compensated(weight, scale, covariance, 127)) / nearest, best / nearest))
    mean = np.exp(np.mean(np.log(excess), axis=0))
    assert mean[0] < 0.6
    assert mean[0] < 3 * mean[1]


@pytest.mark.parametrize(
    ("shape", "data", "attrs"),
    [
        ((6, 8), (1, 5, 8), {}),
        ((6, 4, 3, 3), (1, 4, 7, 9), {"padding": (1, 1, 1, 1), "strides": (2, 1)}),
        ((8, 1, 3, 3), (1, 8, 6, 6), {"groups": 8, "dilation": (2, 2)}),
        ((6, 2, 3, 1), (2, 4, 5, 5), {"groups": 2, "padding": (1, 0, 2, 0)}),
        ((4, 3, 5), (1, 3, 11), {"padding": (2, 2)}),
        ((4, 3, 2, 2, 2), (1, 3, 4, 5, 3), {"strides": (1, 2, 1)}),
    ],
)
def test_moments_are_those_of_the_results(
    shape: tuple[int, ...], data: tuple[int, ...], attrs: dict[str, object]
) -> None:
    """Mean and mean square of a layer's results follow from the moments of its data."""
    draw = np.random.default_rng(3)
    weight = draw.normal(size=shape).astype(np.float32)
    node = layer(weight, *data, **attrs)
    x = (draw.normal(size=data) + 0.5).astype(np.float32)
    moments = Moments(node, weight)
    moments.add(x)
    if node.op.name == "nn.dense":
        results = (x @ weight.T).reshape(-1, len(weight))
    else:
        images = convolve(node.attrs, x, weight)
        results = np.moveaxis(images, 1, -1).reshape(-1, len(weight))
    cut = moments.blocks.split(weight)
    np.testing.assert_allclose(
        (cut @ moments.mean[:, :, None]).reshape(-1), results.mean(axis=0), atol=1e-4
    )
    squares = np.sum((cut @ moments.second) * cut, axis=2).reshape(-1) * moments.unit**2
    np.testing.assert_allclose(squares, (results**2).mean(axis=0), rtol=1e-3)


def test_blocks_are_within_bounds() -> None:
    weight = np.arange(4 * 256 * 9, dtype=np.float32).reshape(4, 256, 3, 3)
    blocks = Blocks.of(weight, 1)
    assert (blocks.parts, blocks.columns) == (4, 576)
    np.testing.assert_array_equal(blocks.joined(blocks.split(weight), weight.shape), weight)
    assert Blocks.of(np.zeros((2, 1031), np.float32), 1).columns == 1  # a prime


@pytest.mark.parametrize("size", [1e-30, 1e-20, 1e15, 1e34])
def test_the_size_of_data_does_not_matter(size: float) -> None:
    """Squares of huge and tiny numbers are no float32."""
    draw = np.random.default_rng(6)
    weight = draw.normal(size=(6, 32)).astype(np.float32)
    plain, scaled = (Moments(layer(weight, 1, 32), weight) for _ in range(2))
    for _ in range(8):
        data = correlated(draw, 50, 32).astype(np.float32)
        plain.add(data)
        scaled.add(data * np.float32(size))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        one, two = (quantize_weight(weight, DType.INT8, moments) for moments in (plain, scaled))
    assert np.mean(one.integers == two.integers) > 0.9
    np.testing.assert_allclose(two.shift / size, one.shift, rtol=0.1, atol=1e-3)
    assert not np.array_equal(two.integers, quantize_weight(weight).integers)


@pytest.mark.parametrize("value", [0.0, 1e4])
def test_constant_data_do_not_matter(value: float) -> None:
    """No variance, or next to none beside the mean."""
    weight = np.random.default_rng(5).normal(size=(4, 8)).astype(np.float32)
    moments = Moments(layer(weight, 1, 8), weight)
    for number in range(4):
        moments.add(np.full((32, 8), value * (1 + 1e-7 * number), np.float32))
    rounded = quantize_weight(weight, DType.INT8, moments)
    assert np.abs(rounded.values - weight).max() <= rounded.scale.max()
    nothing = quantize_weight(weight, DType.INT8, Moments(layer(weight, 1, 8), weight))
    np.testing.assert_array_equal(nothing.integers, quantize_weight(weight).integers)

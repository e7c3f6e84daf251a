"""Equalisation: graphs stay equal, and channels of different size get their levels."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from tests.quantize.models import Network, perceptron, residual, samples

from graft.base.dtypes import Array
from graft.ir.evaluate import evaluate
from graft.ir.graph import Graph, Value
from graft.ir.verify import verify
from graft.quantize.calibrate import Calibration, Feeds
from graft.quantize.confidence import OutputError
from graft.quantize.equalize import equalize, find_links, observed_values
from graft.quantize.heads import with_outputs
from graft.quantize.insert import insert_precisions
from graft.quantize.report import INTEGER
from graft.quantize.scheme import BYTES
from graft.quantize.units import find_units


def uneven(n: Network, x: Value) -> Value:
    """A layer some of whose channels are a hundred times as large as others."""
    channels = int((x.shape or ())[1])
    sizes = np.geomspace(0.01, 1, channels).astype(np.float32)
    weight = n.draw.normal(size=(channels, channels, 3, 3), scale=0.1).astype(np.float32)
    y = n.g(
        *("nn.conv2d", x, n.g.constant(weight * sizes[:, None, None, None])), padding=(1, 1, 1, 1)
    )
    return n.g("nn.bias_add", y, n.g.constant(sizes), axis=1)


def balanced(n: Network, x: Value) -> Value:
    """A layer for which all of these channels matter."""
    channels = int((x.shape or ())[1])
    sizes = np.geomspace(100, 1, channels).astype(np.float32)
    weight = n.draw.normal(size=(8, channels, 1, 1), scale=0.1).astype(np.float32)
    return n.g("nn.conv2d", x, n.g.constant(weight * sizes[:, None, None]))


def through(*steps: Callable[[Network, Value], Value]) -> Graph:
    n = Network(1, 16, 8, 8)
    x = uneven(n, n.x)
    for step in steps:
        x = step(n, x)
    return n.g.build(balanced(n, x))


def relu(n: Network, x: Value) -> Value:
    return n.relu(x)


def depthwise(n: Network, x: Value) -> Value:
    return n.relu(n.conv(x, 16, groups=16))


def pooled(n: Network, x: Value) -> Value:
    top = n.g("nn.max_pool2d", x, pool_size=(2, 2), strides=(2, 2))
    return n.g("nn.avg_pool2d", top, pool_size=(2, 2), strides=(2, 2))


def clipped(n: Network, x: Value) -> Value:
    return n.g("clip", x, a_min=0.0, a_max=6.0)


def summed(n: Network, x: Value) -> Value:
    return n.g("add", x, n.x)


def equalized(graph: Graph, given: list[dict[str, Array]]) -> tuple[Graph, int]:
    links = find_links(graph, find_units(graph))
    values = observed_values(links)
    part = with_outputs(graph, values)
    runs = [evaluate(part, list(feeds.values())) for feeds in given] if values else []
    known = dict(zip(values, zip(*runs, strict=True), strict=True)) if runs else {}
    found, count = equalize(graph, links, known, BYTES)
    return verify(found), count


def error(graph: Graph, given: list[dict[str, Array]]) -> float:
    """Of all units in 8 bits."""

    def compiled(one: Graph) -> Callable[[Feeds], list[Array]]:
        return lambda feeds: list(evaluate(one, list(feeds.values())))

    units = find_units(graph)
    calibration = Calibration(graph, units, compiled)
    for feeds in given[:4]:
        calibration.add(feeds)
    narrow = insert_precisions(graph, dict.fromkeys(units, INTEGER), calibration.statistics("mse"))
    result = OutputError()
    for feeds in given[4:]:
        result.add(compiled(graph)(feeds), compiled(narrow)(feeds))
    return result.relative


@pytest.mark.parametrize(
    ("steps", "links"), [((relu,), 1), ((relu, depthwise), 2), ((pooled,), 1), ((), 1)]
)
def test_uneven_channels(steps: tuple[Callable[[Network, Value], Value], ...], links: int) -> None:
    graph = through(*steps)
    given = samples(graph, 8)
    other, count = equalized(graph, given[:4])
    assert count == links
    for feeds in given:
        (before,), (after,) = (evaluate(one, list(feeds.values())) for one in (graph, other))
        np.testing.assert_allclose(after, before, rtol=1e-3, atol=1e-4 * np.abs(before).max())
    assert error(other, given) < 0.6 * error(graph, given)


@pytest.mark.parametrize("step", [clipped, summed])
def test_what_does_not_scale_is_left_alone(step: Callable[[Network, Value], Value]) -> None:
    graph = through(step)
    assert equalized(graph, samples(graph, 2)) == (graph, 0)


def test_even_channels_are_left_alone() -> None:
    graph = perceptron()  # a softmax, a GELU and a sum: nothing to scale across
    assert find_links(graph, find_units(graph)) == []
    graph = residual()
    assert len(find_links(graph, find_units(graph))) == 3
    same, count = equalized(graph, [{"x": np.zeros((1, 3, 16, 16), np.float32)}])
    assert count <= 3
    assert np.isfinite(evaluate(same, [np.ones((1, 3, 16, 16), np.float32)])[0]).all()


def test_normalisations_take_factors_of_what_follows() -> None:
    n = Network(1, 6, 32)
    sizes = np.geomspace(0.01, 1, 32).astype(np.float32)
    normal = n.g("nn.layer_norm", n.x, n.g.constant(sizes), n.g.constant(sizes), axis=-1)
    weight = (n.draw.normal(size=(8, 32)) / sizes).astype(np.float32)
    graph = n.g.build(n.g("nn.dense", normal, n.g.constant(weight)))
    given = samples(graph, 8)
    other, count = equalized(graph, given[:4])
    assert count == 1
    assert error(other, given) < 0.6 * error(graph, given)

"""Groups of one structure share a kernel, each with constants of its own, packed alike."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from tests.backends.host.nets import Net

import graft
from graft.backends.host.lowering.assemble import Assembly, NativeStep, assemble
from graft.backends.host.passes.pipeline import prepare
from graft.ir.evaluate import evaluate
from graft.ir.graph import Graph, Value
from graft.loop.ir import Function
from graft.target.target import host_target

Layer = Callable[[Net, Value], Value]


def dense(net: Net, x: Value) -> Value:
    y = net("nn.dense", x, net.builder.constant(net.array(72, 72) / 8))
    y = net("nn.bias_add", y, net.builder.constant(net.array(72)), axis=-1)
    return net("multiply", net("nn.relu", y), net.builder.constant(net.array(6, 72)))


def normalized(net: Net, x: Value) -> Value:
    scale, shift = (net.builder.constant(net.array(72)) for _ in range(2))
    return net("nn.layer_norm", x, scale, shift, axis=-1)


def pointwise(net: Net, x: Value) -> Value:
    return net("nn.softmax", net("add", x, net.builder.constant(net.array(6, 72))), axis=-1)


def conv(net: Net, x: Value) -> Value:
    y = net("nn.bias_add", net.conv(x, 72, 1), net.builder.constant(net.array(72)), axis=1)
    return net("nn.relu", y)


def wide_conv(net: Net, x: Value) -> Value:
    return net(
        "nn.relu", net("multiply", net.conv(x, 72, 3), net.builder.constant(np.float32(0.1)))
    )


def depthwise(net: Net, x: Value) -> Value:
    weight = net.builder.constant(net.array(72, 1, 3, 3))
    y = net("nn.conv2d", x, weight, padding=(1, 1, 1, 1), groups=72)
    return net("nn.bias_add", y, net.builder.constant(net.array(72)), axis=1)


def chain(layer: Layer, *shape: int) -> Graph:
    net = Net()
    x = net.input(*shape)
    for _ in range(4):
        x = layer(net, x)
    return net.builder.build(x)


def assembled(graph: Graph) -> Assembly:
    target = host_target()
    return assemble(prepare(graph, target), target)


@pytest.mark.parametrize("layer", [dense, normalized, pointwise])
def test_rows_with_weights_of_their_own(layer: Layer) -> None:
    check(chain(layer, 6, 72))


def test_functions_are_told_of_as_they_are_made() -> None:
    heard: list[Function] = []
    target = host_target()
    graph = prepare(chain(conv, 1, 72, 9, 7), target)
    made = assemble(graph, target, begin=heard.append)
    assert [function.name for function in heard] == list(made.functions)
    assert [function.body for function in heard] == [one.body for one in made.functions.values()]


@pytest.mark.parametrize("layer", [conv, wide_conv, depthwise])
def test_images_with_weights_of_their_own(layer: Layer) -> None:
    check(chain(layer, 1, 72, 9, 7))


def check(graph: Graph) -> None:
    """Fewer functions than steps, and the numbers of the reference."""
    made = assembled(graph)
    steps = [step for step in made.steps if isinstance(step, NativeStep)]
    assert len({step.symbol for step in steps}) < len(steps)
    x = Net().array(*graph.inputs[0].tensor.shape)  # type: ignore[misc]
    (expected,) = evaluate(graph, [x])
    (result,) = graft.compile(graph, strict=True).run(None, {"x1": x})
    np.testing.assert_allclose(result, expected, rtol=2e-3, atol=2e-3)


@pytest.mark.parametrize("numbers", [(1.0, 2.0), (0.0, -0.0)])
def test_numbers_in_attributes_count(numbers: tuple[float, float]) -> None:
    net = Net()
    inputs = [net.input(3, 5) for _ in numbers]
    ends = [
        net("nn.pad", x, pad_width=(1, 0, 1, 0), value=one)
        for x, one in zip(inputs, numbers, strict=True)
    ]
    graph = net.builder.build(*ends)
    data = [net.array(3, 5) for _ in numbers]
    results = graft.compile(graph, strict=True).run(None, {"x1": data[0], "x2": data[1]})
    for result, expected in zip(results, evaluate(graph, data), strict=True):
        assert result.tobytes() == np.asarray(expected).tobytes()


def test_constants_that_are_indices_count() -> None:
    """Gathered rows are told apart by what the constants hold, however many there are."""
    net = Net()
    x = net.input(200, 3)
    orders = [np.arange(100), np.arange(100)[::-1].copy()]
    ends = [net("take", x, net.builder.constant(order), axis=0) for order in orders]
    graph = net.builder.build(*ends)
    data = net.array(200, 3)
    results = graft.compile(graph, strict=True).run(None, {"x1": data})
    for result, order in zip(results, orders, strict=True):
        np.testing.assert_array_equal(result, data[order])

"""Images whose channels do not fill their last block: kernels compute in its other lanes, too."""

from __future__ import annotations

import numpy as np
import pytest

import graft
from graft.base.dtypes import Array
from graft.ir.builder import Builder
from graft.ir.evaluate import evaluate
from graft.ir.graph import Graph, Value
from graft.ir.types import tensor
from graft.target.target import host_target

MACHINES = ["host"] + (["x86-64-v3"] if host_target().has("avx2") else [])


class _Net:
    """Writes a graph of layers with random weights."""

    def __init__(self, *shape: int) -> None:
        self.build = Builder()
        self.random = np.random.default_rng(3)
        self.x = self.build.input("x", tensor("float32", *shape))

    def weight(self, *shape: int) -> Value:
        scale = np.float32(np.prod(shape[1:]) ** 0.5)
        return self.build.constant(self.random.standard_normal(shape, np.float32) / scale)

    def conv(self, x: Value, outputs: int, kernel: int = 1, **attrs: object) -> Value:
        inputs = x.tensor.shape[1] if x.tensor.shape else 0
        assert isinstance(inputs, int)
        groups = attrs.get("groups", 1)
        assert isinstance(groups, int)
        attrs.setdefault("padding", (kernel // 2,) * 4)
        weight = self.weight(outputs, inputs // groups, kernel, kernel)
        found = self.build("nn.conv2d", x, weight, **attrs)
        return self.build("nn.bias_add", found, self.weight(outputs))

    def __call__(self, name: str, *args: Value, **attrs: object) -> Value:
        return self.build(name, *args, **attrs)


def _check(graph: Graph, machine: str, *inputs: Array) -> None:
    module = graft.compile(graph, strict=True, machine=machine)
    names = [one.name for one in module.get_inputs()]
    found = module.run(None, dict(zip(names, inputs, strict=True)))
    wanted = evaluate(graph, list(inputs))
    for one, other in zip(found, wanted, strict=True):
        np.testing.assert_allclose(one, other, rtol=2e-4, atol=2e-4)


def _image(*shape: int) -> Array:
    return np.random.default_rng(5).standard_normal(shape, np.float32)


@pytest.mark.each_value
@pytest.mark.parametrize("machine", MACHINES)
@pytest.mark.parametrize(("first", "second"), [(5, 20), (12, 24), (40, 3), (30, 100), (33, 1)])
def test_convolutions(first: int, second: int, machine: str) -> None:
    net = _Net(2, 7, 9, 8)
    y = net("nn.relu", net.conv(net.x, first, 3))
    z = net("sigmoid", net.conv(y, second))
    w = net.conv(z, first, 3, strides=(2, 2))
    _check(net.build.build(z, w), machine, _image(2, 7, 9, 8))


@pytest.mark.each_value
@pytest.mark.parametrize("machine", MACHINES)
@pytest.mark.parametrize("channels", [20, 24, 36, 52])
def test_three_by_three_by_winograd(channels: int, machine: str) -> None:
    net = _Net(1, 24, 29, 30)
    y = net("nn.relu", net.conv(net.x, channels, 3))
    _check(net.build.build(net.conv(y, 21, 3)), machine, _image(1, 24, 29, 30))


@pytest.mark.each_value
@pytest.mark.parametrize("machine", MACHINES)
@pytest.mark.parametrize("channels", [10, 24, 40])
def test_everything_between_convolutions(channels: int, machine: str) -> None:
    net = _Net(2, 3, 11, 10)
    stem = net("nn.relu", net.conv(net.x, channels, 3))
    deep = net.conv(stem, channels, 3, groups=channels)
    pooled = net("nn.max_pool2d", deep, pool_size=(3, 3), padding=(1, 1, 1, 1))
    mean = net("mean", pooled, axes=(2, 3), keepdims=True)
    gate = net("sigmoid", net.conv(net("nn.relu", net.conv(mean, 6)), channels))
    scaled = net("multiply", pooled, gate)
    shifted = net("divide", scaled, net.weight(1, channels, 1, 1))
    joined = net("concatenate", stem, shifted, net.conv(stem, 5), axis=1)
    flat = net("mean", joined, axes=(2, 3), keepdims=False)
    _check(net.build.build(net.conv(joined, 9), flat), machine, _image(2, 3, 11, 10))


@pytest.mark.each_value
@pytest.mark.parametrize("machine", MACHINES)
@pytest.mark.parametrize(("groups", "channels"), [(3, 36), (5, 60), (2, 24), (4, 24)])
def test_groups(groups: int, channels: int, machine: str) -> None:
    net = _Net(1, 12, 6, 7)
    y = net("nn.relu", net.conv(net.x, channels))
    y = net("nn.relu", net.conv(y, channels, 3, groups=groups))
    _check(net.build.build(net.conv(y, 7)), machine, _image(1, 12, 6, 7))


@pytest.mark.parametrize("machine", MACHINES)
def test_lanes_without_a_channel_reach_no_channel(machine: str) -> None:
    """Where the other lanes divide zero by zero, the next layer must not see it."""
    net = _Net(1, 16, 5, 6)
    y = net.conv(net.x, 20)
    y = net("divide", y, net("add", net("multiply", y, y), net.build.constant(np.float32(1e-30))))
    y = net("log", net("multiply", y, y))
    _check(net.build.build(net.conv(net.conv(y, 20, 3), 4)), machine, _image(1, 16, 5, 6) + 5)


@pytest.mark.each_value
@pytest.mark.parametrize("machine", MACHINES)
@pytest.mark.parametrize("channels", [64, 40])
def test_convolutions_of_a_part(channels: int, machine: str) -> None:
    """A part of an image lies in the image's halo, which has to be wide enough for its readers."""
    net = _Net(1, 8, 9, 9)
    y = net("nn.relu", net.conv(net.x, channels))
    low, high = net.build.call("split", y, sizes=(16, channels - 16), axis=1)
    joined = net("concatenate", net.conv(low, 16, 3), high, axis=1)
    _check(net.build.build(net.conv(joined, 8)), machine, _image(1, 8, 9, 9))


@pytest.mark.parametrize("machine", MACHINES)
def test_slices_and_splits(machine: str) -> None:
    net = _Net(1, 8, 6, 6)
    y = net("nn.relu", net.conv(net.x, 40))
    parts = net.build.call("split", y, sizes=(16, 24), axis=1)
    low = net("strided_slice", y, begin=(32,), end=(40,), axes=(1,))
    _check(
        net.build.build(net.conv(parts[0], 8), net.conv(parts[1], 8), net.conv(low, 8)),
        machine,
        _image(1, 8, 6, 6),
    )


@pytest.mark.each_value
@pytest.mark.parametrize("machine", MACHINES)
@pytest.mark.parametrize("channels", [4, 20, 31, 40])
def test_normalisation_over_channels(channels: int, machine: str) -> None:
    net = _Net(1, 16, 6, 5)
    x = net.conv(net.x, channels)
    rows = net("transpose", x, axes=(0, 2, 3, 1))
    scale, shift = net.weight(channels), net.weight(channels)
    normal = net("nn.layer_norm", rows, scale, shift, axis=-1)
    y = net.conv(net("transpose", normal, axes=(0, 3, 1, 2)), 24)
    _check(net.build.build(y), machine, _image(1, 16, 6, 5))


@pytest.mark.parametrize("machine", MACHINES)
def test_normalisation_over_joined_channels(machine: str) -> None:
    """Parts that do not begin with a block are copied, and the last block is not full."""
    net = _Net(1, 16, 6, 5)
    parts = [net.conv(net.x, count, kernel) for count, kernel in ((32, 3), (20, 1), (20, 1))]
    x = net("concatenate", *parts, axis=1)
    normal = net("nn.layer_norm", net("transpose", x, axes=(0, 2, 3, 1)), axis=-1)
    y = net.conv(net("transpose", normal, axes=(0, 3, 1, 2)), 24)
    _check(net.build.build(y), machine, _image(1, 16, 6, 5))


@pytest.mark.each_value
@pytest.mark.parametrize("machine", MACHINES)
@pytest.mark.parametrize(("channels", "groups"), [(24, 3), (40, 5), (56, 7)])
def test_groups_that_do_not_fill_the_last_vector(channels: int, groups: int, machine: str) -> None:
    """Two groups of eight channels share a vector of 16, and the last one has its own."""
    net = _Net(1, 33, 9, 8)
    y = net("nn.relu", net.conv(net.x, channels, 3))
    _check(
        net.build.build(net.conv(net.conv(y, channels, 3, groups=groups), 33)),
        machine,
        _image(1, 33, 9, 8),
    )


@pytest.mark.parametrize("machine", MACHINES)
@pytest.mark.parametrize("dtype", ["int8", "int16"])
def test_depthwise_integers(machine: str, dtype: str) -> None:
    """Sums that start from what a zero point makes up for."""
    net = _Net(2, 40, 9, 8)
    weight = net.random.integers(-128, 128, (40, 1, 3, 3)).astype(dtype)
    codes = net("cast", net("clip", net.x, a_min=0.0, a_max=255.0), dtype="uint8")
    operands = codes, net.build.constant(weight), net.build.constant(np.uint8(7))
    sums = net("qnn.conv2d", *operands, groups=40, padding=(1, 1, 1, 1))
    graph = net.build.build(net("cast", sums, dtype="float32"))
    _check(graph, machine, np.abs(_image(2, 40, 9, 8)) * 90)

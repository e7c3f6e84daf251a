"""Small networks at sizes that nothing divides evenly."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from graft.base.dtypes import Array
from graft.ir.builder import Builder
from graft.ir.graph import Graph, Value
from graft.ir.types import tensor


class Network:
    """A graph under construction, with weights drawn as they are asked for."""

    def __init__(self, *shape: int) -> None:
        self.builder = Builder()
        self.random = np.random.default_rng(7)
        self.input = self.builder.input("x", tensor("float32", *shape))

    def __call__(self, op: str, *operands: Value | None, **attrs: object) -> Value:
        return self.builder(op, *operands, **attrs)

    def weights(self, *shape: int, scale: float = 1.0) -> Value:
        drawn: Array = self.random.standard_normal(shape, dtype=np.float32)
        return self.builder.constant(drawn * np.float32(scale))

    def conv(self, x: Value, channels: int, size: int = 3, **attrs: object) -> Value:
        groups = attrs.get("groups", 1)
        inputs = _extent(x, 1) // groups
        scale = (inputs * size * size) ** -0.5
        weight = self.weights(channels, inputs, size, size, scale=scale)
        y = self("nn.conv2d", x, weight, **({"padding": (size // 2,) * 4} | attrs))
        return self("nn.relu", self("nn.bias_add", y, self.weights(channels)))

    def dense(self, x: Value, units: int) -> Value:
        inputs = _extent(x, -1)
        y = self("nn.dense", x, self.weights(units, inputs, scale=inputs**-0.5))
        return self("nn.bias_add", y, self.weights(units), axis=-1)

    def norm(self, x: Value) -> Value:
        length = _extent(x, -1)
        return self("nn.layer_norm", x, self.weights(length), self.weights(length))

    def graph(self, *outputs: Value) -> Graph:
        return self.builder.build(*outputs)


def _extent(value: Value, axis: int) -> int:
    extent = (value.shape or ())[axis]
    assert isinstance(extent, int)
    return extent


def direct_convolutions() -> Graph:
    n = Network(2, 3, 13, 17)
    x = n.conv(n.input, 16, 5, strides=(2, 2))
    x = n.conv(x, 24, 3, strides=(1, 2))
    x = n.conv(x, 40, 1)
    x = n.conv(x, 24, 3, dilation=(2, 2), padding=(2, 1, 0, 3))
    return n.graph(n.conv(x, 24, 3, groups=3))


def winograd() -> Graph:
    """Convolutions for which Winograd's algorithm may be chosen."""
    n = Network(1, 16, 13, 17)
    return n.graph(n.conv(n.conv(n.input, 48), 24))


def residual_network() -> Graph:
    """The layers of an image classifier."""
    n = Network(1, 3, 29, 31)
    x = n.conv(n.input, 16, strides=(2, 2))
    x = n("nn.max_pool2d", x, pool_size=(3, 3), strides=(2, 2), padding=(1, 1, 1, 1))
    x = n("nn.relu", n("add", x, n.conv(n.conv(x, 32, 1), 16)))
    x = n.conv(x, 16, 3, groups=16)
    x = n("concatenate", x, n.conv(x, 8, 1), axis=1)
    x = n("nn.avg_pool2d", x, pool_size=(2, 2), strides=(1, 1))
    x = n("mean", x, axes=(2, 3), keepdims=False)
    return n.graph(n("nn.softmax", n.dense(x, 11), axis=-1))


def transformer_block() -> Graph:
    """Attention over seven tokens of width 36 in three heads, then two dense layers."""
    n = Network(2, 7, 36)
    x = n.norm(n.input)
    heads = [
        n("transpose", n("reshape", n.dense(x, 36), shape=(2, 7, 3, 12)), axes=(0, 2, 1, 3))
        for _ in range(3)
    ]
    scores = n("nn.batch_matmul", heads[0], heads[1], transpose_b=True)
    chances = n("nn.softmax", n("multiply", scores, n.weights(scale=0.3)), axis=-1)
    mixed = n("nn.batch_matmul", chances, heads[2])
    rows = n("reshape", n("transpose", mixed, axes=(0, 2, 1, 3)), shape=(2, 7, 36))
    x = n("add", n.input, n.dense(rows, 36))
    wide = n("nn.gelu", n.dense(n.norm(x), 50))
    return n.graph(n("add", x, n.dense(wide, 36)))


NETWORKS: dict[str, Callable[[], Graph]] = {
    made.__name__: made
    for made in (direct_convolutions, winograd, residual_network, transformer_block)
}

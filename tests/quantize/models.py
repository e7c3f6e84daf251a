"""Small float networks to quantise."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from graft.base.dtypes import Array
from graft.ir.builder import Builder
from graft.ir.graph import Graph, Value
from graft.ir.types import tensor


class Network:
    """Builds a network on images, with random weights that keep activations in range."""

    def __init__(self, *shape: int, seed: int = 0) -> None:
        self.g = Builder()
        self.draw = np.random.default_rng(seed)
        self.x = self.g.input("x", tensor("float32", *shape))

    def conv(self, x: Value, outputs: int, size: int = 3, groups: int = 1) -> Value:
        """A convolution of the same extents along one to three axes, with a bias."""
        inputs, rank = int((x.shape or ())[1]) // groups, len(x.shape or ()) - 2
        scale = (2 / (inputs * size**rank)) ** 0.5
        weight = self.draw.normal(size=(outputs, inputs, *(size,) * rank), scale=scale)
        y = self.g(
            *(f"nn.conv{rank}d", x, self.g.constant(weight.astype(np.float32))),
            padding=(size // 2,) * (2 * rank),
            groups=groups,
        )
        return self.g("nn.bias_add", y, self._bias(outputs), axis=1)

    def dense(self, x: Value, outputs: int) -> Value:
        inputs = int((x.shape or ())[-1])
        weight = self.draw.normal(size=(outputs, inputs), scale=inputs**-0.5).astype(np.float32)
        y = self.g("nn.dense", x, self.g.constant(weight))
        return self.g("nn.bias_add", y, self._bias(outputs), axis=-1)

    def _bias(self, outputs: int) -> Value:
        return self.g.constant(self.draw.normal(size=outputs, scale=0.1).astype(np.float32))

    def relu(self, x: Value) -> Value:
        return self.g("nn.relu", x)

    def classified(self, x: Value, classes: int = 10) -> Graph:
        """Pooled, and a dense layer on it."""
        pooled = self.g("mean", x, axes=(2, 3), keepdims=False)
        return self.g.build(self.dense(pooled, classes))


def residual(seed: int = 0) -> Graph:
    """A stem with pooling, a block with a projection, a block with an identity."""
    n = Network(1, 3, 16, 16, seed=seed)
    x = n.relu(n.conv(n.x, 16))
    x = n.g("nn.max_pool2d", x, pool_size=(3, 3), strides=(2, 2), padding=(1, 1, 1, 1))
    y = n.conv(n.relu(n.conv(x, 24)), 24)
    x = n.relu(n.g("add", y, n.conv(x, 24, size=1)))
    y = n.conv(n.relu(n.conv(x, 24)), 24)
    return n.classified(n.relu(n.g("add", y, x)))


def separable(seed: int = 0) -> Graph:
    """Depthwise convolutions between clipped pointwise ones."""
    n = Network(1, 3, 12, 12, seed=seed)
    x = n.g("clip", n.conv(n.x, 16), a_min=0.0, a_max=6.0)
    y = n.g("clip", n.conv(x, 16, groups=16), a_min=0.0, a_max=6.0)
    return n.classified(n.g("add", n.conv(y, 16, size=1), x))


def branching(seed: int = 0) -> Graph:
    """Branches that are joined along their channels, one of them averaged."""
    n = Network(1, 4, 11, 9, seed=seed)
    x = n.relu(n.conv(n.x, 16))
    mean = n.g("nn.avg_pool2d", x, pool_size=(3, 3), padding=(1, 1, 1, 1))
    branches = [n.relu(n.conv(x, 16, size=1)), n.relu(n.conv(x, 8)), n.conv(mean, 8, size=1)]
    return n.classified(n.conv(n.g("concatenate", *branches, axis=1), 16))


def perceptron(seed: int = 0) -> Graph:
    """Dense layers with what no integer arithmetic exists for between them."""
    n = Network(1, 7, 32, seed=seed)
    x = n.g("nn.gelu", n.dense(n.x, 64))
    x = n.g("add", n.dense(x, 32), n.x)
    return n.g.build(n.g("nn.softmax", n.dense(x, 5), axis=-1))


def signals(seed: int = 0) -> Graph:
    """Convolutions along one axis, with pooling between them."""
    n = Network(1, 3, 40, seed=seed)
    x = n.relu(n.conv(n.x, 16, size=5))
    x = n.g("nn.max_pool1d", x, pool_size=(2,), strides=(2,))
    x = n.relu(n.conv(x, 16, groups=4))
    return n.g.build(n.dense(n.g("mean", x, axes=(2,), keepdims=False), 10))


def volumes(seed: int = 0) -> Graph:
    """Convolutions along three axes."""
    n = Network(1, 2, 6, 8, 8, seed=seed)
    x = n.relu(n.conv(n.relu(n.conv(n.x, 8)), 8))
    return n.g.build(n.dense(n.g("mean", x, axes=(2, 3, 4), keepdims=False), 10))


def transformer(seed: int = 0) -> Graph:
    """A block: attention of two heads and a product of two tensors that are data."""
    n = Network(1, 9, 16, seed=seed)

    def heads(x: Value) -> Value:
        return n.g("transpose", n.g("reshape", x, shape=(1, 9, 2, 8)), axes=(0, 2, 1, 3))

    normal = n.g("nn.layer_norm", n.x, *(n.g.constant(np.ones(16, np.float32)),) * 2, axis=-1)
    mixed = n.g("nn.attention", *(heads(n.dense(normal, 16)) for _ in range(3)))
    x = n.g("reshape", n.g("transpose", mixed, axes=(0, 2, 1, 3)), shape=(1, 9, 16))
    x = n.g("add", n.dense(x, 16), n.x)
    scores = n.g("nn.batch_matmul", x, n.g("transpose", n.dense(x, 16), axes=(0, 2, 1)))
    return n.g.build(n.dense(scores, 5))


NETWORKS: dict[str, Callable[[], Graph]] = {
    "residual": residual,
    "separable": separable,
    "branching": branching,
    "perceptron": perceptron,
    "signals": signals,
    "volumes": volumes,
    "transformer": transformer,
}


def samples(graph: Graph, count: int, seed: int = 0) -> list[dict[str, Array]]:
    """Smooth random inputs."""
    draw = np.random.default_rng(seed)
    return [
        {v.name: draw.normal(size=[int(d) for d in v.shape or ()]).astype(np.float32)}
        for _ in range(count)
        for v in graph.inputs
    ]

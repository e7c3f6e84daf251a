"""What the tests of layouts and memory share: small networks, quickly written down."""

from __future__ import annotations

import numpy as np

import graft.ops  # noqa: F401  (registers the operators)
from graft.backends.host.storage import static_shape
from graft.base.dtypes import Array
from graft.ir.builder import Builder
from graft.ir.graph import Graph, Value
from graft.ir.types import tensor
from graft.passes.group_fusion import group_fusion


class Net:
    """A graph under construction."""

    def __init__(self) -> None:
        self.builder = Builder()
        self.inputs = 0
        self.random = np.random.default_rng(0)

    def array(self, *shape: int) -> Array:
        return self.random.standard_normal(shape, np.float32)

    def input(self, *shape: int) -> Value:
        self.inputs += 1
        return self.builder.input(f"x{self.inputs}", tensor("float32", *shape))

    def __call__(self, op: str, *operands: Value, **attrs: object) -> Value:
        return self.builder(op, *operands, **attrs)  # type: ignore[arg-type]

    def conv(self, data: Value, channels: int, kernel: int = 1) -> Value:
        inputs = static_shape(data)[1]
        weight = self.builder.constant(self.array(channels, inputs, kernel, kernel))
        return self("nn.conv2d", data, weight, padding=(kernel // 2,) * 4)

    def graph(self, *outputs: Value) -> Graph:
        return group_fusion(self.builder.build(*outputs))

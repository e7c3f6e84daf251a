"""Writes an encoder of sentences as an ONNX file: sizes in, a model with drawn weights out.

    python -m benchmarks.encoder FILE.onnx [--layers N] [--width N] [--heads N]

Twelve heads, 384 numbers wide and six layers deep, as encoders of sentences are that run on CPUs:
tokens and a mask in, of any batch and length; one vector per sentence out. Written as exporters do:
attention as two products with a softmax between them, GELU by its error function, positions cut to
the length.
"""

from __future__ import annotations

import argparse
import math
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

WORDS, POSITIONS = 30_000, 512
OPSET = 17


@dataclass
class Network:
    """Collects nodes and weights."""

    width: int
    heads: int
    nodes: list[onnx.NodeProto] = field(default_factory=list)
    weights: list[onnx.TensorProto] = field(default_factory=list)
    random: np.random.Generator = field(default_factory=lambda: np.random.default_rng(0))

    def __call__(self, op_type: str, *inputs: str, **attributes: Any) -> str:
        """Add a node; its result."""
        name = f"{op_type.lower()}{len(self.nodes)}"
        self.nodes.append(helper.make_node(op_type, inputs, [name], name, **attributes))
        return name

    def constant(self, array: Any) -> str:
        name = f"w{len(self.weights)}"
        self.weights.append(numpy_helper.from_array(np.asarray(array), name))
        return name

    def drawn(self, *shape: int, scale: float) -> str:
        return self.constant(self.random.normal(0, scale, shape).astype(np.float32))

    def linear(self, data: str, inputs: int, outputs: int) -> str:
        weight = self.drawn(inputs, outputs, scale=1 / math.sqrt(inputs))
        return self("Add", self.drawn(outputs, scale=0.02), self("MatMul", data, weight))

    def normal(self, data: str) -> str:
        ones, zeros = (self.constant(np.full(self.width, n, np.float32)) for n in (1, 0))
        return self("LayerNormalization", data, ones, zeros, axis=-1, epsilon=1e-12)

    def apart(self, data: str) -> str:
        """[batch, length, width] with the heads as an axis of their own."""
        shape = self.constant(np.array([0, 0, self.heads, self.width // self.heads]))
        return self("Transpose", self("Reshape", data, shape), perm=[0, 2, 1, 3])

    def attended(self, data: str, hidden: str) -> str:
        query, key, value = (
            self.apart(self.linear(data, self.width, self.width)) for _ in range(3)
        )
        scores = self("MatMul", query, self("Transpose", key, perm=[0, 1, 3, 2]))
        root = self.constant(np.float32(math.sqrt(self.width // self.heads)))
        scores = self("Add", self("Div", scores, root), hidden)
        result = self("MatMul", self("Softmax", scores, axis=-1), value)
        together = self("Transpose", result, perm=[0, 2, 1, 3])
        flat = self("Reshape", together, self.constant(np.array([0, 0, self.width])))
        return self.linear(flat, self.width, self.width)

    def gelu(self, data: str) -> str:
        root, one, half = (self.constant(np.float32(n)) for n in (math.sqrt(2), 1, 0.5))
        grown = self("Add", self("Erf", self("Div", data, root)), one)
        return self("Mul", self("Mul", data, grown), half)

    def layer(self, data: str, hidden: str) -> str:
        data = self.normal(self("Add", self.attended(data, hidden), data))
        wide = self.gelu(self.linear(data, self.width, 4 * self.width))
        return self.normal(self("Add", self.linear(wide, 4 * self.width, self.width), data))

    def embedded(self) -> str:
        words = self("Gather", self.drawn(WORDS, self.width, scale=0.05), "tokens")
        zero, one = (self.constant(np.array([n])) for n in (0, 1))
        length = self("Slice", self("Shape", "tokens"), one, self.constant(np.array([2])))
        table = self.drawn(1, POSITIONS, self.width, scale=0.05)
        return self.normal(self("Add", words, self("Slice", table, zero, length, one)))

    def hidden(self) -> str:
        """What is added to the scores of words that are not there."""
        mask = self("Cast", "mask", to=TensorProto.FLOAT)
        axes = self.constant(np.array([1, 2]))
        there = self("Sub", self.constant(np.float32(1)), self("Unsqueeze", mask, axes))
        return self("Mul", there, self.constant(np.float32(-1e4)))

    def pooled(self, data: str) -> str:
        """The mean of the words that are there."""
        axis = self.constant(np.array([2]))
        mask = self("Unsqueeze", self("Cast", "mask", to=TensorProto.FLOAT), axis)
        along = self.constant(np.array([1]))
        total = self("ReduceSum", self("Mul", data, mask), along, keepdims=0)
        return self("Div", total, self("ReduceSum", mask, along, keepdims=0))


def encoder(
    batch: int | str, length: int | str, layers: int = 6, width: int = 384, heads: int = 12
) -> onnx.ModelProto:
    """The model, at sizes that are numbers, or names of such."""
    network = Network(width, heads)
    data, hidden = network.embedded(), network.hidden()
    for _ in range(layers):
        data = network.layer(data, hidden)
    sentence = network.pooled(data)
    shape = [batch, length]
    inputs = [
        helper.make_tensor_value_info(name, TensorProto.INT64, shape) for name in ("tokens", "mask")
    ]
    output = helper.make_tensor_value_info(sentence, TensorProto.FLOAT, [batch, width])
    graph = helper.make_graph(network.nodes, "encoder", inputs, [output], network.weights)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", OPSET)], ir_version=8)


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("file", metavar="FILE.onnx", type=Path)
    for name, default in (("layers", 6), ("width", 384), ("heads", 12)):
        parser.add_argument(f"--{name}", metavar="N", type=int, default=default)
    options = parser.parse_args()
    sizes = (options.layers, options.width, options.heads)
    onnx.save(encoder("batch", "length", *sizes), options.file)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())

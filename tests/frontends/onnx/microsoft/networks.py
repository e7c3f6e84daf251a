"""Small networks in the form in which exporters write them, for others to optimise and quantise."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from graft.base.dtypes import Array

BATCH, LENGTH, HEADS, SIZE, WORDS = 2, 8, 2, 8, 20
HIDDEN = HEADS * SIZE


class Sketch:
    """A model being written down, node by node."""

    def __init__(self) -> None:
        self.nodes: list[onnx.NodeProto] = []
        self.weights: list[onnx.TensorProto] = []
        self.random = np.random.default_rng(0)

    def node(self, op_type: str, *inputs: str, **attributes: Any) -> str:
        """Add a node with one result; its name."""
        result = f"{op_type}_{len(self.nodes)}"
        self.nodes.append(
            helper.make_node(op_type, list(inputs), [result], name=result, **attributes)
        )
        return result

    def constant(self, array: Any, dtype: Any = np.float32) -> str:
        name = f"weight_{len(self.weights)}"
        self.weights.append(numpy_helper.from_array(np.asarray(array, dtype), name))
        return name

    def drawn(self, *shape: int, size: float = 0.3) -> str:
        return self.constant(self.random.standard_normal(shape) * size)

    def model(self, inputs: dict[str, tuple[int, Any]], result: str) -> onnx.ModelProto:
        declared = [
            helper.make_tensor_value_info(name, dtype, shape)
            for name, (dtype, shape) in inputs.items()
        ]
        output = helper.make_tensor_value_info(result, TensorProto.FLOAT, None)
        graph = helper.make_graph(self.nodes, "sketch", declared, [output], self.weights)
        return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 14)], ir_version=8)


def images() -> onnx.ModelProto:
    """Convolutions, a residual sum, a concatenation, pools of both kinds, gates, a classifier."""
    s = Sketch()
    x = s.node("Conv", "x", s.drawn(8, 3, 3, 3), s.drawn(8), pads=[1, 1, 1, 1], strides=[2, 2])
    x = s.node("Relu", x)
    side = s.node("Conv", x, s.drawn(8, 8, 3, 3, size=0.1), s.drawn(8), pads=[1, 1, 1, 1])
    x = s.node("Relu", s.node("Add", side, x))
    x = s.node("MaxPool", x, kernel_shape=[2, 2], strides=[2, 2])
    left = s.node("LeakyRelu", s.node("Conv", x, s.drawn(8, 8, 1, 1), s.drawn(8)), alpha=0.1)
    right = s.node("Conv", x, s.drawn(8, 1, 3, 3), s.drawn(8), group=8, pads=[1, 1, 1, 1])
    right = s.node("Mul", right, s.node("Sigmoid", right))
    x = s.node("Concat", left, right, axis=1)
    x = s.node("AveragePool", x, kernel_shape=[3, 3], strides=[2, 2], pads=[1, 1, 1, 1])
    x = s.node("Flatten", s.node("GlobalAveragePool", x))
    x = s.node("Gemm", x, s.drawn(10, 16), s.drawn(10), transB=1)
    return s.model({"x": (TensorProto.FLOAT, [1, 3, 21, 18])}, s.node("Softmax", x, axis=-1))


def sentences() -> onnx.ModelProto:
    """An encoder of two layers over words, segments and positions, with a mask."""
    s = Sketch()
    places = s.constant(np.arange(LENGTH).reshape(1, LENGTH), np.int64)
    tables = (("words", WORDS), ("segments", 2))
    parts = [s.node("Gather", s.drawn(rows, HIDDEN), name) for name, rows in tables]
    total = s.node("Add", s.node("Add", *parts), s.node("Gather", s.drawn(12, HIDDEN), places))
    x = _normalized(s, total)
    axes = s.constant([1], np.int64), s.constant([2], np.int64)
    mask = s.node("Unsqueeze", s.node("Unsqueeze", "mask", axes[0]), axes[1])
    mask = s.node("Cast", mask, to=TensorProto.FLOAT)
    mask = s.node("Mul", s.node("Sub", s.constant(1.0), mask), s.constant(-10000.0))
    for _ in range(2):
        x = _normalized(s, s.node("Add", _linear(s, _attention(s, x, mask), HIDDEN), x))
        inner = _gelu(s, _linear(s, x, 3 * HIDDEN))
        x = _normalized(s, s.node("Add", _linear(s, inner, HIDDEN, 3 * HIDDEN), x))
    declared = {
        name: (TensorProto.INT64, [BATCH, LENGTH]) for name in ("words", "segments", "mask")
    }
    return s.model(declared, x)


def _linear(s: Sketch, x: str, columns: int, rows: int = HIDDEN) -> str:
    return s.node("Add", s.node("MatMul", x, s.drawn(rows, columns)), s.drawn(columns))


def _normalized(s: Sketch, x: str) -> str:
    centred = s.node("Sub", x, s.node("ReduceMean", x, axes=[-1], keepdims=1))
    square = s.node("Pow", centred, s.constant(2.0))
    variance = s.node("ReduceMean", square, axes=[-1], keepdims=1)
    deviation = s.node("Sqrt", s.node("Add", variance, s.constant(1e-6)))
    normal = s.node("Div", centred, deviation)
    return s.node("Add", s.node("Mul", normal, s.drawn(HIDDEN, size=1)), s.drawn(HIDDEN))


def _attention(s: Sketch, x: str, mask: str) -> str:
    apart = s.constant([0, 0, HEADS, SIZE], np.int64)
    heads = [
        s.node("Transpose", s.node("Reshape", _linear(s, x, HIDDEN), apart), perm=perm)
        for perm in ([0, 2, 1, 3], [0, 2, 3, 1], [0, 2, 1, 3])
    ]
    scores = s.node("Div", s.node("MatMul", *heads[:2]), s.constant(SIZE**0.5))
    weights = s.node("Softmax", s.node("Add", scores, mask), axis=3)
    seen = s.node("Transpose", s.node("MatMul", weights, heads[2]), perm=[0, 2, 1, 3])
    return s.node("Reshape", seen, s.constant([0, 0, HIDDEN], np.int64))


def _gelu(s: Sketch, x: str) -> str:
    error = s.node("Erf", s.node("Div", x, s.constant(2**0.5)))
    return s.node("Mul", s.node("Mul", x, s.node("Add", error, s.constant(1.0))), s.constant(0.5))


def sounds() -> onnx.ModelProto:
    """An LSTM and a product."""
    s = Sketch()
    operands = s.drawn(1, 32, 6), s.drawn(1, 32, 8), s.drawn(1, 64)
    s.nodes.append(helper.make_node("LSTM", ["x", *operands], ["all"], name="lstm", hidden_size=8))
    flat = s.node("Squeeze", "all", s.constant([1], np.int64))
    result = s.node("MatMul", flat, s.drawn(8, 5))
    return s.model({"x": (TensorProto.FLOAT, [9, 2, 6])}, result)


def feeds(model: onnx.ModelProto, seed: int = 0) -> dict[str, Array]:
    """Inputs: words, a mask that ends early, or numbers between 0 and 1."""
    random = np.random.default_rng(seed)
    found: dict[str, Array] = {}
    for info in model.graph.input:
        shape = [dim.dim_value for dim in info.type.tensor_type.shape.dim]
        if info.name == "mask":
            found[info.name] = np.array([[1] * 6 + [0] * 2, [1] * 8])
        elif info.type.tensor_type.elem_type == TensorProto.INT64:
            limit = 2 if info.name == "segments" else WORDS
            found[info.name] = random.integers(0, limit, shape)
        else:
            found[info.name] = random.uniform(0, 1, shape).astype(np.float32)
    return found

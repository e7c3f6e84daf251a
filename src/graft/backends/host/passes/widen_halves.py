"""Computes layers of float16 in float32, and what follows them up to where float16 is asked for.

A graph enters; products and convolutions on float16 leave as those on float32, since processors
multiply no float16, or not faster than they convert them, and kernels would convert both operands
of every product. What is computed from their results stays in float32, so that values are rounded
where other operators, or the caller, read float16: results are closer to exact ones than with a
rounding after each node. Constant operands are widened when the model is compiled.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from graft.base.dtypes import DType
from graft.ir.builder import Builder
from graft.ir.graph import Graph, Node, Value
from graft.ir.op import Kind
from graft.ir.types import TensorType

_HALF, _WIDE = DType.FLOAT16, DType.FLOAT32

# Operators of no kind that says so which are computed like pointwise ones and reductions.
_ROWS = (
    "cumsum",
    "grid_sample",
    "nn.group_norm",
    "nn.instance_norm",
    "nn.layer_norm",
    "nn.log_softmax",
    "nn.lp_normalize",
    "nn.lrn",
    "nn.rms_norm",
    "nn.softmax",
    "resize",
)


def widen_halves(graph: Graph) -> Graph:
    """All such layers of a graph."""
    if not any(_is_layer(node) for node in graph.nodes):
        return graph
    return _Widening(graph).run()


class _Widening:
    """The graph so far: which values there are in float32, and which of those in float16 again."""

    def __init__(self, graph: Graph) -> None:
        self._graph = graph
        self._builder = Builder.beside(graph, "w")
        self._computed: dict[Value, Value] = {}  # by float32 nodes that replace the original ones
        self._wide: dict[Value, Value] = {}
        self._narrow: dict[Value, Value] = {}

    def run(self) -> Graph:
        for node in self._graph.nodes:
            self._builder.location = node.location
            if self._is_widened(node):
                self._widen(node)
            else:
                inputs = tuple(value and self._narrowed(value) for value in node.inputs)
                self._builder.append(
                    node if inputs == node.inputs else replace(node, inputs=inputs)
                )
        outputs = map(self._narrowed, self._graph.outputs)
        return self._builder.build(*outputs, names=self._graph.output_names)

    def _is_widened(self, node: Node) -> bool:
        if not _is_of_halves(node):
            return False
        if _is_layer(node):
            return True
        halves = {value for value in node.args if value.dtype is _HALF}
        rest, kind = halves - self._computed.keys(), node.op.kind
        if kind is Kind.INJECTIVE:  # converting what is only moved would move more
            return rest != halves and rest <= self._graph.constants.keys()
        is_near = kind.is_pointwise or kind is Kind.REDUCTION or node.op.name in _ROWS
        return is_near and rest != halves

    def _widen(self, node: Node) -> None:
        inputs = tuple(value and self._widened(value) for value in node.inputs)
        outputs = tuple(
            Value(self._builder.names(value.name), TensorType(_WIDE, value.shape))
            for value in node.outputs
        )
        self._builder.append(replace(node, inputs=inputs, outputs=outputs))
        self._computed.update(zip(node.outputs, outputs, strict=True))

    def _widened(self, value: Value) -> Value:
        """An operand in float32, if it is of float16."""
        if value.dtype is not _HALF:
            return value
        if value in self._computed:
            return self._computed[value]
        if value not in self._wide:
            literal = self._graph.constants.get(value)
            if literal is None:
                self._wide[value] = self._builder("cast", value, dtype=_WIDE)
            else:
                self._wide[value] = self._builder.constant(literal.array.astype(np.float32))
        return self._wide[value]

    def _narrowed(self, value: Value) -> Value:
        """An operand as it was."""
        if value in self._computed and value not in self._narrow:
            self._narrow[value] = self._builder("cast", self._computed[value], dtype=_HALF)
        return self._narrow.get(value, value)


def _is_of_halves(node: Node) -> bool:
    """Whether a node computes float16 from float16, and no other floats."""
    tensors = (*node.args, *node.outputs)
    if not node.args or not all(isinstance(value.type, TensorType) for value in tensors):
        return False
    floats = {value.dtype for value in node.args if value.dtype.is_float}
    results = {value.dtype for value in node.outputs}
    return floats == results == {_HALF} and not hasattr(node.attrs, "dtype")


def _is_layer(node: Node) -> bool:
    return node.op.kind is Kind.ANCHOR and node.op.name != "resize" and _is_of_halves(node)

"""Removes tensors without elements: they become empty constants, and concatenations skip them."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np

from graft.ir.graph import Graph, Node, Value, make_node
from graft.ir.literal import Literal
from graft.ir.nested import change_nested
from graft.ir.types import TensorType


def eliminate_zero_size(graph: Graph) -> Graph:
    """Drop work on tensors that are empty for certain."""
    graph = change_nested(graph, eliminate_zero_size)
    nodes: list[Node] = []
    changed = False
    for node in graph.nodes:
        new = _without_empty_work(node)
        changed |= new != [node]
        nodes.extend(new)
    return replace(graph, nodes=tuple(nodes)) if changed else graph


def _without_empty_work(node: Node) -> list[Node]:
    if node.op.name == "constant" or not node.op.pure:
        return [node]
    if node.outputs and all(is_empty(value) for value in node.outputs):
        return [_empty_constant(value, node) for value in node.outputs]
    if node.op.name == "concatenate" and any(_is_vacant(v, node) for v in node.args):
        operands = tuple(v for v in node.args if not _is_vacant(v, node))
        return [replace(node, inputs=operands)] if operands else [node]
    return [node]


def is_empty(value: Value) -> bool:
    """Whether the tensor's shape is known and has no element."""
    type_ = value.type
    if not isinstance(type_, TensorType) or not type_.is_static or type_.size != 0:
        return False
    # Beside a 0, NumPy wants the other extents to be of a size that it can count.
    return math.prod(dim for dim in type_.shape or () if isinstance(dim, int) and dim) < 1 << 58


def _is_vacant(value: Value, node: Node) -> bool:
    """Whether an operand of a concatenation adds nothing along its axis."""
    type_ = value.type
    if not isinstance(type_, TensorType) or type_.shape is None:
        return False
    axis: int = node.attrs.axis
    return type_.shape[axis] == 0


def _empty_constant(value: Value, node: Node) -> Node:
    type_ = value.tensor
    shape = tuple(dim for dim in type_.shape or () if isinstance(dim, int))
    literal = Literal(np.zeros(shape, type_.dtype.numpy))
    return make_node("constant", (), (value,), node.location, value=literal)

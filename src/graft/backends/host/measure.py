"""Nodes whose results have sizes that only their data tell, taken apart into native pieces.

A graph enters and leaves. `nonzero` becomes a count, a number that is taken for an extent, and the
search itself, which then knows how much it finds. Choosing boxes becomes the same in memory for all
that may remain, of which only those that do are meant.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from graft.base.dims import bare_symbol
from graft.base.dtypes import DType
from graft.ir.attrs import Attrs
from graft.ir.graph import Graph, Node, Value
from graft.ir.names import FreshNames
from graft.ir.op import get_op
from graft.ir.types import TensorType, Type
from graft.ops.cast import CastAttrs
from graft.ops.reduce import ReduceAttrs

# The last is what stands between native pieces: it takes the number.
_Pieces = Callable[[Node, FreshNames], list[Node]]


def measured(graph: Graph, why_not: Callable[[Node], str]) -> Graph:
    """The graph with such nodes in pieces where `why_not` has nothing against native ones."""
    names = FreshNames(value.name for node in graph.nodes for value in node.outputs)
    names.reserve(*(value.name for value in graph.inputs))
    nodes: list[Node] = []
    for node in graph.nodes:
        taken_apart = _TAKEN_APART.get(node.op.name)
        pieces = [] if taken_apart is None else taken_apart(node, names)
        native = [piece for piece in pieces if piece.op.name not in BETWEEN]
        nodes += pieces if pieces and not any(map(why_not, native)) else [node]
    return replace(graph, nodes=tuple(nodes))


# What runs between native pieces.
BETWEEN = ("sized", "trimmed")


def _nonzero(node: Node, names: FreshNames) -> list[Node]:
    data, found = node.args[0], node.output.type
    shape = found.shape if isinstance(found, TensorType) else None
    if not isinstance(data.type, TensorType) or shape is None or bare_symbol(shape[1]) is None:
        return []
    counted: list[Node] = []
    for dtype in (DType.BOOL, DType.INT64):
        if data.dtype is not dtype:
            counted.append(_made("cast", CastAttrs(dtype), names, (data,), node))
            data = counted[-1].output
    total = _made("sum", ReduceAttrs(), names, (data,), node)
    size = Value(names("size"), TensorType(DType.BOOL, (shape[1],)))
    return [*counted, total, Node(get_op("sized"), (total.output,), Attrs(), (size,)), node]


def _suppression(node: Node, names: FreshNames) -> list[Node]:
    shape = node.output.shape
    if shape is None or bare_symbol(shape[0]) is None:
        return []
    bounded = _made("vision.bounded_non_max_suppression", node.attrs, names, node.inputs, node)
    operands = bounded.outputs
    return [bounded, Node(get_op("trimmed"), operands, Attrs(), node.outputs, node.place)]


def _unique(node: Node, names: FreshNames) -> list[Node]:
    data = node.args[0].type
    if not isinstance(data, TensorType) or node.attrs.axis not in (
        None,
        *((0,) * (data.rank == 1)),
    ):
        return []
    attrs = replace(node.attrs, axis=None)
    found = _made("bounded_unique", attrs, names, node.inputs, node)
    *bounded, total = found.outputs
    inverse = node.outputs[2]
    bounded[2] = inverse
    trimmed = [
        Node(get_op("trimmed"), (rows, total), Attrs(), (value,), node.place)
        for rows, value in zip(bounded, node.outputs, strict=True)
        if value is not inverse
    ]
    return [replace(found, outputs=(*bounded, total)), *trimmed]


_TAKEN_APART: dict[str, _Pieces] = {
    "nonzero": _nonzero,
    "unique": _unique,
    "vision.non_max_suppression": _suppression,
}


def _made(
    name: str, attrs: Attrs, names: FreshNames, inputs: tuple[Value | None, ...], node: Node
) -> Node:
    """A node on some values, in the place of another."""
    op = get_op(name)
    types = [None if value is None else value.type for value in inputs]
    absent = op.absent(len(types))
    results: tuple[Type, ...] = op.result_types(attrs, (*types, *absent))
    stem = node.output.name
    outputs = tuple(Value(names(stem), type_) for type_ in results)
    return Node(op, inputs, attrs, outputs, node.place)

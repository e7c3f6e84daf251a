"""Nodes whose results have sizes that only their data tell, taken apart into native pieces.

A graph enters and leaves. `nonzero` becomes a count, a number that is taken for an extent, and the
search itself, which then knows how much it finds. Choosing boxes becomes the same in memory for all
that may remain, of which only those that do are meant. Where shapes, axes or bounds are operands,
the type rule tells the sizes as soon as their numbers are there, and then the node is as any other.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import cast

from graft.base.dims import UNKNOWN, Dim, bare_symbol, product, symbol
from graft.base.dtypes import DType
from graft.ir.attrs import Attrs
from graft.ir.graph import Graph, Node, Value
from graft.ir.names import FreshNames
from graft.ir.types import TensorType, Type, bound_symbols, symbols_in
from graft.ops import get_op
from graft.ops.cast import CastAttrs
from graft.ops.movement import ReshapeAttrs, TransposeAttrs
from graft.ops.reduce import ReduceAttrs
from graft.ops.search import UniqueAttrs
from graft.ops.size_rules import SIZES, sizes_op

# The last is what stands between native pieces: it takes the number.
_Pieces = Callable[[Node, FreshNames], list[Node]]


def measured(graph: Graph, why_not: Callable[[Node], str], inherited: frozenset[str]) -> Graph:
    """The graph with such nodes in pieces where `why_not` has nothing against native ones.

    Where the symbols of a node's results have numbers before it runs, its operands tell nothing
    new; those of `inherited` symbols come from the graph around this one."""
    names = FreshNames(value.name for value in graph.values)
    names.reserve(*(name for node in graph.nodes for v in node.outputs for name in _symbols(v)))
    nodes: list[Node] = []
    known = {*graph.input_symbols, *inherited}
    for node in graph.nodes:
        told = known.issuperset(name for value in node.outputs for name in _symbols(value))
        by_default = _left_whole if told else _sized_by_operands
        pieces = _TAKEN_APART.get(node.op.name, by_default)(node, names)
        native = [piece for piece in pieces if piece.op.name not in BETWEEN]
        nodes += pieces if pieces and not any(map(why_not, native)) else [node]
        known.update(name for value in node.outputs for name in bound_symbols(value.type))
    return replace(graph, nodes=tuple(nodes))


def _left_whole(_node: Node, _names: FreshNames) -> list[Node]:
    return []


# What runs between native pieces.
BETWEEN = ("sized", "trimmed", SIZES)


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
    data, values = node.args[0], node.outputs[0]
    if node.attrs.axis is None:
        return _distinct(node, names, node.attrs, data, values)
    if data.shape is None or values.shape is None or UNKNOWN in (*data.shape, *values.shape):
        return []
    axis = node.attrs.axis % len(data.shape)
    order = (axis, *(other for other in range(len(data.shape)) if other != axis))
    turned = _made("transpose", TransposeAttrs(order), names, (data,), node)
    extents = cast("tuple[Dim, ...]", turned.output.shape)
    count = cast("Dim", values.shape[axis])
    width = cast("Dim", product(extents[1:]))
    flat = _made(
        "reshape", ReshapeAttrs((extents[0], width), allowzero=True), names, turned.outputs, node
    )
    rows = Value(names(node.output.name), TensorType(data.dtype, (count, width)))
    pieces = _distinct(node, names, replace(node.attrs, axis=0), flat.output, rows)
    shape = ReshapeAttrs((count, *extents[1:]), allowzero=True)
    whole = _made("reshape", shape, names, (rows,), node)
    back = TransposeAttrs(tuple(order.index(other) for other in range(len(order))))
    last = Node(get_op("transpose"), whole.outputs, back, node.outputs[:1], node.place)
    return [turned, flat, *pieces, whole, last]


def _distinct(
    node: Node, names: FreshNames, attrs: UniqueAttrs, data: Value, values: Value
) -> list[Node]:
    """Elements or rows in memory for all of them, then as much of it as is meant."""
    found = _made("bounded_unique", attrs, names, (data,), node)
    *bounded, total = found.outputs
    inverse = node.outputs[2]
    bounded[2] = inverse
    trimmed = [
        Node(get_op("trimmed"), (memory, total), Attrs(), (value,), node.place)
        for memory, value in zip(bounded, (values, *node.outputs[1:]), strict=True)
        if value is not inverse
    ]
    return [replace(found, outputs=(*bounded, total)), *trimmed]


def _symbols(value: Value) -> frozenset[str]:
    return symbols_in(value.type)


def _numbered(node: Node) -> list[int]:
    """The operands that stand for attributes: shapes, axes, bounds."""
    return [at for at, _ in node.op.alternatives if at < len(node.inputs) and node.inputs[at]]


def _sized_by_operands(node: Node, names: FreshNames) -> list[Node]:
    """The sizes, then the node itself."""
    ranked = all(isinstance(v.type, TensorType) and v.type.shape is not None for v in node.outputs)
    if not ranked or not _numbered(node):
        return []
    return [_sizes(node, names), node]


def _sizes(node: Node, names: FreshNames) -> Node:
    """What tells the sizes of a node's results: tensors of their shapes that hold nothing."""
    shapes = [value.tensor.shape for value in node.outputs]
    outputs = tuple(Value(names(SIZES), TensorType(DType.BOOL, shape)) for shape in shapes)
    return Node(sizes_op(node.op), node.inputs, node.attrs, outputs, node.place)


def _reduction(node: Node, names: FreshNames) -> list[Node]:
    """Along axes that are known only then: to extents of 1 first, which tell which they are."""
    data = node.args[0].type
    if not _numbered(node) or node.attrs.keepdims or not isinstance(data, TensorType):
        return _sized_by_operands(node, names)
    left = [dim for dim in node.output.shape or () if dim is not UNKNOWN]
    if data.shape is None or node.output.shape is None or len(left) < len(node.output.shape):
        return []
    kept = replace(node.attrs, keepdims=True)
    (type_,) = node.op.result_types(kept, tuple(value.type for value in node.args))
    assert isinstance(type_, TensorType)
    extents = type_.shape or ()
    shape = [symbol(names("kept")) if dim is UNKNOWN else dim for dim in extents]
    stem = Value(names(node.output.name), TensorType(data.dtype, tuple(shape)))
    reduced = Node(node.op, node.inputs, kept, (stem,), node.place)
    attrs = ReshapeAttrs(tuple(left), allowzero=True)
    view = Node(get_op("reshape"), (stem,), attrs, node.outputs, node.place)
    return [_sizes(reduced, names), _sizes(node, names), reduced, view]


_TAKEN_APART: dict[str, _Pieces] = {
    **dict.fromkeys(("max", "mean", "min", "prod", "sum"), _reduction),
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

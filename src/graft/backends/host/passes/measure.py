"""Nodes with data-dependent sizes, replaced by native nodes around nodes that bind symbols.

A graph enters and leaves. `nonzero` becomes a count, a symbol that is bound to the count, and the
search itself, whose result has that extent. Box selection becomes the same into memory for all
boxes, of which a slice is the result. Where shapes, axes or bounds are operands, a size function
computes the sizes from them, and then the node is like any other.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import cast

import numpy as np

from graft.base.dims import UNKNOWN, Dim, bare_symbol, product, symbol
from graft.base.dtypes import Array, DType, dtype_of
from graft.ir.attrs import Attrs
from graft.ir.graph import Graph, Node, Value
from graft.ir.literal import Literal
from graft.ir.names import FreshNames
from graft.ir.types import TensorType, Type, bound_symbols, symbols_in
from graft.ops import get_op
from graft.ops.cast import CastAttrs
from graft.ops.creation import ArangeAttrs, ConstantAttrs
from graft.ops.index import AxisAttrs
from graft.ops.movement import ConcatenateAttrs, ReshapeAttrs, TransposeAttrs
from graft.ops.reduce import ReduceAttrs
from graft.ops.search import UniqueAttrs
from graft.ops.size_rules import SIZES, size_rule, sizes_op
from graft.ops.slicing import StridedSliceAttrs

_Replacement = Callable[[Node, FreshNames], list[Node]]


def expose_sizes(graph: Graph, why_not: Callable[[Node], str], inherited: frozenset[str]) -> Graph:
    """The graph with such nodes replaced, where `why_not` finds native code for the replacement.

    A node whose results' symbols are bound before it runs stays; `inherited` ones are bound in the
    graph around this one."""
    names = FreshNames(value.name for value in graph.values)
    names.reserve(*(name for node in graph.nodes for v in node.outputs for name in _symbols(v)))
    nodes: list[Node] = []
    bound = {*graph.input_symbols, *inherited}
    for node in graph.nodes:
        is_sized = bound.issuperset(name for value in node.outputs for name in _symbols(value))
        default = _unchanged if is_sized else _sized_by_operands
        replacement = _REPLACEMENTS.get(node.op.name, default)(node, names)
        native = [part for part in replacement if part.op.name not in OUTSIDE]
        nodes += replacement if replacement and not any(map(why_not, native)) else [node]
        bound.update(name for value in node.outputs for name in bound_symbols(value.type))
    return replace(graph, nodes=tuple(nodes))


def _unchanged(_node: Node, _names: FreshNames) -> list[Node]:
    return []


# What runs between native segments.
OUTSIDE = ("sized", "trimmed", SIZES)


def _nonzero(node: Node, names: FreshNames) -> list[Node]:
    data, result = node.args[0], node.output.type
    shape = result.shape if isinstance(result, TensorType) else None
    if not isinstance(data.type, TensorType) or shape is None or bare_symbol(shape[1]) is None:
        return []
    casts: list[Node] = []
    for dtype in (DType.BOOL, DType.INT64):
        if data.dtype is not dtype:
            casts.append(_new_node("cast", CastAttrs(dtype), names, (data,), node))
            data = casts[-1].output
    total = _new_node("sum", ReduceAttrs(), names, (data,), node)
    size = Value(names("size"), TensorType(DType.BOOL, (shape[1],)))
    return [*casts, total, Node(get_op("sized"), (total.output,), Attrs(), (size,)), node]


def _suppression(node: Node, names: FreshNames) -> list[Node]:
    shape = node.output.shape
    if shape is None or bare_symbol(shape[0]) is None:
        return []
    bounded = _new_node("vision.bounded_non_max_suppression", node.attrs, names, node.inputs, node)
    operands = bounded.outputs
    return [bounded, Node(get_op("trimmed"), operands, Attrs(), node.outputs, node.location)]


def _unique(node: Node, names: FreshNames) -> list[Node]:
    data, values = node.args[0], node.outputs[0]
    if node.attrs.axis is None:
        return _bounded_unique(node, names, node.attrs, data, values)
    if data.shape is None or values.shape is None or UNKNOWN in (*data.shape, *values.shape):
        return []
    axis = node.attrs.axis % len(data.shape)
    order = (axis, *(other for other in range(len(data.shape)) if other != axis))
    transposed = _new_node("transpose", TransposeAttrs(order), names, (data,), node)
    extents = cast("tuple[Dim, ...]", transposed.output.shape)
    count = cast("Dim", values.shape[axis])
    width = cast("Dim", product(extents[1:]))
    flat = _new_node(
        "reshape",
        ReshapeAttrs((extents[0], width), allowzero=True),
        names,
        transposed.outputs,
        node,
    )
    rows = Value(names(node.output.name), TensorType(data.dtype, (count, width)))
    parts = _bounded_unique(node, names, replace(node.attrs, axis=0), flat.output, rows)
    shape = ReshapeAttrs((count, *extents[1:]), allowzero=True)
    whole = _new_node("reshape", shape, names, (rows,), node)
    back = TransposeAttrs(tuple(order.index(other) for other in range(len(order))))
    last = Node(get_op("transpose"), whole.outputs, back, node.outputs[:1], node.location)
    return [transposed, flat, *parts, whole, last]


def _bounded_unique(
    node: Node, names: FreshNames, attrs: UniqueAttrs, data: Value, values: Value
) -> list[Node]:
    """Elements or rows in memory for all of them, then slices of as many as there are."""
    search = _new_node("bounded_unique", attrs, names, (data,), node)
    *bounded, total = search.outputs
    inverse = node.outputs[2]
    bounded[2] = inverse
    trimmed = [
        Node(get_op("trimmed"), (memory, total), Attrs(), (value,), node.location)
        for memory, value in zip(bounded, (values, *node.outputs[1:]), strict=True)
        if value is not inverse
    ]
    return [replace(search, outputs=(*bounded, total)), *trimmed]


def _symbols(value: Value) -> frozenset[str]:
    return symbols_in(value.type)


def _numbered(node: Node) -> list[int]:
    """The operands that are given in the place of attributes: shapes, axes, bounds."""
    return [at for at, _ in node.op.alternatives if at < len(node.inputs) and node.inputs[at]]


def _sized_by_operands(node: Node, names: FreshNames) -> list[Node]:
    """The sizes, then the node itself."""
    *before, node = (_count_bounds(node, names) if node.op.name == "strided_slice" else []) or [
        node
    ]
    ranked = all(isinstance(v.type, TensorType) and v.type.shape is not None for v in node.outputs)
    if not ranked or not _numbered(node) or size_rule(node, names) is None:
        return []
    return [*before, _sizes(node, names), node]


def _count_bounds(node: Node, names: FreshNames) -> list[Node]:
    """A slice by bounds of unknown number as one that cuts every axis: bounds that are missing take
    the whole axis. Lists of different lengths do not concatenate and more bounds than axes do not
    fit, so that the size checks of these nodes refuse what the type rule would."""
    data, begin, end, axes, strides = (*node.inputs, None, None, None, None)[:5]
    lists = {1: begin, 2: end} if strides is None else {1: begin, 2: end, 4: strides}
    uncounted = {
        at: value
        for at, value in lists.items()
        if value is not None and value.shape is not None and not isinstance(value.tensor.size, int)
    }
    if len(uncounted) < len(lists) or axes or data is None or UNKNOWN in (data.shape or (UNKNOWN,)):
        return []
    rank, nodes = len(data.shape or ()), list[Node]()

    def call(name: str, attrs: Attrs, *operands: Value) -> Value:
        nodes.append(_new_node(name, attrs, names, operands, node))
        return nodes[-1].output

    counts = [cast("Dim", value.tensor.size) for value in uncounted.values()]
    rows = [
        call("reshape", ReshapeAttrs((1, count), allowzero=True), value)
        for count, value in zip(counts, uncounted.values(), strict=True)
    ]
    table = call("concatenate", ConcatenateAttrs(0), *rows)
    dtype = table.dtype.numpy
    whole_axis = {1: 0, 2: np.iinfo(dtype).max, 4: 1}
    nodes.append(
        _constant(np.array([[whole_axis[at]] * rank for at in lists], dtype), names("all"))
    )
    missing = StridedSliceAttrs((counts[0],), (rank,), (1,), (1,))
    padded = call(
        "concatenate", ConcatenateAttrs(1), table, call("strided_slice", missing, nodes[-1].output)
    )
    padded = call("reshape", ReshapeAttrs((len(rows), rank), allowzero=True), padded)
    operands = list(node.inputs)
    for row, at in enumerate(uncounted):
        cut = call("strided_slice", StridedSliceAttrs((row,), (row + 1,), (0,), (1,)), padded)
        operands[at] = call("reshape", ReshapeAttrs((rank,)), cut)
    return [*nodes, replace(node, inputs=tuple(operands))]


def _sizes(node: Node, names: FreshNames) -> Node:
    """The size function of a node: its results are empty-payload tensors of the node's shapes."""
    shapes = [value.tensor.shape for value in node.outputs]
    outputs = tuple(Value(names(SIZES), TensorType(DType.BOOL, shape)) for shape in shapes)
    return Node(sizes_op(node.op), node.inputs, node.attrs, outputs, node.location)


def _reduction(node: Node, names: FreshNames) -> list[Node]:
    """A reduction along axes that are operands: to extents of 1 first, then a reshape."""
    data = node.args[0].type
    if not _numbered(node) or node.attrs.keepdims or not isinstance(data, TensorType):
        return _sized_by_operands(node, names)
    dims = [dim for dim in node.output.shape or () if dim is not UNKNOWN]
    if data.shape is None or node.output.shape is None or len(dims) < len(node.output.shape):
        return []
    with_axes = replace(node.attrs, keepdims=True)
    (type_,) = node.op.result_types(with_axes, tuple(value.type for value in node.args))
    assert isinstance(type_, TensorType)
    extents = type_.shape or ()
    shape = [symbol(names("kept")) if dim is UNKNOWN else dim for dim in extents]
    stem = Value(names(node.output.name), TensorType(data.dtype, tuple(shape)))
    reduced = Node(node.op, node.inputs, with_axes, (stem,), node.location)
    attrs = ReshapeAttrs(tuple(dims), allowzero=True)
    view = Node(get_op("reshape"), (stem,), attrs, node.outputs, node.location)
    if size_rule(reduced, names) is None or size_rule(node, names) is None:
        return []
    return [_sizes(reduced, names), _sizes(node, names), reduced, view]


def _range(node: Node, names: FreshNames) -> list[Node]:
    """How many floats a range has is computed in double precision."""
    if node.attrs.dtype.is_integer:
        return _sized_by_operands(node, names)
    doubles = [
        _new_node("cast", CastAttrs(DType.FLOAT64), names, (one,), node) for one in node.args
    ]
    start, limit, step = (one.output for one in doubles)
    span = _new_node("subtract", Attrs(), names, (limit, start), node)
    steps = _new_node("divide", Attrs(), names, (span.output, step), node)
    whole = _new_node("ceil", Attrs(), names, steps.outputs, node)
    count = _new_node("cast", CastAttrs(DType.INT64), names, whole.outputs, node)
    counted = Node(
        get_op("arange"),
        (None, count.output, None),
        ArangeAttrs(start=0, delta=1),
        node.outputs,
        node.location,
    )
    return [*doubles, span, steps, whole, count, _sizes(counted, names), node]


def _resized(node: Node, names: FreshNames) -> list[Node]:
    """Sizes by scales that are operands are computed in float32, those that keep the aspect ratio
    of the image in double precision, as ONNX has it."""
    data, roi, scales, sizes = (*node.inputs, None, None, None)[:4]
    policy = node.attrs.keep_aspect_ratio_policy
    if data is None or data.shape is None or (scales is None and policy == "stretch"):
        return _sized_by_operands(node, names)
    nodes: list[Node] = []

    def call(name: str, *operands: Value | None, attrs: Attrs | None = None) -> Value:
        nodes.append(_new_node(name, attrs or Attrs(), names, operands, node))
        return nodes[-1].output

    dtype = DType.FLOAT64 if scales is None else DType.FLOAT32
    extents = call("shape_of", data)
    if node.attrs.axes is not None:
        nodes.append(_constant(np.array(node.attrs.axes), names("axes")))
        extents = call("take", extents, nodes[-1].output, attrs=AxisAttrs())
    extents = call("cast", extents, attrs=CastAttrs(dtype))
    if scales is None:
        ratios = call("divide", call("cast", sizes, attrs=CastAttrs(dtype)), extents)
        scales = call("min" if policy == "not_larger" else "max", ratios, attrs=ReduceAttrs())
        half = _constant(np.array(0.5), names("half"))
        nodes.append(half)
        extents = call("add", call("multiply", extents, scales), half.output)
    else:
        extents = call("multiply", extents, scales)
    whole = call("cast", call("floor", extents), attrs=CastAttrs(DType.INT64))
    attrs = replace(node.attrs, keep_aspect_ratio_policy="stretch", scales=None)
    by_size = replace(node, inputs=(data, roi, None, whole), attrs=attrs)
    return [*nodes, _sizes(by_size, names), node]


def _constant(array: Array, name: str) -> Node:
    value = Value(name, TensorType(dtype_of(array.dtype), array.shape))
    return Node(get_op("constant"), (), ConstantAttrs(Literal(array)), (value,))


_REPLACEMENTS: dict[str, _Replacement] = {
    **dict.fromkeys(("max", "mean", "min", "prod", "sum"), _reduction),
    "arange": _range,
    "nonzero": _nonzero,
    "qnn.resize": _resized,
    "resize": _resized,
    "unique": _unique,
    "vision.non_max_suppression": _suppression,
}


def _new_node(
    name: str, attrs: Attrs, names: FreshNames, inputs: tuple[Value | None, ...], node: Node
) -> Node:
    """A node on some values, at the source location of another."""
    op = get_op(name)
    types = [None if value is None else value.type for value in inputs]
    absent = op.absent(len(types))
    results: tuple[Type, ...] = op.result_types(attrs, (*types, *absent))
    stem = node.output.name
    outputs = tuple(Value(names(stem), type_) for type_ in results)
    return Node(op, inputs, attrs, outputs, node.location)

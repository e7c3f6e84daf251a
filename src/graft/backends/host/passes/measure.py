"""Nodes with data-dependent sizes, replaced by native nodes around nodes that bind symbols.

A graph enters and leaves. `nonzero` becomes a count, a symbol that is bound to the count, and the
search itself, whose result has that extent. Box selection becomes the same into memory for all
boxes, of which a slice is the result. Where shapes, axes or bounds are operands, a size function
computes the sizes from them, and then the node is like any other.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, cast

import numpy as np

from graft.base.dims import UNKNOWN, Dim, bare_symbol, product, symbol
from graft.base.dtypes import Array, DType, dtype_of
from graft.ir.attrs import Attrs, make_attrs
from graft.ir.graph import Graph, Node, Value
from graft.ir.literal import Literal
from graft.ir.names import FreshNames
from graft.ir.types import TensorType, bound_symbols, symbols_in
from graft.ops import get_op
from graft.ops.creation import ArangeAttrs, ConstantAttrs
from graft.ops.movement import ReshapeAttrs, TransposeAttrs
from graft.ops.search import UniqueAttrs
from graft.ops.size_rules import SIZES, size_rule, sizes_op

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


class _Nodes:
    """New nodes in the place of one, at its source location."""

    def __init__(self, node: Node, names: FreshNames) -> None:
        self._node, self.names = node, names
        self.list: list[Node] = []

    def __call__(self, op: str, *operands: Value | None, **attrs: Any) -> Value:
        """Add a node; its first result."""
        return self.call(op, operands, make_attrs(get_op(op).attrs, attrs))[0]

    def call(
        self, name: str, operands: tuple[Value | None, ...], attrs: Attrs
    ) -> tuple[Value, ...]:
        """Add a node whose attributes are ready; its results."""
        op = get_op(name)
        types = [None if value is None else value.type for value in operands]
        results = op.result_types(attrs, (*types, *op.absent(len(types))))
        stem = self._node.output.name
        outputs = tuple(Value(self.names(stem), type_) for type_ in results)
        self.append(name, operands, outputs, attrs)
        return outputs

    def append(
        self,
        name: str,
        operands: tuple[Value | None, ...],
        outputs: tuple[Value, ...],
        attrs: Attrs | None = None,
    ) -> None:
        """Add a node that makes these values."""
        location = self._node.location
        self.list.append(Node(get_op(name), operands, attrs or Attrs(), outputs, location))

    def constant(self, array: Array, name: str) -> Value:
        value = Value(self.names(name), TensorType(dtype_of(array.dtype), array.shape))
        self.append("constant", (), (value,), ConstantAttrs(Literal(array)))
        return value


def _nonzero(node: Node, names: FreshNames) -> list[Node]:
    data, result = node.args[0], node.output.type
    shape = result.shape if isinstance(result, TensorType) else None
    if not isinstance(data.type, TensorType) or shape is None or bare_symbol(shape[1]) is None:
        return []
    new = _Nodes(node, names)
    for dtype in (DType.BOOL, DType.INT64):
        if data.dtype is not dtype:
            data = new("cast", data, dtype=dtype)
    total = new("sum", data)
    new.append("sized", (total,), (Value(names("size"), TensorType(DType.BOOL, (shape[1],))),))
    return [*new.list, node]


def _suppression(node: Node, names: FreshNames) -> list[Node]:
    shape, new = node.output.shape, _Nodes(node, names)
    if shape is None or bare_symbol(shape[0]) is None:
        return []
    bounded = new.call("vision.bounded_non_max_suppression", node.inputs, node.attrs)
    new.append("trimmed", bounded, node.outputs)
    return new.list


def _unique(node: Node, names: FreshNames) -> list[Node]:
    data, values, new = node.args[0], node.outputs[0], _Nodes(node, names)
    if node.attrs.axis is None:
        _bounded_unique(new, node, node.attrs, data, values)
        return new.list
    if data.shape is None or values.shape is None or UNKNOWN in (*data.shape, *values.shape):
        return []
    axis = node.attrs.axis % len(data.shape)
    order = (axis, *(other for other in range(len(data.shape)) if other != axis))
    transposed = new("transpose", data, axes=order)
    extents = cast("tuple[Dim, ...]", transposed.shape)
    count = cast("Dim", values.shape[axis])
    width = cast("Dim", product(extents[1:]))
    flat = new("reshape", transposed, shape=(extents[0], width), allowzero=True)
    rows = Value(names(node.output.name), TensorType(data.dtype, (count, width)))
    _bounded_unique(new, node, replace(node.attrs, axis=0), flat, rows)
    whole = new("reshape", rows, shape=(count, *extents[1:]), allowzero=True)
    back = TransposeAttrs(tuple(order.index(other) for other in range(len(order))))
    new.append("transpose", (whole,), node.outputs[:1], back)
    return new.list


def _bounded_unique(
    new: _Nodes, node: Node, attrs: UniqueAttrs, data: Value, values: Value
) -> None:
    """Elements or rows in memory for all of them, then slices of as many as there are."""
    *bounded, total = new.call("bounded_unique", (data,), attrs)
    search, inverse = new.list.pop(), node.outputs[2]
    bounded[2] = inverse
    new.list.append(replace(search, outputs=(*bounded, total)))
    for memory, value in zip(bounded, (values, *node.outputs[1:]), strict=True):
        if value is not inverse:
            new.append("trimmed", (memory, total), (value,))


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
    rank, new = len(data.shape or ()), _Nodes(node, names)
    counts = [cast("Dim", value.tensor.size) for value in uncounted.values()]
    rows = [
        new("reshape", value, shape=(1, count), allowzero=True)
        for count, value in zip(counts, uncounted.values(), strict=True)
    ]
    table = new("concatenate", *rows, axis=0)
    dtype = table.dtype.numpy
    whole_axis = {1: 0, 2: np.iinfo(dtype).max, 4: 1}
    every = new.constant(np.array([[whole_axis[at]] * rank for at in lists], dtype), "all")
    missing = {"begin": (counts[0],), "end": (rank,), "axes": (1,), "strides": (1,)}
    padded = new("concatenate", table, new("strided_slice", every, **missing), axis=1)
    padded = new("reshape", padded, shape=(len(rows), rank), allowzero=True)
    operands = list(node.inputs)
    for row, at in enumerate(uncounted):
        cut = new("strided_slice", padded, begin=(row,), end=(row + 1,), axes=(0,), strides=(1,))
        operands[at] = new("reshape", cut, shape=(rank,))
    return [*new.list, replace(node, inputs=tuple(operands))]


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
    new = _Nodes(node, names)
    start, limit, step = (new("cast", one, dtype=DType.FLOAT64) for one in node.args)
    steps = new("divide", new("subtract", limit, start), step)
    count = new("cast", new("ceil", steps), dtype=DType.INT64)
    operands, attrs = (None, count, None), ArangeAttrs(start=0, delta=1)
    counted = Node(get_op("arange"), operands, attrs, node.outputs, node.location)
    return [*new.list, _sizes(counted, names), node]


def _resized(node: Node, names: FreshNames) -> list[Node]:
    """Sizes by scales that are operands are computed in float32, those that keep the aspect ratio
    of the image in double precision, as ONNX has it."""
    data, roi, scales, sizes = (*node.inputs, None, None, None)[:4]
    policy = node.attrs.keep_aspect_ratio_policy
    if data is None or data.shape is None or (scales is None and policy == "stretch"):
        return _sized_by_operands(node, names)
    new = _Nodes(node, names)
    dtype = DType.FLOAT64 if scales is None else DType.FLOAT32
    extents = new("shape_of", data)
    if node.attrs.axes is not None:
        extents = new("take", extents, new.constant(np.array(node.attrs.axes), "axes"))
    extents = new("cast", extents, dtype=dtype)
    if scales is None:
        ratios = new("divide", new("cast", sizes, dtype=dtype), extents)
        scales = new("min" if policy == "not_larger" else "max", ratios)
        half = new.constant(np.array(0.5), "half")
        extents = new("add", new("multiply", extents, scales), half)
    else:
        extents = new("multiply", extents, scales)
    whole = new("cast", new("floor", extents), dtype=DType.INT64)
    attrs = replace(node.attrs, keep_aspect_ratio_policy="stretch", scales=None)
    by_size = replace(node, inputs=(data, roi, None, whole), attrs=attrs)
    return [*new.list, _sizes(by_size, names), node]


_REPLACEMENTS: dict[str, _Replacement] = {
    **dict.fromkeys(("max", "mean", "min", "prod", "sum"), _reduction),
    "arange": _range,
    "nonzero": _nonzero,
    "qnn.resize": _resized,
    "resize": _resized,
    "unique": _unique,
    "vision.non_max_suppression": _suppression,
}

"""Ranges of integers in a graph, and the check of indices that may lie outside of an axis.

A node enters; out come the bounds that its operator declares for indices among its operands.
`out_of_range` finds an index outside of them: compilers whose code cannot raise errors emit it
beside such a node and check its result. `IndexRanges` bounds integers by interval arithmetic over
the nodes that compute them, so that the check is left out where no index can lie outside: they are
results of a search along the axis, counted up to its extent or clamped to it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np

from graft.base.dims import UNKNOWN, AnyDim, Unknown, at_least, dim_max, dim_min
from graft.base.dtypes import Array, DType
from graft.ir.attrs import Dims
from graft.ir.graph import Graph, Node, Value
from graft.ir.types import TensorType
from graft.loop.build import Term, cast, equal, maximum, select, term
from graft.loop.ir import Binary, BinaryKind, Cast, Const, Expr, Select, Var
from graft.loop.tensor import Reduce, Tensor, max_
from graft.ops import expression as te
from graft.ops.index import largest_outside, require_integers
from graft.ops.index_bounds import IndexBounds, OutOfRangeAttrs
from graft.ops.pointwise import node_scalar
from graft.ops.reduce import reading_work
from graft.ops.rules import operator, require
from graft.program.guards import INSIDE, Guard


def _out_of_range_type(attrs: OutOfRangeAttrs, indices: TensorType) -> TensorType:
    require_integers(indices)
    entries = len(attrs.extents)
    require(entries > 0, "there is no axis to point into")
    fits = entries == 1 or indices.shape is None or indices.shape[-1:] == (entries,)
    require(fits, f"{indices} does not name {entries} axes")
    return TensorType(DType.INT64, (entries,))


@operator("out_of_range", "indices", _out_of_range_type, work=reading_work)
def _out_of_range(attrs: OutOfRangeAttrs, indices: Array) -> Array:
    """Per axis the largest index outside of it, or the smallest number where there is none."""
    parts = [indices] if len(attrs.extents) == 1 else np.moveaxis(indices, -1, 0)
    guards = [Guard(0, extent, attrs.count, attrs.wraps) for extent in attrs.extents]
    return np.array([largest_outside(*pair) for pair in zip(parts, guards, strict=True)], np.int64)


def index_bounds(node: Node) -> IndexBounds | None:
    """What the indices among a node's operands have to lie in; None where it has none, or where
    ranks or extents are not known."""
    types = [value.type for value in node.args]
    ranked = all(isinstance(t, TensorType) and t.shape is not None for t in types)
    if node.op.index_bounds is None or not ranked:
        return None
    bounds: IndexBounds | None = node.op.index_bounds(node)
    return bounds


# Tensor expressions.


@te.expresses("out_of_range")
def _express_out_of_range(attrs: Any, out: te.Out, indices: Tensor) -> te.Results:
    """Per axis the largest of the indices that lie outside."""
    extents = attrs.extents
    shape = indices.shape if len(extents) == 1 else indices.shape[:-1]
    none, count = te.number(INSIDE, DType.INT64), term(attrs.count)

    def outside(index: Term, extent: Term) -> Term:
        low = 0 - extent if attrs.wraps else term(0)
        wrong = (index < low) | (index > extent - count)
        wrong = wrong if attrs.count == 1 else wrong & (count > 0)
        return select(wrong, maximum(index, te.number(INSIDE + 1, DType.INT64)), none)

    def element(entry: Term) -> Reduce | Term:
        reduced = te.reduce_axes(shape)
        at = [*reduced, *([entry] if len(extents) > 1 else [])]
        extent = term(extents[0])
        for position, other in enumerate(extents[1:], start=1):
            extent = select(equal(entry, position), term(other), extent)
        value = outside(cast(DType.INT64, te.read(indices, at)), extent)
        return max_(value, reduced) if reduced else value

    return out.of(element)


# The smallest and the largest number that there can be.
Range = tuple[AnyDim, AnyDim]
ANYTHING: Range = (UNKNOWN, UNKNOWN)

# What is known of a value.
_Known = Callable[[Value], Range]
_Rule = Callable[[Node, Value, _Known], Range]


class IndexRanges:
    """The ranges of a graph's integers."""

    def __init__(self, graph: Graph) -> None:
        self._known: dict[Value, Range] = {}
        for node in graph.nodes:
            rule = _RANGE_RULES.get(
                node.op.name, None if node.op.scalar is None else _pointwise_range
            )
            for value in node.outputs if rule is not None else ():
                if rule is not None and _is_index(value):
                    self._known[value] = rule(node, value, self.of)

    def of(self, value: Value) -> Range:
        """What the elements of a value lie between, as far as is known."""
        return self._known.get(value, ANYTHING)

    def are_inside(self, bounds: IndexBounds) -> bool:
        """Whether indices surely lie inside of what they point into."""
        low, high = self.of(bounds.indices)
        return all(
            at_least(low + (extent if bounds.wraps else 0), 0)
            and at_least(extent - bounds.count - high, 0)
            for extent in bounds.extents
        )


def index_limits(graph: Graph) -> dict[Value, Dims]:
    """The extents that a graph's inputs have to lie below, those that are used as indices."""
    result: dict[Value, Dims] = {}
    for node in graph.nodes:
        bounds = index_bounds(node)
        if bounds is None:
            continue
        extents = [extent - (bounds.count - 1) for extent in bounds.extents]
        limits = tuple(one for one in extents if not isinstance(one, Unknown))
        for source in source_values(bounds.indices, graph):
            result[source] = (*result.get(source, ()), *limits)
    return result


def source_values(value: Value, graph: Graph) -> Iterator[Value]:
    """The inputs of a graph whose elements a value has as they are."""
    visited: set[Value] = set()
    waiting = [value]
    while waiting:
        one = waiting.pop()
        if one in visited:
            continue
        visited.add(one)
        node = graph.producers.get(one)
        if node is None:
            yield one
        elif _RANGE_RULES.get(node.op.name) is _same_range or node.op.name == "cast":
            waiting.append(node.args[0])
        elif node.op.name in ("concatenate", "where"):
            waiting += node.args


def _is_index(value: Value) -> bool:
    """Whether a value may be indices; narrower integers are what networks are quantised to."""
    return isinstance(value.type, TensorType) and value.dtype in (DType.INT32, DType.INT64)


def _constant_range(node: Node, _value: Value, _of: _Known) -> Range:
    array = node.attrs.value.array
    return (int(array.min()), int(array.max())) if array.size else (0, 0)


def _same_range(node: Node, _value: Value, of: _Known) -> Range:
    return of(node.args[0])


def _joined_range(node: Node, _value: Value, of: _Known) -> Range:
    """Elements of all operands."""
    return _union(*map(of, node.args))


def _union(*ranges: Range) -> Range:
    lows, highs = zip(*ranges, strict=True)
    return dim_min(*lows), dim_max(*highs)


def _search_range(node: Node, value: Value, of: _Known) -> Range:
    """Indices along an axis."""
    if node.op.name == "topk" and value is not node.outputs[1]:
        return of(node.args[0])
    shape = node.args[0].shape
    return (0, shape[node.attrs.axis] - 1) if shape else ANYTHING


def _nonzero_range(node: Node, _value: Value, _of: _Known) -> Range:
    shape = node.args[0].shape
    return (0, dim_max(*shape) - 1) if shape else ANYTHING


def _suppression_range(node: Node, value: Value, _of: _Known) -> Range:
    """Images, classes and boxes."""
    boxes, scores = node.args[0].shape, node.args[1].shape
    if not boxes or not scores or value is not node.outputs[0]:
        return ANYTHING
    return 0, dim_max(*scores[:2], boxes[1]) - 1


def _arange_range(node: Node, _value: Value, _of: _Known) -> Range:
    start, limit, delta = node.attrs.start, node.attrs.limit, node.attrs.delta
    if start is None or limit is None or not isinstance(delta, int):
        return ANYTHING
    return (start, limit - 1) if delta > 0 else (limit + 1, start)


def _pointwise_range(node: Node, _value: Value, of: _Known) -> Range:
    """What the scalar expression can be, by interval arithmetic."""
    operands = enumerate(node.inputs)
    return _interval(node_scalar(node), {f"x{i}": of(v) for i, v in operands if v is not None})


def _interval(expr: Expr, variables: Mapping[str, Range]) -> Range:
    """Extents have no bits that 32-bit integers could lose."""
    match expr:
        case Const() if expr.dtype.is_integer:
            return int(expr.value), int(expr.value)
        case Var():
            return variables[expr.name]
        case Cast():
            truth = expr.value.dtype is DType.BOOL
            return (0, 1) if truth else _interval(expr.value, variables)
        case Select():
            return _union(_interval(expr.yes, variables), _interval(expr.no, variables))
        case Binary() if expr.dtype.is_integer:
            left, right = (_interval(one, variables) for one in (expr.left, expr.right))
            rule = _ARITHMETIC.get(expr.kind)
            return ANYTHING if rule is None else rule(left, right)
    return ANYTHING


def _remainder_range(_left: Range, right: Range) -> Range:
    return (0, right[1] - 1) if at_least(right[0], 1) else ANYTHING


def _maximum_range(left: Range, right: Range) -> Range:
    return _known_of(dim_max, left[0], right[0]), dim_max(left[1], right[1])


def _minimum_range(left: Range, right: Range) -> Range:
    return dim_min(left[0], right[0]), _known_of(dim_min, left[1], right[1])


def _known_of(choose: Callable[..., AnyDim], *bounds: AnyDim) -> AnyDim:
    """The tighter of two bounds, or the one that is known."""
    limits = [bound for bound in bounds if not isinstance(bound, Unknown)]
    return choose(*limits) if limits else UNKNOWN


_ARITHMETIC: dict[BinaryKind, Callable[[Range, Range], Range]] = {
    BinaryKind.ADD: lambda left, right: (left[0] + right[0], left[1] + right[1]),
    BinaryKind.SUBTRACT: lambda left, right: (left[0] - right[1], left[1] - right[0]),
    BinaryKind.MAXIMUM: _maximum_range,
    BinaryKind.MINIMUM: _minimum_range,
    BinaryKind.FLOOR_MODULO: _remainder_range,
}

_SAME = ("broadcast_to", "expand_dims", "gather", "gather_nd", "reshape", "split", "squeeze")

# Beside pointwise operators, whose expressions tell.
_RANGE_RULES: dict[str, _Rule] = {
    **dict.fromkeys((*_SAME, "strided_slice", "take", "tile", "transpose", "trimmed"), _same_range),
    "constant": _constant_range,
    "concatenate": _joined_range,
    "arange": _arange_range,
    "argmax": _search_range,
    "argmin": _search_range,
    "topk": _search_range,
    "nonzero": _nonzero_range,
    "vision.non_max_suppression": _suppression_range,
    "vision.bounded_non_max_suppression": _suppression_range,
}

"""What integers can be, from the nodes that make them: a value in, two bounds out.

So that nobody looks for indices outside of an axis where there can be none: they were found by a
search along it, counted up to its extent or brought within it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

from graft.base.dims import UNKNOWN, AnyDim, Unknown, at_least, dim_max, dim_min
from graft.base.dtypes import DType
from graft.ir.attrs import Dims
from graft.ir.graph import Graph, Node, Value
from graft.ir.types import TensorType
from graft.loop.ir import Binary, BinaryKind, Cast, Const, Expr, Select, Var
from graft.ops.indexed import Pointing, pointing
from graft.ops.pointwise import node_scalar

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
            rule = _RULES.get(node.op.name, None if node.op.scalar is None else _pointwise)
            for value in node.outputs if rule is not None else ():
                if rule is not None and _is_index(value):
                    self._known[value] = rule(node, value, self.of)

    def of(self, value: Value) -> Range:
        """What the elements of a value lie between, as far as is known."""
        return self._known.get(value, ANYTHING)

    def are_inside(self, pointed: Pointing) -> bool:
        """Whether indices surely lie inside of what they point into."""
        low, high = self.of(pointed.indices)
        return all(
            at_least(low + (extent if pointed.wraps else 0), 0)
            and at_least(extent - pointed.count - high, 0)
            for extent in pointed.extents
        )


def index_limits(graph: Graph) -> dict[Value, Dims]:
    """The extents that a graph's inputs have to lie below, those that are used as indices."""
    found: dict[Value, Dims] = {}
    for node in graph.nodes:
        pointed = pointing(node)
        if pointed is None:
            continue
        extents = [extent - (pointed.count - 1) for extent in pointed.extents]
        known = tuple(one for one in extents if not isinstance(one, Unknown))
        for source in source_values(pointed.indices, graph):
            found[source] = (*found.get(source, ()), *known)
    return found


def source_values(value: Value, graph: Graph) -> Iterator[Value]:
    """The inputs of a graph whose elements a value has as they are."""
    seen: set[Value] = set()
    waiting = [value]
    while waiting:
        one = waiting.pop()
        if one in seen:
            continue
        seen.add(one)
        node = graph.producers.get(one)
        if node is None:
            yield one
        elif _RULES.get(node.op.name) is _same or node.op.name == "cast":
            waiting.append(node.args[0])
        elif node.op.name in ("concatenate", "where"):
            waiting += node.args


def _is_index(value: Value) -> bool:
    """Whether a value may be indices; narrower integers are what networks are quantised to."""
    return isinstance(value.type, TensorType) and value.dtype in (DType.INT32, DType.INT64)


def _constant(node: Node, _value: Value, _of: _Known) -> Range:
    array = node.attrs.value.array
    return (int(array.min()), int(array.max())) if array.size else (0, 0)


def _same(node: Node, _value: Value, of: _Known) -> Range:
    return of(node.args[0])


def _joined(node: Node, _value: Value, of: _Known) -> Range:
    """Elements of all operands."""
    return _either(*map(of, node.args))


def _either(*ranges: Range) -> Range:
    lows, highs = zip(*ranges, strict=True)
    return dim_min(*lows), dim_max(*highs)


def _found(node: Node, value: Value, of: _Known) -> Range:
    """Places along an axis."""
    if node.op.name == "topk" and value is not node.outputs[1]:
        return of(node.args[0])
    shape = node.args[0].shape
    return (0, shape[node.attrs.axis] - 1) if shape else ANYTHING


def _nonzero(node: Node, _value: Value, _of: _Known) -> Range:
    shape = node.args[0].shape
    return (0, dim_max(*shape) - 1) if shape else ANYTHING


def _chosen(node: Node, value: Value, _of: _Known) -> Range:
    """Images, classes and boxes."""
    boxes, scores = node.args[0].shape, node.args[1].shape
    if not boxes or not scores or value is not node.outputs[0]:
        return ANYTHING
    return 0, dim_max(*scores[:2], boxes[1]) - 1


def _counted(node: Node, _value: Value, _of: _Known) -> Range:
    start, limit, delta = node.attrs.start, node.attrs.limit, node.attrs.delta
    if start is None or limit is None or not isinstance(delta, int):
        return ANYTHING
    return (start, limit - 1) if delta > 0 else (limit + 1, start)


def _pointwise(node: Node, _value: Value, of: _Known) -> Range:
    """What the scalar expression can be, by interval arithmetic."""
    operands = enumerate(node.inputs)
    return _evaluated(node_scalar(node), {f"x{i}": of(v) for i, v in operands if v is not None})


def _evaluated(expr: Expr, variables: Mapping[str, Range]) -> Range:
    """Extents have no bits that 32-bit integers could lose."""
    match expr:
        case Const() if expr.dtype.is_integer:
            return int(expr.value), int(expr.value)
        case Var():
            return variables[expr.name]
        case Cast():
            truth = expr.value.dtype is DType.BOOL
            return (0, 1) if truth else _evaluated(expr.value, variables)
        case Select():
            return _either(_evaluated(expr.yes, variables), _evaluated(expr.no, variables))
        case Binary() if expr.dtype.is_integer:
            left, right = (_evaluated(one, variables) for one in (expr.left, expr.right))
            rule = _ARITHMETIC.get(expr.kind)
            return ANYTHING if rule is None else rule(left, right)
    return ANYTHING


def _remainder(_left: Range, right: Range) -> Range:
    return (0, right[1] - 1) if at_least(right[0], 1) else ANYTHING


def _larger(left: Range, right: Range) -> Range:
    return _known_of(dim_max, left[0], right[0]), dim_max(left[1], right[1])


def _smaller(left: Range, right: Range) -> Range:
    return dim_min(left[0], right[0]), _known_of(dim_min, left[1], right[1])


def _known_of(choose: Callable[..., AnyDim], *bounds: AnyDim) -> AnyDim:
    """The tighter of two bounds, or the one that is known."""
    known = [bound for bound in bounds if not isinstance(bound, Unknown)]
    return choose(*known) if known else UNKNOWN


_ARITHMETIC: dict[BinaryKind, Callable[[Range, Range], Range]] = {
    BinaryKind.ADD: lambda left, right: (left[0] + right[0], left[1] + right[1]),
    BinaryKind.SUBTRACT: lambda left, right: (left[0] - right[1], left[1] - right[0]),
    BinaryKind.MAXIMUM: _larger,
    BinaryKind.MINIMUM: _smaller,
    BinaryKind.FLOOR_MODULO: _remainder,
}

_SAME = ("broadcast_to", "expand_dims", "gather", "gather_nd", "reshape", "split", "squeeze")

# Beside pointwise operators, whose expressions tell.
_RULES: dict[str, _Rule] = {
    **dict.fromkeys((*_SAME, "strided_slice", "take", "tile", "transpose", "trimmed"), _same),
    "constant": _constant,
    "concatenate": _joined,
    "arange": _counted,
    "argmax": _found,
    "argmin": _found,
    "topk": _found,
    "nonzero": _nonzero,
    "vision.non_max_suppression": _chosen,
    "vision.bounded_non_max_suppression": _chosen,
}

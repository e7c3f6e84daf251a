"""Bounds of indices that are data: which operand of a node is one, and the axes it has to lie in.

A kernel cannot raise an error. So a tensor expression clamps an index that is data to the extent of
the axis (`te.clamped`), which keeps reads inside of tensors; `unclamped_read` finds one that is
not, and its expression is refused. Where an index outside is an error, the operator declares it as
well (`operator(..., index_bounds=along_axis)`): a check beside the kernel then raises it after the
run (`ops/indexed.py`).
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from graft.base.dims import Dim, Unknown
from graft.ir.attrs import Attrs, Dims
from graft.ir.graph import Node, Value
from graft.loop.ir import Binary, BinaryKind, Call, Cast, Compare, Const, Expr, Load, Select, Var
from graft.loop.tensor import Reduce, Tensor, in_order
from graft.loop.traverse import walk_expr
from graft.program.guards import Guard


@dataclass(frozen=True, slots=True)
class OutOfRangeAttrs(Attrs):
    """The extents of the axes that indices point into: one, or one per entry of their last axis."""

    extents: Dims
    count: Dim = 1  # elements from an index on have to lie inside
    wraps: bool = True  # whether negative indices count from the end


@dataclass(frozen=True, slots=True)
class IndexBounds:
    """Indices and the axes that they, or the entries of their last axis, have to lie in."""

    indices: Value
    axes: tuple[int, ...]
    extents: Dims
    count: Dim = 1
    wraps: bool = True
    message: str = ""

    @property
    def attrs(self) -> OutOfRangeAttrs:
        return OutOfRangeAttrs(self.extents, self.count, self.wraps)

    def guards(self, node: Node) -> Iterator[Guard]:
        """The run-time checks of the node, one per axis that is indexed."""
        for axis, extent in zip(self.axes, self.extents, strict=True):
            yield Guard(axis, extent, self.count, self.wraps, node.location, self.message)


def bounds_of(node: Node, indices: Value, axes: Sequence[int], **more: Any) -> IndexBounds | None:
    """The bounds of indices into axes of the first operand; None where an extent is not known."""
    extents = [(node.args[0].shape or ())[axis] for axis in axes]
    limits = tuple(extent for extent in extents if not isinstance(extent, Unknown))
    whole = bool(limits) and len(limits) == len(extents)
    return IndexBounds(indices, tuple(axes), limits, **more) if whole else None


def along_axis(node: Node) -> IndexBounds | None:
    """The second operand indexes the axis that the attribute `axis` names."""
    return bounds_of(node, node.args[1], [node.attrs.axis % len(node.args[0].shape or (0,))])


def by_tuples(node: Node) -> IndexBounds | None:
    """The last axis of the second operand lists an index per axis, from `batch_dims` on."""
    length = (node.args[1].shape or (0,))[-1]
    first = getattr(node.attrs, "batch_dims", 0)
    entries = range(first, first + length) if isinstance(length, int) else ()
    return bounds_of(node, node.args[1], entries)


def of_images(node: Node) -> IndexBounds | None:
    """The third operand says which image of a batch each box belongs to."""
    return bounds_of(node, node.args[2], [0], wraps=False)


# Whether an index is bounded from below and from above.
_Bounded = tuple[bool, bool]
_BOTH: _Bounded = (True, True)
_NEITHER: _Bounded = (False, False)
_ROUNDING = ("ceil", "floor", "round", "trunc")


def unclamped_read(results: Sequence[Tensor], inputs: Collection[Tensor]) -> Tensor | None:
    """A tensor that is read at an index which depends on elements of the inputs and is not clamped
    (`minimum`, `maximum`, a remainder) from both sides; None where there is none.

    It looks at the form of expressions only: that the limits are those of the axis is not proven.
    """
    tensors = {tensor.buffer: tensor for tensor in in_order(results)}
    search = _ClampSearch(tensors, {tensor.buffer for tensor in inputs})
    for tensor in tensors.values():
        for expr in _bodies(tensor):
            for load in walk_expr(expr):
                if isinstance(load, Load) and not all(map(search.is_clamped, load.indices)):
                    return tensors[load.buffer]
    return None


def _bodies(tensor: Tensor) -> tuple[Expr, ...]:
    body = tensor.body
    if isinstance(body, Reduce):
        return body.body, body.initial
    return () if body is None else (body,)


class _ClampSearch:
    """Which index expressions are bounded, memoised."""

    def __init__(self, tensors: Mapping[Any, Tensor], inputs: Collection[Any]) -> None:
        self._tensors = tensors
        self._inputs = inputs
        self._memo: dict[Expr, _Bounded] = {}

    def is_clamped(self, expr: Expr) -> bool:
        return self._bounded(expr) == _BOTH

    def _bounded(self, expr: Expr) -> _Bounded:
        if isinstance(expr, Const | Var | Compare):
            return _BOTH
        if expr not in self._memo:
            self._memo[expr] = self._compute(expr)
        return self._memo[expr]

    def _compute(self, expr: Expr) -> _Bounded:
        match expr:
            case Load():
                return self._element(expr)
            case Cast():
                return self._bounded(expr.value)
            case Select():
                return _each(self._bounded(expr.yes), self._bounded(expr.no))
            case Binary():
                return _combined(expr.kind, self._bounded(expr.left), self._bounded(expr.right))
            case Call() if expr.name in _ROUNDING:
                return self._bounded(expr.arguments[0])
        return _NEITHER

    def _element(self, load: Load) -> _Bounded:
        """Of an input nothing is known but that unsigned numbers are not negative; constant tables
        are as their author made them."""
        if load.buffer in self._inputs:
            return load.dtype.is_unsigned_integer, False
        tensor = self._tensors[load.buffer]
        body = tensor.body
        if body is None:
            return _BOTH
        return self._bounded(body.body if isinstance(body, Reduce) else body)


def _each(one: _Bounded, other: _Bounded) -> _Bounded:
    return one[0] and other[0], one[1] and other[1]


def _combined(kind: BinaryKind, left: _Bounded, right: _Bounded) -> _Bounded:
    match kind:
        case BinaryKind.MAXIMUM:
            return left[0] or right[0], left[1] and right[1]
        case BinaryKind.MINIMUM:
            return left[0] and right[0], left[1] or right[1]
        case BinaryKind.ADD:
            return _each(left, right)
        case BinaryKind.SUBTRACT:
            return _each(left, (right[1], right[0]))
        case BinaryKind.FLOOR_MODULO:
            return _BOTH if right == _BOTH else _NEITHER
    return _BOTH if left == right == _BOTH else _NEITHER

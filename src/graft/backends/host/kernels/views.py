"""Merge axes: consecutive axes that all operands have, or broadcast along, become one loop.

Input: a result's shape, and the shapes of its operands, which broadcast to it. Output: the fewest
axes to loop over (runs of the original ones), and each operand's extents along them. Tensors are
row-major and not copied. Extents may be symbolic if it is known which operands are broadcast.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import reduce

from graft.backends.host.coordinates import modulo, over, times
from graft.backends.host.group import Group
from graft.backends.host.kernel import Parameters, Stores
from graft.backends.host.storage import index, shape_of
from graft.base.dims import Dim, Unknown, product
from graft.base.dtypes import DType
from graft.base.errors import InternalError
from graft.ir.graph import Node, Value
from graft.ir.literal import Literal
from graft.loop.ir import Const, Expr, For, LoopKind, Stmt, Var
from graft.loop.statements import bound
from graft.ops.mixed import HALVES
from graft.rewrite.rule import Refusal

Extents = tuple[Dim, ...]

_FLOATS = (DType.FLOAT32, DType.FLOAT64)
_EXACT = (*_FLOATS, DType.INT8, DType.UINT8, DType.INT32, DType.INT64, DType.BOOL)
_CHOOSING = frozenset(("where", "equal", "greater", "greater_equal", "less", "less_equal", "cast"))
# Operators whose formula holds for integers and truth values as well.
_ON_INTEGERS = frozenset(
    (
        *("add", "subtract", "multiply", "maximum", "minimum", "negative"),
        *("equal", "greater", "greater_equal", "less", "less_equal"),
        *("logical_and", "logical_or", "where", "cast", "nn.bias_add", "nn.relu"),
        "qnn.saturate",
    )
)


@dataclass(frozen=True, slots=True)
class Axes:
    """The axes of a result, grouped into runs of consecutive axes, with one loop each."""

    shape: Extents
    runs: tuple[tuple[int, int], ...]  # half-open: first axis, axis after the last

    @property
    def extents(self) -> Extents:
        """The number of elements along each run."""
        return self.view(self.shape)

    def view(self, shape: Extents) -> Extents:
        """An operand's extents along the runs; 1 for a run along which it is broadcast."""
        whole = padded(shape, len(self.shape))
        return tuple(total(whole[first:stop]) for first, stop in self.runs)

    @property
    def numbers(self) -> tuple[int, ...]:
        """The static extents of the runs; an internal error if one is symbolic."""
        return numbers(self.extents)


def numbers(extents: Extents) -> tuple[int, ...]:
    """The extents as integers; an internal error if one is symbolic."""
    sizes = tuple(extent for extent in extents if isinstance(extent, int))
    if len(sizes) < len(extents):
        raise InternalError(f"the extents {extents} are not numbers")
    return sizes


def total(extents: Extents) -> Dim:
    """The number of elements of a tensor with these extents."""
    count = product(extents)
    if isinstance(count, Unknown):
        raise InternalError(f"the extents {extents} are too large an expression")
    return count


def padded(shape: Extents, rank: int) -> Extents:
    """The shape with leading axes of extent 1 up to the rank, as in broadcasting."""
    return (1,) * (rank - len(shape)) + shape


def merged(shape: Extents, operands: Iterable[Extents], apart: int = 0) -> Axes:
    """The fewest runs such that each operand is broadcast along all axes of a run or along none.

    Each of the last `apart` axes is a run of its own. There is at least one run; it may be empty.
    """
    rank = len(shape)
    others = [padded(operand, rank) for operand in operands]
    runs: list[tuple[int, int]] = []
    # Which operands are not broadcast along the current run; None: all its extents are 1 so far.
    current_has: tuple[bool, ...] | None = None
    for axis in range(rank - apart):
        has = tuple(operand[axis] != 1 for operand in others) if shape[axis] != 1 else None
        if runs and (has is None or current_has is None or has == current_has):
            runs[-1] = (runs[-1][0], axis + 1)
        else:
            runs.append((axis, axis + 1))
        current_has = current_has if has is None else has
    runs += [(axis, axis + 1) for axis in range(rank - apart, rank)]
    return Axes(shape, tuple(runs) or ((0, 0),))


def operand_shapes(nodes: Sequence[Node], rank: int) -> dict[Value, Extents] | Refusal:
    """The operands of pointwise nodes, each with its shape padded to `rank` axes."""
    inside = {value for node in nodes for value in node.outputs}
    shapes: dict[Value, Extents] = {}
    for node in nodes:
        for position, value in enumerate(node.args):
            behind = 0  # axes of the result after those of the operand
            if node.op.name == "nn.bias_add" and position == 1:
                behind = len(shape_of(node.output)) - 1 - node.attrs.axis
                behind = behind if node.attrs.axis >= 0 else ~node.attrs.axis
            if value in inside:
                if behind:  # its own operands would need padding along that axis, too
                    return Refusal(f"the bias %{value.name} is computed in the same kernel", node)
                continue
            shape = padded((*shape_of(value), *(1,) * behind), rank)
            if shapes.setdefault(value, shape) != shape:
                return Refusal(f"%{value.name} is read along different axes")
    return shapes


def not_pointwise(nodes: Sequence[Node]) -> Refusal | None:
    """Why the nodes cannot be computed element by element, if they cannot."""
    for node in nodes:
        name = node.op.name
        if node.op.scalar is None:
            return Refusal(f"{name} has no formula for one element", node)
        dtypes = {value.dtype for value in (*node.args, *node.outputs)}
        allowed = _EXACT if name in _ON_INTEGERS else _FLOATS
        wrong = dtypes - set(allowed) - ({DType.BOOL} if name in _CHOOSING else set())
        wrong -= set(HALVES) if name == "cast" else set()
        if wrong:
            listed = ", ".join(sorted(str(dtype) for dtype in wrong))
            return Refusal(f"{name} on {listed}", node)
    return None


def viewed(group: Group, stores: Stores, shapes: Mapping[Value, Extents]) -> Parameters:
    """Parameters of a kernel whose tensors are reshaped to these extents."""
    constants = {
        value: Literal(literal.array.reshape(numbers(shapes.get(value, literal.array.shape))))
        for value, literal in group.constants.items()
    }
    changed = {
        group.outer(value): replace(stores[group.outer(value)], shape=shape)
        for value, shape in shapes.items()
        if value not in constants
    }
    return Parameters(replace(group, constants=constants), {**stores, **changed})


def unflattened(number: Expr, extents: Sequence[Expr | int]) -> tuple[Expr, ...]:
    """The index along each axis of an element, from its row-major linear index."""
    indices: list[Expr] = []
    inner: Expr = Const(1)
    for position, extent in reversed(list(enumerate(extents))):
        (whole,) = index(extent)
        place = over(number, inner)
        indices.append(
            Const(0) if whole == Const(1) else modulo(place, whole) if position else place
        )
        inner = times(inner, whole)
    return tuple(reversed(indices))


def shared_loop(parts: Sequence[tuple[Var, Expr | int]], body: Stmt) -> Stmt:
    """One parallel loop over all combinations of indices; the last index varies fastest."""
    job = Var("job")
    indices = unflattened(job, [extent for _, extent in parts])
    body = bound([(var, value) for (var, _), value in zip(parts, indices, strict=True)], body)
    one: Expr = Const(1)
    count = reduce(times, (extent for _, extent in parts), one)
    return For(job, Const(0), count, body, LoopKind.PARALLEL)


def unclear(shape: Extents, operands: Iterable[Extents]) -> Refusal | None:
    """A refusal if symbolic extents leave open whether an operand is broadcast along an axis."""
    for operand in operands:
        for extent, whole in zip(padded(operand, len(shape)), shape, strict=True):
            if extent not in (1, whole):
                return Refusal(f"{extent} elements may or may not be repeated along {whole}")
    return None

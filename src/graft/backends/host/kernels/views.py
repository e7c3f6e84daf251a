"""Tensors under other extents: runs of axes that every operand treats alike are one axis.

In go a result's shape and the shapes of what is read beside it, as NumPy would broadcast them; out
come few axes to loop over, and each operand's extents along them. Row-major memory stays as it is.
Extents may be symbolic, as long as it is known which operands are repeated along them.
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
    """A result's axes in runs, each of which is looped over as one axis."""

    shape: Extents
    runs: tuple[tuple[int, int], ...]  # first axis and the one behind the last

    @property
    def extents(self) -> Extents:
        """How far each run goes."""
        return self.view(self.shape)

    def view(self, shape: Extents) -> Extents:
        """An operand's extents along the runs; a run that it does not have is 1."""
        whole = padded(shape, len(self.shape))
        return tuple(total(whole[first:stop]) for first, stop in self.runs)

    @property
    def numbers(self) -> tuple[int, ...]:
        """How far each run goes, where that is known."""
        return numbers(self.extents)


def numbers(extents: Extents) -> tuple[int, ...]:
    """Extents that are known."""
    sizes = tuple(extent for extent in extents if isinstance(extent, int))
    if len(sizes) < len(extents):
        raise InternalError(f"the extents {extents} are not numbers")
    return sizes


def total(extents: Extents) -> Dim:
    """How many elements there are."""
    count = product(extents)
    if isinstance(count, Unknown):
        raise InternalError(f"the extents {extents} are too large an expression")
    return count


def padded(shape: Extents, rank: int) -> Extents:
    """The shape with the leading axes of extent 1 that broadcasting imagines."""
    return (1,) * (rank - len(shape)) + shape


def merged(shape: Extents, operands: Iterable[Extents], apart: int = 0) -> Axes:
    """The fewest runs such that each operand has all of a run or nothing of it.

    The last `apart` axes are runs of their own. There is at least one run, if an empty one.
    """
    rank = len(shape)
    others = [padded(operand, rank) for operand in operands]
    runs: list[tuple[int, int]] = []
    # Which operands have the current run; None: not known yet.
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
    """What pointwise nodes read, with the shape under which it broadcasts to `rank` axes."""
    inside = {value for node in nodes for value in node.outputs}
    shapes: dict[Value, Extents] = {}
    for node in nodes:
        for position, value in enumerate(node.args):
            behind = 0  # axes of the result behind those of the operand
            if node.op.name == "nn.bias_add" and position == 1:
                behind = len(shape_of(node.output)) - 1 - node.attrs.axis
                behind = behind if node.attrs.axis >= 0 else ~node.attrs.axis
            if value in inside:
                if behind:  # what it is computed from would have to be seen along that axis, too
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
    """Parameters of a kernel that sees the tensors under these extents."""
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
    """The index along each axis of the element that has a number in row-major order."""
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
    """One loop over all combinations of indices, the last part's fastest, for threads to share."""
    job = Var("job")
    indices = unflattened(job, [extent for _, extent in parts])
    body = bound([(var, value) for (var, _), value in zip(parts, indices, strict=True)], body)
    one: Expr = Const(1)
    count = reduce(times, (extent for _, extent in parts), one)
    return For(job, Const(0), count, body, LoopKind.PARALLEL)


def unclear(shape: Extents, operands: Iterable[Extents]) -> Refusal | None:
    """Why it is not known which operands are repeated along an axis, if it is not."""
    for operand in operands:
        for extent, whole in zip(padded(operand, len(shape)), shape, strict=True):
            if extent not in (1, whole):
                return Refusal(f"{extent} elements may or may not be repeated along {whole}")
    return None

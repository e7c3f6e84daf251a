"""Cuts results into boxes, in each of which all elements are computed by one formula.

A concatenation or a padding is an expression that selects by index. Its loops would decide element
by element; so a result is cut where the decision changes, and each box has a loop nest of its own.
Boxes enter lowering as results of their own and end in the memory of the one they are cut from.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain

from graft.backends.host.kernels.expression.stages import kept_stages
from graft.base.bounds import Range
from graft.base.polynomials import SYMBOL, Polynomial, plus
from graft.loop.index import ZERO, add, expression, is_index, polynomial
from graft.loop.ir import (
    Binary,
    BinaryKind,
    Block,
    Buffer,
    Compare,
    CompareKind,
    Const,
    Expr,
    Function,
    Load,
    Ramp,
    Select,
    Stmt,
    Store,
    Var,
)
from graft.loop.names import unique_names
from graft.loop.nest import short
from graft.loop.ranges import Context
from graft.loop.schedule import Inline, Schedule
from graft.loop.simplify import simplify, simplify_stmt
from graft.loop.stages import body_expressions, reads, rewrite_stages
from graft.loop.tensor import Reduce, Tensor, in_order
from graft.loop.traverse import map_stmt, substitute, variables, walk_expr
from graft.loop.vectors import broadcast

# More boxes than this are too much code for one kernel, unless there are as many operands.
MOST_BOXES = 64

_Ranges = tuple[tuple[Expr, Expr], ...]  # per axis, the first index and the one behind the last


@dataclass(frozen=True, eq=False)
class Box:
    """A part of a result, as a tensor of its own, and where it begins."""

    result: Tensor
    tensor: Tensor
    starts: tuple[Expr, ...]

    @property
    def is_cut(self) -> bool:
        """Whether the box is not the whole result."""
        return self.tensor is not self.result


def cut_into_boxes(results: Sequence[Tensor]) -> list[Box]:
    """The boxes of results; one that needs no cut is a box itself."""
    tensors, names = in_order(results), {result.name for result in results}
    if not any(map(_selects, tensors)):
        return [_whole(one) for one in results]
    kept = kept_stages(tensors, results)
    inner = [one.name for one in tensors if one.body is not None and one.name not in kept]
    stages = rewrite_stages(tensors, names, Schedule.of({name: [Inline()] for name in inner}))
    return list(chain.from_iterable(_boxes(one, stages[one.name], kept) for one in results))


def join(result: Tensor, operands: Sequence[Tensor], starts: Sequence[Expr]) -> list[Box]:
    """The boxes of operands that begin at these indices of the result's last axis."""
    leading = (ZERO,) * (len(result.shape) - 1)
    boxes: list[Box] = []
    for number, (operand, start) in enumerate(zip(operands, starts, strict=True)):
        name = f"{result.name}_box{number}"
        axes = tuple(Var(f"{name}@i{axis}") for axis in range(len(operand.shape)))
        buffer = replace(result.buffer, name=name, extents=operand.shape)
        tensor = Tensor(buffer, axes, Load(operand.buffer, axes), (operand,))
        if ZERO not in operand.shape:
            boxes.append(Box(result, tensor, (*leading, start)))
    return boxes


def _whole(result: Tensor) -> Box:
    return Box(result, result, (ZERO,) * len(result.shape))


def _selects(tensor: Tensor) -> bool:
    parts = chain.from_iterable(map(walk_expr, body_expressions(tensor)))
    return any(isinstance(part, Select) for part in parts)


def in_one_memory(functions: Sequence[Function], boxes: Sequence[Box]) -> Function:
    """One function of those that compute boxes, with results in the place of their boxes."""
    by_name = {box.tensor.name: box for box in boxes if box.is_cut}

    def stored(stmt: Stmt) -> Stmt:
        box = by_name.get(stmt.buffer.name) if isinstance(stmt, Store) else None
        if box is None or not isinstance(stmt, Store):
            return stmt
        indices = tuple(map(_shifted, stmt.indices, box.starts))
        return replace(stmt, buffer=box.result.buffer, indices=indices)

    if not by_name:
        (function,) = functions
        return function
    listed = list(chain.from_iterable(function.parameters for function in functions))
    buffers = [
        by_name[one.name].result.buffer if one.name in by_name else one
        for one in listed
        if isinstance(one, Buffer)
    ]
    indices = (one for box in boxes for one in (*box.starts, *box.result.shape))
    scalars = [one for one in listed if isinstance(one, Var)]
    scalars += [one for index in indices for one in walk_expr(index) if isinstance(one, Var)]
    unique: dict[Buffer | Var, None] = dict.fromkeys([*buffers, *scalars])
    parameters = tuple(unique)
    bodies = (map_stmt(function.body, lambda expr: expr, stored) for function in functions)
    body = unique_names(simplify_stmt(Block(tuple(bodies))), [one.name for one in parameters])
    return replace(functions[0], parameters=parameters, body=body)


def _shifted(index: Expr, start: Expr) -> Expr:
    if start == ZERO:
        return index
    if isinstance(index, Ramp):
        return replace(index, base=_shifted(index.base, start))
    return Binary(BinaryKind.ADD, index, broadcast(start, index.lanes))


def _boxes(result: Tensor, stage: Tensor, kept: set[str]) -> list[Box]:
    is_plain = kept.isdisjoint(reads(stage)) and ZERO not in stage.shape
    if isinstance(stage.body, Reduce) or not is_plain:
        return [_whole(result)]
    formulas = _formulas(stage, tuple((ZERO, extent) for extent in stage.shape))
    if len(formulas) <= 1:
        return [_whole(result)]
    return [
        _box(result, stage, ranges, body, number)
        for number, (ranges, body) in enumerate(formulas.items())
    ]


def _formulas(stage: Tensor, whole: _Ranges) -> Mapping[_Ranges, Expr]:
    """The formula of each box; nothing where there are too many of them."""
    assert isinstance(stage.body, Expr)
    names = [axis.name for axis in stage.axes]
    formulas: dict[_Ranges, Expr] = {}
    scalars = {part for one in (stage.body, *stage.shape) for part in variables(one)}
    assumed = Context({name: Range(0, None) for name in scalars.difference(names)})
    most = max(MOST_BOXES, len(reads(stage)))
    waiting = [(whole, stage.body)]
    while waiting:
        ranges, formula = waiting.pop()
        body = simplify(formula, _within(assumed, names, ranges))
        cuts = list(_cuts(body, dict(zip(names, ranges, strict=True)), assumed))
        if not cuts:
            formulas[ranges] = body
        else:  # in the middle of all cuts, which halves a long list of selections
            name, at = cuts[len(cuts) // 2]
            axis = names.index(name)
            first, stop = ranges[axis]
            before, after = ranges[:axis], ranges[axis + 1 :]
            waiting += [((*before, part, *after), body) for part in ((at, stop), (first, at))]
        if len(formulas) + len(waiting) > most:
            return {}
    return formulas


def _within(context: Context, names: Sequence[str], ranges: _Ranges) -> Context:
    """The assumptions with the axes inside their ranges."""
    for name, (first, stop) in zip(names, ranges, strict=True):
        context = context.variable(name, first, add(stop, Const(-1)))
    return context


def _cuts(
    body: Expr, ranges: Mapping[str, tuple[Expr, Expr]], context: Context
) -> Iterator[tuple[str, Expr]]:
    """The axes and indices at which a selection changes, within the ranges."""
    conditions = (part.condition for part in walk_expr(body) if isinstance(part, Select))
    for part in chain.from_iterable(map(walk_expr, conditions)):
        if isinstance(part, Compare) and part.lanes == 1 and is_index(part.left):
            for name, at in _changes(part, set(ranges)):
                first, stop = ranges[name]
                is_inside = context.at_most(first, at) and context.at_most(at, stop)
                if at not in (first, stop) and is_inside:
                    yield name, at


def _changes(comparison: Compare, axes: set[str]) -> list[tuple[str, Expr]]:
    """Where a comparison of one axis with what is no axis changes, if it is one."""
    terms = plus(polynomial(comparison.left), polynomial(comparison.right), -1)
    moving = {
        monomial: factor
        for monomial, factor in terms.items()
        if any(name in axes for atom in monomial for name in atom.symbols)
    }
    match list(moving.items()):
        case [((atom,), factor)] if atom.kind is SYMBOL:
            rest = plus(terms, moving, -1)
            before = plus(rest, {(): 1}, -1)
            below, at_most = _sign_change(factor, rest), _sign_change(factor, before)
            if comparison.kind in (CompareKind.LESS, CompareKind.GREATER_EQUAL):
                changes = [below]
            elif comparison.kind in (CompareKind.LESS_EQUAL, CompareKind.GREATER):
                changes = [at_most]
            else:
                changes = [below, at_most]
            return [(atom.name, at) for at in changes]
    return []


def _sign_change(factor: int, rest: Polynomial) -> Expr:
    """The first x for which `factor * x + rest < 0` is other than for the one before."""
    size = Const(abs(factor))
    quotient = simplify(Binary(BinaryKind.FLOOR_DIVIDE, expression(rest), size))
    return simplify(add(ZERO, quotient, -1) if factor > 0 else add(quotient, Const(1)))


def _box(result: Tensor, stage: Tensor, ranges: _Ranges, body: Expr, number: int) -> Box:
    name = f"{result.name}_box{number}"
    axes = tuple(Var(f"{name}@{short(axis.name)}") for axis in stage.axes)
    moved: dict[str, Expr] = {
        old.name: add(new, first)
        for old, new, (first, _) in zip(stage.axes, axes, ranges, strict=True)
    }
    extents = tuple(simplify(add(stop, first, -1)) for first, stop in ranges)
    inside = tuple((ZERO, extent) for extent in extents)
    context = _within(Context(), [axis.name for axis in axes], inside)
    buffer = Buffer(name, result.dtype, extents)
    own = simplify(substitute(body, moved), context)
    tensor = Tensor(buffer, axes, own, stage.sources)
    return Box(result, tensor, tuple(first for first, _ in ranges))

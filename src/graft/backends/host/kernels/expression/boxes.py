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
from graft.base.polynomials import SYMBOL, plus
from graft.loop.index import is_index, polynomial
from graft.loop.ir import (
    INDEX,
    Binary,
    BinaryKind,
    Buffer,
    Compare,
    CompareKind,
    Const,
    Expr,
    Function,
    Ramp,
    Select,
    Stmt,
    Store,
    Var,
)
from graft.loop.nest import short
from graft.loop.ranges import Context
from graft.loop.schedule import Inline, Schedule
from graft.loop.simplify import simplify, simplify_stmt
from graft.loop.stages import body_expressions, reads, rewrite_stages
from graft.loop.tensor import Reduce, Tensor, in_order
from graft.loop.traverse import map_stmt, substitute, walk_expr

# More boxes than this are too much code for one kernel.
MOST_BOXES = 64

_Ranges = tuple[tuple[int, int], ...]  # per axis, the first index and the one behind the last


@dataclass(frozen=True, eq=False)
class Box:
    """A part of a result, as a tensor of its own, and where it begins."""

    result: Tensor
    tensor: Tensor
    starts: tuple[int, ...]


def cut_into_boxes(results: Sequence[Tensor]) -> list[Box]:
    """The boxes of results; one that needs no cut is a box itself."""
    tensors, names = in_order(results), {result.name for result in results}
    if not any(map(_selects, tensors)):
        return [Box(one, one, (0,) * len(one.shape)) for one in results]
    kept = kept_stages(tensors, results)
    inner = [one.name for one in tensors if one.body is not None and one.name not in kept]
    stages = rewrite_stages(tensors, names, Schedule.of({name: [Inline()] for name in inner}))
    return list(chain.from_iterable(_boxes(one, stages[one.name], kept) for one in results))


def _selects(tensor: Tensor) -> bool:
    parts = chain.from_iterable(map(walk_expr, body_expressions(tensor)))
    return any(isinstance(part, Select) for part in parts)


def in_one_memory(function: Function, boxes: Sequence[Box]) -> Function:
    """The function with results in the place of their boxes."""
    by_name = {box.tensor.name: box for box in boxes if box.tensor is not box.result}

    def stored(stmt: Stmt) -> Stmt:
        box = by_name.get(stmt.buffer.name) if isinstance(stmt, Store) else None
        if box is None or not isinstance(stmt, Store):
            return stmt
        indices = tuple(map(_shifted, stmt.indices, box.starts))
        return replace(stmt, buffer=box.result.buffer, indices=indices)

    if not by_name:
        return function
    parameters = (
        by_name[one.name].result.buffer if one.name in by_name else one
        for one in function.parameters
    )
    body = simplify_stmt(map_stmt(function.body, lambda expr: expr, stored))
    return replace(function, parameters=tuple(dict.fromkeys(parameters)), body=body)


def _shifted(index: Expr, start: int) -> Expr:
    if not start:
        return index
    if isinstance(index, Ramp):
        return replace(index, base=_shifted(index.base, start))
    return Binary(BinaryKind.ADD, index, Const(start, INDEX, index.lanes))


def _boxes(result: Tensor, stage: Tensor, kept: set[str]) -> list[Box]:
    extents = [int(one.value) for one in stage.shape if isinstance(one, Const)]
    whole = [Box(result, result, (0,) * len(result.shape))]
    is_plain = len(extents) == len(stage.shape) and kept.isdisjoint(reads(stage))
    if isinstance(stage.body, Reduce) or not is_plain or 0 in extents:
        return whole
    formulas = _formulas(stage, tuple((0, extent) for extent in extents))
    if len(formulas) == 1:
        return whole
    return [
        _box(result, stage, ranges, body, number)
        for number, (ranges, body) in enumerate(formulas.items())
    ] or whole


def _formulas(stage: Tensor, whole: _Ranges) -> Mapping[_Ranges, Expr]:
    """The formula of each box; nothing where there are too many of them."""
    assert isinstance(stage.body, Expr)
    names = [axis.name for axis in stage.axes]
    formulas: dict[_Ranges, Expr] = {}
    waiting = [(whole, stage.body)]
    while waiting:
        ranges, formula = waiting.pop()
        body = simplify(formula, _context(names, ranges))
        cut = next(_cuts(body, dict(zip(names, ranges, strict=True))), None)
        if cut is None:
            formulas[ranges] = body
        else:
            axis, at = names.index(cut[0]), cut[1]
            first, stop = ranges[axis]
            before, after = ranges[:axis], ranges[axis + 1 :]
            waiting += [((*before, part, *after), body) for part in ((at, stop), (first, at))]
        if len(formulas) + len(waiting) > MOST_BOXES:
            return {}
    return formulas


def _context(names: Sequence[str], ranges: _Ranges) -> Context:
    context = Context()
    for name, (first, stop) in zip(names, ranges, strict=True):
        context = context.variable(name, Const(first), Const(stop - 1))
    return context


def _cuts(body: Expr, ranges: Mapping[str, tuple[int, int]]) -> Iterator[tuple[str, int]]:
    """The axes and indices at which a selection changes, within the ranges."""
    conditions = (part.condition for part in walk_expr(body) if isinstance(part, Select))
    for part in chain.from_iterable(map(walk_expr, conditions)):
        if isinstance(part, Compare) and part.lanes == 1 and is_index(part.left):
            for name, at in _changes(part):
                first, stop = ranges.get(name, (0, 0))
                if first < at < stop:
                    yield name, at


def _changes(comparison: Compare) -> list[tuple[str, int]]:
    """Where a comparison of one variable with a number changes, if it is one."""
    terms = plus(polynomial(comparison.left), polynomial(comparison.right), -1)
    constant = terms.pop((), 0)
    match list(terms.items()):
        case [((atom,), factor)] if atom.kind is SYMBOL:
            below, at_most = _sign_change(factor, constant), _sign_change(factor, constant - 1)
            if comparison.kind in (CompareKind.LESS, CompareKind.GREATER_EQUAL):
                return [(atom.name, below)]
            if comparison.kind in (CompareKind.LESS_EQUAL, CompareKind.GREATER):
                return [(atom.name, at_most)]
            return [(atom.name, below), (atom.name, at_most)]
    return []


def _sign_change(factor: int, constant: int) -> int:
    """The first x for which `factor * x + constant < 0` is other than for the one before."""
    return -(constant // factor) if factor > 0 else constant // -factor + 1


def _box(result: Tensor, stage: Tensor, ranges: _Ranges, body: Expr, number: int) -> Box:
    name = f"{result.name}_{number}"
    axes = tuple(Var(f"{name}@{short(axis.name)}") for axis in stage.axes)
    moved: dict[str, Expr] = {
        old.name: Binary(BinaryKind.ADD, new, Const(first))
        for old, new, (first, _) in zip(stage.axes, axes, ranges, strict=True)
    }
    extents = [stop - first for first, stop in ranges]
    context = _context([axis.name for axis in axes], tuple((0, extent) for extent in extents))
    buffer = Buffer(name, result.dtype, tuple(map(Const, extents)))
    own = simplify(substitute(body, moved), context)
    tensor = Tensor(buffer, axes, own, stage.sources)
    return Box(result, tensor, tuple(first for first, _ in ranges))

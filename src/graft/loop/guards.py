"""Guards: selects into branches, branches out of loops and into loop bounds.

Loads that only a `select` keeps in bounds are put under a branch or clamped (machine code evaluates
both sides of a select, so this is needed for correctness). Branches that do not depend on a loop
are hoisted out of it, and loops are split or shortened where a branch depends on their variable.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace

from graft.base.polynomials import symbol_atom
from graft.loop import ir
from graft.loop.index import ONE, ZERO, add, expression, is_index
from graft.loop.ranges import Context, facts
from graft.loop.simplify import simplify
from graft.loop.traverse import (
    accesses,
    block,
    children,
    loads_in,
    map_expr,
    map_stmt,
    operands_first,
    reads_memory,
    variables,
    walk_stmt,
    with_children,
    with_statements,
)

Change = Callable[[ir.Stmt, Context], ir.Stmt]
# Copies of a store, above which loads are clamped instead of being put under branches.
_MOST_BRANCHES = 32


def rewrite(stmt: ir.Stmt, context: Context, change: Change) -> ir.Stmt:
    """Apply `change` to every statement, inner first, with the assumptions that hold there."""
    match stmt:
        case ir.For():
            inside = context.loop(stmt.var, stmt.start, stmt.extent)
            return change(replace(stmt, body=rewrite(stmt.body, inside, change)), context)
        case ir.If(condition, then, otherwise):
            new_then = rewrite(then, context.assume(condition), change)
            new_else = None
            if otherwise is not None:
                new_else = rewrite(otherwise, context.assume(condition, False), change)
            return change(ir.If(condition, new_then, new_else), context)
        case _:
            inner = with_statements(stmt, lambda child: rewrite(child, context, change))
            return change(inner, context)


def predicate_lanes(stmt: ir.Stmt, context: Context) -> ir.Stmt:
    """Branches that differ between lanes and are deeper than the vector loop, as selects.

    There is no loop bound they could go into. The element is stored back where the branch is not
    taken, so this is for stores that stay inside their buffer either way.
    """
    return _predicate(stmt, context, None, False)


def _predicate(stmt: ir.Stmt, context: Context, lane: ir.Var | None, within: bool) -> ir.Stmt:
    match stmt:
        case ir.For():
            is_lane = stmt.kind is ir.LoopKind.VECTOR
            inside = context.loop(stmt.var, stmt.start, stmt.extent)
            new = stmt.var if is_lane else lane
            body = _predicate(stmt.body, inside, new, lane is not None)
            return replace(stmt, body=body)
        case ir.If(condition, then, None):
            inner = context.assume(condition)
            if lane is None or not within or lane.name not in variables(condition):
                return ir.If(condition, _predicate(then, inner, lane, within))
            return _to_select(condition, _predicate(then, context, lane, within), context)
        case _:
            return with_statements(stmt, lambda child: _predicate(child, context, lane, within))


def _to_select(condition: ir.Expr, stmt: ir.Stmt, context: Context) -> ir.Stmt:
    """The guarded statement as a store of a select, where storing is in bounds either way."""
    if not isinstance(stmt, ir.Store):
        return ir.If(condition, stmt)
    pairs = zip(stmt.indices, stmt.buffer.extents, strict=True)
    if not all(_is_safe(index, extent, context) for index, extent in pairs):
        return ir.If(condition, stmt)
    current = ir.Load(stmt.buffer, stmt.indices)
    return replace(stmt, value=ir.Select(condition, stmt.value, current))


def branch_on_selects(stmt: ir.Stmt, context: Context) -> ir.Stmt:
    """Selects that keep a read from leaving its buffer, turned into branches or clamped reads."""
    lanes = {
        loop.var.name
        for loop in walk_stmt(stmt)
        if isinstance(loop, ir.For) and loop.kind is ir.LoopKind.VECTOR
    }

    def change(one: ir.Stmt, inner: Context) -> ir.Stmt:
        return _to_branch(one, inner, lanes) if isinstance(one, ir.Store) else one

    return rewrite(stmt, context, change)


def _to_branch(store: ir.Store, context: Context, lanes: set[str]) -> ir.Stmt:
    if store.condition is not None:
        context = context.assume(store.condition)
    choices = _unsafe_selects(store.value, context)
    if not choices:
        return store

    def with_value(value: ir.Expr, inner: Context) -> ir.Stmt:
        return _to_branch(replace(store, value=simplify(value, inner)), inner, lanes)

    choice = choices[0]
    if variables(choice.condition) & lanes or _branches(choices, context) > _MOST_BRANCHES:
        return _clamped_store(store, choices, context, with_value)

    def side(chosen: ir.Expr, inner: Context) -> ir.Stmt:
        return with_value(map_expr(lambda e: chosen if e == choice else e, store.value), inner)

    otherwise = side(choice.no, context)
    result = side(choice.yes, context.assume(choice.condition))
    for condition in reversed(conjuncts(choice.condition)):
        result = ir.If(condition, result, otherwise)
    return result


def _unsafe_selects(value: ir.Expr, context: Context) -> list[ir.Select]:
    """The outermost selects with loads that may be out of bounds."""
    choices, pending, visited = dict[ir.Select, None](), [value], set[int]()
    while pending:
        node = pending.pop()
        if id(node) in visited:
            continue
        visited.add(id(node))
        if isinstance(node, ir.Select) and _unsafe_loads(node, context):
            choices[node] = None
        else:
            pending += reversed(children(node))
    return list(choices)


def _branches(choices: Sequence[ir.Select], context: Context) -> int:
    """How many stores there are once these selects are branches.

    Those side by side multiply: four corners of an image with four bounds each make 625."""

    def within(value: ir.Expr) -> int:
        return _branches(_unsafe_selects(value, context), context)

    return math.prod(
        within(one.yes) + len(conjuncts(one.condition)) * within(one.no) for one in choices
    )


def _clamped_store(
    store: ir.Store,
    choices: Sequence[ir.Select],
    context: Context,
    with_value: Callable[[ir.Expr, Context], ir.Stmt],
) -> ir.Stmt:
    """The store with out-of-bounds loads clamped, guarded against empty buffers."""
    unsafe = list(dict.fromkeys(load for one in choices for load in _unsafe_loads(one, context)))
    result: ir.Stmt = replace(store, value=_clamped(store.value, set(unsafe), context))
    for extent in dict.fromkeys(extent for load in unsafe for extent in load.buffer.extents):
        if not context.at_most(ONE, extent):
            some = simplify(ir.Compare(ir.CompareKind.LESS, ZERO, extent), context)
            empty = {load.buffer for load in unsafe if extent in load.buffer.extents}
            result = ir.If(some, result, with_value(_without(empty, store.value), context))
    return result


def _without(empty: set[ir.Buffer], value: ir.Expr) -> ir.Expr:
    """The value with zeros for loads from buffers that are empty: no select chooses them."""

    def change(expr: ir.Expr) -> ir.Expr:
        reads = isinstance(expr, ir.Load) and expr.buffer in empty
        return ir.Const(0, expr.dtype) if reads else expr

    return map_expr(change, value)


def conjuncts(condition: ir.Expr) -> list[ir.Expr]:
    """The operands of a conjunction; the condition itself where it is none."""
    match condition:
        case ir.Binary(ir.BinaryKind.AND, left, right):
            return [*conjuncts(left), *conjuncts(right)]
        case _:
            return [condition]


def _is_safe(index: ir.Expr, extent: ir.Expr, context: Context) -> bool:
    return is_index(index) and context.at_most(ZERO, index) and context.below(index, extent)


def _unsafe_loads(choice: ir.Select, context: Context) -> list[ir.Load]:
    return [
        load
        for load in (*loads_in(choice.yes), *loads_in(choice.no))
        if not all(
            _is_safe(index, extent, context)
            for index, extent in zip(load.indices, load.buffer.extents, strict=True)
        )
    ]


def _clamped(value: ir.Expr, unsafe: set[ir.Load], context: Context) -> ir.Expr:
    """The value with the indices of unsafe loads moved into their buffers."""
    changed: dict[int, ir.Expr] = {}
    for node in operands_first(value):
        new = with_children(node, tuple(changed[id(child)] for child in children(node)))
        if node in unsafe:
            assert isinstance(new, ir.Load)
            pairs = zip(new.indices, new.buffer.extents, strict=True)
            new = replace(new, indices=tuple(_inside(*pair, context) for pair in pairs))
        changed[id(node)] = new
    return changed[id(value)]


def _inside(index: ir.Expr, extent: ir.Expr, context: Context) -> ir.Expr:
    if _is_safe(index, extent, context):
        return index
    highest = ir.Binary(ir.BinaryKind.MINIMUM, index, add(extent, ir.Const(-1)))
    return simplify(ir.Binary(ir.BinaryKind.MAXIMUM, highest, ZERO), context)


def tighten_loops(stmt: ir.Stmt, context: Context) -> ir.Stmt:
    """Branches moved out of loops that do not change them, or into the loops' bounds."""
    return rewrite(stmt, context, lambda one, inner: _tighten(one, inner))


def _tighten(stmt: ir.Stmt, context: Context) -> ir.Stmt:
    if isinstance(stmt, ir.For) and stmt.kind is ir.LoopKind.VECTOR:
        stmt = _unmasked_where_full(stmt, context)
    if not isinstance(stmt, ir.For) or not isinstance(stmt.body, ir.If):
        return stmt
    branch = stmt.body
    parts = conjuncts(branch.condition)
    if len(parts) > 1:
        nested: ir.Stmt = branch.then
        for part in reversed(parts):
            nested = ir.If(part, nested, branch.otherwise)
        return _tighten(replace(stmt, body=nested), context)
    if reads_memory(branch.condition):
        return stmt
    if stmt.var.name not in variables(branch.condition):
        return _hoist(stmt, branch, context)
    cut = _cut(branch.condition, stmt.var, context)
    return stmt if cut is None else _narrowed(stmt, branch, *cut, context)


def _unmasked_where_full(loop: ir.For, context: Context) -> ir.Stmt:
    """A vector loop with masked stores: without the masks where they rule out no lane."""
    stores = (one for one in walk_stmt(loop.body) if isinstance(one, ir.Store))
    masks = {store.condition for store in stores if store.condition is not None}
    own = [mask for mask in masks if loop.var.name in variables(mask)]
    cut = _cut(own[0], loop.var, context) if len(own) == 1 else None
    if cut is None:
        return loop
    rises, value = cut
    left, right = (value, loop.start) if rises else (add(loop.start, loop.extent), value)
    full = simplify(ir.Compare(ir.CompareKind.LESS_EQUAL, left, right), context)

    def unmasked(one: ir.Stmt) -> ir.Stmt:
        is_masked = isinstance(one, ir.Store) and one.condition in own
        return replace(one, condition=None) if is_masked and isinstance(one, ir.Store) else one

    body = map_stmt(loop.body, lambda expr: expr, unmasked)
    if isinstance(full, ir.Const):
        return replace(loop, body=body) if full.value else loop
    return ir.If(full, replace(loop, body=body), loop)


def _hoist(loop: ir.For, branch: ir.If, context: Context) -> ir.Stmt:
    then = _tighten(replace(loop, body=branch.then), context.assume(branch.condition))
    if branch.otherwise is None:
        return ir.If(branch.condition, then)
    inner = context.assume(branch.condition, False)
    return ir.If(branch.condition, then, _tighten(replace(loop, body=branch.otherwise), inner))


def _cut(condition: ir.Expr, var: ir.Var, context: Context) -> tuple[bool, ir.Expr] | None:
    """Where the condition changes: (True, first value that satisfies it) or (False, end)."""
    if not isinstance(condition, ir.Compare) or not is_index(condition.left):
        return None
    requirements = facts(condition.kind, condition.left, condition.right)
    own = (symbol_atom(var.name),)
    if len(requirements) != 1 or own not in requirements[0]:
        return None
    terms = requirements[0]
    factor = terms[own]
    rest = {monomial: count for monomial, count in terms.items() if monomial != own}
    if any(var.name in atom.symbols for monomial in rest for atom in monomial):
        return None
    size = ir.Const(abs(factor))
    divided = simplify(ir.Binary(ir.BinaryKind.FLOOR_DIVIDE, expression(rest), size), context)
    if factor > 0:  # factor*v + rest >= 0 from -(rest // factor) on
        return True, add(ZERO, divided, -1)
    return False, add(divided, ONE)


def _narrowed(
    loop: ir.For, branch: ir.If, rises: bool, value: ir.Expr, context: Context
) -> ir.Stmt:
    """Split the loop where the branch condition changes."""
    if loop.kind is ir.LoopKind.UNROLLED:
        return loop  # its copies are tested one by one
    end = add(loop.start, loop.extent)
    if loop.kind is ir.LoopKind.VECTOR:
        return _vector_or_not(loop, branch, rises, value, context)
    if branch.otherwise is not None and loop.kind is not ir.LoopKind.SERIAL:
        return loop
    low = simplify(ir.Binary(ir.BinaryKind.MAXIMUM, value, loop.start), context)
    cut = simplify(ir.Binary(ir.BinaryKind.MINIMUM, low, end), context)
    before = replace(loop, extent=simplify(add(cut, loop.start, -1), context))
    after = replace(loop, start=cut, extent=simplify(add(end, cut, -1), context))
    empty = branch.otherwise or ir.Block(())
    first, second = (empty, branch.then) if rises else (branch.then, empty)
    parts = [(before, first), (after, second)]
    loops = [
        _tighten(replace(part, body=body), context) for part, body in parts if body != ir.Block(())
    ]
    return block(*loops)


def _vector_or_not(
    loop: ir.For, branch: ir.If, rises: bool, value: ir.Expr, context: Context
) -> ir.Stmt:
    """A vector loop if no lane is masked out, a scalar loop otherwise."""
    end = add(loop.start, loop.extent)
    left, right = (value, loop.start) if rises else (end, value)
    full = simplify(ir.Compare(ir.CompareKind.LESS_EQUAL, left, right), context)
    whole = _tighten(replace(loop, body=branch.then), context.assume(full))
    single = _tighten(one_by_one(loop), context.assume(full, False))
    return ir.If(full, whole, single)


def one_by_one(loop: ir.For) -> ir.For:
    """A vector loop as a serial one, or unrolled if it indexes registers."""
    addresses = any(
        buffer.scope is ir.Scope.REGISTER and loop.var.name in variables(index)
        for stmt in walk_stmt(loop)
        for buffer, indices in accesses(stmt)
        for index in indices
    )
    return replace(loop, kind=ir.LoopKind.UNROLLED if addresses else ir.LoopKind.SERIAL)

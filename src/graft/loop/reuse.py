"""Names for values that would be loaded although they are at hand.

Stages that are computed along with their reader store an element and go on with its value; LLVM
forwards whole vectors from stores to loads by itself, but no masked ones. And several stages may
gather the same elements one after the other, which LLVM does again each time.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from graft.loop.build import constant
from graft.loop.ir import (
    Block,
    Const,
    Expr,
    Let,
    Load,
    Ramp,
    Scope,
    Select,
    Stmt,
    Store,
    Var,
)
from graft.loop.statements import bound
from graft.loop.traverse import (
    block,
    buffers_written,
    children,
    loads_in,
    map_expr,
    map_stmt,
    reads_memory,
)
from graft.loop.vectors import is_mask

_SOME = Const(False)  # stands for a mask that is not worth a name


def reuse_values(stmt: Stmt) -> Stmt:
    """Replace loads of what was just stored, and of what was gathered before in the same block."""

    def change(one: Stmt) -> Stmt:
        return block(*_named_gathers(_forward(one.statements))) if isinstance(one, Block) else one

    return map_stmt(stmt, lambda expr: expr, change)


def _forward(statements: Sequence[Stmt]) -> list[Stmt]:
    """`a[i] = x; b[j] = f(a[i])` as `let v = x { a[i] = v; b[j] = f(v) }`."""
    result: list[Stmt] = []
    for one in statements:
        before = result[-1] if result else None
        both = _both(before, one) if isinstance(before, Store) and isinstance(one, Store) else None
        result = [*result, one] if both is None else [*result[:-1], both]
    return result


def _both(store: Store, reader: Store) -> Stmt | None:
    """The two with a name for the value that they share, where they do."""
    own, mask = Load(store.buffer, store.indices), store.condition
    is_plain = store.buffer.scope is not Scope.REGISTER and not any(map(reads_memory, own.indices))
    if not is_plain or own not in loads_in(reader.value) or not (mask is None or is_mask(mask)):
        return None
    var = Var("value", store.value.dtype, store.value.lanes)

    def change(node: Expr) -> Expr:
        if mask is None or mask == reader.condition:
            return var if node == own else node
        if isinstance(node, Select) and node.condition == mask:
            return replace(node, yes=map_expr(lambda part: var if part == own else part, node.yes))
        return node

    changed = map_expr(change, reader.value)
    if own in loads_in(changed):
        return None
    return Let(
        var,
        _within(mask, store.value),
        Block((replace(store, value=var), replace(reader, value=changed))),
    )


def _named_gathers(statements: list[Stmt]) -> list[Stmt]:
    """The statements with names for vectors that several of them gather.

    All are gathered before the first is used: gathers between comparisons wait for these, since
    their masks go through the same register (a quarter of the time of short rows on Zen 5)."""
    uses: dict[Load, dict[int, set[Expr | None]]] = {}  # by position, in which lanes
    for position, one in enumerate(statements):
        if isinstance(one, Store):
            for load, mask in _gathers(one.value, one.condition):
                uses.setdefault(load, {}).setdefault(position, set()).add(mask)
    uses = {load: positions for load, positions in uses.items() if len(positions) > 1}
    first = min((min(positions) for positions in uses.values()), default=0)
    names: list[tuple[Var, Expr]] = []
    changed = list(statements)
    for load, positions in uses.items():
        masks = set[Expr | None]().union(*positions.values())
        between = statements[first : max(positions)]
        if len(masks - {_SOME}) == 1 == len(masks) and not any(
            load.buffer in buffers_written(one) for one in between
        ):
            var = Var(f"gathered_{len(names)}", load.dtype, load.lanes)
            names.append((var, _within(masks.pop(), load)))
            for position in positions:
                changed[position] = _with_name(changed[position], var, load)
    return [*changed[:first], bound(names, block(*changed[first:]))]


def _within(mask: Expr | None, value: Expr) -> Expr:
    """The value in the lanes of a mask; nothing is read for others."""
    return value if mask is None else Select(mask, value, constant(0, value.dtype, value.lanes))


def _with_name(stmt: Stmt, var: Var, load: Load) -> Stmt:
    """The statement with a name for what it loads."""

    def change(expr: Expr) -> Expr:
        return map_expr(lambda node: var if node == load else node, expr)

    return map_stmt(stmt, change)


def _gathers(value: Expr, mask: Expr | None) -> Iterator[tuple[Load, Expr | None]]:
    """Loads of elements that are no neighbours, with the mask that says in which lanes."""
    pending = [(value, mask)]
    while pending:
        node, mask = pending.pop()
        if isinstance(node, Select) and is_mask(node.condition):
            inside = node.condition if mask in (None, node.condition) else _SOME
            pending += [(node.yes, inside), (node.no, _SOME)]
            continue
        pending += [(child, mask) for child in children(node)]
        if isinstance(node, Load) and node.lanes > 1 and node.buffer.scope is not Scope.REGISTER:
            last = node.indices[-1]
            is_near = isinstance(last, Ramp) and last.stride == 1
            if not is_near and not any(map(reads_memory, node.indices)):
                yield node, mask

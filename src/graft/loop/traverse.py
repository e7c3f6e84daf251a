"""Walking and rebuilding: the children of a node, and maps and folds over them.

Expressions, statements and functions enter; the same, changed where a callback says so, or an
iterator over what is inside, leaves. Written once so that no other module lists the node classes
just to get past them. Extents inside a `Buffer` are not children: they belong to its declaration.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from operator import is_
from typing import cast

from graft.loop.intrinsics import INTRINSICS
from graft.loop.ir import (
    Allocate,
    AtomicAdd,
    Barrier,
    Binary,
    Block,
    Broadcast,
    Buffer,
    Call,
    Cast,
    Compare,
    Const,
    Expr,
    For,
    If,
    Let,
    Load,
    LoopKind,
    Prefetch,
    Ramp,
    Select,
    Stmt,
    Store,
    Var,
    While,
)

# How many nodes an expression may have when it is written out; what is larger is given names.
MOST_WRITTEN = 1024
OnExpr = Callable[[Expr], Expr]
OnStmt = Callable[[Stmt], Stmt]


def children(expr: Expr) -> tuple[Expr, ...]:
    """The expressions directly inside an expression."""
    match expr:
        case Binary() | Compare():  # first what there is most of
            return expr.left, expr.right
        case Const() | Var():
            return ()
        case Load():
            return expr.indices
        case Select():
            return expr.condition, expr.yes, expr.no
        case Cast() | Broadcast():
            return (expr.value,)
        case Call():
            return expr.arguments
        case Ramp():
            return (expr.base,)


def with_children(expr: Expr, new: tuple[Expr, ...]) -> Expr:
    """The expression with other children, itself if they are the same objects."""
    if all(map(is_, children(expr), new)):
        return expr
    match expr:
        case Const() | Var():
            return expr
        case Binary():
            return Binary(expr.kind, *new)
        case Compare():
            return Compare(expr.kind, *new)
        case Select():
            return Select(*new)
        case Cast():
            return Cast(expr.dtype, *new)
        case Broadcast():
            return Broadcast(new[0], expr.lanes)
        case Call():
            return Call(expr.name, new, expr.dtype)
        case Ramp():
            return Ramp(new[0], expr.stride, expr.lanes)
        case Load():
            return Load(expr.buffer, new)


def map_expr(change: OnExpr, expr: Expr) -> Expr:
    """The expression with `change` applied to every node, children first; to shared ones once."""
    changed: dict[int, Expr] = {}
    for node in operands_first(expr):
        new = tuple([changed[id(child)] for child in children(node)])
        changed[id(node)] = change(with_children(node, new))
    return changed[id(expr)]


def operands_first(
    expr: Expr, operands: Callable[[Expr], tuple[Expr, ...]] = children
) -> list[Expr]:
    """The expression and all within it, each object once, after its operands."""
    ordered: list[Expr] = []
    entered: set[int] = set()
    waiting: list[Expr | None] = [expr]  # None: what comes below it has its operands in order
    while waiting:
        node = waiting.pop()
        if node is None:
            ordered.append(cast(Expr, waiting.pop()))
        elif id(node) not in entered:
            entered.add(id(node))
            if isinstance(node, (Const, Var)):
                ordered.append(node)
            else:
                waiting += (node, None)
                waiting += operands(node)[::-1]
    return ordered


def is_long(expr: Expr) -> bool:
    """Whether the expression has more than `MOST_WRITTEN` nodes when each operand is written out
    wherever it occurs."""
    count = 0
    waiting = [expr]
    while waiting:
        node = waiting.pop()
        count += 1
        if count > MOST_WRITTEN:
            return True
        if not isinstance(node, (Const, Var)):
            waiting += children(node)
    return False


def walk_expr(*roots: Expr) -> Iterator[Expr]:
    """The expressions and all within them, each object once."""
    visited = set(map(id, roots))
    waiting = list(reversed(roots))
    while waiting:
        one = waiting.pop()
        yield one
        if not isinstance(one, (Const, Var)):
            for child in children(one)[::-1]:
                if id(child) not in visited:
                    visited.add(id(child))
                    waiting.append(child)


def loads_in(*roots: Expr) -> list[Load]:
    """The loads within expressions."""
    return [node for node in walk_expr(*roots) if isinstance(node, Load)]


def reads_memory(expr: Expr) -> bool:
    """Whether there is a load in the expression."""
    return any(isinstance(node, Load) for node in walk_expr(expr))


def has_chain(*roots: Expr) -> bool:
    """Whether an expression calls a function that takes a long chain of dependent instructions."""
    calls = (node.name for node in walk_expr(*roots) if isinstance(node, Call))
    return any(INTRINSICS[name].is_chain for name in calls if name in INTRINSICS)


def expressions(stmt: Stmt) -> tuple[Expr, ...]:
    """The expressions directly inside a statement."""
    match stmt:
        case For():
            return stmt.start, stmt.extent
        case If() | While():
            return (stmt.condition,)
        case Let():
            return (stmt.value,)
        case Store():
            extra = () if stmt.condition is None else (stmt.condition,)
            return (*stmt.indices, stmt.value, *extra)
        case AtomicAdd():
            return (*stmt.indices, stmt.value)
        case Prefetch():
            return stmt.indices
        case Block() | Allocate() | Barrier():
            return ()


def statements(stmt: Stmt) -> tuple[Stmt, ...]:
    """The statements directly inside a statement."""
    match stmt:
        case Block():
            return stmt.statements
        case For() | While() | Let() | Allocate():
            return (stmt.body,)
        case If():
            return (stmt.then,) if stmt.otherwise is None else (stmt.then, stmt.otherwise)
        case Store() | AtomicAdd() | Prefetch() | Barrier():
            return ()


def with_expressions(stmt: Stmt, on_expr: OnExpr) -> Stmt:
    """The statement with `on_expr` applied to the expressions directly inside it."""
    old = expressions(stmt)
    new = tuple(on_expr(expr) for expr in old)
    if all(one is other for one, other in zip(old, new, strict=True)):
        return stmt
    match stmt:
        case For():
            return replace(stmt, start=new[0], extent=new[1])
        case If() | While():
            return replace(stmt, condition=new[0])
        case Let():
            return replace(stmt, value=new[0])
        case Store():
            rank = len(stmt.indices)
            condition = new[rank + 1] if stmt.condition is not None else None
            return Store(stmt.buffer, new[:rank], new[rank], condition)
        case AtomicAdd():
            return replace(stmt, indices=new[:-1], value=new[-1])
        case Prefetch():
            return replace(stmt, indices=new)
        case Block() | Allocate() | Barrier():
            return stmt


def with_statements(stmt: Stmt, on_stmt: OnStmt) -> Stmt:
    """The statement with `on_stmt` applied to the statements directly inside it."""
    old = statements(stmt)
    new = tuple(on_stmt(inner) for inner in old)
    if all(one is other for one, other in zip(old, new, strict=True)):
        return stmt
    match stmt:
        case Block():
            return block(*new)
        case For() | While() | Let() | Allocate():
            return replace(stmt, body=new[0])
        case If():
            return If(stmt.condition, new[0], new[1] if len(new) > 1 else None)
        case Store() | AtomicAdd() | Prefetch() | Barrier():
            return stmt


def map_stmt(stmt: Stmt, on_expr: OnExpr, on_stmt: OnStmt = lambda stmt: stmt) -> Stmt:
    """The statement with every whole expression and then every statement changed, inner first."""
    inner = with_statements(stmt, lambda child: map_stmt(child, on_expr, on_stmt))
    return on_stmt(with_expressions(inner, on_expr))


def walk_stmt(stmt: Stmt) -> Iterator[Stmt]:
    """The statement and all within it, outer first."""
    waiting = [stmt]  # no recursion, which would take time by the depth of each
    while waiting:
        one = waiting.pop()
        yield one
        waiting += reversed(statements(one))


def is_parallel(stmt: Stmt) -> bool:
    """Whether there is a loop whose iterations the threads share."""
    loops = (one for one in walk_stmt(stmt) if isinstance(one, For))
    return any(loop.kind is LoopKind.PARALLEL for loop in loops)


def walk_all(stmt: Stmt) -> Iterator[Expr]:
    """All expressions anywhere inside a statement."""
    for inner in walk_stmt(stmt):
        for expr in expressions(inner):
            yield from walk_expr(expr)


def accesses(stmt: Stmt) -> list[tuple[Buffer, tuple[Expr, ...]]]:
    """The elements that the statement itself loads and stores, not those inside it."""
    loads = [(load.buffer, load.indices) for load in loads_in(*expressions(stmt))]
    return [*loads, (stmt.buffer, stmt.indices)] if isinstance(stmt, Store) else loads


def block(*stmts: Stmt) -> Stmt:
    """Statements one after the other: nested blocks flattened, one statement left alone."""
    flat: list[Stmt] = []
    for stmt in stmts:
        flat.extend(stmt.statements if isinstance(stmt, Block) else (stmt,))
    return flat[0] if len(flat) == 1 else Block(tuple(flat))


def substitute(expr: Expr, values: Mapping[str, Expr]) -> Expr:
    """The expression with variables replaced by name."""

    def change(node: Expr) -> Expr:
        return values.get(node.name, node) if isinstance(node, Var) else node

    return map_expr(change, expr) if values else expr


def substitute_in(stmt: Stmt, values: Mapping[str, Expr]) -> Stmt:
    """The statement with variables replaced by name; names are unique, so none is shadowed."""
    return map_stmt(stmt, lambda expr: substitute(expr, values))


def variables(expr: Expr) -> frozenset[str]:
    """The names of all variables in the expression."""
    return frozenset(node.name for node in walk_expr(expr) if isinstance(node, Var))


def variables_in(stmt: Stmt) -> frozenset[str]:
    """The names of all variables that the statement's expressions mention."""
    return frozenset(node.name for node in walk_all(stmt) if isinstance(node, Var))


def buffers_read(stmt: Stmt) -> frozenset[Buffer]:
    """The buffers that the statement loads from."""
    parts = (expr for inner in walk_stmt(stmt) for expr in expressions(inner))
    return frozenset(load.buffer for load in loads_in(*parts))


def buffers_written(stmt: Stmt) -> frozenset[Buffer]:
    """The buffers that the statement stores to."""
    return frozenset(s.buffer for s in walk_stmt(stmt) if isinstance(s, (Store, AtomicAdd)))

"""Unrolled loops into copies of their bodies, after which registers are addressed by constants.

Statements with loops marked `unrolled` enter; the same without them leave. Where the extent has
only a constant bound, each copy that may be beyond it is tested.
"""

from __future__ import annotations

from graft.loop import ir
from graft.loop.errors import ScheduleError
from graft.loop.guards import rewrite
from graft.loop.ranges import Context, constant_upper_bound
from graft.loop.simplify import simplify
from graft.loop.traverse import accesses, block, statements, substitute_in, variables
from graft.loop.vectorize import loop_error


def unroll(stmt: ir.Stmt, context: Context) -> ir.Stmt:
    """The statement without unrolled loops: a copy of the body for each iteration."""

    def change(one: ir.Stmt, known: Context) -> ir.Stmt:
        return _copies(one, known) if isinstance(one, ir.For) else one

    return rewrite(stmt, context, change)


def _copies(loop: ir.For, context: Context) -> ir.Stmt:
    if loop.kind is not ir.LoopKind.UNROLLED:
        return loop
    count = constant_upper_bound(loop.extent, context)
    if count is None:
        raise loop_error(loop.var, "unroll", "its extent has no constant bound")
    copies: list[ir.Stmt] = []
    for iteration in range(count):
        value = ir.Binary(ir.BinaryKind.ADD, loop.start, ir.Const(iteration))
        body = substitute_in(loop.body, {loop.var.name: simplify(value, context)})
        in_range = ir.Compare(ir.CompareKind.LESS, ir.Const(iteration), loop.extent)
        copies.append(body if isinstance(loop.extent, ir.Const) else ir.If(in_range, body))
    return block(*copies)


def check_registers(stmt: ir.Stmt, around: tuple[ir.Var, ...] = ()) -> None:
    """Registers have no address: each access has to be at a constant."""
    for buffer, indices in accesses(stmt):
        if buffer.scope is ir.Scope.REGISTER:
            for index in indices:
                _check_index(buffer, index, around)
    inner = (*around, stmt.var) if isinstance(stmt, ir.For) else around
    for child in statements(stmt):
        check_registers(child, inner)


def _check_index(buffer: ir.Buffer, index: ir.Expr, around: tuple[ir.Var, ...]) -> None:
    moving = [var.name.rpartition(".") for var in around if var.name in variables(index)]
    if moving:
        stage, _, loop = moving[-1]
        message = f"cannot keep it in registers: loop '{loop}' of {stage} addresses it"
        hint = "unroll or vectorise that loop"
        raise ScheduleError(f"schedule of {buffer.name}: {message}", hint=hint)

"""Vector loops into lanes.

Statements with loops marked `vector` enter; the same without them leave: the loop variable becomes
a ramp and whatever depends on it a vector. Loops inside stay loops, around vectors. A loop whose
extent is known only to be at most some number of lanes runs in vectors when it is full and one
element after the other when not.
"""

from __future__ import annotations

from dataclasses import replace
from operator import is_

from graft.loop import ir
from graft.loop.build import constant
from graft.loop.errors import ScheduleError
from graft.loop.guards import one_by_one, rewrite
from graft.loop.intrinsics import ACROSS
from graft.loop.ranges import Context, constant_upper_bound
from graft.loop.simplify import simplify
from graft.loop.tensor import identity
from graft.loop.traverse import (
    block,
    children,
    loads_in,
    operands_first,
    reads_memory,
    substitute_in,
    with_children,
)
from graft.loop.vectors import combine_lanes


def loop_error(var: ir.Var, verb: str, reason: str, hint: str = "") -> ScheduleError:
    """An error about a loop, whose variable is called after its stage and itself."""
    stage, _, loop = var.name.rpartition(".")
    return ScheduleError(f"schedule of {stage}: cannot {verb} loop '{loop}': {reason}", hint=hint)


def vectorize(stmt: ir.Stmt, context: Context) -> ir.Stmt:
    """The statement without vector loops."""

    def change(one: ir.Stmt, known: Context) -> ir.Stmt:
        is_vector = isinstance(one, ir.For) and one.kind is ir.LoopKind.VECTOR
        return _vector_loop(one, known) if isinstance(one, ir.For) and is_vector else one

    return rewrite(stmt, context, change)


def _vector_loop(loop: ir.For, context: Context) -> ir.Stmt:
    match loop.extent:
        case ir.Const(value=int(lanes)):
            return _in_lanes(loop, lanes)
        case ir.Binary(ir.BinaryKind.MINIMUM, ir.Const(value=int(lanes)), other) | ir.Binary(
            ir.BinaryKind.MINIMUM, other, ir.Const(value=int(lanes))
        ):
            full = ir.Compare(ir.CompareKind.LESS_EQUAL, ir.Const(lanes), other)
            return ir.If(full, _in_lanes(loop, lanes), one_by_one(loop))
    if constant_upper_bound(loop.extent, context) is None:
        reason = "its extent has no constant bound"
        raise loop_error(
            loop.var, "vectorise", reason, hint="split it and vectorise the inner loop"
        )
    return one_by_one(loop)


def _in_lanes(loop: ir.For, lanes: int) -> ir.Stmt:
    if lanes == 1:
        return substitute_in(loop.body, {loop.var.name: loop.start})
    return Lanes(loop.var, loop.start, lanes).statement(loop.body)


def _where(condition: ir.Expr, value: ir.Expr, before: ir.Load) -> ir.Expr:
    """What a register holds where only some lanes get the value, which may be combined with it.

    Other lanes are combined with the identity, so that the total does not wait for the mask; they
    are zero where nothing was there before, since functions of arbitrary numbers can take long."""
    match value:
        case ir.Binary(kind, total, term) if total == before and kind in ACROSS:
            nothing = identity(kind, term.dtype, term.lanes)
            return ir.Binary(kind, total, ir.Select(condition, term, nothing))
    if not reads_memory(value):
        return value
    zero = constant(0, value.dtype, value.lanes)
    return ir.Select(condition, value, before if before in loads_in(value) else zero)


class Lanes:
    """The loop's variable as a ramp, and what follows for everything that depends on it."""

    def __init__(self, var: ir.Var, start: ir.Expr, lanes: int) -> None:
        self._var = var
        self._ramp = ir.Ramp(start, 1, lanes)
        self._lanes = lanes
        self._vectors: dict[str, ir.Var] = {}

    def _fail(self, reason: str) -> ScheduleError:
        return loop_error(self._var, "vectorise", reason)

    def statement(self, stmt: ir.Stmt) -> ir.Stmt:
        match stmt:
            case ir.Block():
                return block(*map(self.statement, stmt.statements))
            case ir.For():
                bounds = self._scalar(stmt.start), self._scalar(stmt.extent)
                return replace(
                    stmt, start=bounds[0], extent=bounds[1], body=self.statement(stmt.body)
                )
            case ir.If():
                otherwise = stmt.otherwise
                return ir.If(
                    self._scalar(stmt.condition),
                    self.statement(stmt.then),
                    None if otherwise is None else self.statement(otherwise),
                )
            case ir.Let():
                value = self.expression(stmt.value)
                var = replace(stmt.var, lanes=value.lanes)
                self._vectors[var.name] = var
                return ir.Let(var, value, self.statement(stmt.body))
            case ir.Store():
                return self._store(stmt)
            case ir.Prefetch():
                return replace(stmt, indices=tuple(map(self._first_lane, stmt.indices)))
            case ir.Allocate():
                raise self._fail(f"it contains the memory of '{stmt.buffer.name}'")
            case ir.AtomicAdd() | ir.While() | ir.Barrier():
                raise self._fail("it contains a statement that has no lanes")

    def _scalar(self, expr: ir.Expr) -> ir.Expr:
        if self.expression(expr).lanes > 1:
            raise self._fail("a bound or a condition inside differs between its iterations")
        return expr

    def _first_lane(self, index: ir.Expr) -> ir.Expr:
        vector = self.expression(index)
        return vector.base if isinstance(vector, ir.Ramp) else index

    def _store(self, stmt: ir.Store) -> ir.Stmt:
        indices = self.indices(stmt.indices)
        combined = self._combined(stmt)
        if combined is not None:
            return replace(stmt, value=combined)
        value = self.expression(stmt.value)
        lanes = max((index.lanes for index in indices), default=1)
        condition = None if stmt.condition is None else self.expression(stmt.condition)
        if lanes == 1 and (value.lanes > 1 or (condition is not None and condition.lanes > 1)):
            raise self._fail(f"all its iterations store to one element of '{stmt.buffer.name}'")
        value = self._spread(value, lanes)
        if condition is not None:
            condition = self._spread(condition, lanes)
        if condition is not None and stmt.buffer.scope is ir.Scope.REGISTER:
            # a masked store has an address, which registers have not
            value = _where(condition, value, ir.Load(stmt.buffer, indices))
            condition = None
        return ir.Store(stmt.buffer, indices, value, condition)

    def _combined(self, stmt: ir.Store) -> ir.Expr | None:
        """A horizontal reduction, where each iteration combines one value into a total."""
        match stmt.value:
            case ir.Binary(kind, ir.Load() as total, value) if kind in ACROSS:
                vector = self.expression(value)
                same = total.buffer == stmt.buffer and total.indices == stmt.indices
                if not same or vector.lanes == 1 or self.expression(total).lanes > 1:
                    return None
                return ir.Binary(kind, total, combine_lanes(kind, vector))
            case _:
                return None

    def indices(self, indices: tuple[ir.Expr, ...]) -> tuple[ir.Expr, ...]:
        return tuple(simplify(self.expression(index)) for index in indices)

    def _spread(self, expr: ir.Expr, lanes: int) -> ir.Expr:
        return expr if expr.lanes == lanes else ir.Broadcast(expr, lanes)

    def expression(self, expr: ir.Expr) -> ir.Expr:
        """The expression in all lanes, where it differs between them."""
        changed: dict[int, ir.Expr] = {}
        for node in operands_first(expr):
            parts = tuple([changed[id(child)] for child in children(node)])
            changed[id(node)] = self._node(node, parts)
        return changed[id(expr)]

    def _node(self, node: ir.Expr, parts: tuple[ir.Expr, ...]) -> ir.Expr:
        """A node whose operands have become `parts`."""
        if isinstance(node, ir.Var):
            return self._ramp if node.name == self._var.name else self._vectors.get(node.name, node)
        if all(map(is_, children(node), parts)):
            return node
        match node:
            case ir.Load():
                return replace(node, indices=tuple(map(simplify, parts)))
            case ir.Ramp() | ir.Broadcast():
                raise self._fail("there are vectors inside already")
            case ir.Call() if node.name.startswith("reduce_"):
                raise self._fail("there are vectors inside already")
        lanes = max(part.lanes for part in parts)
        return with_children(node, tuple(self._spread(part, lanes) for part in parts))

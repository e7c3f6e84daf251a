"""The innermost statements of loop nests: an element computed and stored.

A stage, where its loops stand and what surrounds them enter; a statement leaves. Reads of stages go
to the memory that these have there, conditions of masked lanes to the store.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from enum import Enum

from graft.base.dtypes import DType
from graft.loop import ir
from graft.loop.index import ZERO, add
from graft.loop.nest import short
from graft.loop.position import Position
from graft.loop.ranges import Context, Range
from graft.loop.regions import axis_extents
from graft.loop.simplify import simplify
from graft.loop.stages import fail, loads, unconditional_reads
from graft.loop.tensor import Reduce, Tensor, identity
from graft.loop.traverse import block, map_expr, reads_memory, substitute, variables


class Part(Enum):
    """Which part of a stage is being emitted."""

    WHOLE = "whole"
    INITIAL = "initial"  # a reduction's first values
    UPDATE = "update"  # what a reduction adds to them


@dataclass(frozen=True)
class Memory:
    """Where a stage's elements are: a buffer that begins at some element.

    `order` are the stage's dimensions in the order of the buffer's, where that is another one.
    """

    buffer: ir.Buffer
    starts: tuple[ir.Expr, ...]
    order: tuple[int, ...] = ()

    def at(self, indices: Sequence[ir.Expr]) -> tuple[ir.Expr, ...]:
        """The buffer's indices of an element of the stage."""
        own = tuple(_minus(index, start) for index, start in zip(indices, self.starts, strict=True))
        return tuple(own[dimension] for dimension in self.order) if self.order else own


@dataclass(frozen=True)
class Around:
    """What surrounds a statement: memory of the stages in scope, assumptions and loops.

    `masked` are variables of vector loops whose lanes are masked, `masks` the conditions for that.
    """

    memory: Mapping[str, Memory]
    context: Context
    loops: Mapping[str, Range]
    masked: frozenset[str] = frozenset()
    masks: tuple[ir.Expr, ...] = ()

    def inside(self, var: ir.Var, start: ir.Expr, extent: ir.Expr) -> Around:
        context = self.context.loop(var, start, extent)
        return replace(
            self, context=context, loops={**self.loops, var.name: context.range_of(var.name)}
        )

    def holding(self, name: str, memory: Memory) -> Around:
        return replace(self, memory={**self.memory, name: memory})


def element(
    tensor: Tensor,
    position: Position,
    part: Part,
    around: Around,
    computed: Sequence[Tensor] = (),
) -> ir.Stmt:
    """The innermost statement: an element stored, behind those of stages computed along with it."""
    context = around.context
    values: dict[str, ir.Expr] = {}
    for name in axis_extents(tensor):
        if part is not Part.INITIAL or position.has_value(short(name)):
            start = position.starts.get(short(name), ZERO)
            values[name] = add(start, position.value(short(name), context))
    memory = around.memory[tensor.name]
    at = memory.at([values[axis.name] for axis in tensor.axes])
    indices = tuple(simplify(index, context) for index in at)

    def ready(expr: ir.Expr) -> ir.Expr:
        return simplify(relocated(substitute(expr, values), around), context)

    others = [store for one in computed for store in _along(one, tensor, values, around)]
    if not isinstance(tensor.body, Reduce):
        if tensor.body is None:
            raise position.nest.fail("it is an input and has nothing to compute")
        own = ir.Store(memory.buffer, indices, ready(tensor.body))
        return block(*(_store_masked(one, around) for one in (*others, own)))
    if part is Part.INITIAL:
        return _store_masked(ir.Store(memory.buffer, indices, ready(tensor.body.initial)), around)
    total = ir.Load(memory.buffer, indices)
    value = ready(tensor.body.body)
    return _update(tensor.body, total, value, around, others)


def _along(
    stage: Tensor, reader: Tensor, values: Mapping[str, ir.Expr], around: Around
) -> list[ir.Store]:
    """The stores of the elements of another stage that an element reads: one, or none."""
    reads = dict.fromkeys(load for load in loads(reader) if load.buffer.name == stage.name)
    assert isinstance(stage.body, ir.Expr)
    memory, context = around.memory[stage.name], around.context
    stores: list[ir.Store] = []
    for read in reads:
        at = [simplify(substitute(index, values), context) for index in read.indices]
        names = (axis.name for axis in stage.axes)
        own = substitute(stage.body, dict(zip(names, at, strict=True)))
        indices = tuple(simplify(index, context) for index in memory.at(at))
        value = simplify(relocated(own, around), context)
        stores.append(ir.Store(memory.buffer, indices, value))
    return stores


def _store_masked(store: ir.Store, around: Around) -> ir.Store:
    """The store of those lanes that no mask rules out."""
    if not around.masks:
        return store
    both = functools.reduce(lambda a, b: ir.Binary(ir.BinaryKind.AND, a, b), around.masks)
    return replace(store, condition=both)


def relocated(expr: ir.Expr, around: Around) -> ir.Expr:
    """The expression with loads from stages redirected to their memory."""

    def change(node: ir.Expr) -> ir.Expr:
        if not isinstance(node, ir.Load):
            return node
        memory = around.memory[node.buffer.name]
        return ir.Load(memory.buffer, memory.at(node.indices))

    return map_expr(change, expr)


def _minus(index: ir.Expr, start: ir.Expr) -> ir.Expr:
    return index if start == ZERO else add(index, start, -1)


def _update(
    reduction: Reduce,
    total: ir.Load,
    value: ir.Expr,
    around: Around,
    others: Sequence[ir.Store] = (),
) -> ir.Stmt:
    """The statement that combines one more value into the total, behind others that it reads."""
    nothing = identity(reduction.kind, reduction.dtype)
    match value:
        # Adding nothing changes nothing, so it need not be done: lanes are masked, or the test
        # becomes a branch.
        case ir.Select(condition, yes, no) if (
            no == nothing and around.masked & variables(condition) and not reads_memory(condition)
        ):
            masks = (*around.masks, condition)
            return _update(reduction, total, yes, replace(around, masks=masks), others)
        case ir.Select(condition, yes, no) if no == nothing and reduction.initial == nothing:
            return ir.If(condition, _update(reduction, total, yes, around, others))
        case ir.Binary(ir.BinaryKind.MULTIPLY, left, right) if (
            reduction.kind is ir.BinaryKind.ADD and value.dtype in (DType.FLOAT32, DType.FLOAT64)
        ):
            combined: ir.Expr = ir.Call("fma", (left, right, total), value.dtype)
        case _:
            combined = ir.Binary(reduction.kind, total, value)
    if not {other.buffer.name for other in others} <= unconditional_reads(value):
        stage = next(other.buffer.name for other in others)
        raise fail(stage, f"cannot compute it with {total.buffer.name}: a condition is in the way")
    own = ir.Store(total.buffer, total.indices, combined)
    return block(*(_store_masked(one, around) for one in (*others, own)))

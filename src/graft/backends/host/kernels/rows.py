"""Pointwise groups on row-major tensors: any number of nodes in one pass over memory.

Axes that all operands treat alike are merged, down to a single one where nothing is broadcast.
Vectors run along the last axis that is left; the threads share the pieces of it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from graft.backends.host.group import Group
from graft.backends.host.kernel import Kernel, Parameters, Stores
from graft.backends.host.kernel_template import Layout, Pattern, Plan, kernel_template
from graft.backends.host.kernels.vectors import Span, along, lanes_for, masked_store
from graft.backends.host.kernels.views import (
    merged,
    not_pointwise,
    operand_shapes,
    unflattened,
    viewed,
)
from graft.backends.host.point import PlainPoint, computed, times
from graft.backends.host.storage import static_shape
from graft.loop.ir import (
    Compare,
    CompareKind,
    Const,
    Expr,
    For,
    If,
    Let,
    LoopKind,
    Stmt,
    Var,
)
from graft.rewrite.rule import Refusal
from graft.target.target import Target


@dataclass(frozen=True, slots=True)
class RowsSchedule:
    """What a search may vary: lanes of a vector and vectors of a piece of work."""

    lanes: int
    vectors: int = 64


@kernel_template(Pattern.POINTWISE, Layout.ROW_MAJOR, symbolic=False, schedule=RowsSchedule)
def rows(group: Group, stores: Stores, target: Target) -> Plan | Refusal:
    """Pointwise nodes alone."""
    refused = not_pointwise(group.nodes)
    if refused is not None:
        return refused
    shape = static_shape(group.output)
    shapes = operand_shapes(group.nodes, len(shape))
    if isinstance(shapes, Refusal):
        return shapes
    axes = merged(shape, shapes.values())
    views = {value: axes.view(operand) for value, operand in shapes.items()}
    views[group.output] = axes.extents
    dtypes = {value.dtype for node in group.nodes for value in (*node.args, *node.outputs)}
    schedule = RowsSchedule(lanes_for(target, dtypes, axes.numbers[-1]))

    def write() -> Kernel:
        parameters = viewed(group, stores, views)
        return parameters.kernel(_body(parameters, axes.numbers, schedule))

    return write


def _body(parameters: Parameters, extents: tuple[int, ...], schedule: RowsSchedule) -> Stmt:
    """One loop over all pieces of all rows, so that any number of threads shares them evenly."""
    *leading, length = extents
    size = schedule.lanes * schedule.vectors
    pieces, left = divmod(length, size)
    job = Var("job")
    count = pieces + bool(left)
    indices = unflattened(job, (*leading, count))
    piece = Var("piece")

    def part(extent: int, tag: str) -> Stmt:
        def vector(span: Span) -> Stmt:
            return _vector(parameters, (*indices[:-1], span.index), span)

        return along(extent, schedule.lanes, tag, vector, times(piece, size))

    body = part(size, "") if pieces else part(left, "")
    if pieces and left:
        inside = Compare(CompareKind.LESS, piece, Const(pieces))
        body = If(inside, body, part(left, "_left"))
    body = Let(piece, indices[-1], body)
    return For(job, Const(0), Const(math.prod(leading) * count), body, LoopKind.PARALLEL)


def _vector(parameters: Parameters, indices: tuple[Expr, ...], span: Span) -> Stmt:
    group = parameters.group
    point = PlainPoint(indices, span.lanes)
    values = computed(group.nodes, {}, lambda value, _axis: point.load(*parameters.value(value)))
    _, target = parameters.value(group.output, "result")
    return masked_store(target, indices, values[group.output], span.condition)

"""An expansion, a depthwise convolution and a projection in one kernel.

A job is some rows of the result. Share by share of the expanded channels, a thread computes the
rows that its windows are the first to cover into a ring of rows of its own, and from there the rows
of the depthwise convolution into scratch memory; the projection reads those. The second cache holds
ring and scratch memory, so that of the three images only the narrow one is ever written. A thread
whose last job was the one above finds the rows that both cover in its ring; any other computes them
again.

Sums are those of the three kernels for themselves, in the same order.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from graft.backends.host.coordinates import BlockedCoordinate, minus, modulo, over, plus, times
from graft.backends.host.group import Group
from graft.backends.host.kernel import Parameters, Stores
from graft.backends.host.kernel_template import Chain, Layout, Plan, kernel_template, plan_of
from graft.backends.host.kernels.chain_schedule import (
    InvertedSchedule,
    choose_inverted_schedule,
    inverted_cost,
    inverted_extents,
)
from graft.backends.host.kernels.conv_cost import conv_layouts
from graft.backends.host.kernels.conv_plan import halo, takes
from graft.backends.host.kernels.depthwise import DepthwiseWriter, default_schedule
from graft.backends.host.kernels.depthwise_project import unfit_projection
from graft.backends.host.kernels.expand_depthwise import (
    Expansion,
    PointwiseRows,
    Ring,
    unfit_expansion,
)
from graft.backends.host.kernels.image import no_image, shared, unfit_epilogue
from graft.backends.host.storage import Storage, index, shape_of
from graft.base.dtypes import DType
from graft.ir.graph import Value
from graft.loop.ir import (
    INDEX,
    Binary,
    BinaryKind,
    Block,
    Buffer,
    Compare,
    CompareKind,
    Const,
    Expr,
    For,
    Let,
    Load,
    Ramp,
    Scope,
    Select,
    Stmt,
    Store,
    Var,
)
from graft.loop.statements import with_memory
from graft.rewrite.rule import Refusal
from graft.target.target import Target


def inverted_layouts(group: Group, block: int) -> Iterator[Mapping[Value, tuple[int, ...]]]:
    """The blocks in which the data of the expansion may be read."""
    if group.parts is not None and _unfit(group) is None:
        yield from conv_layouts(group.parts[0], block)


@kernel_template(
    Chain(("nn.conv2d", "nn.conv2d", "nn.conv2d")),
    Layout.BLOCKED,
    dtypes=frozenset({DType.FLOAT32}),
    constants=(1,),
    symbolic=False,
    schedule=InvertedSchedule,
    layouts=inverted_layouts,
    cost=inverted_cost,
)
def inverted_residual(group: Group, stores: Stores, target: Target) -> Plan | Refusal:
    """A pointwise, a depthwise and a pointwise convolution, and what follows each."""
    parts, result = group.parts, stores[group.output]
    reason = no_image(result) or _unfit(group)
    if reason is not None or parts is None:
        return Refusal(reason or "a convolution is read by more than the next one")
    expand, depthwise, project = group.anchors
    weights = [group.constants[conv.args[1]].array for conv in group.anchors]
    border = halo(depthwise, weights[1].shape[2:])
    expanded, filtered = parts[0].output, parts[1].output
    wide = Storage(expanded.dtype, shape_of(expanded), result.block, border)
    narrow = Storage(filtered.dtype, shape_of(filtered), result.block)
    inner = {**stores, expanded: wide, filtered: narrow}
    data = stores[group.outer(expand.args[0])]
    reason = None if data.block else "the data is no blocked image"
    reason = reason or takes(expand, weights[0].shape, data.block, result.block)
    reason = reason or takes(project, weights[2].shape, result.block, result.block)
    for part in parts:
        reason = reason or unfit_epilogue(part, inner, part.sole_anchor)
    if reason is not None:
        return Refusal(reason)
    return plan_of(group, stores, lambda p: _Writer(p, wide, narrow, target).body())


def _unfit(group: Group) -> str | None:
    """Why the convolutions are not for this template, if they are not."""
    convolutions = [(conv, group.constants[conv.args[1]].array) for conv in group.anchors]
    return unfit_expansion(*convolutions[:2]) or unfit_projection(*convolutions[1:])


class _Depthwise(DepthwiseWriter):
    """Writes rows of the depthwise convolution from the ring to scratch memory."""

    weights_name = "window"
    ring: Ring
    first_row: Expr

    def source_row(self, line: Expr) -> tuple[Expr, Expr, Expr]:
        *_, row = super().source_row(line)
        return Const(0), self.block, modulo(row, self.ring.rows)

    def address(self, coordinate: BlockedCoordinate) -> tuple[Expr, ...]:
        lanes = Ramp(Const(coordinate.first), 1, coordinate.lanes)
        row = minus(coordinate.row, self.first_row)
        return Const(0), coordinate.block, row, coordinate.column, lanes


class _Projection(PointwiseRows):
    weights_name = "projection"


class _Writer:
    """Writes the loop nest of all three."""

    def __init__(
        self, parameters: Parameters, wide: Storage, narrow: Storage, target: Target
    ) -> None:
        group = parameters.group
        first, second, third = group.parts or ()
        self.extents = extents = inverted_extents(group, wide.block, target)
        self.schedule = schedule = choose_inverted_schedule(target, extents)
        self.ring = Ring(wide, extents.expand.ring_rows(schedule.step), wide.blocks)
        rows = index(1, narrow.blocks, schedule.rows, narrow.sizes[3], narrow.block)
        self.scratch = Buffer("rows", DType.FLOAT32, rows, Scope.HEAP)
        inner = {first.output: (wide, self.ring.buffer), second.output: (narrow, self.scratch)}
        weights = [group.constants[conv.args[1]].array for conv in group.anchors]
        self.expansion = Expansion(
            *(parameters.of_part(first, inner), first.sole_anchor, weights[0].shape, target),
            schedule.expansion,
        )
        self.depthwise = _Depthwise(
            parameters.of_part(second, inner),
            default_schedule(target, DType.FLOAT32, wide.block, weights[1].shape[3]),
            second.sole_anchor,
            weights[1],
        )
        self.projection = _Projection(
            *(parameters.of_part(third, inner), third.sole_anchor, weights[2].shape, target),
            schedule.projection,
        )
        self.expansion.ring = self.depthwise.ring = self.ring
        self.expansion.asks_before_stores = False  # the ring stays in a cache
        self.first_row = self.depthwise.first_row = Var("first_row")
        self.count = Var("row_count")
        self.projection.source_batch, self.projection.source_row = Const(0), self.first_row

    def body(self) -> Stmt:
        """All jobs; `following` is the one that would find rows in the ring."""
        following = Buffer("following", INDEX, index(1), Scope.REGISTER)
        job, strip, here = Var("job"), Var("strip"), index(0)
        rows, height = self.schedule.rows, self.projection.result.sizes[2]
        goes_on = Binary(
            BinaryKind.AND,
            Compare(CompareKind.EQUAL, job, Load(following, here)),
            Compare(CompareKind.GREATER, strip, Const(0)),
        )
        leave = Store(following, here, plus(job, 1))
        work: Stmt = Block((self.filtered(goes_on), self.projected(), leave))
        left = minus(Const(height), self.first_row)
        work = Let(self.count, Binary(BinaryKind.MINIMUM, Const(rows), left), work)
        work = Let(self.first_row, times(strip, rows), work)
        batch = (self.projection.batch, self.projection.batches)
        jobs = shared((batch, (strip, -(-height // rows)), (self.projection.segment, 1)), work)
        whole: Stmt = Block((Store(following, here, Const(-1)), jobs))
        return with_memory(whole, self.ring.buffer, self.scratch, following)

    def filtered(self, goes_on: Expr) -> Stmt:
        """Share by share of the channels, all rows of the depthwise convolution: some at a time,
        and before them those of the ring that are new, which the first cache then holds."""
        expansion, rows = self.expansion, self.schedule.step
        step, first, count = Var("step"), Var("step_row"), Var("step_count")
        is_later = Compare(CompareKind.GREATER, step, Const(0))
        has_rows = Select(is_later, is_later, goes_on)
        left = minus(plus(self.first_row, self.count), first)
        body = self.stepped(first, count, has_rows)
        body = Let(count, Binary(BinaryKind.MINIMUM, Const(rows), left), body)
        body = Let(first, plus(self.first_row, times(step, rows)), body)
        steps = For(step, Const(0), over(plus(self.count, rows - 1), rows), body)
        return For(expansion.number, Const(0), Const(expansion.shares), steps)

    def stepped(self, row: Expr, count: Expr, has_rows: Expr) -> Stmt:
        """Rows of the depthwise convolution for a share, from the rows of the ring; `has_rows` is
        whether it has those that the rows above have been made of, too."""
        expansion, depthwise = self.expansion, self.depthwise
        stride, window = self.extents.expand.strides[0], self.extents.expand.window[0]
        padding: int = depthwise.anchor.attrs.padding[0]
        begin, end = Var("begin"), Var("end")  # rows of the expanded image, padding included
        first = plus(times(row, stride), -padding)
        last = plus(times(plus(row, minus(count, Const(1))), stride), window - padding)
        start = Select(has_rows, plus(first, window - stride), first)
        number = Var("number")  # of a block within the share
        line = For(depthwise.row, row, count, Block(tuple(depthwise.tiles())))
        block = Let(depthwise.block, plus(expansion.first_block, number), line)
        blocks = expansion.share // expansion.result.block
        filtered = For(number, Const(0), Const(blocks), block)
        body = Block((expansion.expanded_rows(begin, end), filtered))
        return Let(begin, start, Let(end, last, body))

    def projected(self) -> Stmt:
        """The rows of the result."""
        projection = self.projection
        row = projection.some_rows(projection.down[0], projection.line, 1)
        rows = For(projection.line, self.first_row, self.count, row)
        return For(projection.number, Const(0), Const(projection.shares), rows)

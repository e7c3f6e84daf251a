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

from graft.backends.host.coordinates import minus, over, plus, times
from graft.backends.host.group import Group
from graft.backends.host.kernel import Parameters, Stores
from graft.backends.host.kernel_template import Plan
from graft.backends.host.kernels.chain import (
    DEPTHWISE,
    FOLLOWING,
    POINTWISE,
    ChainedDepthwise,
    Expansion,
    Projection,
    Ring,
    all_jobs,
    chain_plan,
    chain_template,
    expansion_layouts,
    goes_on,
)
from graft.backends.host.kernels.chain_schedule import (
    InvertedSchedule,
    choose_inverted_schedule,
    inverted_cost,
    inverted_extents,
)
from graft.backends.host.kernels.image import shared
from graft.backends.host.storage import Storage, index
from graft.base.dtypes import DType
from graft.loop.ir import (
    Binary,
    BinaryKind,
    Block,
    Buffer,
    Compare,
    CompareKind,
    Const,
    Expr,
    For,
    Scope,
    Select,
    Stmt,
    Var,
)
from graft.loop.statements import bound
from graft.rewrite.rule import Refusal
from graft.target.target import Target

_KINDS = (POINTWISE, DEPTHWISE, POINTWISE)


@chain_template(_KINDS, InvertedSchedule, expansion_layouts(_KINDS), inverted_cost)
def inverted_residual(group: Group, stores: Stores, target: Target) -> Plan | Refusal:
    """A pointwise, a depthwise and a pointwise convolution, and what follows each."""
    return chain_plan(group, stores, _KINDS, lambda *own: _Writer(target, *own).body())


class _Writer:
    """Writes the loop nest of all three."""

    def __init__(
        self, target: Target, parameters: Parameters, wide: Storage, narrow: Storage
    ) -> None:
        group = parameters.group
        first, second, third = group.parts or ()
        self.extents = extents = inverted_extents(group, wide.block, target)
        self.schedule = schedule = choose_inverted_schedule(target, extents)
        self.ring = ring = Ring(wide, extents.expand.ring_rows(schedule.step), wide.blocks)
        rows = index(1, narrow.blocks, schedule.rows, narrow.sizes[3], narrow.block)
        self.scratch = Buffer("rows", DType.FLOAT32, rows, Scope.HEAP)
        self.first_row, self.count = Var("first_row"), Var("row_count")
        inner = {first.output: (wide, ring.buffer), second.output: (narrow, self.scratch)}
        own = parameters, first, inner, target
        self.expansion = Expansion(*own, schedule.expansion, ring)
        self.depthwise = ChainedDepthwise(parameters, second, inner, target, ring, self.first_row)
        self.projection = Projection(parameters, third, inner, target, schedule.projection)
        self.projection.read_from(self.first_row)
        self.depthwise.asks_before_stores = False  # its rows stay in a cache

    def body(self) -> Stmt:
        """All jobs."""
        strip, rows, height = Var("strip"), self.schedule.rows, self.projection.result.sizes[2]
        filtered = self.filtered(goes_on(strip))
        projected = self.projection.projected((self.first_row, self.count))
        number = Binary(BinaryKind.MINIMUM, Const(rows), minus(Const(height), self.first_row))
        bindings = ((self.first_row, times(strip, rows)), (self.count, number))
        leave = FOLLOWING.set(plus(Var("job"), 1))
        work = bound(bindings, Block((filtered, projected, leave)))
        batch = (self.projection.batch, self.projection.batches)
        jobs = shared((batch, (strip, -(-height // rows)), (self.projection.segment, 1)), work)
        return all_jobs(jobs, self.ring.buffer, self.scratch)

    def filtered(self, is_next: Expr) -> Stmt:
        """Share by share of the channels, all rows of the depthwise convolution: some at a time,
        and before them those of the ring that are new, which the first cache then holds."""
        expansion, rows = self.expansion, self.schedule.step
        step, first, count = Var("step"), Var("step_row"), Var("step_count")
        is_later = Compare(CompareKind.GREATER, step, Const(0))
        has_rows = Select(is_later, is_later, is_next)
        body = expansion.feed(self.depthwise, self.extents.expand, (first, count), has_rows)
        left = minus(plus(self.first_row, self.count), first)
        number = Binary(BinaryKind.MINIMUM, Const(rows), left)
        start = plus(self.first_row, times(step, rows))
        body = bound(((first, start), (count, number)), body)
        steps = For(step, Const(0), over(plus(self.count, rows - 1), rows), body)
        return For(expansion.number, Const(0), Const(expansion.shares), steps)

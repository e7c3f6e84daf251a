"""A pointwise convolution and the depthwise one that reads it, in one kernel.

The first one expands the channels of an image, so its result is the largest tensor around: here it
is never written. Each thread keeps the rows of it that windows of the depthwise convolution cover
in a ring of its own, a line buffer of [block, row, column, channel], which a near cache holds. A
job is some rows of the result for a share of the channels: it computes the rows of the expanded
image that its windows are the first to cover, and then the rows of the result, each with its
epilogue in registers. A thread whose last job was the one above in a band of the image finds the
rows that both cover in its ring; any other computes them again.

Sums are those of the two kernels for themselves, in the same order.
"""

from __future__ import annotations

from graft.backends.host.coordinates import minus, plus, times
from graft.backends.host.group import Group
from graft.backends.host.kernel import Parameters, Stores
from graft.backends.host.kernel_template import Plan
from graft.backends.host.kernels.chain import (
    DEPTHWISE,
    FOLLOWING,
    POINTWISE,
    ChainedDepthwise,
    Expansion,
    Ring,
    all_jobs,
    chain_plan,
    chain_template,
    expansion_layouts,
    goes_on,
)
from graft.backends.host.kernels.chain_schedule import (
    ExpandSchedule,
    choose_expand_schedule,
    expand_cost,
    expand_extents,
)
from graft.backends.host.kernels.image import WITHIN, shared_in_bands
from graft.backends.host.storage import Storage
from graft.loop.ir import Binary, BinaryKind, Block, Const, Stmt, Var
from graft.loop.statements import bound
from graft.rewrite.rule import Refusal
from graft.target.target import Target

_KINDS = (POINTWISE, DEPTHWISE)


@chain_template(_KINDS, ExpandSchedule, expansion_layouts(_KINDS), expand_cost)
def expand_depthwise(group: Group, stores: Stores, target: Target) -> Plan | Refusal:
    """A convolution without neighbours, a depthwise one of its result, and what follows each."""
    return chain_plan(group, stores, _KINDS, lambda p, middle: _Writer(p, middle, target).body())


class _Writer:
    """Writes the loop nest of both."""

    def __init__(self, parameters: Parameters, middle: Storage, target: Target) -> None:
        first, second = parameters.group.parts or ()
        self.extents = expand_extents(parameters.group, middle.block, target)
        self.schedule = schedule = choose_expand_schedule(target, self.extents)
        share = max(schedule.tile.slab, middle.block)
        rows = self.extents.ring_rows(schedule.rows)
        self.ring = ring = Ring(middle, rows, share // middle.block)
        inner = {first.output: (middle, ring.buffer)}
        self.expansion = Expansion(parameters, first, inner, target, schedule.tile, ring)
        self.depthwise = ChainedDepthwise(parameters, second, inner, target, ring)
        self.strip = Var("strip")

    def body(self) -> Stmt:
        """All jobs."""
        strips = -(-self.height // self.schedule.rows)
        between = ((self.expansion.segment, 1), (self.expansion.number, self.expansion.shares))
        jobs = shared_in_bands(
            (self.expansion.batch, self.expansion.batches),
            (self.strip, strips),
            self.schedule.tile.bands,
            between,
            Block((self.rows(), FOLLOWING.set(plus(Var("job"), 1)))),
        )
        return all_jobs(jobs, self.ring.buffer)

    @property
    def height(self) -> int:
        """Rows of the result."""
        return self.depthwise.result.sizes[2]

    def rows(self) -> Stmt:
        """The rows of a job."""
        row, count, rows = Var("first_row"), Var("row_count"), self.schedule.rows
        body = self.expansion.feed(self.depthwise, self.extents, (row, count), goes_on(WITHIN))
        number = Binary(BinaryKind.MINIMUM, Const(rows), minus(Const(self.height), row))
        return bound(((row, times(self.strip, rows)), (count, number)), body)

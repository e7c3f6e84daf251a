"""A depthwise convolution and the pointwise one that reads it, in one kernel.

A job is some rows of the result: a thread computes these rows of the depthwise convolution for all
channels into scratch memory, which the second cache holds, and the pointwise convolution from
there, each with its epilogue in registers. What is between them is never written.

Sums are those of the two kernels for themselves, in the same order.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from graft.backends.host.coordinates import minus, times
from graft.backends.host.group import Group
from graft.backends.host.kernel import Parameters, Stores
from graft.backends.host.kernel_template import Plan
from graft.backends.host.kernels.chain import (
    DEPTHWISE,
    POINTWISE,
    ChainedDepthwise,
    Projection,
    chain_plan,
    chain_template,
    unfit_chain,
)
from graft.backends.host.kernels.chain_schedule import (
    ProjectSchedule,
    choose_project_schedule,
    project_cost,
    project_extents,
)
from graft.backends.host.kernels.image import shared
from graft.backends.host.storage import BLOCKS, Storage, index, is_image
from graft.base.dtypes import DType
from graft.ir.graph import Value
from graft.loop.ir import (
    Allocate,
    Binary,
    BinaryKind,
    Block,
    Buffer,
    Const,
    For,
    Scope,
    Stmt,
    Var,
)
from graft.loop.statements import bound
from graft.rewrite.rule import Refusal
from graft.target.target import Target

_KINDS = (DEPTHWISE, POINTWISE)


def project_layouts(group: Group, block: int) -> Iterator[Mapping[Value, tuple[int, ...]]]:
    """The blocks in which the data of the depthwise convolution may be read."""
    data = group.anchors[0].args[0]
    if block and is_image(group.outer(data)) and unfit_chain(group, _KINDS) is None:
        for size in BLOCKS:
            yield {data: (size,)}


@chain_template(_KINDS, ProjectSchedule, project_layouts, project_cost)
def depthwise_project(group: Group, stores: Stores, target: Target) -> Plan | Refusal:
    """A depthwise convolution, one without neighbours of its result, and what follows each."""
    return chain_plan(group, stores, _KINDS, lambda p, middle: _Writer(p, middle, target).body())


class _Writer:
    """Writes the loop nest of both."""

    def __init__(self, parameters: Parameters, middle: Storage, target: Target) -> None:
        group = parameters.group
        first, second = group.parts or ()
        block = parameters.stores[group.output].block
        self.schedule = choose_project_schedule(target, project_extents(group, block, target))
        extents = index(1, middle.blocks, self.schedule.rows, middle.sizes[3], middle.block)
        self.scratch = Buffer("rows", DType.FLOAT32, extents, Scope.HEAP)
        inner = {first.output: (middle, self.scratch)}
        self.first_row = Var("first_row")
        self.depthwise = ChainedDepthwise(
            parameters, first, inner, target, first_row=self.first_row
        )
        self.depthwise.asks_before_stores = False  # its rows stay in a cache
        self.projection = Projection(parameters, second, inner, target, self.schedule.tile)
        self.projection.read_from(self.first_row)

    def body(self) -> Stmt:
        """All jobs: some rows of all channels each."""
        depthwise, projection, rows = self.depthwise, self.projection, self.schedule.rows
        _, _, height, _ = projection.result.sizes
        strip, count = Var("strip"), Var("row_count")
        parts = (
            (projection.batch, projection.batches),
            (strip, -(-height // rows)),
            (projection.segment, 1),
        )
        line = For(depthwise.row, self.first_row, count, Block(tuple(depthwise.tiles())))
        blocks = For(depthwise.block, Const(0), Const(depthwise.result.blocks), line)
        projected = projection.projected((self.first_row, count))
        left = minus(Const(height), self.first_row)
        number = Binary(BinaryKind.MINIMUM, Const(rows), left)
        bindings = ((self.first_row, times(strip, rows)), (count, number))
        return Allocate(self.scratch, shared(parts, bound(bindings, Block((blocks, projected)))))

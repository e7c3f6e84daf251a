"""A depthwise convolution and the pointwise one that reads it, in one kernel.

A job is some rows of the result: a thread computes these rows of the depthwise convolution for all
channels into scratch memory, which the second cache holds, and the pointwise convolution from
there, each with its epilogue in registers. What is between them is never written.

Sums are those of the two kernels for themselves, in the same order.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from graft.backends.host.coordinates import BlockedCoordinate, minus, times
from graft.backends.host.group import Group
from graft.backends.host.kernel import Parameters, Stores
from graft.backends.host.kernel_template import Chain, Layout, Plan, kernel_template, plan_of
from graft.backends.host.kernels.chain_schedule import (
    ProjectSchedule,
    choose_project_schedule,
    project_cost,
    project_extents,
)
from graft.backends.host.kernels.conv_plan import is_depthwise, takes, without_neighbours
from graft.backends.host.kernels.depthwise import DepthwiseWriter, default_schedule, unfit
from graft.backends.host.kernels.expand_depthwise import PointwiseRows
from graft.backends.host.kernels.image import no_image, shared, unfit_epilogue
from graft.backends.host.storage import BLOCKS, Storage, index, is_image, shape_of
from graft.base.dtypes import Array, DType
from graft.ir.graph import Node, Value
from graft.loop.ir import (
    Allocate,
    Binary,
    BinaryKind,
    Block,
    Buffer,
    Const,
    Expr,
    For,
    Let,
    Ramp,
    Scope,
    Stmt,
    Var,
)
from graft.rewrite.rule import Refusal
from graft.target.target import Target


def project_layouts(group: Group, block: int) -> Iterator[Mapping[Value, tuple[int, ...]]]:
    """The blocks in which the data of the depthwise convolution may be read."""
    data = group.anchors[0].args[0]
    if block and is_image(group.outer(data)) and _unfit(group) is None:
        for size in BLOCKS:
            yield {data: (size,)}


@kernel_template(
    Chain(("nn.conv2d", "nn.conv2d")),
    Layout.BLOCKED,
    dtypes=frozenset({DType.FLOAT32}),
    constants=(1,),
    symbolic=False,
    schedule=ProjectSchedule,
    layouts=project_layouts,
    cost=project_cost,
)
def depthwise_project(group: Group, stores: Stores, target: Target) -> Plan | Refusal:
    """A depthwise convolution, one without neighbours of its result, and what follows each."""
    result, data = stores[group.output], stores[group.outer(group.anchors[0].args[0])]
    reason = no_image(result) or _unfit(group)
    if reason is not None or group.parts is None:
        return Refusal(reason or "the first convolution is read by more than the second")
    first, second = group.parts
    middle = Storage(DType.FLOAT32, shape_of(first.output), data.block)
    inner = {**stores, first.output: middle}
    weights = [group.constants[conv.args[1]].array for conv in group.anchors]
    reason = None if data.block else "the data is no blocked image"
    reason = reason or unfit(first.sole_anchor, weights[0], data, middle)
    reason = reason or takes(second.sole_anchor, weights[1].shape, middle.block, result.block)
    for part in (first, second):
        reason = reason or unfit_epilogue(part, inner, part.sole_anchor)
    if reason is not None:
        return Refusal(reason)
    return plan_of(group, stores, lambda p: _Writer(p, middle, target).body())


def _unfit(group: Group) -> str | None:
    """Why the convolutions are not for this template, if they are not."""
    depthwise, project = ((conv, group.constants[conv.args[1]].array) for conv in group.anchors)
    return unfit_projection(depthwise, project)


def unfit_projection(depthwise: tuple[Node, Array], project: tuple[Node, Array]) -> str | None:
    """Why two convolutions, each with its weights, are not a depthwise one and a projection, if
    they are not."""
    (first, window), (second, weights) = depthwise, project
    if not is_depthwise(first, window.shape):
        return "the convolution before the last is not depthwise"
    if not without_neighbours(second, weights.shape) or second.attrs.groups != 1:
        return "the last convolution is not pointwise"
    return None


class _Depthwise(DepthwiseWriter):
    """Writes rows of the depthwise convolution's result to scratch memory."""

    weights_name = "window"
    first_row: Expr

    def address(self, coordinate: BlockedCoordinate) -> tuple[Expr, ...]:
        lanes = Ramp(Const(coordinate.first), 1, coordinate.lanes)
        row = minus(coordinate.row, self.first_row)
        return Const(0), coordinate.block, row, coordinate.column, lanes


class _Writer:
    """Writes the loop nest of both."""

    def __init__(self, parameters: Parameters, middle: Storage, target: Target) -> None:
        group = parameters.group
        first, second = group.parts or ()
        block = parameters.stores[group.output].block
        self.schedule = choose_project_schedule(target, project_extents(group, block, target))
        _, _, _, width = middle.sizes
        extents = index(1, middle.blocks, self.schedule.rows, width, middle.block)
        self.scratch = Buffer("rows", DType.FLOAT32, extents, Scope.HEAP)
        inner = {first.output: (middle, self.scratch)}
        weights = [group.constants[conv.args[1]].array for conv in group.anchors]
        self.depthwise = _Depthwise(
            parameters.of_part(first, inner),
            default_schedule(target, DType.FLOAT32, middle.block, weights[0].shape[3]),
            first.sole_anchor,
            weights[0],
        )
        self.projection = PointwiseRows(
            *(parameters.of_part(second, inner), second.sole_anchor, weights[1].shape, target),
            self.schedule.tile,
        )
        self.first_row = self.depthwise.first_row = Var("first_row")
        self.projection.source_batch, self.projection.source_row = Const(0), self.first_row

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
        row = projection.some_rows(projection.down[0], projection.line, 1)
        projected = For(projection.line, self.first_row, count, row)
        shares = For(projection.number, Const(0), Const(projection.shares), projected)
        left = minus(Const(height), self.first_row)
        job: Stmt = Block((blocks, shares))
        job = Let(count, Binary(BinaryKind.MINIMUM, Const(rows), left), job)
        job = Let(self.first_row, times(strip, rows), job)
        return Allocate(self.scratch, shared(parts, job))

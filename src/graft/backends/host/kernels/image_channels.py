"""The channels of each pixel of a blocked image reduced to their mean, sum or extreme.

Reads [batch, channels / block, rows, columns, block], writes [batch, 1, rows, columns] or [batch,
rows, columns] row-major, with what comes before and after in registers. The threads share the rows;
some pixels side by side each combine their vectors of channels, and the lanes only at the end.
"""

from __future__ import annotations

from functools import partial

from graft.backends.host.group import Group
from graft.backends.host.kernel import Parameters, Stores
from graft.backends.host.kernel_template import FLOATS, Layout, Plan, kernel_template, plan_of
from graft.backends.host.kernels.image import Evaluator, shared
from graft.backends.host.kernels.image_reduce import (
    CHANNELS,
    REDUCTIONS,
    ReduceSchedule,
    default_schedule,
    reduced_block,
)
from graft.backends.host.kernels.tile import Tile, runs
from graft.backends.host.kernels.vectors import mask_of
from graft.backends.host.point import BlockedPoint, PlainPoint, plus
from graft.backends.host.storage import Storage, shape_of
from graft.ir.graph import Node
from graft.loop.ir import (
    Allocate,
    Binary,
    BinaryKind,
    Block,
    Call,
    Const,
    Expr,
    For,
    Select,
    Stmt,
    Store,
    Var,
)
from graft.rewrite.rule import Refusal
from graft.target.target import Target

_ACROSS = {
    BinaryKind.ADD: "reduce_add",
    BinaryKind.MAXIMUM: "reduce_max",
    BinaryKind.MINIMUM: "reduce_min",
}


@kernel_template(REDUCTIONS, Layout.BLOCKED, dtypes=FLOATS, schedule=ReduceSchedule)
def image_channels(group: Group, stores: Stores, target: Target) -> Plan | Refusal:
    """A reduction over channels with whatever is fused with it."""
    block = reduced_block(group, stores, CHANNELS)
    if isinstance(block, Refusal):
        return block
    schedule, anchor = default_schedule(target, group.output.dtype, block), group.sole_anchor
    return plan_of(group, stores, lambda p: _Writer(p, schedule, anchor, block).body())


class _Writer:
    """Writes the loop nest of one reduction."""

    def __init__(
        self, parameters: Parameters, schedule: ReduceSchedule, anchor: Node, block: int
    ) -> None:
        self.parameters, self.schedule = parameters, schedule
        self.anchor, self.size = anchor, block
        self.kind, self.start = REDUCTIONS[anchor.op.name]
        batches, channels, height, width = map(parameters.extent, shape_of(anchor.args[0]))
        assert isinstance(channels, Const)
        self.batches, self.height, self.width = batches, height, width
        self.channels = int(channels.value)
        self.result: Storage = parameters.stores[parameters.group.output]
        self.evaluator = Evaluator(parameters)
        self.batch, self.row = Var("batch"), Var("row")

    def body(self) -> Stmt:
        line: list[Stmt] = []
        for run in runs(self.width, self.schedule.totals):

            def tile(column: Expr, size: int = run.size) -> Stmt:
                return self.pixels(column, size)

            line.append(run.loop(Var(self.evaluator.fresh("tile")), tile))
        return shared(((self.batch, self.batches), (self.row, self.height)), Block(tuple(line)))

    def pixels(self, column: Expr, count: int) -> Stmt:
        """Some pixels: their vectors block by block, then the lanes of each."""
        lanes, dtype = self.schedule.lanes, self.result.dtype
        tile = Tile(count, 1, lanes, self.evaluator.fresh(""), dtype)
        start = Const(self.start, dtype, lanes)
        block = Var(self.evaluator.fresh("block"))
        whole, left = divmod(self.channels, self.size)
        blocks = For(block, Const(0), Const(whole), self.block(tile, column, block, self.size))
        rest = self.block(tile, column, Const(whole), left)
        finish = tile.each(lambda pixel, _: self.finish(tile, plus(column, pixel), pixel))
        body = Block((tile.clear(lambda _: start), blocks, rest, finish))
        return Allocate(tile.accumulators, body)

    def block(self, tile: Tile, column: Expr, block: Expr, channels: int) -> Stmt:
        """The first channels of a block to the totals of all pixels."""
        lanes = self.schedule.lanes
        found: list[Stmt] = []
        for first in range(0, channels, lanes):
            condition = mask_of(Const(channels - first), lanes)
            for pixel in range(tile.pixels):
                place = plus(column, pixel)
                point = BlockedPoint(self.batch, block, self.row, place, first, lanes, self.size)
                add = partial(self.added, tile, pixel, condition)
                found.append(self.evaluator.at(point, self.anchor.args[0], {}, add))
        return Block(tuple(found))

    def added(self, tile: Tile, pixel: int, condition: Expr | None, value: Expr) -> Stmt:
        """A vector, of which only some lanes may be channels, to the total of a pixel."""
        if condition is not None:
            value = Select(condition, value, Const(self.start, value.dtype, value.lanes))
        total = Binary(self.kind, tile.value(pixel, 0), value)
        return Store(tile.accumulators, tile.at(pixel, 0), total)

    def finish(self, tile: Tile, column: Expr, pixel: int) -> Stmt:
        """The lanes together, those of a mean divided, through the epilogue, to memory."""
        group = self.parameters.group
        total = tile.value(pixel, 0)
        if tile.lanes > 1:
            total = Call(_ACROSS[self.kind], (total,), total.dtype)
        if self.anchor.op.name == "mean":
            divisor = Const(float(self.channels), total.dtype)
            total = Binary(BinaryKind.DIVIDE, total, divisor)
        one = (Const(0),) if self.anchor.attrs.keepdims else ()
        at: tuple[Expr, ...] = (self.batch, *one, self.row, column)
        buffer = self.parameters.value(group.output, "result")[1]
        return self.evaluator.at(
            PlainPoint(at),
            group.nodes[-1].output,
            {self.anchor.output: total},
            lambda value: Store(buffer, at, value),
        )

"""Reductions of blocked images over their pixels or their channels, with fused pointwise nodes.

Over rows and columns: writes [batch, channels] or [batch, channels, 1, 1] row-major. The threads
share the blocks of channels; several totals of each vector of channels run side by side, since an
addition has to wait for the one before it. The rows of large images are added up in float64, since
each addition to a long sum rounds away what is small beside it: a variance of the same image may be
as small. Over channels: writes [batch, 1, rows, columns] or [batch, rows, columns] row-major. The
threads share the rows; some pixels side by side each combine their vectors of channels, and the
lanes last.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import partial, reduce

from graft.backends.host.coordinates import (
    BlockedCoordinate,
    PlainCoordinate,
    minus,
    modulo,
    over,
    plus,
    times,
)
from graft.backends.host.group import Group
from graft.backends.host.kernel import Parameters, Stores
from graft.backends.host.kernel_template import FLOATS, Layout, Plan, kernel_template, plan_of
from graft.backends.host.kernels.image import (
    Evaluator,
    not_pointwise,
    operands,
    reads_at,
    shared,
    source_block,
    unfit_prologue,
    vector_lanes,
)
from graft.backends.host.kernels.tile import REDUCTIONS, Tile, parts, runs
from graft.backends.host.kernels.vectors import mask_of, masked_store
from graft.backends.host.storage import BLOCKS, Storage, shape_of
from graft.base.dtypes import DType
from graft.ir.graph import Node, Value
from graft.loop.ir import (
    Allocate,
    Binary,
    BinaryKind,
    Block,
    Broadcast,
    Cast,
    Const,
    Expr,
    For,
    Ramp,
    Select,
    Stmt,
    Store,
    Var,
)
from graft.loop.tensor import identity
from graft.loop.vectors import combine_lanes
from graft.ops.integer import BYTES
from graft.rewrite.rule import Refusal
from graft.target.target import Target

# The axes of an image that its pixels are counted along, and that of its channels.
PIXELS, CHANNELS = frozenset({2, 3}), frozenset({1})
_ANCHORS = frozenset(REDUCTIONS) - {"prod"}
LONGEST_CHAIN = 256  # additions in a row to one total of floats: rounding errors grow with them


@dataclass(frozen=True, slots=True)
class ReduceSchedule:
    """What a search may vary: lanes of a vector, and totals of it that run side by side."""

    lanes: int
    totals: int


def default_schedule(target: Target, dtype: DType, block: int) -> ReduceSchedule:
    """Enough totals to hide an addition's latency, within half of the registers."""
    return ReduceSchedule(vector_lanes(target, dtype, block), target.vector_registers // 2)


def _layouts(group: Group, block: int) -> Iterator[Mapping[Value, tuple[int, ...]]]:
    """The image whose pixels or channels are reduced to rows may be in any blocks."""
    anchor = group.sole_anchor
    if block or not reduces_image(anchor, PIXELS, CHANNELS):
        return
    shape = anchor.args[0].shape
    same = [value for value in group.images() if group.outer(value).shape == shape]
    if len(same) == 1:
        yield {same[0]: (0, *BLOCKS)}


@kernel_template(_ANCHORS, Layout.BLOCKED, dtypes=FLOATS, schedule=ReduceSchedule, layouts=_layouts)
def image_reduce(group: Group, stores: Stores, target: Target) -> Plan | Refusal:
    """A reduction over pixels or channels with whatever is fused with it."""
    block = reduced_block(group, stores)
    if isinstance(block, Refusal):
        return block
    anchor = group.sole_anchor
    schedule = default_schedule(target, anchor.output.dtype, block)
    writer = _PixelWriter if reduces_image(anchor, PIXELS) else _ChannelWriter
    return plan_of(group, stores, lambda p: writer(p, schedule, anchor, block).body())


def reduces_image(anchor: Node | None, *axes: frozenset[int]) -> bool:
    """Whether a node reduces an image along one of these sets of axes."""
    if anchor is None or anchor.op.name not in _ANCHORS or len(anchor.args) > 1:
        return False
    shape, reduced_axes = anchor.args[0].shape, anchor.attrs.axes
    is_image = shape is not None and len(shape) == 4 and 0 not in shape
    return (
        is_image
        and reduced_axes is not None
        and frozenset(axis % 4 for axis in reduced_axes) in axes
    )


def reduced_block(group: Group, stores: Stores) -> int | Refusal:
    """The blocks of the image that a group reduces; a reason where it cannot be read."""
    anchor = group.sole_anchor
    if not reduces_image(anchor, PIXELS, CHANNELS):
        return Refusal("no image is reduced along all of its pixels, or its channels")
    source = anchor.args[0]
    block = source_block(group, stores, source)
    result = stores[group.output]
    if not block or result.block:
        return Refusal("the data is no blocked image, or the result is one")
    if result.dtype not in (anchor.output.dtype, *BYTES):
        return Refusal(f"the result is {result.dtype}")
    after = group.leading_to(group.nodes[-1].output, {anchor.output})
    reason = unfit_prologue(group, stores, source, block)
    reason = reason or _unfit_epilogue(group, stores, anchor, after)
    return Refusal(reason) if reason else block


def _unfit_epilogue(
    group: Group, stores: Stores, anchor: Node, after: tuple[Node, ...]
) -> str | None:
    """Why what follows the reduction cannot be computed with it, if it cannot."""
    values = [v for v in operands(after, {anchor.output}) if v not in group.constants]
    if any(stores[group.outer(value)].block for value in values):
        return "what follows the reduction reads a blocked image"
    shape = stores[group.output].shape
    if not all(reads_at(stores[group.outer(value)].shape, shape) for value in values):
        return "what follows the reduction may or may not be repeated"
    return not_pointwise(after, rank=len(shape_of(anchor.output)))


class _Writer:
    """What the loop nests of both kinds of reductions have in common."""

    def __init__(
        self, parameters: Parameters, schedule: ReduceSchedule, anchor: Node, block: int
    ) -> None:
        self.parameters, self.schedule = parameters, schedule
        self.anchor, self.size = anchor, block
        self.lanes, self.dtype = schedule.lanes, anchor.output.dtype
        self.kind = REDUCTIONS[anchor.op.name]
        self.start = identity(self.kind, self.dtype, self.lanes)
        extents = map(parameters.extent, shape_of(anchor.args[0]))
        self.batches, self.channels, self.height, self.width = extents
        self.result: Storage = parameters.stores[parameters.group.output]
        self.evaluator = Evaluator(parameters)
        self.batch, self.row = Var("batch"), Var("row")

    def totals(self, count: int) -> Tile:
        """So many totals of a vector of channels."""
        return Tile(count, 1, self.lanes, self.parameters.fresh(""), self.dtype)

    def clear(self, tile: Tile) -> Stmt:
        return tile.clear(lambda _: self.start)

    def update(
        self, tile: Tile, pixel: int, at: tuple[Expr, Expr, Expr, int], condition: Expr | None
    ) -> Stmt:
        """One more vector of the image, of which only some lanes may be channels, to a total."""
        coordinate = BlockedCoordinate(self.batch, *at, self.lanes, self.size)

        def added(value: Expr) -> Stmt:
            if condition is not None:
                value = Select(condition, value, self.start)
            total = Binary(self.kind, tile.value(pixel, 0), value)
            return Store(tile.accumulators, tile.at(pixel, 0), total)

        return self.evaluator.at(coordinate, self.anchor.args[0], {}, added)

    def stored(self, total: Expr, at: tuple[Expr, ...], condition: Expr | None) -> Stmt:
        """A result through the epilogue to memory."""
        group = self.parameters.group
        buffer = self.parameters.value(group.output, "result")[1]
        return self.evaluator.at(
            PlainCoordinate(at, total.lanes, condition),
            group.nodes[-1].output,
            {self.anchor.output: total},
            lambda value: masked_store(buffer, at, value, condition),
        )


class _PixelWriter(_Writer):
    """Writes the loop nest of one reduction over pixels."""

    block = Var("block")

    def body(self) -> Stmt:
        blocks = over(plus(self.channels, self.size - 1), self.size)
        body = Block(tuple(self.vector(first) for first in range(0, self.size, self.lanes)))
        return shared(((self.batch, self.batches), (self.block, blocks)), body)

    def vector(self, first: int) -> Stmt:
        """A vector of channels."""
        count = self.schedule.totals
        if isinstance(self.width, Const):
            count = min(count, int(self.width.value))
        tile = self.totals(count)
        line = Var(self.parameters.fresh("row"))

        def added(size: int, column: Expr) -> Stmt:
            at = ((self.block, line, plus(column, pixel), first) for pixel in range(size))
            return Block(tuple(self.update(tile, n, here, None) for n, here in enumerate(at)))

        pixels = [
            run.loop(Var(self.parameters.fresh("tile")), partial(added, run.size))
            for run in parts(self.width, count)
        ]
        if not self.is_long(count):
            sums = For(line, Const(0), self.height, Block(tuple(pixels)))
            body = Block((self.clear(tile), sums, self.finish(tile, first)))
            return Allocate(tile.accumulators, body)
        whole = Tile(1, 1, self.lanes, self.parameters.fresh("_all"), DType.FLOAT64)
        total = Binary(self.kind, whole.value(0, 0), Cast(DType.FLOAT64, self.together(tile)))
        gathered = Store(whole.accumulators, whole.at(0, 0), total)
        row = Block((self.clear(tile), *pixels, gathered))
        sums = For(line, Const(0), self.height, Allocate(tile.accumulators, row))
        body = Block((whole.clear(), sums, self.finish(whole, first)))
        return Allocate(whole.accumulators, body)

    def is_long(self, totals: int) -> bool:
        """Whether so many totals of the image are sums of too many numbers."""
        if self.kind is not BinaryKind.ADD or not self.anchor.output.dtype.is_float:
            return False
        pixels = times(self.height, self.width)
        return not isinstance(pixels, Const) or int(pixels.value) > LONGEST_CHAIN * totals

    def together(self, tile: Tile) -> Expr:
        return combined(self.kind, [tile.value(pixel, 0) for pixel in range(tile.pixels)])

    def finish(self, tile: Tile, first: int) -> Stmt:
        """The totals together, those of a mean divided, through the epilogue, to memory."""
        lanes, total = self.lanes, self.together(tile)
        if self.anchor.op.name == "mean":
            pixels = times(self.height, self.width)
            divisor = Broadcast(Cast(tile.dtype, pixels), lanes)
            total = Binary(BinaryKind.DIVIDE, total, divisor)
        if tile.dtype is not self.dtype:
            total = Cast(self.dtype, total)
        channel = plus(times(self.block, self.size), first)
        is_whole = modulo(self.channels, self.size) == Const(0)
        condition = None if is_whole else mask_of(minus(self.channels, channel), lanes)
        rest = (Const(0),) * (len(self.result.shape) - 2)
        return self.stored(total, (self.batch, Ramp(channel, 1, lanes), *rest), condition)


def combined(kind: BinaryKind, terms: list[Expr]) -> Expr:
    """Terms combined in pairs: a sum then rounds less than one after the other."""
    while len(terms) > 1:
        pairs = [terms[i : i + 2] for i in range(0, len(terms), 2)]
        terms = [reduce(partial(Binary, kind), pair) for pair in pairs]
    return terms[0]


class _ChannelWriter(_Writer):
    """Writes the loop nest of one reduction over channels."""

    def body(self) -> Stmt:
        line = [
            run.loop(Var(self.parameters.fresh("tile")), partial(self.pixels, run.size))
            for run in runs(self.width, self.schedule.totals)
        ]
        return shared(((self.batch, self.batches), (self.row, self.height)), Block(tuple(line)))

    @property
    def channel_count(self) -> int:
        assert isinstance(self.channels, Const)
        return int(self.channels.value)

    def pixels(self, count: int, column: Expr) -> Stmt:
        """Some pixels: their vectors block by block, then the lanes of each."""
        tile, block = self.totals(count), Var(self.parameters.fresh("block"))
        whole, rest_channels = divmod(self.channel_count, self.size)
        blocks = For(block, Const(0), Const(whole), self.block(tile, column, block, self.size))
        rest = self.block(tile, column, Const(whole), rest_channels)
        finish = tile.each(lambda pixel, _: self.finish(tile, plus(column, pixel), pixel))
        return Allocate(tile.accumulators, Block((self.clear(tile), blocks, rest, finish)))

    def block(self, tile: Tile, column: Expr, block: Expr, channels: int) -> Stmt:
        """The first channels of a block to the totals of all pixels."""
        statements: list[Stmt] = []
        for first in range(0, channels, self.lanes):
            condition = mask_of(Const(channels - first), self.lanes)
            for pixel in range(tile.pixels):
                at = (block, self.row, plus(column, pixel), first)
                statements.append(self.update(tile, pixel, at, condition))
        return Block(tuple(statements))

    def finish(self, tile: Tile, column: Expr, pixel: int) -> Stmt:
        """The lanes together, those of a mean divided, through the epilogue, to memory."""
        total = combine_lanes(self.kind, tile.value(pixel, 0))
        if self.anchor.op.name == "mean":
            divisor = Const(float(self.channel_count), total.dtype)
            total = Binary(BinaryKind.DIVIDE, total, divisor)
        one = (Const(0),) if self.anchor.attrs.keepdims else ()
        return self.stored(total, (self.batch, *one, self.row, column), None)

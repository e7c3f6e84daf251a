"""Movement of blocked images: padding, slices, rolls, shuffled channels, depth to space and back.

Each vector of channels of the result is read from where the tables of `pixel_map` say: as one
vector where its channels are neighbours in the source, else lane by lane. Pointwise nodes that
follow are computed on it. The threads share the rows of the result.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from graft.backends.host.group import Group
from graft.backends.host.kernel import Parameters, Stores
from graft.backends.host.kernel_template import Layout, Pattern, Plan, kernel_template, plan_of
from graft.backends.host.kernels.image import (
    ImageWriter,
    group_lanes,
    needed,
    no_image,
    not_pointwise,
    not_readable,
    operands,
)
from graft.backends.host.kernels.pixel_map import PixelMap, pixel_maps
from graft.backends.host.point import BlockedPoint, modulo, plus, times
from graft.backends.host.storage import Storage
from graft.base.dtypes import Array
from graft.ir.graph import Node, Value
from graft.ir.op import Kind
from graft.loop.ir import (
    Binary,
    BinaryKind,
    Block,
    Broadcast,
    Buffer,
    Compare,
    CompareKind,
    Const,
    Expr,
    Let,
    Load,
    Ramp,
    Select,
    Stmt,
    Var,
)
from graft.rewrite.rule import Refusal
from graft.target.target import Target


@dataclass(frozen=True, slots=True)
class MovementSchedule:
    """What a search may vary: lanes of a vector and pixels side by side."""

    lanes: int
    pixels: int


def default_schedule(target: Target, group: Group, block: int) -> MovementSchedule:
    """A few vectors side by side keep enough loads under way."""
    lanes = group_lanes(target, group, block)
    return MovementSchedule(lanes, max(1, 4 * lanes // block))


@kernel_template(Pattern.ANY, Layout.BLOCKED, schedule=MovementSchedule)
def image_movement(group: Group, stores: Stores, target: Target) -> Plan | Refusal:
    """Movement of one image, with any number of results or pointwise nodes behind it."""
    results = [stores[value] for value in group.node.outputs]
    reason = next(filter(None, map(no_image, results)), None)
    maps = Refusal(reason) if reason else pixel_maps(group)
    if isinstance(maps, Refusal):
        return maps
    source = stores[group.outer(next(iter(maps.values())).source)]
    reason = _unfit(group, stores, source, tuple(maps))
    if reason:
        return Refusal(reason)

    def body(parameters: Parameters) -> Stmt:
        loops: list[Stmt] = []
        for number, (end, map_) in enumerate(maps.items()):
            schedule = default_schedule(target, group, results[number].block)
            loops.append(_Writer(parameters, schedule, number, end, map_).body())
        return Block(tuple(loops))

    return plan_of(group, stores, body)


def moves_image(group: Group) -> Value | None:
    """The image that a group moves and can move in blocks, if there is one."""
    if not any(node.op.kind is Kind.INJECTIVE for node in group.nodes):
        return None
    maps = pixel_maps(group)
    if isinstance(maps, Refusal) or not_pointwise(_after(group, tuple(maps))):
        return None
    return next(iter(maps.values())).source


def _after(group: Group, ends: tuple[Value, ...]) -> tuple[Node, ...]:
    """What is computed from moved images."""
    return needed(group, group.nodes[-1].output, ends)


def _unfit(group: Group, stores: Stores, source: Storage, ends: tuple[Value, ...]) -> str | None:
    """Why the image or what follows cannot be read, if it cannot."""
    if not source.block:
        return "the data is no blocked image"
    after = _after(group, ends)
    if len(ends) > 1 and after:
        return "several images are computed with"
    result = stores[group.output]
    values = operands(after, ends)
    return not_pointwise(after) or not_readable(group, stores, values, result.shape, result.block)


def offsets(map_: PixelMap, source: Storage, blocks: int, size: int) -> Array:
    """Per period and channel of the result, what it adds to the address of a row and a column.

    Lanes without a channel go on where the last channel is, or stay there at the end of a block."""
    height, width = source.extents[2:4]
    assert isinstance(height, int)
    assert isinstance(width, int)
    lacking = blocks * size - map_.channels.shape[2]
    channels, down, right = (
        np.pad(part, ((0, 0), (0, 0), (0, lacking)), mode="edge")
        for part in (map_.channels, map_.down, map_.right)
    )
    if lacking:
        last = channels[..., -lacking - 1 : -lacking]
        room = source.block - 1 - last % source.block
        channels[..., -lacking:] = last + np.minimum(np.arange(1, lacking + 1), room)
    inner = (channels // source.block) * height * width + down * width + right
    return np.asarray(inner * source.block + channels % source.block)


def in_vectors(table: Array, lanes: int) -> bool:
    """Whether the channels of every vector are neighbours."""
    vectors = table.reshape(-1, lanes)
    return bool((vectors == vectors[:, :1] + np.arange(lanes)).all())


class _Writer(ImageWriter):
    """Writes the loop nest of one moved image."""

    def __init__(
        self,
        parameters: Parameters,
        schedule: MovementSchedule,
        number: int,
        end: Value,
        map_: PixelMap,
    ) -> None:
        super().__init__(parameters, schedule.lanes, number)
        self.pixels, self.end, self.map = schedule.pixels, end, map_
        source = parameters.stores[parameters.group.outer(map_.source)]
        top, left, _, _ = source.halo
        width = source.extents[3]
        assert isinstance(width, int)
        self.data = parameters.flat(map_.source, f"data{number}")
        table = offsets(map_, source, self.result.blocks, self.result.block)
        self.neighbours = in_vectors(table, self.lanes)
        self.offsets = self.packed(table, "offsets")
        self.rows_at = self.packed((map_.rows + top) * width * source.block, "rows")
        self.columns_at = self.packed((map_.columns + left) * source.block, "columns")
        self.inside = [
            None if flags.all() else self.packed(flags.astype(np.int64), f"inside{axis}_")
            for axis, flags in enumerate(map_.inside)
        ]

    def packed(self, table: Array, name: str) -> Buffer:
        return self.parameters.table(table.astype(np.int64), f"{name}{self.output_number}")

    def body(self) -> Stmt:
        return self.rows(self.across(self.pixels, self.tile))

    def tile(self, column: Expr, size: int) -> Stmt:
        """Some pixels, all channels of a block each."""
        pixels = (self.pixel(plus(column, number)) for number in range(size))
        return Block(tuple(pixels))

    def pixel(self, column: Expr) -> Stmt:
        start = Var(self.fresh("start"))
        stores = (self.moved(point, start) for point in self.points(column, 1))
        at = plus(Load(self.rows_at, (self.row,)), Load(self.columns_at, (column,)))
        return Let(start, at, Block(tuple(stores)))

    def moved(self, point: BlockedPoint, start: Expr) -> Stmt:
        """A vector of the result, read or filled, through what follows to memory."""
        vector: Expr = Load(self.data, (self.batch, self.places(point, start)))
        flags = [
            Compare(CompareKind.NOT_EQUAL, Load(table, (index,)), Const(0))
            for table, index in zip(self.inside, (point.row, point.column), strict=True)
            if table is not None
        ]
        for flag in flags:
            filling = Const(self.map.fill, vector.dtype, vector.lanes)
            vector = Select(Broadcast(flag, vector.lanes), vector, filling)
        return self.store(point, {self.end: vector})

    def places(self, point: BlockedPoint, start: Expr) -> Expr:
        """Where the channels of a vector lie in the image that is moved."""
        rows, columns = self.map.periods
        period = modulo(point.row, rows), modulo(point.column, columns)
        channel = plus(times(point.block, point.size), point.first)
        if self.neighbours:
            return Ramp(plus(start, Load(self.offsets, (*period, channel))), 1, point.lanes)
        lanes = Load(self.offsets, (*period, Ramp(channel, 1, point.lanes)))
        return Binary(BinaryKind.ADD, Broadcast(start, point.lanes), lanes)

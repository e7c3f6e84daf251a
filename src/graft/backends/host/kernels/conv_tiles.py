"""Tiles of a direct convolution: sums in registers, the epilogue, and what is asked for ahead.

Part of `conv.py`, whose writer says where a tile is and in which order tiles come; statements leave
that compute them.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import product
from typing import TYPE_CHECKING

from graft.backends.host.coordinates import BlockedCoordinate, minus, modulo, over, plus, times
from graft.backends.host.kernels.conv_plan import Channels, Phase
from graft.backends.host.kernels.image import operands
from graft.backends.host.kernels.integer_weights import unsigned
from graft.backends.host.kernels.tile import Run, Tile
from graft.backends.host.kernels.words import widened
from graft.base.dtypes import DType
from graft.ir.graph import Value
from graft.loop.ir import (
    Allocate,
    Binary,
    BinaryKind,
    Block,
    Compare,
    CompareKind,
    Const,
    Expr,
    For,
    If,
    Let,
    Load,
    Prefetch,
    Ramp,
    Stmt,
    Store,
    Var,
)
from graft.target.machine import LINE_BYTES

if TYPE_CHECKING:
    from graft.backends.host.kernels.conv import ConvWriter

_FLOAT = 4  # bytes


@dataclass(frozen=True, slots=True)
class ConvTiles:
    """Writes the tiles of one pair of phases along `rows` rows, from number `line` on."""

    writer: ConvWriter
    down: Phase
    across: Phase
    part: int  # of the share: which of its slabs
    line: Expr
    rows: int
    tile: Tile
    before: Expr  # tiles of the same row in earlier runs

    def loop(self, run: Run) -> Stmt:
        """The tiles of a run along the phase."""
        tile, count = self.tile, run.count
        number = Var(f"tile{tile.tag}")
        segment, segments = self.writer.segment, self.writer.segments
        first, last = (over(times(at, count), segments) for at in (segment, plus(segment, 1)))

        slot = plus(over(plus(self.before, segments - 1), segments), minus(number, first))

        def sums(pixel: Expr) -> Stmt:
            prefetches = tuple(self.ask_for_images(pixel))
            ahead = (self.when_last(Block(prefetches)),) if prefetches else ()
            return Allocate(tile.accumulators, Block((*ahead, *self.sums(pixel, number, slot))))

        body = run.tile(number, sums)
        return For(number, first, minus(last, first), body)

    def sums(self, pixel: Expr, number: Expr, slot: Expr) -> tuple[Stmt, ...]:
        """A tile's sums, to memory; or those of one block of the depth, added to the earlier ones.

        `number` is the tile's in its run, `slot` that among the tiles of the job."""
        tile, partial = self.tile, self.writer.partial
        clear = tile.clear(self.begin if self.writer.begin is not None else None)
        finish = self.finish(pixel)
        if partial is None:
            asking = self.among_slab(number) if self.writer.schedule.bands else slot
            return clear, self.reduction(pixel, asking), finish
        reduction = self.reduction(pixel, slot)

        def at(pixel: int, vector: int) -> tuple[Expr, ...]:
            return (slot, *tile.at(pixel, vector))

        resume = tile.each(
            lambda p, v: Store(tile.accumulators, tile.at(p, v), Load(partial, at(p, v)))
        )
        keep = tile.each(lambda p, v: Store(partial, at(p, v), tile.value(p, v)))
        is_first = Compare(CompareKind.EQUAL, self.writer.depth_index, Const(0))
        return If(is_first, clear, resume), reduction, self.when_last(finish, keep)

    def among_slab(self, number: Expr) -> Expr:
        """The number of a tile of a run among those of its slab in a band."""
        row = times(self.writer.tile_row, self.writer.tiles_across)
        among_slab = plus(row, plus(self.before, number))
        if self.writer.ahead:
            among_slab = modulo(among_slab, tiles_of_slab(self.writer))
        return among_slab

    def when_last(self, body: Stmt, otherwise: Stmt | None = None) -> Stmt:
        """The body where the tile's last block of the depth is summed."""
        if self.writer.partial is None:
            return body
        last = Const(self.writer.depth_blocks - 1)
        return If(Compare(CompareKind.EQUAL, self.writer.depth_index, last), body, otherwise)

    @property
    def slab(self) -> Expr:
        """The number of the slab."""
        writer = self.writer
        return plus(times(writer.number, writer.share // writer.channels.slab), self.part)

    def begin(self, vector: int) -> Expr:
        """What the sums of a vector start from."""
        assert self.writer.begin is not None
        lanes = Ramp(Const(vector * self.tile.lanes), 1, self.tile.lanes)
        return Load(self.writer.begin, (self.slab, lanes))

    def pixel(self, number: int) -> tuple[int, int]:
        """Row and column within the tile."""
        return divmod(number, self.tile.pixels // self.rows)

    def reduction(self, pixel: Expr, asking: Expr) -> Stmt:
        """The sums over kernel positions and input channels."""
        writer, tile, down, across = self.writer, self.tile, self.down, self.across
        names = [f"{name}{tile.tag}" for name in ("unit", "ky", "kx", "ic")]
        unit, ky, kx, channel = (Var(name) for name in names)
        block, lane = Var(f"ib{tile.tag}"), Var(f"first{tile.tag}")
        top, left, _, _ = writer.data.halo
        first_row = plus(times(self.line, down.stride), times(ky, down.spacing))
        first_row = plus(first_row, top + down.start)
        first = plus(times(pixel, across.stride), times(kx, across.spacing))
        first = plus(first, left + across.start)
        channels, slab = writer.channels, self.slab
        together = channels.unit // writer.together

        def element(number: int) -> Expr:
            row, column = self.pixel(number)
            line = minus(plus(first_row, row * down.stride), writer.source_row)
            inputs = plus(lane, times(channel, tile.split))
            if tile.split > 1:
                inputs = Ramp(inputs, 1, tile.split)
            at = (line, plus(first, column * across.stride), inputs)
            pixel_value = Load(writer.source, (writer.source_batch, block, *at))
            return unsigned(widened(pixel_value), writer.data.dtype)

        def weights(vector: int) -> Expr:
            lanes = Ramp(Const(vector * tile.lanes), 1, tile.lanes)
            line = plus(times(ky, down.element_step), down.element)
            place = plus(times(kx, across.element_step), across.element)
            return widened(Load(writer.weights, (slab, unit, line, place, channel, lanes)))

        body: Stmt = tile.step(element, weights)
        body = For(channel, Const(0), Const(together // tile.split), body)
        if writer.ahead:
            body = Block((*self.ask_ahead(asking, unit, ky, kx), body))
        if writer.skips_rows:
            body = If(self.meets_image(first), body)
        body = For(kx, Const(0), Const(across.taps), body)
        low, count = self.kernel_rows()
        body = For(ky, low, count, body)
        per_block = writer.data.block // channels.unit
        position = plus(_first_unit(channels, slab), unit)
        body = Let(lane, times(modulo(position, per_block), together), body)
        body = Let(block, over(position, per_block), body)
        first_unit = (
            times(writer.depth_index, writer.units) if writer.partial is not None else Const(0)
        )
        return For(unit, first_unit, _units_read(writer, slab), body)

    def ask_ahead(self, tile: Expr, unit: Expr, ky: Expr, kx: Expr) -> tuple[Stmt, ...]:
        """Ask for this position's share of the next weights; `tile` is the tile's number among
        those that ask for the same ones."""
        writer, units = self.writer, self.writer.units
        current: Expr = writer.depth_index if writer.partial is not None else Const(0)
        position = plus(times(tile, units), minus(unit, times(current, units)))
        position = plus(times(position, self.down.taps), ky)
        position = plus(times(position, self.across.taps), kx)
        line = LINE_BYTES // writer.weights.dtype.numpy.itemsize
        first = times(position, writer.ahead * line)
        # behind the last block of the depth are the weights of the next slab, and behind the last
        # slab often those of the layer that follows
        place = (self.slab, times(plus(current, 1), units), *(Const(0) for _ in range(3)))
        return tuple(
            Prefetch(writer.weights, (*place, plus(first, n * line)), level=2)
            for n in range(writer.ahead)
        )

    def kernel_rows(self) -> tuple[Expr, Expr]:
        """The first row of the kernel that meets the image, and how many do."""
        down = self.down
        if not self.writer.skips_rows:
            return Const(0), Const(down.taps)
        height = self.writer.parameters.extent(self.writer.data.shape[2])
        row = plus(times(self.line, down.stride), down.start)
        above = over(minus(Const(down.spacing - 1), row), down.spacing)
        low = Binary(BinaryKind.MAXIMUM, Const(0), above)
        below = over(minus(plus(height, down.spacing - 1), row), down.spacing)
        high = Binary(BinaryKind.MINIMUM, Const(down.taps), below)
        return low, Binary(BinaryKind.MAXIMUM, Const(0), minus(high, low))

    def meets_image(self, first: Expr) -> Expr:
        """Whether a kernel column meets the image anywhere in the tile; `first` counts the halo."""
        data = self.writer.data
        left, width = data.halo[1], self.writer.parameters.extent(data.shape[3])
        reach = (self.tile.pixels // self.rows - 1) * self.across.stride
        after = Compare(CompareKind.GREATER_EQUAL, plus(first, reach - left), Const(0))
        before = Compare(CompareKind.LESS, plus(first, -left), width)
        return Binary(BinaryKind.AND, after, before)

    def place(self, pixel: Expr, number: int) -> tuple[Expr, Expr]:
        """Row and column of the image for a pixel of the tile that begins at `pixel`."""
        row, column = self.pixel(number)
        if self.writer.goes_on:
            position, width = plus(pixel, column), self.writer.width
            return over(position, width), modulo(position, width)
        return (
            plus(times(plus(self.line, row), self.down.step), self.down.first),
            plus(times(plus(pixel, column), self.across.step), self.across.first),
        )

    def coordinate(self, pixel: Expr, number: int, vector: int) -> BlockedCoordinate:
        """The vector of the result for an accumulator."""
        writer, lanes = self.writer, self.tile.lanes
        size, at = writer.result.block, self.place(pixel, number)
        block, first = divmod(self.part * writer.channels.slab + vector * lanes, size)
        return BlockedCoordinate(
            writer.batch, plus(writer.first_block, block), *at, first, lanes, size
        )

    def ask_for_images(self, pixel: Expr) -> list[Stmt]:
        """Ask for what the epilogue reads of images, and for the lines that it writes where stores
        would wait for them; all come while sums are computed."""
        writer, tile, parameters = self.writer, self.tile, self.writer.parameters
        prefetches: list[Stmt] = []
        images = [parameters.value(value) for value in images_read(writer)]
        if writer.asks_before_stores and writer.result.dtype is DType.FLOAT32:
            images.append(parameters.value(writer.group.output, "result"))
        for storage, buffer in images:
            for number, vector in product(range(tile.pixels), range(tile.vectors)):
                coordinate = self.coordinate(pixel, number, vector)
                load = coordinate.load(storage, buffer)
                if coordinate.first * _FLOAT % LINE_BYTES == 0 and isinstance(load, Load):
                    *at, lanes = load.indices
                    assert isinstance(lanes, Ramp)
                    prefetches.append(Prefetch(load.buffer, (*at, lanes.base)))
        return prefetches

    def finish(self, pixel: Expr) -> Stmt:
        """The epilogue on each accumulator, and its result to memory."""
        writer, tile = self.writer, self.tile

        def store(number: int, vector: int) -> Stmt:
            sums = {writer.summed: tile.total(number, vector)}
            return writer.store(self.coordinate(pixel, number, vector), sums)

        every = product(range(tile.pixels), range(tile.vectors))
        return Block(tuple(store(number, vector) for number, vector in every))


def _units_read(writer: ConvWriter, slab: Expr) -> Expr:
    """The units of channels that a tile of a slab goes through at a time."""
    channels = writer.channels
    if not channels.mixed:
        return Const(writer.units)
    end = plus(times(slab, channels.slab), channels.slab - 1)
    every = Const(channels.groups * channels.outputs - 1)
    last = over(Binary(BinaryKind.MINIMUM, end, every), channels.outputs)
    first = over(times(slab, channels.slab), channels.outputs)
    return times(plus(minus(last, first), 1), channels.inputs // channels.unit)


def _first_unit(channels: Channels, slab: Expr) -> Expr:
    """The first unit of input channels that a slab reads."""
    scale = channels.inputs // channels.unit
    if channels.groups == 1:
        return Const(0)
    if channels.mixed:
        return times(over(times(slab, channels.slab), channels.outputs), scale)
    if channels.slab % channels.outputs == 0:
        groups = channels.slab // channels.outputs
        first = times(slab, groups * channels.inputs // channels.unit)
        if channels.groups * channels.outputs % channels.slab == 0:
            return first
        last = (channels.groups * channels.inputs - channels.count) // channels.unit
        return Binary(BinaryKind.MINIMUM, first, Const(last))
    return times(over(slab, channels.outputs // channels.slab), scale)


def lines_ahead(writer: ConvWriter) -> int:
    """How many lines of weights each tile asks for at each position of the kernel within a unit of
    channels, so that all tiles of a job ask for the next block of the depth, or those of a slab for
    the next slab where the depth is not blocked.

    Weights that the second cache does not hold would otherwise be waited for in the first tile,
    while those of the other tiles are there. Where tiles are so many that they would ask for less
    than a line each, that first one does not matter; where there is but one, weights are read in
    order, which needs no asking."""
    down, across, schedule = writer.down[0], writer.columns[0], writer.schedule
    is_plain = len(writer.down) == len(writer.columns) == 1 and not writer.skips_rows
    is_plain = is_plain and not writer.channels.mixed
    if not is_plain or not isinstance(across.count, int) or not isinstance(down.count, int):
        return 0
    tiles = max(1, writer.tiles_across // writer.segments)  # of the jobs that have fewest
    if writer.partial is None and schedule.bands:
        tiles = tiles_of_slab(writer)
    extents = [int(extent.value) for extent in writer.weights.extents if isinstance(extent, Const)]
    if (tiles == 1 and schedule.bands) or extents[0] * writer.depth_blocks == 1:
        return 0
    size = math.prod(extents[1:]) * writer.weights.dtype.numpy.itemsize / writer.depth_blocks
    positions = tiles * writer.units * down.taps * across.taps
    return round(size / LINE_BYTES / max(1, positions))


def tiles_of_slab(writer: ConvWriter) -> int:
    """The tiles of a slab in one band, where it is known how long the image's axes are."""
    rows, schedule = writer.down[0].count, writer.schedule
    lines = -(-rows // schedule.rows) if isinstance(rows, int) else 1
    return -(-writer.tiles_across * lines // max(1, schedule.bands))


def images_read(writer: ConvWriter) -> list[Value]:
    """What the epilogue reads of which every pixel has elements of its own."""
    group, stores, result = writer.group, writer.parameters.stores, writer.result
    after = group.leading_to(group.nodes[-1].output, {writer.anchor.output})
    read = operands(after, {writer.anchor.output})
    storages = {v: stores[group.outer(v)] for v in read if v not in group.constants}
    alike = (result.block, result.shape, DType.FLOAT32)
    return [v for v, one in storages.items() if (one.block, one.shape, one.dtype) == alike]

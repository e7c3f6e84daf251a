"""Winograd's algorithm for small kernels: fewer multiplications for more additions.

Tiles of pixels become a few dozen numbers ("points") per channel, and so do the weights per pair of
channels; a matrix product over the channels at each point replaces the convolution, and a transform
back gives the pixels. F(4x4, 3x3) needs a quarter of the multiplications, F(2x2, 3x3) four ninths;
with a stride of 2 it is nine sixteenths, and 25 of 36. Kernels of 1x7, say, are transformed along
one axis.
A job is a chunk of tiles and a share of the result's channels: it transforms its tiles into
scratch memory, multiplies, and transforms back through the epilogue. A dilated convolution is
several ordinary ones of interleaved pixels, so that the pixels of its tiles lie apart. The price is
rounding, see `docs/decisions/0009-winograd-nodes.md`; of bytes there is none, see
`winograd_integers.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial, reduce
from itertools import product

import numpy as np

from graft.backends.host.coordinates import BlockedCoordinate, minus, modulo, over, plus, times
from graft.backends.host.group import Group, Winograd
from graft.backends.host.kernel import Parameters, Stores
from graft.backends.host.kernel_template import Layout, Plan, kernel_template, plan_of
from graft.backends.host.kernels.border import Bordered
from graft.backends.host.kernels.conv_plan import INTEGER, weight_shape
from graft.backends.host.kernels.image import (
    ImageWriter,
    takes_chains,
    unfit_epilogue,
    unfit_weights,
    vector_lanes,
)
from graft.backends.host.kernels.integer_weights import bias_behind, starts, zero_point_of
from graft.backends.host.kernels.tile import Tile, runs
from graft.backends.host.kernels.winograd_integers import PAIR, no_pairs, unscaled
from graft.backends.host.kernels.winograd_matrices import halo, tiles_along, transforms_of
from graft.backends.host.kernels.winograd_schedule import (
    WinogradExtents,
    WinogradSchedule,
    default_schedule,
)
from graft.backends.host.kernels.winograd_vectors import GridTransform, transformed
from graft.backends.host.kernels.winograd_weights import PanelUse, weights_for
from graft.backends.host.storage import covers
from graft.base.dtypes import Array, DType
from graft.ir.graph import Node
from graft.loop.ir import (
    Allocate,
    Binary,
    BinaryKind,
    Block,
    Buffer,
    Call,
    Cast,
    Compare,
    CompareKind,
    Const,
    Expr,
    For,
    If,
    Let,
    Load,
    LoopKind,
    Prefetch,
    Ramp,
    Scope,
    Stmt,
    Store,
    Var,
)
from graft.rewrite.rule import Refusal
from graft.target.machine import LINE_BYTES
from graft.target.register_tile import most_pixels
from graft.target.target import Target

_FLOAT = 4  # bytes


@kernel_template(
    ("nn.conv2d", INTEGER),
    Layout.BLOCKED,
    dtypes=frozenset({DType.FLOAT32, DType.INT32}),
    schedule=WinogradSchedule,
)
def winograd(group: Group, stores: Stores, target: Target) -> Plan | Refusal:
    """A convolution for which the algorithm was chosen, with whatever follows it."""
    anchor, algorithm = group.sole_anchor, group.algorithm
    if not isinstance(algorithm, Winograd):
        return Refusal("Winograd's algorithm was not chosen")
    data, result = stores[group.outer(anchor.args[0])], stores[group.output]
    if not data.block or not result.block:
        return Refusal("the images are not both blocked")
    if not covers(data.halo, halo(anchor, algorithm.tile)):
        return Refusal("the halo is too narrow for whole tiles")
    reason = unfit_epilogue(group, stores, anchor) or unfit_weights(group, stores, anchor)
    if anchor.op.name == INTEGER:
        reason = reason or _unfit_bytes(group, stores, anchor)
    if reason is not None:
        return Refusal(reason)
    return plan_of(group, stores, lambda p: _Writer(p, target, anchor, algorithm.tile).body())


def _unfit_bytes(group: Group, stores: Stores, anchor: Node) -> str | None:
    """Why the bytes of a convolution cannot be taken in pairs, if they cannot."""
    data = stores[group.outer(anchor.args[0])]
    if any(data.halo) and data.fill != zero_point_of(group, anchor):
        return "the halo of the data is not of its zero point"
    if data.block % PAIR:
        return f"blocks of {data.block} are no pairs"
    return no_pairs(group, anchor)


def _pitch(elements: int) -> int:
    """Floats that are left free behind the channels of each transformed tile.

    Tiles an even number of lines apart would want the same few places of the first cache. Tiles as
    close as that allows are read in short steps, which Intel's cores foresee."""
    size = elements * _FLOAT
    return 0 if size % (2 * LINE_BYTES) else LINE_BYTES // _FLOAT


@dataclass(frozen=True, slots=True)
class Steps:
    """Tiles along an axis of the result: `out` pixels of each, `dilation` apart. Those of the data
    begin at `stride` times as many pixels."""

    out: int
    dilation: int
    stride: int

    def tiles(self, extent: Expr) -> Expr:
        """How many cover the axis."""
        if isinstance(extent, Const):
            return Const(tiles_along(int(extent.value), self.out, self.dilation))
        span = self.out * self.dilation
        rest = Binary(BinaryKind.MINIMUM, modulo(extent, span), Const(self.dilation))
        return plus(times(over(extent, span), self.dilation), rest)

    def first(self, tile: Expr) -> Expr:
        """The pixel that a tile begins at."""
        whole = times(over(tile, self.dilation), self.out * self.dilation)
        return plus(whole, modulo(tile, self.dilation))

    def pixel(self, start: Expr, number: Expr) -> Expr:
        """A pixel of the tile of results that begins there."""
        return plus(start, times(number, self.dilation))

    def inside(self, start: Expr, extent: Expr) -> Expr:
        """How many pixels of the tile that begins there are within the image."""
        span = self.out * self.dilation
        if isinstance(extent, Const) and int(extent.value) % span == 0:
            return Const(self.out)
        left = over(plus(minus(extent, start), self.dilation - 1), self.dilation)
        return Binary(BinaryKind.MINIMUM, Const(self.out), left)

    def read(self, start: Expr, number: Expr, offset: int) -> Expr:
        """A pixel of that tile's data."""
        return plus(times(start, self.stride), plus(times(number, self.dilation), offset))

    def guarded(self, body: Stmt, start: Expr, number: Expr, extent: Expr) -> Stmt:
        """The body where that pixel of a tile is within the image; the first one always is."""
        span = self.out * self.dilation
        if number == Const(0) or (isinstance(extent, Const) and int(extent.value) % span == 0):
            return body
        return If(Compare(CompareKind.LESS, self.pixel(start, number), extent), body)


class _Writer(ImageWriter):
    """Writes the loop nest."""

    def __init__(self, parameters: Parameters, target: Target, anchor: Node, tile: int) -> None:
        self.anchor, self.dtype = anchor, anchor.output.dtype
        self.together = PAIR if anchor.op.name == INTEGER else 1  # channels of an element
        # what transformed tiles are of
        self.narrow = DType.INT16 if anchor.op.name == INTEGER else DType.FLOAT32
        weight = weight_shape(parameters.group, anchor)
        assert weight is not None
        self.matrices = transforms_of(anchor, weight[2:], tile)
        self.data, self.source = parameters.value(anchor.args[0], "data")
        block = parameters.stores[parameters.group.output].block
        super().__init__(parameters, vector_lanes(target, DType.FLOAT32, block))
        self.channels = weight[1] // self.together
        points = self.matrices.points
        axes = zip((self.matrices.down, self.matrices.across), anchor.attrs.dilation, strict=True)
        self.vertical, self.horizontal = (
            Steps(axis.out, dilation, axis.stride) for axis, dilation in axes
        )
        self.tiles_across = self.horizontal.tiles(self.width)
        self.tiles_down = self.vertical.tiles(self.height)
        self.per_image = times(self.tiles_down, self.tiles_across)
        # chunks are of all images' tiles where it is known how many there are, else of one's
        self.all_at_once = isinstance(times(self.batches, self.per_image), Const)
        self.tiles = times(self.batches, self.per_image) if self.all_at_once else self.per_image
        tiles = int(self.tiles.value) if isinstance(self.tiles, Const) else None
        lacking = self.result.blocks * block - weight[0]
        outputs = weight[0] + lacking
        may_split = self.channels % 2 == 0 and anchor.args[1] in parameters.group.constants
        layer = WinogradExtents(
            *(self.matrices, tiles, self.channels, outputs, block, self.together),
            may_split=may_split and self.together == 1,
        )
        self.schedule = default_schedule(target, self.lanes, layer)
        self.slab, self.slabs = Var("slab"), outputs // self.schedule.slab
        self.weights = weights_for(
            *(self.matrices, anchor.args[1], weight, lacking, parameters, self.slab),
            *(self.schedule.slab, self.lanes, self.schedule.half_rows, self.together),
            self.schedule.split,
        )
        self.summed = anchor.output  # what results are when sums are finished
        self.begin = self.starts(parameters, lacking) if self.dtype is DType.INT32 else None
        self.asks_before_stores = target.machine.asks_before_stores
        self.asks_for_inputs = not target.machine.fills_beside_loads
        sums = self.schedule.vectors * self.schedule.split
        self.registers = target.vector_registers
        self.most = most_pixels(self.registers, sums)
        extents = Const(points), Const(self.schedule.chunk)
        words = vector_lanes(target, self.dtype, self.data.block // self.together)
        self.data_lanes = words * self.together
        elements = self.data.blocks * self.data.block // self.together
        inputs = (*extents, Const(elements + _pitch(elements)))
        self.inputs = Buffer("inputs", self.dtype, inputs, Scope.HEAP)
        self.sums = Buffer(
            "products", self.dtype, (*extents, Const(self.schedule.slab)), Scope.HEAP
        )
        self.held = Buffer("held", DType.INT64, (Const(1),), Scope.HEAP)
        after = self.group.leading_to(self.group.nodes[-1].output, {self.summed})
        self.finishes_apart = takes_chains(after)
        self.first, self.image, self.part = Var("first"), Var("image"), Var("part")
        self.depth = Var("depth")
        self.depth_blocks = self.channels // (self.schedule.depth_block or self.channels)

    def starts(self, parameters: Parameters, lacking: int) -> Buffer:
        """What is added to the results of bytes: what their zero point makes, and a bias."""
        group, anchor = parameters.group, self.anchor
        bias, less = bias_behind(group, anchor), zero_point_of(group, anchor) or 0
        if bias is not None:
            self.summed = bias.output

        def begin(array: Array, added: Array | None = None) -> Array:
            return np.pad(starts(array, less, added), (0, lacking))

        more = () if bias is None else (bias.args[1],)
        return parameters.packed(anchor.args[1], begin, "begin", *more)

    def body(self) -> Stmt:
        size, shares = self.schedule.chunk, self.schedule.shares
        chunks = over(plus(self.tiles, size - 1), size)
        images = Const(1) if self.all_at_once else self.batches
        job, chunk, local, count = Var("job"), Var("chunk"), Var("local"), Var("count")
        # a thread keeps its transformed tiles while its jobs are shares of one chunk
        here = (Const(0),)
        forward = Block((self.forward(count), Store(self.held, here, chunk)))
        is_new = Compare(CompareKind.NOT_EQUAL, Load(self.held, here), chunk)
        blocks = self.schedule.slab // self.result.block
        per_block = Let(
            self.block,
            plus(times(self.slab, blocks), self.part),
            Block((self.back(count), self.zeros(count))),
        )
        per_slab = Let(
            self.slab,
            plus(times(modulo(job, shares), self.slabs // shares), local),
            Block((self.products(count), For(self.part, Const(0), Const(blocks), per_block))),
        )
        each = For(local, Const(0), Const(self.slabs // shares), per_slab)
        left = Binary(BinaryKind.SUBTRACT, self.tiles, self.first)
        fewer = Binary(BinaryKind.MINIMUM, Const(size), left)
        work: Stmt = Let(count, fewer, Block((If(is_new, forward), each)))
        of_image = chunk if self.all_at_once else modulo(chunk, chunks)
        work = Let(self.first, times(of_image, size), work)
        work = Let(self.image, Const(0) if self.all_at_once else over(chunk, chunks), work)
        work = Let(chunk, over(job, shares), work)
        jobs = times(times(images, chunks), shares)
        loop = For(job, Const(0), jobs, work, LoopKind.PARALLEL)
        whole: Stmt = Block((Store(self.held, here, Const(-1)), loop))
        for buffer in (self.held, self.sums, self.inputs, *self.weights.scratch):
            whole = Allocate(buffer, whole)
        return whole

    def located(self, tile: Expr, tag: str, body: Callable[[Expr, Expr, Expr], Stmt]) -> Stmt:
        """The body with the batch and the first row and column of a tile's result."""
        number, batch = Var(f"number{tag}"), Var(f"batch{tag}")
        row, column = Var(f"row{tag}"), Var(f"column{tag}")
        inner = body(batch, row, column)
        inner = Let(column, self.horizontal.first(modulo(number, self.tiles_across)), inner)
        line = modulo(over(number, self.tiles_across), self.tiles_down)
        inner = Let(row, self.vertical.first(line), inner)
        other = over(number, self.per_image) if self.all_at_once else Const(0)
        inner = Let(batch, plus(self.image, other), inner)
        return Let(number, plus(self.first, tile), inner)

    def forward(self, count: Expr) -> Stmt:
        """The chunk's tiles, transformed into scratch memory."""
        tile, block = Var("tile_in"), Var("block_in")
        size = self.data.block

        def transform(batch: Expr, row: Expr, column: Expr) -> Stmt:
            vectors = range(0, size, self.data_lanes)
            at = (batch, block, row, column)
            parts = [self.transformed_tile(tile, at, first) for first in vectors]
            ask = [one for asked, _ in parts for one in asked]
            body = transformed([grid for _, grid in parts], self.registers)
            return For(block, Const(0), Const(self.data.blocks), Block((*ask, body)))

        return For(tile, Const(0), count, self.located(tile, "_in", transform))

    def transformed_tile(
        self, tile: Expr, at: tuple[Expr, Expr, Expr, Expr], first: int
    ) -> tuple[list[Stmt], GridTransform]:
        """One vector of channels of one tile, and what it asks for before."""
        batch, block, row, column = at
        lanes, padding, together = self.data_lanes, self.anchor.attrs.padding, self.together
        down, across = self.matrices.down, self.matrices.across
        top, left = self.data.halo[0] - int(padding[0]), self.data.halo[1] - int(padding[1])
        ramp = Ramp(Const(first), 1, lanes)
        start = plus(times(block, self.data.block // together), first // together)
        channel = Ramp(start, 1, lanes // together)

        def place(i: int, j: Expr) -> tuple[Expr, ...]:
            pixel = self.vertical.read(row, Const(i), top), self.horizontal.read(column, j, left)
            return batch, block, *pixel

        def pixel(i: int, j: Expr) -> Expr:
            found = Load(self.source, (*place(i, j), ramp))
            return found if together == 1 else Cast(self.narrow, found)

        def store(i: Expr, values: Sequence[Expr]) -> Stmt:
            stores: list[Stmt] = []
            for number, value in enumerate(values):
                point = plus(times(i, across.side), number)
                word = value if together == 1 else Call("join2", (value,), self.dtype)
                stores.append(Store(self.inputs, (point, tile, channel), word))
                if self.asks_before_stores:  # for the next vector's
                    following = (point, tile, plus(start, channel.lanes))
                    stores.append(Prefetch(self.inputs, following))
            return Block(tuple(stores))

        matrices = down.data, across.data
        grid = GridTransform(f"in{first}", lanes, *matrices, pixel, store, self.narrow)
        if not self.asks_for_inputs or self.data.blocks == 1:
            return [], grid
        # Between two tiles of a block are those of the others: no prefetcher sees how it goes on.
        columns = range(across.side, across.side + across.out * across.stride)
        ask: list[Stmt] = [
            Prefetch(self.source, (*place(i, Const(j)), Const(first)))
            for i, j in product(range(down.side), columns)
        ]
        return ask, grid

    def products(self, count: Expr) -> Stmt:
        """For one slab of the result, the matrix products over the channels."""
        # a chunk that is not full costs little, unless it may be all there is
        tiles = Const(self.schedule.chunk) if isinstance(self.tiles, Const) else count

        def at(point: Expr) -> Stmt:
            parts: list[Stmt] = []
            before: Expr = Const(0)
            every = reduce(plus, (run.count for run in runs(tiles, self.most)))
            for number, run in enumerate(runs(tiles, self.most)):
                shape = run.size, self.schedule.vectors, self.lanes
                is_paired, split = self.together > 1, self.schedule.split
                tile = Tile(*shape, f"_{number}", self.dtype, is_paired, split)
                var = Var(f"run{tile.tag}")
                use = PanelUse(Const(0), 1)
                if isinstance(every, Const):
                    use = PanelUse(plus(before, var), int(every.value))
                parts.append(run.loop(var, partial(self.product, tile, point, use)))
                before = plus(before, run.count)
            return For(self.depth, Const(0), Const(self.depth_blocks), Block(tuple(parts)))

        return self.weights.each_point(at)

    def product(self, tile: Tile, point: Expr, use: PanelUse, first: Expr) -> Stmt:
        """Some tiles at one point times the weights there, of one block of the channels; sums of
        several blocks add up in memory."""
        channel, split = Var(f"channel{tile.tag}"), tile.split
        ramps = [Ramp(Const(v * tile.lanes), 1, tile.lanes) for v in range(tile.sums)]

        def element(pixel: int) -> Expr:
            inputs = channel if split == 1 else Ramp(times(channel, split), 1, split)
            return Load(self.inputs, (point, plus(first, pixel), inputs))

        step = tile.step(element, lambda v: self.weights.vector(point, channel, ramps[v]))

        def place(pixel: int, v: int) -> tuple[Expr, ...]:
            return point, plus(first, pixel), ramps[v]

        every = list(product(range(tile.pixels), range(tile.vectors)))
        store = Block(tuple(Store(self.sums, place(*at), tile.total(*at)) for at in every))
        begin = tile.clear()
        if self.asks_before_stores:
            ask = (Prefetch(self.sums, (*place(p, v)[:-1], ramps[v].base)) for p, v in every)
            begin = Block((*ask, begin))
        if self.depth_blocks > 1:
            resume = tile.each(
                lambda p, v: Store(tile.accumulators, tile.at(p, v), Load(self.sums, place(p, v)))
            )
            begin = If(Compare(CompareKind.EQUAL, self.depth, Const(0)), begin, resume)
        ahead = (
            *self.ask_for_inputs(tile, point, first, channel),
            *self.weights.ask_ahead(point, channel, use),
        )
        step = Block((*ahead, step))
        size = self.channels // self.depth_blocks // split
        reduction = For(channel, times(self.depth, size), Const(size), step)
        return Allocate(tile.accumulators, Block((begin, reduction, store)))

    def ask_for_inputs(self, tile: Tile, point: Expr, first: Expr, channel: Expr) -> list[Stmt]:
        """Ask for a channel's share of the tiles behind those of a product, which follow them in
        memory. Where the first cache is not filled beside loads, its prefetchers see too little of
        a tile to foresee the next one."""
        if not self.asks_for_inputs or self.depth_blocks > 1:
            return []
        line, (_, _, pitch) = LINE_BYTES // _FLOAT, self.inputs.extents
        share = times(pitch, tile.pixels)
        assert isinstance(share, Const)
        each = -(-int(share.value) * tile.split // self.channels)
        behind = point, plus(first, tile.pixels)
        return [
            Prefetch(self.inputs, (*behind, plus(times(channel, each), start)))
            for start in range(0, each, line)
        ]

    def back(self, count: Expr) -> Stmt:
        """The chunk's pixels of one block, through the epilogue to memory."""
        tile = Var("tile_out")

        def transform(batch: Expr, row: Expr, column: Expr) -> Stmt:
            return Block(
                tuple(self.tile_of_pixels(tile, batch, row, column, v) for v in self.vectors)
            )

        body = self.located(tile, "_out", transform)
        if self.asks_before_stores:
            body = Block((self.located(plus(tile, 1), "_next", self.ask_for_pixels), body))
        return For(tile, Const(0), count, body)

    def ask_for_pixels(self, batch: Expr, row: Expr, column: Expr) -> Stmt:
        """Ask for the lines that a tile is written to."""
        buffer = self.parameters.value(self.group.output, "result")[1]
        top, left, _, _ = self.result.halo
        pixels = product(range(self.matrices.down.out), range(self.matrices.across.out))
        places = (
            (
                plus(self.vertical.pixel(row, Const(i)), top),
                plus(self.horizontal.pixel(column, Const(j)), left),
            )
            for i, j in pixels
        )
        return Block(
            tuple(Prefetch(buffer, (batch, self.block, *place, Const(0))) for place in places)
        )

    def tile_of_pixels(self, tile: Var, batch: Expr, row: Expr, column: Expr, first: int) -> Stmt:
        """One vector of channels of one tile's pixels."""
        lanes, down, across = self.lanes, self.matrices.down, self.matrices.across
        ramp = Ramp(plus(times(self.part, self.result.block), first), 1, lanes)

        def product(i: int, j: Expr) -> Expr:
            return Load(self.sums, (plus(j, i * across.side), tile, ramp))

        def store(i: Expr, values: Sequence[Expr]) -> Stmt:
            if self.finishes_apart:
                points = (plus(times(i, across.out), j) for j in range(across.out))
                pairs = zip(points, values, strict=True)
                return Block(tuple(Store(self.sums, (at, tile, ramp), one) for at, one in pairs))
            pixels = self.pixels_of_line(values, (batch, row, column), i, first)
            pixels = [
                self.horizontal.guarded(one, column, Const(j), self.width)
                for j, one in enumerate(pixels)
            ]
            return self.vertical.guarded(Block(tuple(pixels)), row, i, self.height)

        matrices = down.result, across.result
        grid = GridTransform(f"out{first}", lanes, *matrices, product, store, self.dtype)
        transform = transformed((grid,), self.registers)
        if not self.finishes_apart:
            return transform
        ask = self.ask_for_sums(plus(tile, 1), first)
        return Block((*ask, transform, self.finish(tile, (batch, row, column), first)))

    def finish(self, tile: Var, origin: tuple[Expr, Expr, Expr], first: int) -> Stmt:
        """The epilogue of a tile's pixels, which lie where their sums were.

        Where it takes long chains of instructions, they are of a row's pixels side by side: beside
        the transform there would be no registers for that."""
        line, width = Var(f"line_out{first}"), self.matrices.across.out
        _, row, column = origin
        ramp = Ramp(plus(times(self.part, self.result.block), first), 1, self.lanes)
        points = [plus(times(line, width), j) for j in range(width)]
        values = [Load(self.sums, (point, tile, ramp)) for point in points]

        body: Stmt = Block(tuple(self.pixels_of_line(values, origin, line, first)))
        inside = self.horizontal.inside(column, self.width)
        if not isinstance(inside, Const):
            pixels = self.pixels_of_line(values, origin, line, first)
            some = (
                self.horizontal.guarded(one, column, Const(j), self.width)
                for j, one in enumerate(pixels)
            )
            is_whole = Compare(CompareKind.EQUAL, inside, Const(width))
            body = If(is_whole, body, Block(tuple(some)))
        return For(line, Const(0), self.vertical.inside(row, self.height), body)

    def ask_for_sums(self, tile: Expr, first: int) -> list[Stmt]:
        """Ask for the lines that a tile is transformed back from, while another is finished."""
        if first * _FLOAT % LINE_BYTES:
            return []  # asked for with the vector before
        channel = plus(times(self.part, self.result.block), first)
        points = map(Const, range(self.matrices.points))
        return [Prefetch(self.sums, (point, tile, channel)) for point in points]

    def pixels_of_line(
        self, values: Sequence[Expr], origin: tuple[Expr, Expr, Expr], line: Expr, first: int
    ) -> list[Stmt]:
        """The pixels in a row of a tile, through the epilogue to memory."""
        batch, row, column = origin
        pixels: list[Stmt] = []
        for j, value in enumerate(values):
            place = self.vertical.pixel(row, line), self.horizontal.pixel(column, Const(j))
            coordinate = BlockedCoordinate(
                batch, self.block, *place, first, self.lanes, self.result.block
            )
            pixels.append(self.store(coordinate, {self.summed: self.finished(value, first)}))
        return pixels

    def finished(self, value: Expr, first: int) -> Expr:
        """A vector of results as the epilogue takes it."""
        if self.begin is None:
            return value
        channels = Ramp(plus(times(self.block, self.result.block), first), 1, self.lanes)
        begin = Load(self.begin, (channels,))
        return Binary(BinaryKind.ADD, unscaled(value, self.matrices.scale), begin)

    def zeros(self, count: Expr) -> Stmt:
        """The result's halo beside the rows whose first tile is one of the chunk's.

        One job could fill all of it, but whoever computes the rows has their cache lines, which
        the halo shares where pixels are bytes."""
        batch, start = Var("batch_border"), Var("start_border")
        row, line, number = Var("row_border"), Var("line_border"), Var("pixel_border")
        buffer = self.parameters.value(self.group.output, "result")[1]
        image = Bordered(self.result, buffer, self.height, self.width)
        zeros = image.filled(batch, self.block, row)
        if not zeros:
            return Block(())
        body: Stmt = If(Compare(CompareKind.LESS, row, self.height), Block(tuple(zeros)))
        body = Let(row, plus(start, times(number, self.vertical.dilation)), body)
        body = For(number, Const(0), Const(self.vertical.out), body)
        body = Let(start, self.vertical.first(modulo(line, self.tiles_down)), body)
        other = over(line, self.tiles_down) if self.all_at_once else Const(0)
        body = Let(batch, plus(self.image, other), body)
        low, high = (
            over(plus(at, plus(self.tiles_across, -1)), self.tiles_across)
            for at in (self.first, plus(self.first, count))
        )
        return For(line, low, Binary(BinaryKind.SUBTRACT, high, low), body)

"""Direct convolution on blocked images, with its epilogue in registers.

Reads [batch, channels / block, rows, columns, block] with a halo of zeros at least as wide as the
padding; weights are packed to [slab, unit, kernel rows, kernel columns, in, out], see
`conv_plan.py`. The threads share the (block, row) pairs of the result; along a row, tiles of pixels
are accumulated in registers over the whole reduction and then pass through the epilogue to memory.
A transposed convolution does so for each of its phases, whose pixels are some columns apart.
Bytes are multiplied four channels at a time, see `integer_weights.py`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import reduce
from itertools import product

from graft.backends.host.cost import typical
from graft.backends.host.group import Group
from graft.backends.host.kernel import Parameters, Stores
from graft.backends.host.kernel_template import Layout, Plan, kernel_template, plan_of
from graft.backends.host.kernels.border import Bordered
from graft.backends.host.kernels.conv_cost import choose_convolution, conv_cost, conv_layouts
from graft.backends.host.kernels.conv_plan import (
    CONVOLUTIONS,
    INTEGER,
    Channels,
    Phase,
    channels_of,
    data_in_one_row,
    flat_phases,
    flattened,
    halo,
    ordinary_weights,
    pack_starts,
    pack_weights,
    phases,
    skips_rows,
    takes,
)
from graft.backends.host.kernels.conv_schedule import (
    ConvExtents,
    ConvSchedule,
    choose_schedule,
    conv_cycles,
)
from graft.backends.host.kernels.image import (
    ImageWriter,
    no_image,
    operands,
    shared,
    unfit_epilogue,
    vector_lanes,
)
from graft.backends.host.kernels.integer_weights import (
    QUAD,
    in_quads,
    no_quads,
    starts,
    taken_off,
    unsigned,
    zero_point_of,
)
from graft.backends.host.kernels.tile import Run, Tile, runs
from graft.backends.host.point import BlockedPoint, minus, modulo, over, plus, times
from graft.backends.host.storage import Storage, covers
from graft.base.dtypes import Array, DType
from graft.ir.graph import Node, Value
from graft.loop.ir import (
    Allocate,
    Binary,
    BinaryKind,
    Block,
    Buffer,
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
    Var,
)
from graft.rewrite.rule import Refusal
from graft.target.machine import LINE_BYTES
from graft.target.target import Target

Phases = tuple[Phase, ...]
_FLOAT = 4  # bytes

# Jobs that there should at least be for the threads to share evenly.
ENOUGH_JOBS = 32


@kernel_template(
    CONVOLUTIONS,
    Layout.BLOCKED,
    dtypes=frozenset({DType.FLOAT32, DType.INT32}),
    constants=(1,),
    schedule=ConvSchedule,
    layouts=conv_layouts,
    cost=conv_cost,
    algorithm=choose_convolution,
)
def conv2d(group: Group, stores: Stores, target: Target) -> Plan | Refusal:
    """A convolution, transposed or not, with whatever follows it."""
    anchor = group.sole_anchor
    data = stores[group.outer(anchor.args[0])]
    result = stores[group.output]
    weight = group.constants[anchor.args[1]].array
    shape = weight.shape
    reason = no_image(result) or (None if data.block else "the data is no blocked image")
    reason = reason or takes(anchor, shape, data.block, result.block)
    reason = reason or unfit_epilogue(group, stores, anchor)
    if anchor.op.name == INTEGER:
        reason = reason or _unfit_integers(group, stores, anchor)
    if reason is not None:
        return Refusal(reason)
    if not covers(data.halo, halo(anchor, shape[2:])):
        return Refusal("the halo of the data is narrower than the padding")
    views = flattened(group, stores, anchor, shape) or stores
    return plan_of(group, views, lambda p: _Writer(p, anchor, weight, target).body())


def _unfit_integers(group: Group, stores: Stores, anchor: Node) -> str | None:
    """Why the bytes of a convolution cannot be taken four at a time, if they cannot."""
    data, result = stores[group.outer(anchor.args[0])], stores[group.output]
    shape = group.constants[anchor.args[1]].array.shape
    channels = channels_of(shape, anchor.attrs.groups, data.block, result.block)
    reason = no_quads(group, anchor, channels.unit if channels else 0)
    if reason is None and any(data.halo) and data.fill != zero_point_of(group, anchor):
        return "the halo of the data is not of its zero point"
    return reason


class _Writer(ImageWriter):
    """Writes the loop nest of one convolution."""

    def __init__(self, parameters: Parameters, anchor: Node, weight: Array, target: Target) -> None:
        self.dtype = anchor.output.dtype
        self.together = QUAD if self.dtype is DType.INT32 else 1  # channels of an element
        self.anchor = anchor
        self.skips_rows = skips_rows(anchor, weight.shape[2:])
        plain = ordinary_weights(anchor, weight)
        result = parameters.stores[parameters.group.output]
        self.data = parameters.stores[parameters.group.outer(anchor.args[0])]
        channels = channels_of(plain.shape, anchor.attrs.groups, self.data.block, result.block)
        assert channels is not None
        self.goes_on = False  # whether tiles go on from one row of the image to the next
        self.down, self.columns, self.schedule = self.scheduled(
            target, channels, result, weight.shape
        )
        self.source = self.read(parameters)
        self.channels = replace(channels, slab=self.schedule.slab)
        super().__init__(parameters, self.schedule.lanes)
        self.begin: Buffer | None = None
        self.weights = self.packed(parameters, anchor, self.channels)
        self.ahead = self.lines_ahead()
        # a job's channels: a slab of whole blocks, or a block of several slabs
        self.share = max(self.channels.slab, self.result.block)
        self.number, self.line, self.segment = Var("share"), Var("line"), Var("segment")

    def packed(self, parameters: Parameters, anchor: Node, channels: Channels) -> Buffer:
        """The weights; where sums do not start from zero, what they start from goes before."""
        block, together = self.result.block, self.together
        less = taken_off(parameters.group, anchor, self.data.dtype) if together > 1 else 0
        if less:
            self.begin = parameters.packed(
                anchor.args[1],
                lambda one: pack_starts(
                    starts(ordinary_weights(anchor, one), less), channels, block
                ),
                "begin",
            )

        def pack(array: Array) -> Array:
            packed = pack_weights(ordinary_weights(anchor, array), channels, block)
            return in_quads(packed, axis=4) if together > 1 else packed

        return parameters.packed(anchor.args[1], pack, "weights")

    def lines_ahead(self) -> int:
        """How many lines of the next slab's weights each tile asks for at each position of the
        kernel within a unit of channels, so that all tiles of a slab ask for all of them.

        Weights that the second cache does not hold would otherwise be waited for in the first tile
        of their slab, while those of its other tiles are there. Where tiles are so many that they
        would ask for less than a line each, that first one does not matter."""
        down, across = self.down[0], self.columns[0]
        rows, columns = down.count, across.count
        is_plain = len(self.down) == len(self.columns) == 1 and not self.skips_rows
        if self.schedule.rows_first or not is_plain:
            return 0
        if not isinstance(rows, int) or not isinstance(columns, int):
            return 0
        tiles = -(-rows // self.schedule.rows) * -(-columns // self.schedule.columns)
        positions = tiles * self.channels.count // self.channels.unit * down.taps * across.taps
        return round(self.slab_bytes / LINE_BYTES / max(1, positions))

    @property
    def images_read(self) -> list[Value]:
        """What the epilogue reads of which every pixel has elements of its own."""
        group, stores, result = self.group, self.parameters.stores, self.result
        after = group.leading_to(group.nodes[-1].output, {self.anchor.output})
        read = operands(after, {self.anchor.output})
        found = {v: stores[group.outer(v)] for v in read if v not in group.constants}
        alike = (result.block, result.shape, DType.FLOAT32)
        return [v for v, one in found.items() if (one.block, one.shape, one.dtype) == alike]

    @property
    def slab_bytes(self) -> int:
        """The weights of a slab."""
        extents = [int(one.value) for one in self.weights.extents if isinstance(one, Const)]
        return math.prod(extents[1:]) * self.weights.dtype.numpy.itemsize

    def scheduled(
        self, target: Target, channels: Channels, result: Storage, weight: Sequence[int]
    ) -> tuple[Phases, Phases, ConvSchedule]:
        """The phases, the tile and the order of loops that are cheapest."""
        lanes = vector_lanes(target, DType.FLOAT32, min(channels.slab, result.block))
        is_image = result.shape == self.anchor.output.shape
        kernel = weight[2:]
        rows = phases(self.anchor, kernel, 0), phases(self.anchor, kernel, 1)
        ways = [rows if is_image else flat_phases(result)]
        row = data_in_one_row(self.anchor, weight, self.data) if is_image else None
        if row is not None and self.together == 1:
            ways.append(flat_phases(row))
        extents = [self.extents(*way, channels, result, lanes) for way in ways]
        cycles = [conv_cycles(target, lanes, one) for one in extents]
        best = cycles.index(min(cycles))
        if best and row is not None:
            self.goes_on, self.data = True, row
        return *ways[best], choose_schedule(target, lanes, extents[best])

    def extents(
        self, down: Phases, across: Phases, channels: Channels, result: Storage, lanes: int
    ) -> ConvExtents:
        """What the schedule depends on; typical extents stand for unknown ones."""
        counts = (down[0].count, across[0].count)
        rows, columns = (typical(count, (self.anchor.output,)) for count in counts)
        # groups that share a slab, or one that ends within it, keep to their own blocks
        own = channels.outputs if channels.groups > 1 else result.blocks * result.block
        whole = channels.slab == result.block and own % channels.slab == 0
        return ConvExtents(
            channels.count // self.together,
            (max(1, down[0].taps), max(1, across[0].taps)),
            rows,
            columns,
            (own if whole else channels.slab) // lanes,
            channels.slab // lanes,
            len(down) == 1 and isinstance(counts[0], int) and not self.skips_rows,
            channels.groups == 1 and self.together == 1,
        )

    def read(self, parameters: Parameters) -> Buffer:
        """The buffer of the data."""
        value = self.anchor.args[0]
        if self.goes_on:
            return parameters.viewed(value, "data", self.data)
        return (parameters.value if self.together == 1 else parameters.quads)(value, "data")[1]

    def body(self) -> Stmt:
        """All results; a job is some rows of each phase of one slab, or a segment of them."""
        lines = tuple(self.rows_of(phase) for phase in self.down)
        batch = (self.batch, self.batches)
        share = (self.number, self.shares)
        rows = reduce(plus, (run.count for run in self.row_runs(self.down[0])))
        line, segment = (self.line, rows), (self.segment, self.segments)
        order = (line, segment, share) if self.schedule.rows_first else (share, line, segment)
        return shared((batch, *order), Block(lines))

    def row_runs(self, down: Phase) -> list[Run]:
        """The rows of a phase in tiles."""
        count = self.parameters.extent(down.count)
        if self.schedule.rows == 1:
            return [Run(1, Const(0), count)]
        return runs(count, self.schedule.rows)

    @property
    def shares(self) -> int:
        """The shares that the result's channels are cut into; the last one is whole, too."""
        return -(-self.result.blocks * self.result.block // self.share)

    @property
    def first_block(self) -> Expr:
        """The first block of a share."""
        blocks = self.share // self.result.block
        first = times(self.number, blocks)
        if self.result.blocks % blocks == 0:
            return first
        return Binary(BinaryKind.MINIMUM, first, Const(self.result.blocks - blocks))

    @property
    def segments(self) -> int:
        """Into how many parts rows are cut: more than one where there are few, but long ones."""
        batch, lines, columns = self.result.shape[0], self.down[0].count, self.columns[0].count
        if not isinstance(lines, int):
            return 1
        jobs = (batch if isinstance(batch, int) else 1) * -(-lines // self.schedule.rows)
        jobs *= self.shares
        wanted = -(-ENOUGH_JOBS // jobs)
        if isinstance(columns, int):
            wanted = min(wanted, columns // self.schedule.columns)
        return max(1, wanted)

    def rows_of(self, down: Phase) -> Stmt:
        """The rows of a job."""
        first, *others = self.row_runs(down)
        body = self.some_rows(down, times(self.line, first.size), first.size)
        if others:  # as many rows as are left
            (last,) = others
            row = plus(times(minus(self.line, first.count), last.size), last.first)
            inside = Compare(CompareKind.LESS, self.line, first.count)
            body = If(inside, body, self.some_rows(down, row, last.size))
        if down.count == self.down[0].count:
            return body
        return If(Compare(CompareKind.LESS, self.line, self.parameters.extent(down.count)), body)

    def some_rows(self, down: Phase, line: Expr, count: int) -> Stmt:
        """Neighbouring rows of a phase, from number `line` on."""
        found: list[Stmt] = []
        vectors = self.schedule.vectors
        for part, across in product(range(self.share // self.channels.slab), self.columns):
            before: Expr = Const(0)
            for run in runs(self.parameters.extent(across.count), self.schedule.columns):
                tile = Tile(count * run.size, vectors, self.lanes, self.fresh(""), self.dtype)
                tiles = _Tiles(self, down, across, part, line, count, tile, before)
                found.append(tiles.loop(run))
                before = plus(before, run.count)
        if self.goes_on:
            return Block((*found, self.borders_of_rows()))
        border = [
            one
            for number in range(count)
            for one in self.borders(plus(times(plus(line, number), down.step), down.first))
        ]
        if self.segments == 1:
            found += border
        elif border:
            first = Compare(CompareKind.EQUAL, self.segment, Const(0))
            found.append(If(first, Block(tuple(border))))
        return Block(tuple(found))

    def borders_of_rows(self) -> Stmt:
        """What fills the halo beside a segment's share of the rows."""
        row, height = Var(self.fresh("edge")), self.height
        first, last = (
            over(times(at, height), self.segments) for at in (self.segment, plus(self.segment, 1))
        )
        return For(row, first, minus(last, first), Block(tuple(self.borders(row))))

    def borders(self, row: Expr) -> list[Stmt]:
        """What fills the halo beside a row of the share's blocks."""
        buffer = self.parameters.value(self.group.output, "result")[1]
        image = Bordered(self.result, buffer, self.height, self.width)
        blocks = self.share // self.result.block
        return [
            statement
            for number in range(blocks)
            for statement in image.filled(
                self.batch, plus(self.first_block, number), row, self.fresh("")
            )
        ]

    def start(self, slab: Expr) -> Expr:
        """The first input channel of a slab, as a multiple of a unit."""
        channels = self.channels
        scale = channels.inputs // channels.unit
        if channels.groups == 1:
            return Const(0)
        if channels.slab % channels.outputs == 0:
            return times(slab, channels.slab // channels.outputs * channels.inputs // channels.unit)
        if channels.outputs % channels.slab == 0:
            return times(over(slab, channels.outputs // channels.slab), scale)
        wanted = times(over(times(slab, channels.slab), channels.outputs), scale)
        last = (channels.groups * channels.inputs - channels.count) // channels.unit
        return Binary(BinaryKind.MINIMUM, wanted, Const(last))


@dataclass(frozen=True, slots=True)
class _Tiles:
    """Writes the tiles of one pair of phases along `rows` rows, from number `line` on."""

    writer: _Writer
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
        clear = tile.clear(self.begin if self.writer.begin is not None else None)

        def sums(pixel: Expr) -> Stmt:
            sums = (clear, self.reduction(pixel, number), self.finish(pixel))
            return Allocate(tile.accumulators, Block((*self.ask_for_operands(pixel), *sums)))

        body = run.tile(number, sums)
        segment, segments = self.writer.segment, self.writer.segments
        if segments == 1:
            return For(number, Const(0), count, body)
        first, last = (over(times(at, count), segments) for at in (segment, plus(segment, 1)))
        return For(number, first, minus(last, first), body)

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

    def reduction(self, pixel: Expr, number: Expr) -> Stmt:
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
            at = plus(first_row, row * down.stride), plus(first, column * across.stride)
            found = Load(writer.source, (writer.batch, block, *at, plus(lane, channel)))
            return unsigned(found, writer.data.dtype)

        def weights(vector: int) -> Expr:
            lanes = Ramp(Const(vector * tile.lanes), 1, tile.lanes)
            line = plus(times(ky, down.element_step), down.element)
            place = plus(times(kx, across.element_step), across.element)
            return Load(writer.weights, (slab, unit, line, place, channel, lanes))

        body: Stmt = tile.step(element, weights)
        body = For(channel, Const(0), Const(together), body)
        if writer.ahead:
            body = Block((*self.ask_ahead(number, unit, ky, kx), body))
        if writer.skips_rows:
            body = If(self.meets_image(first), body)
        body = For(kx, Const(0), Const(across.taps), body)
        low, count = self.kernel_rows()
        body = For(ky, low, count, body)
        per_block = writer.data.block // channels.unit
        position = plus(writer.start(slab), unit)
        body = Let(lane, times(modulo(position, per_block), together), body)
        body = Let(block, over(position, per_block), body)
        return For(unit, Const(0), Const(channels.count // channels.unit), body)

    def ask_ahead(self, number: Expr, unit: Expr, ky: Expr, kx: Expr) -> tuple[Stmt, ...]:
        """Ask for this position's share of the next slab's weights; `number` is of the tile."""
        writer, columns = self.writer, self.writer.columns[0].count
        assert isinstance(columns, int)
        units = writer.channels.count // writer.channels.unit
        row = times(writer.line, -(-columns // writer.schedule.columns))
        position = plus(times(plus(row, plus(self.before, number)), units), unit)
        position = plus(times(position, self.down.taps), ky)
        position = plus(times(position, self.across.taps), kx)
        line = LINE_BYTES // writer.weights.dtype.numpy.itemsize
        first = times(position, writer.ahead * line)
        zeros = [Const(0)] * (len(writer.weights.extents) - 2)
        place = (plus(self.slab, 1), *zeros)
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

    def point(self, pixel: Expr, number: int, vector: int) -> BlockedPoint:
        """The vector of the result for an accumulator."""
        writer, lanes = self.writer, self.tile.lanes
        size, at = writer.result.block, self.place(pixel, number)
        block, first = divmod(self.part * writer.channels.slab + vector * lanes, size)
        return BlockedPoint(writer.batch, plus(writer.first_block, block), *at, first, lanes, size)

    def ask_for_operands(self, pixel: Expr) -> list[Stmt]:
        """Ask for the images that the epilogue reads, which come while sums are computed."""
        tile, parameters = self.tile, self.writer.parameters
        found: list[Stmt] = []
        for value in self.writer.images_read:
            for number, vector in product(range(tile.pixels), range(tile.vectors)):
                point = self.point(pixel, number, vector)
                load = point.load(*parameters.value(value))
                if point.first * _FLOAT % LINE_BYTES == 0 and isinstance(load, Load):
                    *at, lanes = load.indices
                    assert isinstance(lanes, Ramp)
                    found.append(Prefetch(load.buffer, (*at, lanes.base)))
        return found

    def finish(self, pixel: Expr) -> Stmt:
        """The epilogue on each accumulator, and its result to memory."""
        writer, tile = self.writer, self.tile

        def store(number: int, vector: int) -> Stmt:
            known = {writer.anchor.output: tile.value(number, vector)}
            return writer.store(self.point(pixel, number, vector), known)

        return tile.each(store)

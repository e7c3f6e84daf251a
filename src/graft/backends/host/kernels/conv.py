"""Direct convolution on blocked images, with its epilogue in registers.

Reads [batch, channels / block, rows, columns, block] with a halo of zeros at least as wide as the
padding; weights are packed to [slab, unit, kernel rows, kernel columns, in, out], see
`conv_plan.py`. The threads share the (block, row) pairs of the result; along a row, tiles of pixels
are accumulated in registers over the whole reduction and then pass through the epilogue to memory.
A transposed convolution does so for each of its phases, whose pixels are some columns apart.
Bytes are multiplied four channels at a time, see `integer_weights.py`.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import product

from graft.backends.host.group import Group
from graft.backends.host.kernel import Kernel, Parameters, Stores
from graft.backends.host.kernels.conv_plan import (
    CONVOLUTIONS,
    INTEGER,
    Channels,
    Phase,
    channels_of,
    halo,
    ordinary_weights,
    pack_weights,
    phases,
    takes,
)
from graft.backends.host.kernels.image import (
    ImageWriter,
    no_image,
    shared,
    unfit_epilogue,
    vector_lanes,
)
from graft.backends.host.kernels.integer_weights import (
    QUAD,
    in_quads,
    no_quads,
    starts,
    unsigned,
    zero_point_of,
)
from graft.backends.host.kernels.tile import Run, Tile, most_pixels, runs
from graft.backends.host.point import BlockedPoint, modulo, over, plus, times
from graft.base.dtypes import Array, DType
from graft.ir.graph import Node
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
    Ramp,
    Stmt,
    Var,
)
from graft.rewrite.rule import Refusal
from graft.target.target import Target

# Jobs that there should at least be for the threads to share evenly.
ENOUGH_JOBS = 32


@dataclass(frozen=True, slots=True)
class ConvSchedule:
    """What a search may vary: lanes of a vector and pixels of a tile."""

    lanes: int
    pixels: int


def default_schedule(target: Target, slab: int) -> ConvSchedule:
    """The schedule without a search: tiles that fill the registers."""
    lanes = vector_lanes(target, DType.FLOAT32, slab)
    return ConvSchedule(lanes, most_pixels(target, slab // lanes))


def conv2d(group: Group, stores: Stores, target: Target) -> Kernel | Refusal:
    """A convolution, transposed or not, with whatever follows it."""
    anchor = group.anchor
    if anchor is None or anchor.op.name not in CONVOLUTIONS:
        return Refusal("there is no convolution")
    literal = group.constants.get(anchor.args[1])
    if literal is None:
        return Refusal("the weights are not constant")
    data = stores[group.outer(anchor.args[0])]
    result = stores[group.output]
    reason = no_image(result) or (None if data.block else "the data is no blocked image")
    if reason is not None or anchor.output.dtype not in (DType.FLOAT32, DType.INT32):
        return Refusal(reason or f"the sums are {anchor.output.dtype}")
    shape = literal.array.shape
    reason = takes(anchor, shape, data.block, result.block)
    reason = reason or unfit_epilogue(group, stores, anchor)
    if anchor.op.name == INTEGER:
        reason = reason or _unfit_integers(group, stores, anchor)
    if reason is not None:
        return Refusal(reason)
    if any(have < need for have, need in zip(data.halo, halo(anchor, shape[2:]), strict=True)):
        return Refusal("the halo of the data is narrower than the padding")
    parameters = Parameters(group, stores)
    return parameters.kernel(_Writer(parameters, anchor, literal.array, target).body())


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
        read = parameters.value if self.together == 1 else parameters.quads
        self.data, self.source = read(anchor.args[0], "data")
        plain = ordinary_weights(anchor, weight)
        block = parameters.stores[parameters.group.output].block
        channels = channels_of(plain.shape, anchor.attrs.groups, self.data.block, block)
        assert channels is not None
        schedule = default_schedule(target, channels.slab)
        super().__init__(parameters, schedule.lanes)
        self.channels: Channels = channels
        self.pixels = schedule.pixels
        self.anchor = anchor
        packed = pack_weights(plain, channels)
        self.begin: Buffer | None = None
        if self.together > 1:
            packed = in_quads(packed, axis=4)
            first = starts(parameters.group, anchor, plain, self.data.dtype)
            if first is not None:
                rows = first.reshape(-1, channels.slab)
                self.begin = parameters.packed(rows, "begin")
        self.weights = parameters.packed(packed, "weights")
        kernel = weight.shape[2:]
        self.down, self.columns = phases(anchor, kernel, 0), phases(anchor, kernel, 1)
        self.line, self.segment = Var("line"), Var("segment")

    def body(self) -> Stmt:
        """All results; a job is a row of each phase of one block, or a segment of it."""
        lines = tuple(self.one_row(phase) for phase in self.down)
        parts = (
            (self.batch, self.batches),
            (self.block, self.result.channels // self.result.block),
            (self.line, self.parameters.extent(self.down[0].count)),
            (self.segment, self.segments),
        )
        return shared(parts, Block(lines))

    @property
    def segments(self) -> int:
        """Into how many parts rows are cut: more than one where there are few, but long ones."""
        batch, lines, columns = self.result.shape[0], self.down[0].count, self.columns[0].count
        if not isinstance(lines, int) or not isinstance(columns, int):
            return 1
        blocks = self.result.channels // self.result.block
        jobs = (batch if isinstance(batch, int) else 1) * blocks * lines
        return max(1, min(-(-ENOUGH_JOBS // jobs), columns // self.pixels))

    def one_row(self, down: Phase) -> Stmt:
        """One row of the result."""
        row = plus(times(self.line, down.step), down.first)
        vectors = self.channels.slab // self.lanes
        found: list[Stmt] = []
        for part, across in product(range(self.result.block // self.channels.slab), self.columns):
            for run in runs(self.parameters.extent(across.count), self.pixels):
                tile = Tile(run.size, vectors, self.lanes, self.fresh(""), self.dtype)
                found.append(_Tiles(self, down, across, part, tile).loop(run))
        border = self.border(row, f"_{down.first}")
        if self.segments == 1:
            found += border
        elif border:
            found.append(
                If(Compare(CompareKind.EQUAL, self.segment, Const(0)), Block(tuple(border)))
            )
        body = Block(tuple(found))
        if down.count == self.down[0].count:
            return body
        return If(Compare(CompareKind.LESS, self.line, self.parameters.extent(down.count)), body)

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
    """Writes the tiles of one pair of phases for one slab of a block."""

    writer: _Writer
    down: Phase
    across: Phase
    part: int
    tile: Tile

    def loop(self, run: Run) -> Stmt:
        """The tiles of a run along the phase."""
        tile, count = self.tile, run.count
        number = Var(f"tile{tile.tag}")
        clear = tile.clear(self.begin if self.writer.begin is not None else None)

        def sums(pixel: Expr) -> Stmt:
            steps = Block((clear, self.reduction(pixel), self.finish(pixel)))
            return Allocate(tile.accumulators, steps)

        body = run.tile(number, sums)
        segment, segments = self.writer.segment, self.writer.segments
        if segments == 1:
            return For(number, Const(0), count, body)
        first, last = (over(times(at, count), segments) for at in (segment, plus(segment, 1)))
        return For(number, first, Binary(BinaryKind.SUBTRACT, last, first), body)

    @property
    def slab(self) -> Expr:
        """The number of the slab."""
        writer = self.writer
        per_block = writer.result.block // writer.channels.slab
        return plus(times(writer.block, per_block), self.part)

    def begin(self, vector: int) -> Expr:
        """What the sums of a vector start from."""
        assert self.writer.begin is not None
        lanes = Ramp(Const(vector * self.tile.lanes), 1, self.tile.lanes)
        return Load(self.writer.begin, (self.slab, lanes))

    def reduction(self, pixel: Expr) -> Stmt:
        """The sums over kernel positions and input channels."""
        writer, tile, down, across = self.writer, self.tile, self.down, self.across
        names = [f"{name}{tile.tag}" for name in ("unit", "ky", "kx", "ic")]
        unit, ky, kx, channel = (Var(name) for name in names)
        block, lane = Var(f"ib{tile.tag}"), Var(f"first{tile.tag}")
        top, left, _, _ = writer.data.halo
        row = plus(times(writer.line, down.stride), plus(times(ky, down.spacing), top + down.start))
        first = plus(times(pixel, across.stride), times(kx, across.spacing))
        first = plus(first, left + across.start)
        channels, slab = writer.channels, self.slab
        together = channels.unit // writer.together

        def element(number: int) -> Expr:
            column = plus(first, number * across.stride)
            found = Load(writer.source, (writer.batch, block, row, column, plus(lane, channel)))
            return unsigned(found, writer.data.dtype)

        def weights(vector: int) -> Expr:
            lanes = Ramp(Const(vector * tile.lanes), 1, tile.lanes)
            line = plus(times(ky, down.element_step), down.element)
            place = plus(times(kx, across.element_step), across.element)
            return Load(writer.weights, (slab, unit, line, place, channel, lanes))

        body: Stmt = tile.step(element, weights)
        loops = ((ky, down.taps), (kx, across.taps), (channel, together))
        for var, extent in reversed(loops):
            body = For(var, Const(0), Const(extent), body)
        per_block = writer.data.block // channels.unit
        position = plus(writer.start(slab), unit)
        body = Let(lane, times(modulo(position, per_block), together), body)
        body = Let(block, over(position, per_block), body)
        return For(unit, Const(0), Const(channels.count // channels.unit), body)

    def finish(self, pixel: Expr) -> Stmt:
        """The epilogue on each accumulator, and its result to memory."""
        writer, tile = self.writer, self.tile
        row = plus(times(writer.line, self.down.step), self.down.first)

        def store(number: int, vector: int) -> Stmt:
            first = self.part * writer.channels.slab + vector * tile.lanes
            column = plus(times(plus(pixel, number), self.across.step), self.across.first)
            size = writer.result.block
            point = BlockedPoint(writer.batch, writer.block, row, column, first, tile.lanes, size)
            return writer.store(point, {writer.anchor.output: tile.value(number, vector)})

        return tile.each(store)

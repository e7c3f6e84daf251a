"""Direct convolution on blocked images, with its epilogue in registers.

Reads [batch, channels / block, rows, columns, block] with a halo of zeros at least as wide as the
padding; weights are packed to [slab, unit, kernel rows, kernel columns, in, out], see
`conv_plan.py`. The threads share the (block, row) pairs of the result; along a row, tiles of pixels
are accumulated in registers over the whole reduction and then pass through the epilogue to memory.
A transposed convolution does so for each of its phases, whose pixels are some columns apart.
Narrow numbers are multiplied a word of channels at a time, see `words.py`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import reduce
from itertools import product

from graft.backends.host.coordinates import minus, modulo, over, plus, times
from graft.backends.host.cost import typical
from graft.backends.host.group import Group
from graft.backends.host.kernel import Parameters, Stores
from graft.backends.host.kernel_template import Layout, Plan, kernel_template, plan_of
from graft.backends.host.kernels.border import Bordered
from graft.backends.host.kernels.conv_cost import choose_convolution, conv_cost, conv_layouts
from graft.backends.host.kernels.conv_plan import (
    CONVOLUTIONS,
    INTEGER,
    MIXED,
    Channels,
    Phase,
    beside_each_other,
    channels_of,
    data_in_one_row,
    flat_phases,
    flattened,
    halo,
    ordinary_shape,
    ordinary_weights,
    pack_starts,
    pack_weights,
    phases,
    skips_rows,
    takes,
    weight_shape,
)
from graft.backends.host.kernels.conv_schedule import (
    ConvExtents,
    ConvSchedule,
    choose_schedule,
    conv_cycles,
    segments_of,
)
from graft.backends.host.kernels.conv_tiles import ConvTiles, lines_ahead
from graft.backends.host.kernels.image import (
    ImageWriter,
    no_image,
    shared,
    shared_in_bands,
    unfit_epilogue,
    unfit_weights,
    vector_lanes,
)
from graft.backends.host.kernels.integer_weights import (
    bias_behind,
    no_quads,
    starts,
    taken_off,
    zero_point_of,
)
from graft.backends.host.kernels.tile import Run, Tile, balanced, runs
from graft.backends.host.kernels.weight_packing import PackedWeights
from graft.backends.host.kernels.words import in_words, no_halves, per_word
from graft.backends.host.storage import Storage, covers, index
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
    Scope,
    Stmt,
    Var,
)
from graft.rewrite.rule import Refusal
from graft.target.target import Target

Phases = tuple[Phase, ...]
_FLOAT = 4  # bytes


@kernel_template(
    CONVOLUTIONS,
    Layout.BLOCKED,
    dtypes=frozenset({DType.FLOAT32, DType.INT32}),
    schedule=ConvSchedule,
    layouts=conv_layouts,
    cost=conv_cost,
    algorithm=choose_convolution,
)
def conv2d(group: Group, stores: Stores, target: Target) -> Plan | Refusal:
    """A convolution, transposed or not, with whatever follows it."""
    anchor = group.sole_anchor
    shape = weight_shape(group, anchor)
    if shape is None:
        return Refusal("the image is constant, or the weights are neither that nor to be packed")
    data, result = stores[group.outer(anchor.args[0])], stores[group.output]
    reason = no_image(result) or (None if data.block else "the data is no blocked image")
    reason = reason or unfit_weights(group, stores, anchor)
    reason = reason or takes(anchor, shape, data.block, result.block)
    reason = reason or unfit_epilogue(group, stores, anchor)
    if anchor.op.name in (INTEGER, MIXED):
        reason = reason or _unfit_words(group, stores, anchor)
    if reason is not None:
        return Refusal(reason)
    if not covers(data.halo, halo(anchor, shape[2:])):
        return Refusal("the halo of the data is narrower than the padding")
    views = flattened(group, stores, anchor, shape) or stores
    return plan_of(group, views, lambda p: ConvWriter(p, anchor, shape, target).body())


def _unfit_words(group: Group, stores: Stores, anchor: Node) -> str | None:
    """Why the narrow data of a convolution cannot be taken a word at a time, if they cannot."""
    data, result = stores[group.outer(anchor.args[0])], stores[group.output]
    shape = group.constants[anchor.args[1]].array.shape
    channels = channels_of(shape, anchor.attrs.groups, data.block, result.block)
    unit = channels.unit if channels else 0
    if anchor.op.name == MIXED:
        return no_halves(group, anchor, unit)
    reason = no_quads(group, anchor, unit)
    if reason is None and any(data.halo) and data.fill != zero_point_of(group, anchor):
        return "the halo of the data is not of its zero point"
    return reason


class ConvWriter(ImageWriter):
    """Writes the loop nest of one convolution."""

    weights_name = "weights"

    def __init__(
        self, parameters: Parameters, anchor: Node, weight: Sequence[int], target: Target
    ) -> None:
        self.dtype = anchor.output.dtype
        is_narrow = anchor.op.name in (INTEGER, MIXED)
        # channels of an element
        self.together = per_word(anchor.args[0].dtype) if is_narrow else 1
        self.anchor = anchor
        self.kernel = (weight[2], weight[3])
        self.skips_rows = skips_rows(anchor, weight[2:])
        self.machine = target.machine
        self.asks_before_stores = target.machine.asks_before_stores
        result = parameters.stores[parameters.group.output]
        self.data = parameters.stores[parameters.group.outer(anchor.args[0])]
        channels = channels_of(
            *(ordinary_shape(anchor, weight), anchor.attrs.groups, self.data.block, result.block),
            None if is_narrow else target,
        )
        assert channels is not None
        self.goes_on = False  # whether tiles go on from one row of the image to the next
        self.down, self.columns, self.schedule = self.scheduled(target, channels, result, weight)
        if channels.unit % self.schedule.split:
            self.schedule = replace(self.schedule, split=1)
        self.source = self.read(parameters)
        self.channels = replace(channels, slab=self.schedule.slab)
        super().__init__(parameters, self.schedule.lanes)
        # the image and the row that the buffer of the data begins with
        self.source_batch: Expr = self.batch
        self.source_row: Expr = Const(0)
        self.begin: Buffer | None = None
        self.summed = anchor.output  # what sums are when they are finished
        self.weights = self.packed(parameters, anchor, self.channels)
        self.depth_index, self.depth_blocks = Var("depth"), 1
        self.partial: Buffer | None = None
        # a job's channels: a slab of whole blocks, or a block of several slabs
        self.share = max(self.channels.slab, self.result.block)
        self.number, self.line, self.segment = Var("share"), Var("line"), Var("segment")
        self.tile_row: Expr = self.line  # the number of a row of tiles in the image
        if self.schedule.depth_block and self.share == self.channels.slab:
            self.depth_blocks = self.channels.count // self.schedule.depth_block
            self.partial = self.partial_sums()
        self.ahead = lines_ahead(self)

    def packed(self, parameters: Parameters, anchor: Node, channels: Channels) -> Buffer:
        """The weights; where sums do not start from zero, what they start from goes before."""
        block, together = self.result.block, self.together
        is_integer = self.dtype is DType.INT32
        less = taken_off(parameters.group, anchor, self.data.dtype) if is_integer else 0
        bias = bias_behind(parameters.group, anchor) if is_integer else None
        if bias is not None:
            self.summed = bias.output

        def begin(array: Array, added: Array | None = None) -> Array:
            first = starts(ordinary_weights(anchor, array), less, added)
            return pack_starts(first, channels, block)

        if less or bias is not None:
            more = () if bias is None else (bias.args[1],)
            self.begin = parameters.packed(anchor.args[1], begin, "begin", *more)

        def pack(array: Array) -> Array:
            packed = pack_weights(ordinary_weights(anchor, array), channels, block)
            if self.schedule.split > 1:
                return beside_each_other(packed, self.lanes)
            return in_words(packed, axis=4) if together > 1 else packed

        if anchor.args[1] in parameters.group.constants:
            return parameters.packed(anchor.args[1], pack, self.weights_name)
        split = (self.schedule.split, self.lanes)
        packing = PackedWeights(anchor, self.kernel, channels, block, *split)
        return parameters.repacked(anchor.args[1], packing.shape, packing.write, self.weights_name)

    def partial_sums(self) -> Buffer:
        """The sums of a job's tiles between two blocks of the depth."""
        columns = self.columns[0].count
        assert isinstance(columns, int)
        counts = (count for _, count in balanced(columns, self.schedule.columns))
        tiles = sum(-(-count // self.segments) for count in counts)
        pixels = self.schedule.rows * self.schedule.columns
        sums = self.schedule.vectors * self.schedule.split
        extents = index(tiles, pixels, sums, self.lanes)
        return Buffer("partial", self.dtype, extents, Scope.HEAP)

    @property
    def tiles_across(self) -> int:
        """The tiles of a row, where it is known how long it is."""
        columns = self.columns[0].count
        return -(-columns // self.schedule.columns) if isinstance(columns, int) else 1

    @property
    def units(self) -> int:
        """The units of channels that a tile goes through at a time."""
        return self.channels.count // self.channels.unit // self.depth_blocks

    def scheduled(
        self, target: Target, channels: Channels, result: Storage, weight: Sequence[int]
    ) -> tuple[Phases, Phases, ConvSchedule]:
        """The phases, the tile and the order of loops that are cheapest."""
        lanes = vector_lanes(target, DType.FLOAT32, min(channels.slab, result.block))
        is_image = result.shape == self.anchor.output.shape
        kernel = weight[2:]
        rows = phases(self.anchor, kernel, 0), phases(self.anchor, kernel, 1)
        views = [rows if is_image else flat_phases(result)]
        row = data_in_one_row(self.anchor, weight, self.data) if is_image else None
        if row is not None and self.together == 1:
            views.append(flat_phases(row))
        extents = [self.extents(*view, channels, result, lanes) for view in views]
        cycles = [conv_cycles(target, lanes, extent) for extent in extents]
        best = cycles.index(min(cycles))
        if best and row is not None:
            self.goes_on, self.data = True, row
        return *views[best], choose_schedule(target, lanes, extents[best])

    def extents(
        self,
        down: Phases,
        across: Phases,
        channels: Channels,
        result: Storage,
        lanes: int,
    ) -> ConvExtents:
        """What the schedule depends on; typical extents stand for unknown ones."""
        counts = (down[0].count, across[0].count)
        rows, columns = (typical(count, (self.anchor.output,)) for count in counts)
        # groups that share a slab, or one that ends within it, keep to their own blocks
        own = channels.outputs if channels.groups > 1 else result.blocks * result.block
        whole = channels.slab == result.block and own % channels.slab == 0
        is_one = len(down) == 1 and not self.skips_rows
        return ConvExtents(
            round(channels.mean_count) // self.together,
            (max(1, down[0].taps), max(1, across[0].taps)),
            rows,
            columns,
            (own if whole else channels.slab) // lanes,
            channels.slab // lanes,
            None if is_one and isinstance(counts[0], int) else 1,
            channels.groups == 1 and self.together == 1,
            channels.unit if self.may_block(down, across) and not channels.mixed else 0,
            may_split=self.together == 1 and channels.unit % 2 == 0,
            stride=across[0].stride,
        )

    def may_block(self, down: Phases, across: Phases) -> bool:
        """Whether the depth may be done in blocks."""
        is_one = len(down) == len(across) == 1 and not self.skips_rows and self.together == 1
        return is_one and isinstance(down[0].count, int) and isinstance(across[0].count, int)

    def read(self, parameters: Parameters) -> Buffer:
        """The buffer of the data."""
        value = self.anchor.args[0]
        if self.goes_on:
            return parameters.viewed(value, "data", self.data)
        return (parameters.value if self.together == 1 else parameters.words)(value, "data")[1]

    def body(self) -> Stmt:
        """All results; a job is some rows of each phase of one slab, or a segment of them."""
        lines = tuple(self.rows_of(phase) for phase in self.down)
        batch, share = (self.batch, self.batches), (self.number, self.shares)
        rows = reduce(plus, (run.count for run in self.row_runs(self.down[0])))
        line, segment = (self.line, rows), (self.segment, self.segments)
        if not self.schedule.bands:
            return shared((batch, line, segment, share), Block(lines))
        position = Var("position")
        body: Stmt = Let(self.segment, modulo(position, self.segments), Block(lines))
        body = Let(self.line, over(position, self.segments), body)
        axis = (position, times(rows, self.segments))
        return shared_in_bands(batch, axis, self.schedule.bands, (share,), body)

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
        batch, lines, columns = (
            self.result.shape[0],
            self.down[0].count,
            self.columns[0].count,
        )
        if not isinstance(lines, int):
            return 1
        jobs = (batch if isinstance(batch, int) else 1) * -(-lines // self.schedule.rows)
        most = columns // self.schedule.columns if isinstance(columns, int) else None
        return segments_of(self.machine, jobs * self.shares, most, self.depth_blocks > 1)

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
        return If(
            Compare(CompareKind.LESS, self.line, self.parameters.extent(down.count)),
            body,
        )

    def some_rows(self, down: Phase, line: Expr, count: int) -> Stmt:
        """Neighbouring rows of a phase, from number `line` on."""
        statements: list[Stmt] = []
        vectors = self.schedule.vectors
        for part, across in product(range(self.share // self.channels.slab), self.columns):
            before: Expr = Const(0)
            loops: list[Stmt] = []
            for run in runs(self.parameters.extent(across.count), self.schedule.columns):
                shape = (count * run.size, vectors, self.lanes)
                is_paired = self.data.dtype is DType.BFLOAT16
                tag = self.fresh("")
                tile = Tile(*shape, tag, self.dtype, is_paired, self.schedule.split)
                tiles = ConvTiles(self, down, across, part, line, count, tile, before)
                loops.append(tiles.loop(run))
                before = plus(before, run.count)
            statements.append(self.over_depth(loops))
        if self.goes_on:
            return Block((*statements, self.borders_of_rows()))
        border = [
            one
            for number in range(count)
            for one in self.borders(plus(times(plus(line, number), down.step), down.first))
        ]
        if self.segments == 1:
            statements += border
        elif border:
            first = Compare(CompareKind.EQUAL, self.segment, Const(0))
            statements.append(If(first, Block(tuple(border))))
        return Block(tuple(statements))

    def over_depth(self, loops: Sequence[Stmt]) -> Stmt:
        """The tiles for one block of the depth after the other, with their sums between these."""
        if self.partial is None:
            return Block(tuple(loops))
        every = For(self.depth_index, Const(0), Const(self.depth_blocks), Block(tuple(loops)))
        return Allocate(self.partial, every)

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

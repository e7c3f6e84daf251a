"""A pointwise convolution and the depthwise one that reads it, in one kernel.

The first one expands the channels of an image, so its result is the largest tensor around: here it
is never written. Each thread keeps the rows of it that windows of the depthwise convolution cover
in a ring of its own, a line buffer of [block, row, column, channel], which a near cache holds. A
job is some rows of the result for a share of the channels: it computes the rows of the expanded
image that its windows are the first to cover, and then the rows of the result, each with its
epilogue in registers. A thread whose last job was the one above in a band of the image finds the
rows that both cover in its ring; any other computes them again.

Sums are those of the two kernels for themselves, in the same order.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from graft.backends.host.coordinates import BlockedCoordinate, minus, modulo, over, plus, times
from graft.backends.host.group import Group
from graft.backends.host.kernel import Parameters, Stores
from graft.backends.host.kernel_template import Chain, Layout, Plan, kernel_template, plan_of
from graft.backends.host.kernels.border import Bordered
from graft.backends.host.kernels.chain_schedule import (
    ExpandSchedule,
    choose_expand_schedule,
    expand_cost,
    expand_extents,
)
from graft.backends.host.kernels.conv import ConvWriter, Phases
from graft.backends.host.kernels.conv_cost import conv_layouts
from graft.backends.host.kernels.conv_plan import (
    halo,
    is_depthwise,
    phases,
    takes,
    without_neighbours,
)
from graft.backends.host.kernels.conv_schedule import ConvSchedule
from graft.backends.host.kernels.depthwise import DepthwiseWriter, default_schedule
from graft.backends.host.kernels.image import (
    WITHIN,
    no_image,
    shared_in_bands,
    unfit_epilogue,
)
from graft.backends.host.storage import Storage, index, shape_of
from graft.base.dtypes import Array, DType
from graft.ir.graph import Node, Value
from graft.loop.ir import (
    INDEX,
    Binary,
    BinaryKind,
    Block,
    Buffer,
    Compare,
    CompareKind,
    Const,
    Expr,
    For,
    Let,
    Load,
    Ramp,
    Scope,
    Select,
    Stmt,
    Store,
    Var,
)
from graft.loop.statements import with_memory
from graft.rewrite.rule import Refusal
from graft.target.target import Target


def expand_layouts(group: Group, block: int) -> Iterator[Mapping[Value, tuple[int, ...]]]:
    """The blocks in which the data of the first convolution may be read."""
    if group.parts is not None and _unfit(group) is None:
        yield from conv_layouts(group.parts[0], block)


@kernel_template(
    Chain(("nn.conv2d", "nn.conv2d")),
    Layout.BLOCKED,
    dtypes=frozenset({DType.FLOAT32}),
    constants=(1,),
    symbolic=False,
    schedule=ExpandSchedule,
    layouts=expand_layouts,
    cost=expand_cost,
)
def expand_depthwise(group: Group, stores: Stores, target: Target) -> Plan | Refusal:
    """A convolution without neighbours, a depthwise one of its result, and what follows each."""
    parts, result = group.parts, stores[group.output]
    reason = no_image(result) or _unfit(group)
    if reason is not None or parts is None:
        return Refusal(reason or "the first convolution is read by more than the second")
    expand, depthwise = group.anchors
    weights = [group.constants[conv.args[1]].array for conv in group.anchors]
    expanded, border = parts[0].output, halo(depthwise, weights[1].shape[2:])
    middle = Storage(expanded.dtype, shape_of(expanded), result.block, border)
    inner = {**stores, expanded: middle}
    data = stores[group.outer(expand.args[0])]
    reason = None if data.block else "the data is no blocked image"
    reason = reason or takes(expand, weights[0].shape, data.block, result.block)
    for part in parts:
        reason = reason or unfit_epilogue(part, inner, part.sole_anchor)
    if reason is not None:
        return Refusal(reason)

    def body(parameters: Parameters) -> Stmt:
        return _Writer(parameters, middle, target).body()

    return plan_of(group, stores, body)


def _unfit(group: Group) -> str | None:
    """Why the convolutions are not for this template, if they are not."""
    expand, depthwise = ((conv, group.constants[conv.args[1]].array) for conv in group.anchors)
    return unfit_expansion(expand, depthwise)


def unfit_expansion(expand: tuple[Node, Array], depthwise: tuple[Node, Array]) -> str | None:
    """Why two convolutions, each with its weights, are not an expansion and a depthwise one whose
    windows cover all of it, if they are not."""
    (first, weights), (second, window) = expand, depthwise
    if not without_neighbours(first, weights.shape) or first.attrs.groups != 1:
        return "the first convolution is not pointwise"
    if not is_depthwise(second, window.shape):
        return "the second convolution is not depthwise"
    steps = zip(second.attrs.strides, second.attrs.dilation, window.shape[2:], strict=True)
    if any(stride > dilation * (size - 1) + 1 for stride, dilation, size in steps):
        return "the second convolution skips pixels that would be computed"
    return None


@dataclass(frozen=True, slots=True)
class Ring:
    """The rows of the expanded image that a job reads, of all channels or of a share.

    Row r, counted from the top of the halo, is at r modulo the rows that there are."""

    storage: Storage  # of the whole image
    rows: int
    blocks: int

    @property
    def has_all(self) -> bool:
        return self.blocks == self.storage.blocks

    @property
    def buffer(self) -> Buffer:
        _, _, _, width, block = self.storage.static_extents
        extents = index(1, self.blocks, self.rows, width, block)
        return Buffer("ring", self.storage.dtype, extents, Scope.HEAP)

    def row(self, row: Expr) -> Expr:
        """Where the ring has a row of the image."""
        return modulo(plus(row, self.storage.halo[0]), self.rows)

    @property
    def beside(self) -> Bordered:
        """The ring as an image with a halo beside its rows only."""
        _, left, _, right = self.storage.halo
        bordered = replace(self.storage, halo=(0, left, 0, right))
        height, width = index(self.rows, self.storage.sizes[3])
        return Bordered(bordered, self.buffer, height, width)


class PointwiseRows(ConvWriter):
    """Writes rows of a pointwise convolution, one by one, into a loop nest around several."""

    def __init__(
        self,
        parameters: Parameters,
        anchor: Node,
        weight: Sequence[int],
        target: Target,
        tile: ConvSchedule,
    ) -> None:
        self._tile = tile
        super().__init__(parameters, anchor, weight, target)

    def scheduled(self, *_: object) -> tuple[Phases, Phases, ConvSchedule]:
        down, across = (phases(self.anchor, (1, 1), axis) for axis in (0, 1))
        return down, across, self._tile

    @property
    def segments(self) -> int:
        return 1


class Expansion(PointwiseRows):
    """Writes rows of the pointwise convolution's result to a ring."""

    ring: Ring

    def ring_block(self, block: Expr) -> Expr:
        """Where the ring has a block of the share."""
        return block if self.ring.has_all else minus(block, self.first_block)

    @property
    def ring_blocks(self) -> list[Expr]:
        """The same of all blocks of the share."""
        blocks = range(self.share // self.result.block)
        return [self.ring_block(plus(self.first_block, number)) for number in blocks]

    def address(self, coordinate: BlockedCoordinate) -> tuple[Expr, ...]:
        column = plus(coordinate.column, self.result.halo[1])
        lanes = Ramp(Const(coordinate.first), 1, coordinate.lanes)
        block = self.ring_block(coordinate.block)
        return Const(0), block, self.ring.row(coordinate.row), column, lanes

    def borders(self, row: Expr) -> list[Stmt]:
        ring = self.ring
        return [
            statement
            for block in self.ring_blocks
            for statement in ring.beside.filled(Const(0), block, ring.row(row), self.fresh(""))
        ]

    def expanded_rows(self, begin: Expr, end: Expr) -> Stmt:
        """Rows of a share, and zeros for those that lie above or below the image."""
        top, _, bottom, _ = self.result.halo
        low, high = begin, end
        around: list[Stmt] = []
        if top:
            low = Binary(BinaryKind.MAXIMUM, begin, Const(0))
            around.append(self.zeros(begin, low))
        if bottom:
            high = Binary(BinaryKind.MINIMUM, end, self.height)
            around.append(self.zeros(high, end))
        first, count = Var(self.fresh("first")), Var(self.fresh("count"))
        rows = self.tiled_rows(first, count)
        nest = Let(first, low, Let(count, minus(high, first), rows))
        return Block((*around, nest))

    def tiled_rows(self, first: Expr, count: Expr) -> Stmt:
        """Rows of the image in tiles of some rows each; what is left of them one by one."""
        size = self.schedule.rows
        row = plus(first, times(self.line, size))
        self.tile_row = over(row, size)
        each = self.some_rows(self.down[0], row, size)
        if size == 1:
            return For(self.line, Const(0), count, each)
        row = plus(plus(first, times(over(count, size), size)), self.line)
        self.tile_row = over(row, size)
        single = self.some_rows(self.down[0], row, 1)
        return Block(
            (
                For(self.line, Const(0), over(count, size), each),
                For(self.line, Const(0), modulo(count, size), single),
            )
        )

    def zeros(self, begin: Expr, end: Expr) -> Stmt:
        """Rows of zeros, those of the share."""
        ring, width, row = self.ring, self.result.static_extents[3], Var(self.fresh("outside"))
        rows = tuple(
            ring.beside.pixels(
                (Const(0), block, ring.row(row)), Const(0), Const(width), self.fresh("n")
            )
            for block in self.ring_blocks
        )
        return For(row, begin, minus(end, begin), Block(rows))


class _Depthwise(DepthwiseWriter):
    """Writes rows of the depthwise convolution's result from the ring."""

    weights_name = "window"
    ring: Ring
    number = Var("number")  # of the block within the share

    def source_row(self, line: Expr) -> tuple[Expr, Expr, Expr]:
        *_, row = super().source_row(line)
        return Const(0), self.number, modulo(row, self.ring.rows)


class _Writer:
    """Writes the loop nest of both."""

    def __init__(self, parameters: Parameters, middle: Storage, target: Target) -> None:
        first, second = parameters.group.parts or ()
        expanded = first.output
        extents = expand_extents(parameters.group, middle.block, target)
        self.schedule = schedule = choose_expand_schedule(target, extents)
        self.strides, self.window = extents.strides, extents.window
        share = max(schedule.tile.slab, middle.block)
        self.ring = Ring(middle, extents.ring_rows(schedule.rows), share // middle.block)
        inner = {expanded: (middle, self.ring.buffer)}
        expand, depthwise = first.sole_anchor, second.sole_anchor
        weights = [first.constants[conv.args[1]].array for conv in (expand, depthwise)]
        self.expansion = Expansion(
            parameters.of_part(first, inner), expand, weights[0].shape, target, schedule.tile
        )
        kernel = weights[1].shape[3]
        self.depthwise = _Depthwise(
            parameters.of_part(second, inner),
            default_schedule(target, DType.FLOAT32, middle.block, kernel),
            depthwise,
            weights[1],
        )
        self.expansion.ring = self.depthwise.ring = self.ring
        self.expansion.asks_before_stores = False  # the ring stays in a cache
        self.strip = Var("strip")

    def body(self) -> Stmt:
        """All jobs; `following` is the one that would find rows in the ring."""
        following = Buffer("following", INDEX, index(1), Scope.REGISTER)
        job, here = Var("job"), index(0)
        strips = -(-self.height // self.schedule.rows)
        between = ((self.expansion.segment, 1), (self.expansion.number, self.expansion.shares))
        goes_on = Binary(
            BinaryKind.AND,
            Compare(CompareKind.EQUAL, job, Load(following, here)),
            Compare(CompareKind.GREATER, WITHIN, Const(0)),
        )
        leave = Store(following, here, plus(job, 1))
        jobs = shared_in_bands(
            (self.expansion.batch, self.expansion.batches),
            (self.strip, strips),
            self.schedule.tile.bands,
            between,
            Block((self.rows(goes_on), leave)),
        )
        begin = Store(following, here, Const(-1))
        return with_memory(Block((begin, jobs)), self.ring.buffer, following)

    @property
    def height(self) -> int:
        """Rows of the result."""
        return self.depthwise.result.sizes[2]

    def rows(self, goes_on: Expr) -> Stmt:
        """The rows of a job."""
        row, count = Var("first_row"), Var("row_count")
        stride, window = self.strides[0], self.window[0]
        padding: int = self.depthwise.anchor.attrs.padding[0]
        begin, end = Var("begin"), Var("end")  # rows of the expanded image, padding included
        first = plus(times(row, stride), -padding)
        last = plus(times(plus(row, minus(count, Const(1))), stride), window - padding)
        start = Select(goes_on, plus(first, window - stride), first)
        body = Block((self.expansion.expanded_rows(begin, end), self.convolved(row, count)))
        rows = self.schedule.rows
        left = minus(Const(self.height), row)
        nest: Stmt = Let(begin, start, Let(end, last, body))
        nest = Let(count, Binary(BinaryKind.MINIMUM, Const(rows), left), nest)
        return Let(row, times(self.strip, rows), nest)

    def convolved(self, row: Expr, count: Expr) -> Stmt:
        """The rows of the result for a share."""
        depthwise = self.depthwise
        line = Block((*depthwise.tiles(), *depthwise.border(depthwise.row)))
        rows = For(depthwise.row, row, count, line)
        block = plus(self.expansion.first_block, depthwise.number)
        each = Let(depthwise.block, block, rows)
        return For(depthwise.number, Const(0), Const(self.ring.blocks), each)

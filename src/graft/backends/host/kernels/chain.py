"""Chains of pointwise and depthwise convolutions in one kernel: what the kernels have in common.

A group enters whose anchors each read the one before. Out come the plan of a kernel, once each
convolution is known to be of its kind, and writers of rows: of a pointwise convolution, to a ring
or to memory, and of a depthwise one, from a ring or from memory.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace

from graft.backends.host.coordinates import BlockedCoordinate, minus, modulo, over, plus, times
from graft.backends.host.cost import Cost
from graft.backends.host.group import Group
from graft.backends.host.kernel import Parameters, Stores
from graft.backends.host.kernel_template import (
    Chain,
    KernelTemplate,
    Layout,
    Matcher,
    OperandLayouts,
    Plan,
    kernel_template,
    plan_of,
)
from graft.backends.host.kernels.border import Bordered
from graft.backends.host.kernels.chain_schedule import ExpandExtents
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
from graft.backends.host.kernels.depthwise import DepthwiseWriter, default_schedule, unfit
from graft.backends.host.kernels.image import no_image, unfit_epilogue
from graft.backends.host.storage import NO_HALO, Storage, index, shape_of
from graft.base.dtypes import Array, DType
from graft.ir.graph import Node, Value
from graft.loop.ir import (
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
    Ramp,
    Scope,
    Select,
    Stmt,
    Var,
)
from graft.loop.statements import Cell, bound, with_memory
from graft.rewrite.rule import Refusal
from graft.target.target import Target

POINTWISE, DEPTHWISE = "pointwise", "depthwise"
_ORDINALS = ("first", "second", "third")

# Writes the body for parameters and the storages of what stays within the kernel.
Body = Callable[..., Stmt]
# Values that stay within the kernel, with the buffers that they are in.
Inner = Mapping[Value, tuple[Storage, Buffer]]
Rows = tuple[Expr, Expr]  # the first, and how many


def chain_template(
    kinds: tuple[str, ...], schedule: type, layouts: OperandLayouts, cost: Cost
) -> Callable[[Matcher], KernelTemplate]:
    """Declare the kernel of a chain of convolutions of these kinds."""
    return kernel_template(
        Chain(("nn.conv2d",) * len(kinds)),
        Layout.BLOCKED,
        dtypes=frozenset({DType.FLOAT32}),
        constants=(1,),
        symbolic=False,
        schedule=schedule,
        layouts=layouts,
        cost=cost,
    )


def chain_plan(group: Group, stores: Stores, kinds: tuple[str, ...], body: Body) -> Plan | Refusal:
    """The plan of a kernel of convolutions of these kinds, each of the result of the one before."""
    parts, result = group.parts, stores[group.output]
    reason = no_image(result) or unfit_chain(group, kinds)
    if reason is not None or parts is None:
        return Refusal(reason or "a convolution is read by more than the next one")
    if not stores[group.outer(group.anchors[0].args[0])].block:
        return Refusal("the data is no blocked image")
    inner = dict(stores)
    middle: list[Storage] = []
    convolutions = _weighted_convolutions(group)
    for part, kind, (conv, weight), following in zip(
        parts, kinds, convolutions, (*convolutions[1:], None), strict=True
    ):
        source = inner[group.outer(conv.args[0])]
        block = source.block if kind is DEPTHWISE else result.block
        if following is not None:
            reads, window = following
            border = NO_HALO if kind is DEPTHWISE else halo(reads, window.shape[2:])
            middle.append(Storage(part.output.dtype, shape_of(part.output), block, border))
            inner[part.output] = middle[-1]
        if kind is DEPTHWISE:
            reason = reason or unfit(conv, weight, source, inner[part.output])
        else:
            reason = reason or takes(conv, weight.shape, source.block, block)
        reason = reason or unfit_epilogue(part, inner, conv)
    if reason is not None:
        return Refusal(reason)
    return plan_of(group, stores, lambda parameters: body(parameters, *middle))


def expansion_layouts(
    kinds: tuple[str, ...],
) -> Callable[[Group, int], Iterator[Mapping[Value, tuple[int, ...]]]]:
    """The blocks in which the data of the first, pointwise convolution may be read."""

    def layouts(group: Group, block: int) -> Iterator[Mapping[Value, tuple[int, ...]]]:
        if group.parts is not None and unfit_chain(group, kinds) is None:
            yield from conv_layouts(group.parts[0], block)

    return layouts


def unfit_chain(group: Group, kinds: tuple[str, ...]) -> str | None:
    """Why a group's convolutions are not of these kinds, if they are not."""
    convolutions = _weighted_convolutions(group)
    for (conv, weight), kind, ordinal in zip(convolutions, kinds, _ORDINALS, strict=False):
        is_pointwise = without_neighbours(conv, weight.shape) and conv.attrs.groups == 1
        if not (is_depthwise(conv, weight.shape) if kind is DEPTHWISE else is_pointwise):
            return f"the {ordinal} convolution is not {kind}"
        steps = zip(conv.attrs.strides, conv.attrs.dilation, weight.shape[2:], strict=True)
        skips = any(stride > dilation * (size - 1) + 1 for stride, dilation, size in steps)
        if skips and ordinal != _ORDINALS[0]:
            return f"the {ordinal} convolution skips pixels that would be computed"
    return None


def _weighted_convolutions(group: Group) -> list[tuple[Node, Array]]:
    """The convolutions of a group, each with its weights."""
    return [(conv, group.constants[conv.args[1]].array) for conv in group.anchors]


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
        self, parameters: Parameters, part: Group, inner: Inner, target: Target, tile: ConvSchedule
    ) -> None:
        self._tile = tile
        conv = part.sole_anchor
        weight = part.constants[conv.args[1]].array.shape
        super().__init__(parameters.of_part(part, inner), conv, weight, target)

    def scheduled(self, *_: object) -> tuple[Phases, Phases, ConvSchedule]:
        down, across = (phases(self.anchor, (1, 1), axis) for axis in (0, 1))
        return down, across, self._tile

    @property
    def segments(self) -> int:
        return 1


class Projection(PointwiseRows):
    """Writes rows of the last convolution's result, from rows that begin with `first_row`."""

    weights_name = "projection"

    def read_from(self, first_row: Expr) -> None:
        """Have its data begin with a row of the image."""
        self.source_batch, self.source_row = Const(0), first_row

    def projected(self, rows: Rows) -> Stmt:
        """Some rows, all shares of the channels."""
        row = self.some_rows(self.down[0], self.line, 1)
        return For(self.number, Const(0), Const(self.shares), For(self.line, *rows, row))


class Expansion(PointwiseRows):
    """Writes rows of the pointwise convolution's result to a ring, which stays in a cache."""

    def __init__(
        self,
        parameters: Parameters,
        part: Group,
        inner: Inner,
        target: Target,
        tile: ConvSchedule,
        ring: Ring,
    ) -> None:
        super().__init__(parameters, part, inner, target, tile)
        self.ring, self.asks_before_stores = ring, False

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

    def feed(
        self, depthwise: ChainedDepthwise, extents: ExpandExtents, rows: Rows, has_rows: Expr
    ) -> Stmt:
        """Rows of the depthwise convolution for a share, and before them what is new to the ring of
        those that they read; `has_rows` is whether it has what the rows above have been made of."""
        (row, count), stride, window = rows, extents.strides[0], extents.window[0]
        begin, end = Var("begin"), Var("end")  # rows of the expanded image, padding included
        padding: int = depthwise.anchor.attrs.padding[0]
        first = plus(times(row, stride), -padding)
        last = plus(times(plus(row, minus(count, Const(1))), stride), window - padding)
        start = Select(has_rows, plus(first, window - stride), first)
        filtered = depthwise.filtered(rows, self.first_block, self.share // self.result.block)
        whole = Block((self.expanded_rows(begin, end), filtered))
        return bound(((begin, start), (end, last)), whole)

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


class ChainedDepthwise(DepthwiseWriter):
    """Writes rows of a depthwise convolution, from a ring if there is one; with a `first_row` to
    scratch memory that begins with that row."""

    weights_name = "window"

    def __init__(
        self,
        parameters: Parameters,
        part: Group,
        inner: Inner,
        target: Target,
        ring: Ring | None = None,
        first_row: Expr | None = None,
    ) -> None:
        conv = part.sole_anchor
        weight = part.constants[conv.args[1]].array
        own = parameters.of_part(part, inner)
        block = own.stores[part.output].block
        schedule = default_schedule(target, DType.FLOAT32, block, weight.shape[3])
        super().__init__(own, schedule, conv, weight)
        self.ring, self.first_row = ring, first_row
        self.number = Var("number")  # of a block within a share

    def source_row(self, line: Expr) -> tuple[Expr, Expr, Expr]:
        *_, row = at = super().source_row(line)
        if self.ring is None:
            return at
        block = self.block if self.ring.has_all else self.number
        return Const(0), block, modulo(row, self.ring.rows)

    def address(self, coordinate: BlockedCoordinate) -> tuple[Expr, ...]:
        if self.first_row is None:
            return super().address(coordinate)
        lanes = Ramp(Const(coordinate.first), 1, coordinate.lanes)
        row = minus(coordinate.row, self.first_row)
        return Const(0), coordinate.block, row, coordinate.column, lanes

    def filtered(self, rows: Rows, first_block: Expr, blocks: int) -> Stmt:
        """Some rows of the blocks of a share."""
        line = Block((*self.tiles(), *(() if self.first_row else self.border(self.row))))
        each = Let(self.block, plus(first_block, self.number), For(self.row, *rows, line))
        return For(self.number, Const(0), Const(blocks), each)


# The number of the job that would find rows in the ring that this thread's last one left.
FOLLOWING = Cell("following")


def goes_on(position: Expr) -> Expr:
    """Whether a job is that one; the first `position` of an image or band follows no other."""
    same = Compare(CompareKind.EQUAL, Var("job"), FOLLOWING.value.expr)
    return Binary(BinaryKind.AND, same, Compare(CompareKind.GREATER, position, Const(0)))


def all_jobs(jobs: Stmt, *memory: Buffer) -> Stmt:
    """Jobs of which none follows another at first, with the memory that a thread has for them."""
    return with_memory(Block((FOLLOWING.set(-1), jobs)), *memory, FOLLOWING)

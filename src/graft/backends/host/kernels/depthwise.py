"""Depthwise convolution on blocked images, with its epilogue in registers.

Reads [batch, channels / block, rows, columns, block] with a halo of zeros at least as wide as the
padding; weights are packed to [channels / block, kernel rows, kernel columns, block]. The threads
share the (block, row) pairs of the result; along a row, a tile of pixels is accumulated for one
vector of channels, and each input pixel is loaded once per kernel row for all windows over it.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

import numpy as np

from graft.backends.host.coordinates import plus, times
from graft.backends.host.group import Group
from graft.backends.host.kernel import Parameters, Stores
from graft.backends.host.kernel_template import Layout, Plan, kernel_template, plan_of
from graft.backends.host.kernels.conv_plan import INTEGER, halo, unfit_extents
from graft.backends.host.kernels.image import (
    ImageWriter,
    no_image,
    unfit_epilogue,
    vector_lanes,
)
from graft.backends.host.kernels.integer_weights import (
    in_blocks,
    starts,
    taken_off,
    zero_point_of,
)
from graft.backends.host.kernels.tile import Tile, balanced
from graft.backends.host.storage import Storage, covers
from graft.base.dims import Dim
from graft.base.dtypes import Array, DType
from graft.ir.graph import Node
from graft.loop.build import Term, cast
from graft.loop.ir import (
    Allocate,
    Binary,
    BinaryKind,
    Block,
    Buffer,
    Call,
    Const,
    Expr,
    For,
    Let,
    Load,
    Prefetch,
    Ramp,
    Stmt,
    Store,
    Var,
)
from graft.ops.pointwise import SCALAR_DTYPES
from graft.rewrite.rule import Refusal
from graft.target.machine import LINE_BYTES, Machine
from graft.target.register_tile import RETRIED_LOADS, stream_cycles
from graft.target.target import Target

_FLOAT = 4  # bytes


@dataclass(frozen=True, slots=True)
class DepthwiseSchedule:
    """What a search may vary: lanes of a vector, pixels of a tile, how many taps of a kernel row
    are written out, and whether a tile asks for the data of the next one, and for the lines that it
    writes."""

    lanes: int
    pixels: int
    taps: int
    asks_ahead: bool = False


def default_schedule(
    target: Target, dtype: DType, block: int, columns: int, width: Dim | None = None
) -> DepthwiseSchedule:
    """Tiles that fill the registers, beside the weights of a kernel row and two elements; or one,
    where that leaves fewer sums than keep the multiply-add units busy.

    Where the weights take so many registers and tiles of an image so wide have fewer sums all the
    same, taps come one by one: a tile then holds one weight, and loads an element for each sum.

    Each instruction of a tile reads one line and goes on a tile further, a few times in a row of
    the image: where loads wait for lines that no prefetcher foresees, tiles ask for them, and for
    lines of the result, whose stores come in a burst at the end of a tile."""
    lanes, machine = vector_lanes(target, dtype, block), target.machine
    registers, taps = target.vector_registers, unrolled_taps(columns)
    busy = min(machine.accumulators, registers - taps - 1)
    pixels = max(registers - taps - 2, busy, registers // 4)
    may_load = machine.vector_loads >= machine.vector_fmas
    is_full = registers - taps - 2 < machine.accumulators
    if isinstance(width, int) and width and may_load and is_full:
        fewest, more = (
            min(size for size, _ in balanced(width, most)) for most in (pixels, registers - 2)
        )
        if fewest < machine.accumulators <= more:
            pixels, taps = registers - 2, 1
    return DepthwiseSchedule(lanes, pixels, taps, not machine.fills_beside_loads)


def unrolled_taps(columns: int) -> int:
    """How many taps of a kernel row are written out: all, unless the row is as long as a signal
    (long convolutions of state space models have hundreds)."""
    return columns if columns <= 32 else 16


def depthwise_cycles(
    machine: Machine, lanes: int, taps: tuple[int, int], strides: tuple[int, int], level: int
) -> float:
    """Cycles of a vector of the result if the data come from that level of memory, counted from the
    second cache on.

    A row of the kernel loads each pixel once for all sums of a tile, of which there are many."""
    arithmetic = taps[0] * taps[1] / machine.vector_fmas
    loads = taps[0] * strides[1] / machine.vector_loads
    size = strides[0] * strides[1] * lanes * DType.FLOAT32.bits // 8
    incoming = stream_cycles(machine, size, level)
    near = RETRIED_LOADS * loads + incoming
    if machine.fills_beside_loads:
        near = max(loads, incoming)
    return max(arithmetic, near) + 1 / machine.vector_stores


@kernel_template(("nn.conv2d", INTEGER), Layout.BLOCKED, constants=(1,), schedule=DepthwiseSchedule)
def depthwise_conv2d(group: Group, stores: Stores, target: Target) -> Plan | Refusal:
    """A convolution of each channel with a kernel of its own, with whatever follows it."""
    anchor = group.sole_anchor
    weight = group.constants[anchor.args[1]].array
    data, result = stores[group.outer(anchor.args[0])], stores[group.output]
    reason = (
        no_image(result)
        or unfit(anchor, weight, data, result)
        or _unfit_types(group, anchor, data)
        or unfit_epilogue(group, stores, anchor)
    )
    if reason:
        return Refusal(reason)
    sizes = result.block, weight.shape[3], result.shape[3]
    schedule = default_schedule(target, anchor.output.dtype, *sizes)
    return plan_of(group, stores, lambda p: DepthwiseWriter(p, schedule, anchor, weight).body())


def unfit(anchor: Node, weight: Array, data: Storage, result: Storage) -> str | None:
    """Why the convolution is not for this template, if it is not."""
    attrs = anchor.attrs
    if not attrs.groups == weight.shape[0] == data.shape[1] or weight.shape[1] != 1:
        return "the convolution is not depthwise"
    if data.block != result.block:
        return "the images are not in blocks of one size"
    kernel = weight.shape[2:]
    reason = unfit_extents(anchor, kernel)
    if reason is not None:
        return reason
    if not covers(data.halo, halo(anchor, kernel)):
        return "the halo of the data is narrower than the padding"
    return None


def _unfit_types(group: Group, anchor: Node, data: Storage) -> str | None:
    """Why the kernel cannot compute with such numbers, if it cannot."""
    if anchor.op.name != INTEGER:
        same = data.dtype is anchor.output.dtype and data.dtype in SCALAR_DTYPES
        return None if same else f"a convolution of {data.dtype}"
    zero_point = zero_point_of(group, anchor)
    if zero_point is None:
        return "the zero point is not constant"
    wrong = any(data.halo) and data.fill != zero_point
    return "the halo of the data is not of its zero point" if wrong else None


class DepthwiseWriter(ImageWriter):
    """Writes the loop nest of one depthwise convolution."""

    weights_name = "weights"

    def __init__(
        self, parameters: Parameters, schedule: DepthwiseSchedule, anchor: Node, weight: Array
    ) -> None:
        super().__init__(parameters, schedule.lanes)
        self.anchor = anchor
        self.pixels, self.taps = schedule.pixels, schedule.taps
        self.asks_ahead = self.asks_before_stores = schedule.asks_ahead
        self.kernel: tuple[int, int] = weight.shape[2:]
        self.data, self.source = parameters.value(anchor.args[0], "data")
        self.dtype = anchor.output.dtype
        self.summed = anchor.output  # what sums are when they are finished
        self.weights = self.packed_weights(parameters)
        self.begin = self.beginning(parameters)

    def packed_weights(self, parameters: Parameters) -> Buffer:
        dtype, block = self.dtype.numpy, self.result.block

        def pack(array: Array) -> Array:
            return pack_weights(array.astype(dtype), block)

        return parameters.packed(self.anchor.args[1], pack, self.weights_name)

    def beginning(self, parameters: Parameters) -> Buffer | None:
        """What sums start from; None is zero."""
        less = taken_off(parameters.group, self.anchor, DType.UINT8)
        if self.anchor.op.name != INTEGER or not less:
            return None
        block = self.result.block
        return parameters.packed(
            self.anchor.args[1], lambda array: in_blocks(starts(array, less), block), "begin"
        )

    def body(self) -> Stmt:
        return self.rows(self.tiles())

    def tiles(self) -> list[Stmt]:
        """The tiles of a row."""
        line: list[Stmt] = []
        for first in self.vectors:
            line += self.across(self.pixels, partial(self.tile, first))
        return line

    def source_row(self, line: Expr) -> tuple[Expr, Expr, Expr]:
        """The indices of the data's row that a row of the kernel meets, in its batch and block."""
        attrs = self.anchor.attrs
        row = plus(times(self.row, attrs.strides[0]), times(line, attrs.dilation[0]))
        return self.batch, self.block, plus(row, self.data.halo[0] - attrs.padding[0])

    def tile(self, first: int, column: Expr, size: int) -> Stmt:
        """The pixels from a column on, for the vector of channels from `first` on."""
        tile = Tile(size, 1, self.lanes, self.fresh(""), self.dtype)
        line = Var(self.fresh("ky"))
        steps = self.steps(tile, column, first, line)
        sums = For(line, Const(0), Const(self.kernel[0]), steps)
        finish = tile.each(
            lambda pixel, _: self.store(
                self.coordinate(plus(column, pixel), first),
                {self.summed: tile.value(pixel, 0)},
            )
        )
        begin = self.begin
        lanes = Ramp(Const(first), 1, self.lanes)
        start = None if begin is None else lambda _vector: Load(begin, (self.block, lanes))
        ask = self.ask_for_results(column, size, first)
        return Allocate(tile.accumulators, Block((*ask, tile.clear(start), sums, finish)))

    def ask_for_results(self, column: Expr, size: int, first: int) -> list[Stmt]:
        """Ask for the lines that begin where a tile is written."""
        if not self.asks_before_stores or self.result.dtype is not DType.FLOAT32:
            return []
        asked: list[Stmt] = []
        for pixel in range(size):
            if (pixel * self.result.block + first) * _FLOAT % LINE_BYTES:
                continue
            *at, lanes = self.address(self.coordinate(plus(column, pixel), first))
            assert isinstance(lanes, Ramp)
            asked.append(Prefetch(self.buffer, (*at, lanes.base)))
        return asked

    def steps(self, tile: Tile, column: Expr, first: int, line: Var) -> Stmt:
        """One row of the kernel: at once, or in a loop where the code would grow too long."""
        taps = self.taps
        if taps == self.kernel[1]:
            return self.step(tile, column, first, line, Const(0), taps)
        chunk, (chunks, rest) = Var(self.fresh("kx")), divmod(self.kernel[1], taps)
        whole = self.step(tile, column, first, line, times(chunk, taps), taps)
        loop = For(chunk, Const(0), Const(chunks), whole)
        if not rest:
            return loop
        last = self.step(tile, column, first, line, Const(chunks * taps), rest)
        return Block((loop, last))

    def step(self, tile: Tile, column: Expr, first: int, line: Var, tap: Expr, taps: int) -> Stmt:
        """Some taps of a row of the kernel: every input pixel to all sums it is part of."""
        attrs, dtype = self.anchor.attrs, self.dtype
        row = self.source_row(line)
        start = plus(times(column, attrs.strides[1]), self.data.halo[1] - attrs.padding[1])
        start = plus(start, times(tap, attrs.dilation[1]))
        lanes = Ramp(Const(first), 1, self.lanes)
        names = [Var(f"w{kx}{tile.tag}", dtype, self.lanes) for kx in range(taps)]
        reached: dict[int, list[tuple[int, int]]] = {}
        for pixel in range(tile.pixels):
            for kx in range(taps):
                place = pixel * attrs.strides[1] + kx * attrs.dilation[1]
                reached.setdefault(place, []).append((pixel, kx))
        statements: list[Stmt] = []
        for place, uses in sorted(reached.items()):
            element = Var(f"x{place}{tile.tag}", dtype, self.lanes)
            at = (*row, plus(start, place), lanes)
            updates = tuple(self.accumulate(tile, pixel, element, names[kx]) for pixel, kx in uses)
            ahead = self.ask_ahead(row, start, place + tile.pixels * attrs.strides[1], first)
            statements.append(Let(element, self.element(at), Block((*ahead, *updates))))
        body: Stmt = Block(tuple(statements))
        for kx, name in enumerate(names):
            body = Let(name, Load(self.weights, (self.block, line, plus(tap, kx), lanes)), body)
        return body

    def ask_ahead(
        self, row: tuple[Expr, ...], start: Expr, place: int, first: int
    ) -> tuple[Stmt, ...]:
        """Ask for the line that begins at a pixel so far behind the tile's first, if one does. The
        next tile of a row reads it, or behind the last one the next row's first tile."""
        size = self.source.dtype.numpy.itemsize
        if not self.asks_ahead or (place * self.data.block + first) * size % LINE_BYTES:
            return ()
        return (Prefetch(self.source, (*row, plus(start, place), Const(first))),)

    def element(self, at: tuple[Expr, ...]) -> Expr:
        """A vector of the data as it is multiplied."""
        return cast(self.dtype, Term(Load(self.source, at))).expr

    def accumulate(self, tile: Tile, pixel: int, element: Expr, weight: Expr) -> Stmt:
        total = tile.value(pixel, 0)
        if tile.dtype is DType.INT32:
            total = Binary(BinaryKind.ADD, total, Binary(BinaryKind.MULTIPLY, element, weight))
        else:
            total = Call("fma", (element, weight, total), tile.dtype)
        return Store(tile.accumulators, tile.at(pixel, 0), total)


def pack_weights(weight: Array, block: int) -> Array:
    """[channels, 1, rows, columns] as [channels / block, rows, columns, block]."""
    channels, _, rows, columns = weight.shape
    whole = np.pad(weight, ((0, -channels % block), (0, 0), (0, 0), (0, 0)))
    split = whole.reshape(-1, block, rows, columns)
    return np.ascontiguousarray(split.transpose(0, 2, 3, 1))

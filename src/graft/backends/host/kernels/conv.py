"""Direct convolution on blocked images, with its epilogue in registers.

Reads [batch, channels / block, rows, columns, block] with a halo of zeros at least as wide as the
padding; weights are packed to [out / block, in / block, kernel rows, kernel columns, in, out]. The
threads share the (block, row) pairs of the result; along a row, tiles of pixels are accumulated in
registers over the whole reduction and then pass through the epilogue to memory.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from graft.backends.host.group import Group
from graft.backends.host.kernel import Kernel, Parameters, Stores
from graft.backends.host.kernels.border import zero_border
from graft.backends.host.kernels.tile import Tile, balanced, most_pixels
from graft.backends.host.point import BlockedPoint, computed, plus, times
from graft.backends.host.storage import Storage
from graft.base.dtypes import Array, DType
from graft.ir.graph import Value
from graft.llvm.target import Target
from graft.loop.ir import (
    Allocate,
    Binary,
    BinaryKind,
    Block,
    Const,
    Expr,
    For,
    Let,
    Load,
    LoopKind,
    Ramp,
    Stmt,
    Store,
    Var,
)
from graft.rewrite.rule import Refusal


@dataclass(frozen=True, slots=True)
class ConvSchedule:
    """What a search may vary: lanes of a vector and pixels of a tile."""

    lanes: int
    pixels: int


def default_schedule(target: Target, block: int) -> ConvSchedule:
    """The schedule without a search: tiles that fill the registers."""
    lanes = min(target.lanes(DType.FLOAT32), block, 8 if block % 16 else 16)
    return ConvSchedule(lanes, most_pixels(target, block // lanes))


def conv2d(group: Group, stores: Stores, target: Target) -> Kernel | Refusal:
    """A convolution over all input channels with whatever follows it."""
    anchor = group.anchor
    if anchor is None or anchor.op.name != "nn.conv2d":
        return Refusal("there is no convolution")
    literal = group.constants.get(anchor.args[1])
    data = stores[group.outer(anchor.args[0])]
    result = stores[group.output]
    if literal is None or anchor.attrs.groups != 1:
        return Refusal("the weights are not constant, or the convolution has groups")
    if not data.block or not result.block or result.dtype is not DType.FLOAT32:
        return Refusal("the images are not blocked")
    parameters = Parameters(group, stores)
    writer = _Writer(parameters, default_schedule(target, result.block), literal.array)
    return parameters.kernel(writer.body())


class _Writer:
    """Writes the loop nest of one convolution."""

    def __init__(self, parameters: Parameters, schedule: ConvSchedule, weight: Array) -> None:
        group = parameters.group
        anchor = group.anchor
        assert anchor is not None
        self.parameters = parameters
        self.schedule = schedule
        self.group = group
        self.attrs = anchor.attrs
        self.sums = anchor.output
        self.data, self.source = parameters.value(anchor.args[0], "data")
        self.result: Storage = parameters.stores[group.output]
        packed = pack_weights(weight, self.data.block, self.result.block)
        self.weights = parameters.packed(packed, "weights")
        self.epilogue = {v: parameters.value(v) for v in self._read_later(anchor.args)}
        self.target = parameters.value(group.output, "result")[1]
        self.kernel = weight.shape[2:]
        self.batch, self.block, self.row = Var("batch"), Var("block"), Var("row")

    def _read_later(self, direct: tuple[Value, ...]) -> list[Value]:
        """What the epilogue reads beside the sums."""
        inside = {value for node in self.group.nodes for value in node.outputs}
        reads = (v for node in self.group.epilogue for v in node.args if v not in inside)
        return [value for value in dict.fromkeys(reads) if value not in direct[1:]]

    def body(self) -> Stmt:
        batch, channels, height, width = self.result.shape
        blocks = channels // self.result.block
        line: list[Stmt] = []
        start = 0
        for size, count in balanced(width, self.schedule.pixels):
            line.append(self.tiles(size, count, start))
            start += size * count
        line += zero_border(self.result, self.target, self.batch, self.block, self.row)
        # one loop over (batch, block, row), so that any number of threads shares it evenly
        job = Var("job")
        parts = ((self.row, job, height), (self.block, _over(job, height), blocks))
        body: Stmt = Block(tuple(line))
        body = Let(self.batch, _over(job, height * blocks), body)
        for var, value, extent in reversed(parts):
            body = Let(var, _modulo(value, extent), body)
        return For(job, Const(0), Const(batch * blocks * height), body, LoopKind.PARALLEL)

    def tiles(self, size: int, count: int, start: int) -> Stmt:
        """`count` tiles of `size` pixels from column `start` on."""
        tag = f"_{start}"
        vectors = self.result.block // self.schedule.lanes
        tile = Tile(size, vectors, self.schedule.lanes, tag)
        number = Var(f"tile{tag}")
        column = plus(times(number, size), start)
        body = Allocate(
            tile.accumulators,
            Block((tile.clear(), self.reduction(tile, column), self.finish(tile, column))),
        )
        return For(number, Const(0), Const(count), body)

    def reduction(self, tile: Tile, column: Expr) -> Stmt:
        """The sums over kernel positions and input channels."""
        names = [f"{name}{tile.tag}" for name in ("ib", "ky", "kx", "ic")]
        blocks, ky, kx, channel = (Var(name) for name in names)
        (stride_y, stride_x), (dilation_y, dilation_x) = self.attrs.strides, self.attrs.dilation
        top, left = self.data.halo[0], self.data.halo[1]
        pad_y, pad_x = self.attrs.padding[0], self.attrs.padding[1]
        row = plus(plus(times(self.row, stride_y), times(ky, dilation_y)), top - pad_y)
        first = plus(plus(times(column, stride_x), times(kx, dilation_x)), left - pad_x)

        def element(pixel: int) -> Expr:
            at = (self.batch, blocks, row, plus(first, pixel * stride_x), channel)
            return Load(self.source, at)

        def weights(vector: int) -> Expr:
            lanes = Ramp(Const(vector * tile.lanes), 1, tile.lanes)
            return Load(self.weights, (self.block, blocks, ky, kx, channel, lanes))

        body: Stmt = tile.step(element, weights)
        extents = (self.data.shape[1] // self.data.block, *self.kernel, self.data.block)
        for var, extent in reversed(list(zip((blocks, ky, kx, channel), extents, strict=True))):
            body = For(var, Const(0), Const(extent), body)
        return body

    def finish(self, tile: Tile, column: Expr) -> Stmt:
        """The epilogue on each accumulator, and its result to memory."""
        top, left = self.result.halo[0], self.result.halo[1]

        def store(pixel: int, vector: int) -> Stmt:
            first, place = vector * tile.lanes, plus(column, pixel)
            size = self.result.block
            point = BlockedPoint(self.batch, self.block, self.row, place, first, tile.lanes, size)
            values = computed(
                self.group.epilogue,
                {self.sums: tile.value(pixel, vector)},
                lambda value, axis: point.load(*self.epilogue[value], axis),
            )
            at = (self.batch, self.block, plus(self.row, top), plus(place, left))
            lanes = Ramp(Const(first), 1, tile.lanes)
            return Store(self.target, (*at, lanes), values[self.group.nodes[-1].output])

        return tile.each(store)


def _over(left: Expr, right: int) -> Expr:
    return left if right == 1 else Binary(BinaryKind.FLOOR_DIVIDE, left, Const(right))


def _modulo(left: Expr, right: int) -> Expr:
    return Const(0) if right == 1 else Binary(BinaryKind.FLOOR_MODULO, left, Const(right))


def pack_weights(weight: Array, block_in: int, block_out: int) -> Array:
    """[out, in, rows, columns] as [out / block, in / block, rows, columns, in, out]."""
    out, channels, rows, columns = weight.shape
    split = weight.reshape(
        out // block_out, block_out, channels // block_in, block_in, rows, columns
    )
    return np.ascontiguousarray(split.transpose(0, 2, 4, 5, 3, 1))

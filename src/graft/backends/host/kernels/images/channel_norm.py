"""Normalisation over the channels of each pixel of a blocked image, with what follows it.

A tile of neighbouring pixels is read block by block for their means, then for their variances, then
for the result, the second and third time from L1. The threads share the rows. Where bursts of
misses beyond L2 stall, a tile prefetches the next one's data and the lines that it writes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from graft.backends.host.coordinates import BlockedCoordinate, plus, where
from graft.backends.host.group import Group
from graft.backends.host.kernel import Parameters, Stores
from graft.backends.host.kernel_template import (
    FLOATS,
    Layout,
    Plan,
    kernel_template,
    plan_of,
    same_blocks,
)
from graft.backends.host.kernels.image import (
    ImageWriter,
    group_lanes,
    no_image,
    reader,
    shared,
    unfit_epilogue,
)
from graft.backends.host.kernels.tile import Tile
from graft.backends.host.kernels.vectors import mask_of
from graft.backends.host.storage import Storage
from graft.base.dtypes import DType
from graft.ir.graph import Node
from graft.loop.build import Term, call
from graft.loop.ir import (
    Allocate,
    BinaryKind,
    Block,
    Broadcast,
    Buffer,
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
from graft.loop.vectors import combine_lanes
from graft.rewrite.rule import Refusal
from graft.target.machine import LINE_BYTES
from graft.target.target import Target

_FLOAT = 4  # bytes

CHANNEL_NORM = "nn.channel_norm"


@kernel_template((CHANNEL_NORM,), Layout.BLOCKED, dtypes=FLOATS, layouts=same_blocks)
def channel_norm(group: Group, stores: Stores, target: Target) -> Plan | Refusal:
    """A normalisation over channels with whatever follows it."""
    anchor = group.sole_anchor
    data, result = stores[group.outer(anchor.args[0])], stores[group.output]
    reason = no_image(result) or unfit_epilogue(group, stores, anchor)
    if reason is None and data.block != result.block:
        reason = "the data is not in the blocks of the result"
    if reason is not None:
        return Refusal(reason)
    return plan_of(group, stores, lambda p: _Writer(p, anchor, target).body())


class _Writer(ImageWriter):
    """Writes the loop nest of one normalisation."""

    def __init__(self, parameters: Parameters, anchor: Node, target: Target) -> None:
        group = parameters.group
        block = parameters.stores[group.output].block
        super().__init__(parameters, group_lanes(target, group, block))
        self.anchor = anchor
        self.dtype = anchor.output.dtype
        # enough sums side by side to hide an addition's latency
        self.pixels = target.vector_registers // 4
        self.scale, self.shift = (*anchor.inputs[1:], None, None)[:2]
        self.asks_ahead = target.machine.asks_before_stores and self.dtype is DType.FLOAT32

    def body(self) -> Stmt:
        border = self.border(self.row)
        blocks = Const(self.result.blocks)
        beside = [For(self.block, Const(0), blocks, Block(tuple(border)))] if border else []
        lines = (*self.across(self.pixels, self.tile), *beside)
        return shared(((self.batch, self.batches), (self.row, self.height)), Block(lines))

    def tile(self, column: Expr, size: int) -> Stmt:
        """Some neighbouring pixels, all their channels."""
        tag = self.fresh("")
        means, factors = (
            [Var(f"{name}{pixel}{tag}", self.dtype) for pixel in range(size)]
            for name in ("mean", "factor")
        )
        epsilon: float = self.anchor.attrs.epsilon
        centered: bool = self.anchor.attrs.centered
        share = 1.0 / self.result.channels

        def deviation(coordinate: BlockedCoordinate, pixel: int) -> Term:
            element = self.element(coordinate, pixel)
            return element - Broadcast(means[pixel], self.lanes) if centered else element

        def square(coordinate: BlockedCoordinate, pixel: int) -> Term:
            value = deviation(coordinate, pixel)
            return value * value

        def finish(coordinate: BlockedCoordinate, pixel: int) -> Stmt:
            value = deviation(coordinate, pixel) * Broadcast(factors[pixel], self.lanes)
            read = reader(self.parameters, coordinate)
            if self.scale is not None:
                value = value * read(self.scale, 1)
            if self.shift is not None:
                value = value + read(self.shift, 1)
            return self.store(coordinate, {self.anchor.output: value.expr})

        def ask(coordinate: BlockedCoordinate, _pixel: int) -> Stmt:
            following = replace(coordinate, column=plus(coordinate.column, size))
            return Block((*self.asked(following, data), *self.asked(coordinate, result)))

        data = self.parameters.value(self.anchor.args[0], "data")
        result = self.parameters.value(self.group.output, "result")
        body = self.each_block(column, size, finish)
        roots = self.totals(column, square, factors)
        body = roots(lambda total: call("rsqrt", total * share + epsilon), body)
        if centered:
            body = self.totals(column, self.element, means)(lambda total: total * share, body)
        return Block((self.each_block(column, size, ask), body)) if self.asks_ahead else body

    def asked(self, coordinate: BlockedCoordinate, image: tuple[Storage, Buffer]) -> list[Stmt]:
        """Ask for the line that begins with a vector of an image."""
        load = coordinate.load(*image)
        if coordinate.first * _FLOAT % LINE_BYTES or not isinstance(load, Load):
            return []
        *at, lanes = load.indices
        return [Prefetch(load.buffer, (*at, lanes.base if isinstance(lanes, Ramp) else lanes))]

    def element(self, coordinate: BlockedCoordinate, _pixel: int) -> Term:
        return Term(reader(self.parameters, coordinate)(self.anchor.args[0], None))

    def of_channels(self, coordinate: BlockedCoordinate, term: Term) -> Term:
        """A term, zero in lanes that have no channel."""
        if not isinstance(coordinate.block, Const):  # blocks of the loop are full
            return term
        remaining = self.result.channels % coordinate.size
        condition = mask_of(Const(remaining - coordinate.first), coordinate.lanes)
        return term if condition is None else Term(where(condition, term.expr))

    def each_block(
        self, column: Expr, size: int, action: Callable[[BlockedCoordinate, int], Stmt]
    ) -> Stmt:
        """A loop over the blocks of channels, with an action for each vector of each pixel; the
        last block, if channels do not fill it, comes by itself."""
        coordinates = self.coordinates(column, size)
        per_pixel = len(self.vectors)

        def of(block: Expr) -> Stmt:
            own = (replace(coordinate, block=block) for coordinate in coordinates)
            return Block(
                tuple(action(coordinate, n // per_pixel) for n, coordinate in enumerate(own))
            )

        block = Var(self.fresh("block"))
        whole, rest = divmod(self.result.channels, self.result.block)
        loop = For(block, Const(0), Const(whole), of(block))
        return Block((loop, of(Const(whole)))) if rest else loop

    def totals(
        self, column: Expr, term: Callable[[BlockedCoordinate, int], Term], names: Sequence[Var]
    ) -> Callable[[Callable[[Term], Term], Stmt], Stmt]:
        """Sums of terms over the channels, a pixel each; `names` are what is made of them."""
        sums = Tile(len(names), 1, self.lanes, self.fresh(""), self.dtype)

        def add(coordinate: BlockedCoordinate, pixel: int) -> Stmt:
            total = Term(sums.value(pixel, 0)) + self.of_channels(
                coordinate, term(coordinate, pixel)
            )
            return Store(sums.accumulators, sums.at(pixel, 0), total.expr)

        def around(finish: Callable[[Term], Term], body: Stmt) -> Stmt:
            for pixel, name in reversed(list(enumerate(names))):
                total = combine_lanes(BinaryKind.ADD, sums.value(pixel, 0))
                body = Let(name, finish(Term(total)).expr, body)
            loop = self.each_block(column, len(names), add)
            return Allocate(sums.accumulators, Block((sums.clear(), loop, body)))

        return around

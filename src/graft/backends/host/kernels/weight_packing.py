"""Weights of convolutions that are data, packed by a kernel of their own when the model runs.

Constant weights are packed by NumPy when a model is compiled (`conv_plan.pack_weights`,
`winograd_matrices.pack_weights`). Loops leave here that do the same to a tensor of weights right
before the convolution, which then is the same kernel for either: hypernetworks, mixtures of expert
weights and convolutions by one image of another are as fast as ordinary layers but for this copy.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from graft.backends.host.coordinates import minus, modulo, over, plus, times
from graft.backends.host.kernels.conv_plan import TRANSPOSED, Channels
from graft.backends.host.kernels.image import shared
from graft.backends.host.kernels.winograd_matrices import Transforms
from graft.backends.host.kernels.winograd_vectors import GridTransform, operations, straight
from graft.backends.host.storage import index
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
    LoopKind,
    Ramp,
    Scope,
    Stmt,
    Store,
    Var,
)
from graft.target.register_tile import stream_cycles
from graft.target.target import Target

_FLOAT = 4  # bytes
# Elements that are copied one by one without a loop around them.
_UNROLLED = 32


@dataclass(frozen=True, slots=True)
class PackedWeights:
    """Weights as `conv_plan.pack_weights` orders them, in slabs of a result in blocks of `block`
    channels; of two inputs side by side where sums of vectors of `lanes` are `split`, as
    `conv_plan.beside_each_other` does."""

    conv: Node
    kernel: tuple[int, int]
    channels: Channels
    block: int
    split: int = 1
    lanes: int = 1

    @property
    def shape(self) -> tuple[int, ...]:
        channels, split = self.channels, self.split
        units = channels.count // channels.unit
        inner = channels.unit // split, channels.slab * split
        return (self.slabs, units, *self.kernel, *inner)

    @property
    def slabs(self) -> int:
        return -(-self.whole // self.channels.slab)

    @property
    def whole(self) -> int:
        """The output channels with those that the last block lacks."""
        return -(-self.outputs // self.block) * self.block

    @property
    def outputs(self) -> int:
        return self.channels.outputs * self.channels.groups

    def write(self, source: Buffer, packed: Buffer) -> Stmt:
        """All slabs, of which the threads share the units of input channels.

        A job reads its rows of weights in order, and what it writes stays in the first cache."""
        slab, unit, place, output = Var("slab"), Var("unit"), Var("place"), Var("output")
        size = self.channels.slab
        first = times(slab, size)
        if self.whole % size:  # the last slab ends where the blocks do
            first = Binary(BinaryKind.MINIMUM, first, Const(max(0, self.whole - size)))
        # padding outputs get the weights of the last one; their sums are not stored
        channel = plus(first, place)
        if self.whole > self.outputs:
            channel = Binary(BinaryKind.MINIMUM, channel, Const(self.outputs - 1))
        body: Stmt = Let(output, channel, self.inputs(source, packed, slab, unit, place, output))
        body = For(place, Const(0), Const(size), body)
        return shared(((slab, self.slabs), (unit, self.shape[1])), body)

    def inputs(
        self, source: Buffer, packed: Buffer, slab: Expr, unit: Expr, place: Expr, output: Expr
    ) -> Stmt:
        """The weights of one output channel and a unit of inputs; zeros for inputs of groups that
        it does not belong to."""
        channels = self.channels
        channel, number = Var("channel"), Var("number")

        def taps(element: Callable[[Expr, Expr], Expr]) -> Stmt:
            row, column = Var("tap_row"), Var("tap_column")
            at = (slab, unit, row, column, *self.inner(channel, place))
            store = Store(packed, at, element(row, column))
            return _each_tap(row, self.kernel[0], _each_tap(column, self.kernel[1], store))

        def weight(row: Expr, column: Expr) -> Expr:
            return Load(source, (*self.pair(output, number), row, column))

        body = taps(weight)
        if channels.count > channels.inputs:
            zeros = taps(lambda _row, _column: Const(0.0, packed.dtype))
            inside = Binary(
                BinaryKind.AND,
                Compare(CompareKind.GREATER_EQUAL, number, Const(0)),
                Compare(CompareKind.LESS, number, Const(channels.inputs)),
            )
            body = If(inside, body, zeros)
        position = plus(times(unit, channels.unit), channel)
        body = Let(number, minus(position, self.before(slab, output)), body)
        few = math.prod(self.kernel) * channels.unit <= _UNROLLED
        kind = LoopKind.UNROLLED if few else LoopKind.SERIAL
        return For(channel, Const(0), Const(channels.unit), body, kind)

    def inner(self, channel: Expr, place: Expr) -> tuple[Expr, Expr]:
        """Where the weight of an input of a unit and an output of a slab is."""
        if self.split == 1:
            return channel, place
        vector, lane = over(place, self.lanes), modulo(place, self.lanes)
        pair = plus(times(vector, 2), modulo(lane, 2))
        at = plus(times(over(lane, 2), 2), modulo(channel, 2))
        return over(channel, 2), plus(times(pair, self.lanes), at)

    def before(self, slab: Expr, output: Expr) -> Expr:
        """Inputs that a slab reads before those of an output's group."""
        channels = self.channels
        if channels.count == channels.inputs and not channels.mixed:
            return Const(0)
        start = times(over(times(slab, channels.slab), channels.outputs), channels.inputs)
        if not channels.mixed:
            last = channels.groups * channels.inputs - channels.count
            start = Binary(BinaryKind.MINIMUM, start, Const(last))
        return minus(times(over(output, channels.outputs), channels.inputs), start)

    def pair(self, output: Expr, number: Expr) -> tuple[Expr, Expr]:
        """Where the tensor has the weights of an output and an input of its group."""
        channels = self.channels
        if self.conv.op.name != TRANSPOSED:
            return output, number
        group = over(output, channels.outputs)
        return plus(times(group, channels.inputs), number), modulo(output, channels.outputs)


@dataclass(frozen=True, slots=True)
class TransformedWeights:
    """Weights as `winograd_matrices.pack_weights` transforms and orders them for slabs of a size,
    or as `pack_half` does where they are to be finished later."""

    matrices: Transforms
    weight: Sequence[int]  # the extents of the tensor
    slabs: int
    size: int
    lanes: int
    is_half: bool

    @property
    def shape(self) -> tuple[int, ...]:
        down, across = self.matrices.down, self.matrices.across
        points = (across.side, down.taps) if self.is_half else (self.matrices.points,)
        return (self.slabs, *points, self.weight[1], self.size)

    def write(self, source: Buffer, packed: Buffer) -> Stmt:
        """All pairs of channels; the threads share slabs of the outputs and single inputs."""
        slab, channel, place = Var("slab"), Var("channel"), Var("place")
        outputs, _, rows, columns = self.weight
        taps = Buffer("taps", packed.dtype, index(rows, columns, self.size), Scope.HEAP)
        output: Expr = plus(times(slab, self.size), place)
        if self.slabs * self.size > outputs:  # the last one stands for those that are not there
            output = Binary(BinaryKind.MINIMUM, output, Const(outputs - 1))
        row, column = Var("tap_row"), Var("tap_column")
        weight = Load(source, (output, channel, row, column))
        copy: Stmt = Store(taps, (row, column, place), weight)
        copy = _each_tap(row, rows, _each_tap(column, columns, copy))
        copy = For(place, Const(0), Const(self.size), copy)
        vectors = range(0, self.size, self.lanes)
        transforms = (self.transform(taps, packed, slab, channel, first) for first in vectors)
        body = Allocate(taps, Block((copy, *transforms)))
        return shared(((slab, self.slabs), (channel, self.weight[1])), body)

    def transform(
        self, taps: Buffer, packed: Buffer, slab: Expr, channel: Expr, first: int
    ) -> Stmt:
        """A vector of output channels of one input channel."""
        down, across = self.matrices.down, self.matrices.across
        ramp = Ramp(Const(first), 1, self.lanes)

        def element(row: int, column: Expr) -> Expr:
            return Load(taps, (*index(row, column), ramp))

        def store(row: Expr, values: Sequence[Expr]) -> Stmt:
            points = (
                index(column, row) if self.is_half else index(plus(times(row, across.side), column))
                for column in range(across.side)
            )
            pairs = zip(points, values, strict=True)
            return Block(
                tuple(Store(packed, (slab, *at, channel, ramp), value) for at, value in pairs)
            )

        matrix = np.eye(down.taps) if self.is_half else down.weight
        grid = GridTransform(f"w{first}_", self.lanes, matrix, across.weight, element, store)
        return straight(grid)


def packing_cycles(
    target: Target, weight: Sequence[int], lanes: int, matrices: Transforms | None = None
) -> float:
    """Cycles in which weights that are data are packed: each is copied for itself, and where they
    are transformed, vectors of them are."""
    machine, elements = target.machine.with_vectors(32 * lanes), math.prod(weight)
    load, store = 1 / machine.vector_loads, 1 / machine.vector_stores
    cycles, written = machine.meeting_cycles + elements * (load + store), elements * _FLOAT
    if matrices is not None:
        vectors = math.prod(weight[:2]) / lanes
        combined = operations(matrices.down.weight, matrices.across.weight) / machine.vector_fmas
        cycles += vectors * (combined + matrices.points * (load + store))
        written = matrices.points * math.prod(weight[:2]) * _FLOAT
    levels = (n for n, one in enumerate(machine.caches[1:]) if written <= one.size)
    return cycles + stream_cycles(machine, written, next(levels, len(machine.caches) - 1))


def _each_tap(var: Var, count: int, body: Stmt) -> Stmt:
    return For(var, Const(0), Const(count), body, LoopKind.UNROLLED)

"""The weights of Winograd's algorithm in memory: transformed wholly, or in one direction only.

A convolution's weights enter; statements that give a kernel the transformed weights of each point
leave. Transformed wholly, weights grow to the number of points: 36 for 3x3 with tiles of 4x4.
Where reading them takes longer than arithmetic, and where no cache holds them, only one of the two
transforms is applied beforehand, which makes 18 numbers of the nine, and the other one when a panel
of weights, those of a block of channels at one point, is about to be used.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from graft.backends.host.coordinates import modulo, over, plus, times
from graft.backends.host.kernel import Parameters
from graft.backends.host.kernels.conv_plan import beside_each_other
from graft.backends.host.kernels.weight_packing import TransformedWeights
from graft.backends.host.kernels.winograd_matrices import Transforms, pack_half, pack_weights
from graft.backends.host.kernels.words import in_words
from graft.base.dtypes import Array, DType
from graft.ir.graph import Value
from graft.loop.ir import (
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
    Scope,
    Stmt,
    Store,
    Var,
)
from graft.target.machine import LINE_BYTES

_FLOAT = DType.FLOAT32

LINE = LINE_BYTES // _FLOAT.numpy.itemsize
_FRACTION = 1 << 16  # of lines per step, in fixed point


class Weights(Protocol):
    """What a kernel needs of the weights of a block of result channels."""

    @property
    def scratch(self) -> tuple[Buffer, ...]:
        """Memory that each thread needs."""
        ...

    def each_point(self, body: Callable[[Expr], Stmt]) -> Stmt:
        """The body once for each point, with that point's weights ready."""
        ...

    def vector(self, point: Expr, channel: Expr, ramp: Ramp) -> Expr:
        """Weights from one channel to a vector of the block's."""
        ...

    def ask_ahead(self, point: Expr, channel: Expr, use: PanelUse) -> tuple[Stmt, ...]:
        """What the processor is to fetch early while that channel is at work.

        All products of a panel ask for the next one, each for its share, so that what comes from
        memory is spread over them: the first would have to wait for all of it."""
        ...


@dataclass(frozen=True, slots=True)
class PanelUse:
    """One of the register tiles that multiply the same panel of weights, and how many do."""

    number: Expr
    count: int


def weights_for(
    matrices: Transforms,
    weight: Value,
    shape: Sequence[int],
    lacking: int,
    parameters: Parameters,
    block: Var,
    size: int,
    lanes: int,
    half_rows: int,
    together: int,
    split: int,
) -> Weights:
    """Weights of a shape as parameters of a kernel, for blocks of a size: transformed wholly, or
    half and finished for `half_rows` rows of points at a time.

    So many output channels are `lacking` to a whole number of blocks. Input channels are taken one
    at a time, or two `together`, as a word of 16 bits each, or in a `split` sum each."""
    transform = pack_half if half_rows else pack_weights

    def pack(array: Array) -> Array:
        whole = np.pad(array, ((0, lacking), (0, 0), (0, 0), (0, 0)))
        if together == 1:
            made = transform(matrices, whole, size)
            return made if split == 1 else beside_each_other(made, lanes)
        return in_words(pack_weights(matrices, whole.astype(np.int16), size), axis=2)

    if weight in parameters.group.constants:
        packed = parameters.packed(weight, pack, "weights")
    else:
        slabs = (shape[0] + lacking) // size
        made = TransformedWeights(matrices, shape, slabs, size, lanes, half_rows > 0)
        packed = parameters.repacked(weight, made.shape, made.write, "weights")
    if not half_rows:
        return _Whole(matrices, packed, block)
    extents = (Const(half_rows), Const(shape[1] // split), Const(size * split))
    return _Half(matrices, packed, Buffer("panels", _FLOAT, extents, Scope.HEAP), block, lanes)


def weight_bytes(matrices: Transforms, pairs: int, half: bool) -> int:
    """How many bytes the weights of so many pairs of channels take."""
    numbers = matrices.down.taps * matrices.across.side if half else matrices.points
    return numbers * pairs * _FLOAT.numpy.itemsize


@dataclass(frozen=True)
class _Whole:
    """All points' weights lie in memory."""

    matrices: Transforms
    packed: Buffer
    block: Var

    @property
    def scratch(self) -> tuple[Buffer, ...]:
        return ()

    def each_point(self, body: Callable[[Expr], Stmt]) -> Stmt:
        point = Var("point")
        return For(point, Const(0), Const(self.matrices.points), body(point))

    def vector(self, point: Expr, channel: Expr, ramp: Ramp) -> Expr:
        return Load(self.packed, (self.block, point, channel, ramp))

    def ask_ahead(self, point: Expr, channel: Expr, use: PanelUse) -> tuple[Stmt, ...]:
        _, _, channels, width = (_number(one) for one in self.packed.extents)
        step = plus(times(use.number, channels), channel)
        place = (self.block, plus(point, 1), Const(0))
        return _share(self.packed, place, step, use.count * channels, channels * width // LINE)


@dataclass(frozen=True)
class _Half:
    """Points' weights are finished right before use, a panel for each of some rows of a column.

    The points of one column share their rows of half-transformed weights, which the second
    cache holds meanwhile."""

    matrices: Transforms
    packed: Buffer
    panels: Buffer
    block: Var
    lanes: int

    @property
    def scratch(self) -> tuple[Buffer, ...]:
        return (self.panels,)

    @property
    def _rows(self) -> int:
        return _number(self.panels.extents[0])

    def each_point(self, body: Callable[[Expr], Stmt]) -> Stmt:
        column, row, point = Var("point_column"), Var("row"), Var("point")
        columns = self.matrices.across.side
        parts: list[Stmt] = []
        for first in range(0, self.matrices.down.side, self._rows):
            place = plus(times(plus(row, first), columns), column)
            each = For(row, Const(0), Const(self._rows), Let(point, place, body(point)))
            parts += [self._fill(first, column), each]
        return For(column, Const(0), Const(columns), Block(tuple(parts)))

    def vector(self, point: Expr, channel: Expr, ramp: Ramp) -> Expr:
        row = modulo(over(point, self.matrices.across.side), self._rows)
        return Load(self.panels, (row, channel, ramp))

    def ask_ahead(self, point: Expr, channel: Expr, use: PanelUse) -> tuple[Stmt, ...]:
        down, columns = self.matrices.down, self.matrices.across.side
        _, channels, width = (_number(one) for one in self.panels.extents)
        done = plus(times(over(point, columns), use.count), use.number)
        step, steps = plus(times(done, channels), channel), down.side * use.count * channels
        place = (self.block, plus(modulo(point, columns), 1), Const(0), Const(0))
        return _share(self.packed, place, step, steps, down.taps * channels * width // LINE)

    def _fill(self, first: int, column: Expr) -> Stmt:
        """The panels of some rows of a column."""
        channel = Var("panel_channel")
        _, channels, width = (_number(one) for one in self.panels.extents)
        starts = range(0, width, self.lanes)
        stores = tuple(self._vectors(first, column, channel, start) for start in starts)
        return For(channel, Const(0), Const(channels), Block(stores))

    def _vectors(self, first: int, column: Expr, channel: Expr, start: int) -> Stmt:
        """One vector of each panel, from those of half-transformed weights."""
        ramp = Ramp(Const(start), 1, self.lanes)
        names = (f"half{k}_{first}_{start}" for k in range(self.matrices.down.taps))
        halves = [Var(name, _FLOAT, self.lanes) for name in names]
        stores = tuple(
            Store(self.panels, (Const(row), channel, ramp), self._combined(first + row, halves))
            for row in range(self._rows)
        )
        body: Stmt = Block(stores)
        for k, half in enumerate(halves):
            piece = Load(self.packed, (self.block, column, Const(k), channel, ramp))
            body = Let(half, piece, body)
        return body

    def _combined(self, row: int, halves: list[Var]) -> Expr:
        factors = self.matrices.down.weight[row].astype(self.packed.dtype.numpy).tolist()
        found: Expr = Const(0.0, _FLOAT, self.lanes)
        for factor, half in zip(factors, halves, strict=True):
            if factor:
                found = Call("fma", (Const(factor, _FLOAT, self.lanes), half, found), _FLOAT)
        return found


def _number(extent: Expr) -> int:
    assert isinstance(extent, Const)
    return int(extent.value)


def _share(
    buffer: Buffer, place: tuple[Expr, ...], step: Expr, steps: int, lines: int
) -> tuple[Stmt, ...]:
    """Ask for a step's share of so many lines from a place on, to be in the second cache.

    Shares are even: asked for faster than memory delivers, lines would hold the buffers of the
    first cache, which loads from the second one wait for, and later steps would ask for nothing."""
    each = -(-lines // steps)
    scale = -(-lines * _FRACTION // (steps * each))
    asked = (plus(times(step, each), number) for number in range(each))
    return tuple(
        Prefetch(buffer, (*place, times(over(times(one, scale), _FRACTION), LINE)), level=2)
        for one in asked
    )

"""The weights of Winograd's algorithm in memory: transformed wholly, or in one direction only.

A convolution's weights enter; statements that give a kernel the transformed weights of each point
leave. Transformed wholly, 3x3 weights grow to the number of points, 36 for nine with tiles of 4x4:
right where a cache holds them. Beyond that, memory is what takes time and room: then only one of
the two transforms is applied beforehand, which makes 18 numbers of the nine, and the other one when
a panel of weights, those of a block of channels at one point, is about to be used.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from graft.backends.host.kernel import Parameters
from graft.backends.host.kernels.winograd_matrices import KERNEL, Transforms, pack_weights
from graft.backends.host.point import plus, times
from graft.base.dtypes import Array, DType
from graft.ir.graph import Value
from graft.loop.ir import (
    Block,
    Broadcast,
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
from graft.target.target import Target

_FLOAT = DType.FLOAT32

# How many lines of weights are asked for ahead of their use: memory takes its time, and what the
# processor fetches on its own ends at each page.
PREFETCHED = 32
LINE = 16  # floats of a cache line


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

    def ask_ahead(self, point: Expr, channel: Expr) -> tuple[Stmt, ...]:
        """What the processor is to fetch early while that channel is at work."""
        ...


def weights_for(
    matrices: Transforms,
    weight: Value,
    lacking: int,
    parameters: Parameters,
    block: Var,
    size: int,
    lanes: int,
    half: bool,
) -> Weights:
    """The weights as parameters of a kernel, half transformed or wholly, for blocks of a size.

    So many output channels are `lacking` to a whole number of blocks."""
    transform = pack_half if half else pack_weights

    def pack(array: Array) -> Array:
        whole = np.pad(array, ((0, lacking), (0, 0), (0, 0), (0, 0)))
        return transform(matrices, whole, size)

    packed = parameters.packed(weight, pack, "weights")
    if not half:
        return _Whole(matrices, packed, block)
    array = parameters.group.constants[weight].array
    rows = parameters.table(matrices.weight.astype(array.dtype), "weight_rows")
    panel = Buffer("panel", _FLOAT, (Const(array.shape[1]), Const(size)), Scope.HEAP)
    return _Half(matrices, packed, rows, panel, block, lanes)


def last_cache(target: Target) -> int:
    """The bytes that a machine's last cache holds."""
    return target.cache_bytes[-1]


def bytes_read(points: int, pairs: int, side: int, target: Target) -> tuple[int, bool]:
    """How many bytes the weights of so many pairs of channels take, and whether by halves."""
    whole = points * pairs * _FLOAT.numpy.itemsize
    if whole <= last_cache(target):
        return whole, False
    return KERNEL * side * pairs * _FLOAT.numpy.itemsize, True


def pack_half(matrices: Transforms, weight: Array, block: int) -> Array:
    """Weights transformed along their rows, as [out / block, column, row, in, block]."""
    transformed = weight.astype(np.float64) @ matrices.weight.T
    out, channels = weight.shape[:2]
    split = transformed.reshape(out // block, block, channels, KERNEL, matrices.side)
    return np.ascontiguousarray(split.transpose(0, 4, 3, 2, 1)).astype(weight.dtype)


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

    def ask_ahead(self, point: Expr, channel: Expr) -> tuple[Stmt, ...]:
        width = self.packed.extents[-1]
        assert isinstance(width, Const)
        firsts = range(0, int(width.value), LINE)
        later = plus(channel, max(1, PREFETCHED // len(firsts)))
        return tuple(
            Prefetch(self.packed, (self.block, point, later, Const(first))) for first in firsts
        )


@dataclass(frozen=True)
class _Half:
    """A point's weights are made when it is its turn.

    The points of one column share their three rows of half-transformed weights, which the second
    cache holds meanwhile."""

    matrices: Transforms
    packed: Buffer
    rows: Buffer
    panel: Buffer
    block: Var
    lanes: int

    @property
    def scratch(self) -> tuple[Buffer, ...]:
        return (self.panel,)

    def each_point(self, body: Callable[[Expr], Stmt]) -> Stmt:
        side = self.matrices.side
        row, column, point = Var("point_row"), Var("point_column"), Var("point")
        at = Let(
            point, plus(times(row, side), column), Block((self._fill(row, column), body(point)))
        )
        return For(column, Const(0), Const(side), For(row, Const(0), Const(side), at))

    def vector(self, point: Expr, channel: Expr, ramp: Ramp) -> Expr:
        return Load(self.panel, (channel, ramp))

    def ask_ahead(self, point: Expr, channel: Expr) -> tuple[Stmt, ...]:
        return ()

    def _fill(self, row: Expr, column: Expr) -> Stmt:
        """The panel of one point."""
        factors = [Var(f"factor{k}", _FLOAT, self.lanes) for k in range(KERNEL)]
        channel = Var("panel_channel")
        _, width = self.panel.extents
        stores = tuple(
            Store(self.panel, (channel, ramp), self._combined(factors, column, channel, ramp))
            for ramp in self._ramps(width)
        )
        channels = self.panel.extents[0]
        body: Stmt = For(channel, Const(0), channels, Block(stores))
        for k, factor in enumerate(factors):
            body = Let(factor, Broadcast(Load(self.rows, (row, Const(k))), self.lanes), body)
        return body

    def _ramps(self, width: Expr) -> list[Ramp]:
        assert isinstance(width, Const)
        return [
            Ramp(Const(first), 1, self.lanes) for first in range(0, int(width.value), self.lanes)
        ]

    def _combined(self, factors: list[Var], column: Expr, channel: Expr, ramp: Ramp) -> Expr:
        found: Expr = Const(0.0, _FLOAT, self.lanes)
        for k, factor in enumerate(factors):
            piece = Load(self.packed, (self.block, column, Const(k), channel, ramp))
            found = Call("fma", (factor, piece, found), _FLOAT)
        return found

"""A vector of channels of an image, counted in blocks of one size and read from another storage."""

from __future__ import annotations

from dataclasses import dataclass

from graft.backends.host.point import BlockedPoint, modulo, over, plus, times
from graft.backends.host.storage import Storage
from graft.loop.ir import Buffer, Expr, Load, Ramp


@dataclass(frozen=True, slots=True)
class Channels:
    """Channels `block` * `size` + `offset` and the next ones, as many as there are lanes."""

    batch: Expr
    block: Expr
    row: Expr
    column: Expr
    size: int
    offset: int
    lanes: int

    def point(self, size: int) -> BlockedPoint:
        """The same in smaller blocks, which have to divide the larger ones."""
        blocks, first = divmod(self.offset, size)
        block = plus(times(self.block, self.size // size), blocks)
        return BlockedPoint(self.batch, block, self.row, self.column, first, self.lanes, size)

    def load(self, storage: Storage, buffer: Buffer) -> Expr:
        """Their elements; no block of the storage may cut the vector."""
        if storage.block and self.size % storage.block == 0:
            return self.point(storage.block).load(storage, buffer)
        channel = plus(times(self.block, self.size), self.offset)
        if not storage.block:
            return Load(buffer, (self.batch, Ramp(channel, 1, self.lanes), self.row, self.column))
        top, left, _, _ = storage.halo
        pixel = plus(self.row, top), plus(self.column, left)
        first = Ramp(modulo(channel, storage.block), 1, self.lanes)
        return Load(buffer, (self.batch, over(channel, storage.block), *pixel, first))

"""How a tensor lies in memory.

Row-major, or, for images, in blocks of channels: [batch, channels / block, height, width, block],
so that a vector of channels is contiguous. An image may have a halo of zeros around it, which
spares the convolutions that read it all tests for the border.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from graft.base.dtypes import Array, DType
from graft.ir.graph import Value
from graft.loop.ir import Buffer, Const, Expr
from graft.runtime.memory import ALIGNMENT, address_of, aligned_empty

Halo = tuple[int, int, int, int]  # top, left, bottom, right
NO_HALO: Halo = (0, 0, 0, 0)


@dataclass(frozen=True, slots=True)
class Storage:
    """A tensor's place in memory. `block` 0 is row-major; halos are for blocked images only."""

    dtype: DType
    shape: tuple[int, ...]
    block: int = 0
    halo: Halo = NO_HALO
    alignment: int = 64  # bytes; memory of the user's has only that of its elements

    @property
    def extents(self) -> tuple[int, ...]:
        """The extents as memory has them."""
        if not self.block:
            return self.shape
        batch, channels, height, width = self.shape
        top, left, bottom, right = self.halo
        blocks = channels // self.block
        return batch, blocks, height + top + bottom, width + left + right, self.block

    @property
    def nbytes(self) -> int:
        return math.prod(self.extents) * self.dtype.numpy.itemsize

    def buffer(self, name: str) -> Buffer:
        """A kernel's parameter for such a tensor."""
        extents = tuple(Const(extent) for extent in self.extents)
        return Buffer(name, self.dtype, extents, alignment=self.alignment)

    def pack(self, array: Array) -> Array:
        """A constant as memory has it: the same memory, where it is like that already."""
        ordered = not self.block and array.dtype == self.dtype.numpy and array.flags.c_contiguous
        if ordered and array.size and address_of(array) % ALIGNMENT == 0:
            return array.reshape(self.shape)
        packed = aligned_empty(self.extents, self.dtype.numpy)
        if not self.block:
            packed[...] = array.reshape(self.shape)
            return packed
        batch, channels, height, width = self.shape
        top, left, _, _ = self.halo
        packed[...] = np.zeros((), self.dtype.numpy)
        split = array.reshape(batch, channels // self.block, self.block, height, width)
        inner = packed[:, :, top : top + height, left : left + width]
        inner[...] = np.moveaxis(split, 2, -1)
        return packed


def static_shape(value: Value) -> tuple[int, ...]:
    """The plain extents of a tensor."""
    return tuple(dim for dim in value.shape or () if isinstance(dim, int))


def row_major(value: Value) -> Storage:
    """The storage of a tensor that nothing special is known of."""
    return Storage(value.dtype, static_shape(value))


def index(*items: Expr | int) -> tuple[Expr, ...]:
    """Indices of an access; plain integers become constants."""
    return tuple([Const(item) if isinstance(item, int) else item for item in items])


def blocks_of(channels: int, wanted: Sequence[int]) -> int:
    """The first wanted block size that divides the channels, or 0."""
    return next((block for block in wanted if channels % block == 0), 0)

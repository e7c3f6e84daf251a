"""How a tensor lies in memory.

Row-major, or, for images, in blocks of channels: [batch, channels / block, height, width, block],
so that a vector of channels is contiguous. Where the channels do not fill the last block, its other
lanes are undefined: kernels compute in them, but no channel depends on them. An image may have a
halo of zeros (of the zero point, if it is quantised), so that convolutions need no border tests;
that of an image without pixels is undefined, because no kernel reads it.
Extents may be symbolic, except for the channels of a blocked image.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np

from graft.backends.host.extents import Extents
from graft.base.dims import AnyDim, Dim, Unknown, product
from graft.base.dtypes import Array, DType
from graft.base.errors import InternalError
from graft.ir.graph import Value
from graft.loop.ir import Buffer, Const, Expr
from graft.ops.integer import BYTES
from graft.ops.mixed import HALVES
from graft.program.program import ALIGNMENT
from graft.runtime.memory import address_of, aligned_empty

Halo = tuple[int, int, int, int]  # top, left, bottom, right
NO_HALO: Halo = (0, 0, 0, 0)
BLOCKS = (16, 8)  # channels of a block, best first
_QUAD = 4  # bytes of a word


@dataclass(frozen=True, slots=True)
class Storage:
    """A tensor's place in memory. `block` 0 is row-major; halos are for blocked images only."""

    dtype: DType
    shape: tuple[Dim, ...]
    block: int = 0
    halo: Halo = NO_HALO
    alignment: int = 64  # bytes; the user's arrays are only aligned to their elements
    fill: int = 0  # the value of the halo

    @property
    def sizes(self) -> tuple[int, ...]:
        """The shape of a tensor whose extents are numbers."""
        numbers = tuple(dim for dim in self.shape if isinstance(dim, int))
        if len(numbers) < len(self.shape):
            raise InternalError(f"a tensor has the symbolic shape {self.shape}")
        return numbers

    @property
    def extents(self) -> tuple[Dim, ...]:
        """The extents as memory has them."""
        if not self.block:
            return self.shape
        batch, _, height, width = self.shape
        top, left, bottom, right = self.halo
        pixels = _wider(height, top + bottom), _wider(width, left + right)
        return batch, self.blocks, *pixels, self.block

    @property
    def blocks(self) -> int:
        """The blocks of an image, of which the last may not be full."""
        return -(-self.channels // self.block)

    @property
    def channels(self) -> int:
        """The channels of an image."""
        channels = self.shape[1]
        if not isinstance(channels, int):
            raise InternalError(f"an image has the symbolic shape {self.shape}")
        return channels

    @property
    def static_extents(self) -> tuple[int, ...]:
        """The same of a tensor whose extents are numbers."""
        return replace(self, shape=self.extents, block=0).sizes

    @property
    def nbytes(self) -> Dim:
        total = product(self.extents) * self.dtype.numpy.itemsize
        if isinstance(total, Unknown):
            raise InternalError(f"the shape {self.shape} is too large an expression")
        return total

    @property
    def static_bytes(self) -> int:
        """The bytes of a tensor whose extents are numbers."""
        return math.prod(self.static_extents) * self.dtype.numpy.itemsize

    @property
    def users(self) -> Storage:
        """The same in an array of the user's, which is only aligned to its elements."""
        return replace(self, alignment=self.dtype.numpy.itemsize)

    def buffer(self, name: str, extents: Extents | None = None) -> Buffer:
        """A kernel's parameter for such a tensor; `extents` names what is symbolic of its shape."""
        names = extents or Extents()
        shape = tuple(names.expr(extent) for extent in self.extents)
        return Buffer(name, self.dtype, shape, alignment=self.alignment)

    def pack(self, array: Array) -> Array:
        """A constant as memory has it: the same memory, where it is like that already."""
        ordered = not self.block and array.dtype == self.dtype.numpy and array.flags.c_contiguous
        if ordered and array.size and address_of(array) % ALIGNMENT == 0:
            return array.reshape(self.sizes)
        packed = aligned_empty(self.static_extents, self.dtype.numpy)
        if not self.block:
            packed[...] = array.reshape(self.sizes)
            return packed
        batch, channels, height, width = self.sizes
        top, left, _, _ = self.halo
        packed[...] = np.array(self.fill, self.dtype.numpy)
        lacking = self.blocks * self.block - channels
        whole = np.pad(array.reshape(self.sizes), ((0, 0), (0, lacking), (0, 0), (0, 0)))
        split = whole.reshape(batch, self.blocks, self.block, height, width)
        inner = packed[:, :, top : top + height, left : left + width]
        inner[...] = np.moveaxis(split, 2, -1)
        return packed


def _wider(extent: Dim, halo: int) -> Dim:
    whole = extent + halo
    if isinstance(whole, Unknown):
        raise InternalError(f"the extent {extent} is too large an expression")
    return whole


def static_shape(value: Value) -> tuple[int, ...]:
    """The extents of a tensor that has to have a static shape."""
    shape = tuple(dim for dim in shape_of(value) if isinstance(dim, int))
    if len(shape) < len(shape_of(value)):
        raise InternalError(f"%{value.name} has the symbolic shape {value.shape}")
    return shape


def shape_of(value: Value) -> tuple[Dim, ...]:
    """The extents of a tensor, none of which is known only from data."""
    shape: tuple[AnyDim, ...] | None = value.shape
    dims = tuple(dim for dim in shape or () if not isinstance(dim, Unknown))
    if shape is None or len(dims) < len(shape):
        raise InternalError(f"the shape of %{value.name} is known only from data")
    return dims


def is_image(value: Value) -> bool:
    """Whether blocks of channels are possible at all."""
    shape = value.shape
    if value.dtype not in (*BYTES, *HALVES, DType.FLOAT32) or shape is None:
        return False
    is_sized = not any(isinstance(dim, Unknown) for dim in shape)
    return is_sized and len(shape) == 4 and 0 not in shape and isinstance(shape[1], int)


def channel_count(image: Value) -> int:
    """The channels of an image."""
    channels = shape_of(image)[1]
    assert isinstance(channels, int)
    return channels


def blocks_for(image: Value) -> tuple[int, ...]:
    """The block sizes that kernels may make an image in, best first.

    The last block need not be full; bytes are multiplied by fours of channels."""
    channels = channel_count(image)
    is_narrow = channels % _QUAD or channels < min(BLOCKS)
    return () if image.dtype in BYTES and is_narrow else BLOCKS


def row_major(value: Value) -> Storage:
    """The storage of a tensor that nothing special is known of."""
    return Storage(value.dtype, shape_of(value))


def covers(halo: Halo, other: Halo) -> bool:
    """Whether a halo is as wide as another on all sides."""
    return all(have >= need for have, need in zip(halo, other, strict=True))


def index(*items: Expr | int) -> tuple[Expr, ...]:
    """Indices of an access; plain integers become constants."""
    return tuple([Const(item) if isinstance(item, int) else item for item in items])

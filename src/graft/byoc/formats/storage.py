"""Storage of values in a device's memory: element type, order of axes, and padding of the last one.

Values mean what the graph says (float32, NCHW); their storage is the backend's choice. Tensor
expressions read and write stored values through two views, so that a kernel of expressions works
with any storage, and computes in the value's dtype.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from graft.base.dtypes import Array, DType
from graft.loop.build import Term, cast, constant, minimum, select, term
from graft.loop.tensor import Tensor, placeholder
from graft.ops.expression import by_index, read

CHANNELS_LAST = (0, 2, 3, 1)


@dataclass(frozen=True, slots=True)
class Storage:
    """The storage of a value of some shape: `order` gives the axis of each stored one, `pad` the
    number of zeros behind the last one."""

    dtype: DType
    shape: tuple[int, ...]
    order: tuple[int, ...]
    pad: int = 0

    @staticmethod
    def row_major(dtype: DType, shape: tuple[int, ...]) -> Storage:
        return Storage(dtype, shape, tuple(range(len(shape))))

    @property
    def extents(self) -> tuple[int, ...]:
        """The extents in memory."""
        stored = [self.shape[axis] for axis in self.order]
        return (*stored[:-1], stored[-1] + self.pad) if stored else ()

    @property
    def nbytes(self) -> int:
        return math.prod(self.extents) * self.dtype.numpy.itemsize

    @property
    def is_row_major(self) -> bool:
        """Whether elements are in the order of the value, so that it can be reshaped."""
        large = [axis for axis in self.order if self.shape[axis] > 1]
        return large == sorted(large) and not self.pad

    def serves(self, other: Storage) -> bool:
        """Whether memory of this storage is also of the other one."""
        large = [[a for a in one.order if one.shape[a] > 1] for one in (self, other)]
        return self.dtype is other.dtype and large[0] == large[1] and self.pad == other.pad

    def pack(self, array: Array) -> Array:
        """A constant in this storage."""
        stored = np.asarray(array).transpose(self.order) if self.order else np.asarray(array)
        if self.pad:
            stored = np.pad(stored, [(0, 0)] * (stored.ndim - 1) + [(0, self.pad)])
        return np.ascontiguousarray(stored.astype(self.dtype.numpy))

    def input(self, name: str) -> Tensor:
        """The memory as a tensor."""
        return placeholder(name, self.extents, self.dtype)

    def view(self, name: str, memory: Tensor, dtype: DType) -> Tensor:
        """The value that memory stores."""
        if self.dtype is dtype and self.order == tuple(range(len(self.order))) and not self.pad:
            return memory

        def element(*indices: Term) -> Term:
            return cast(dtype, read(memory, [indices[axis] for axis in self.order]))

        return by_index(name, self.shape, element)

    def result(self, name: str, value: Tensor) -> Tensor:
        """The contents of memory that stores a value."""

        def element(*stored: Term) -> Term:
            last = stored[-1] if stored else term(0)
            end = self.shape[self.order[-1]] if self.order else 1
            inside = (*stored[:-1], minimum(last, end - 1)) if self.pad else stored
            at = [inside[self.order.index(axis)] for axis in range(len(self.order))]
            element = cast(self.dtype, read(value, at))
            if not self.pad:
                return element
            return select(last < end, element, Term(constant(0, self.dtype)))

        return by_index(name, self.extents, element)

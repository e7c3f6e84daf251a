"""Arrays at aligned addresses: sizes and shapes in, memory that NumPy owns out."""

from __future__ import annotations

import ctypes
import math
import sys
from typing import Any

import numpy as np

from graft.base.dtypes import Array
from graft.base.errors import EvaluationError
from graft.program.program import ALIGNMENT


def aligned_size(count: int) -> int:
    """A number of bytes rounded up to whole units of alignment."""
    return -(-count // ALIGNMENT) * ALIGNMENT


def _told_address(array: Array) -> int:
    """Where an array's first element is, as NumPy tells it."""
    address: int = array.__array_interface__["data"][0]
    return address


# By NumPy's binary interface the address of the elements follows what every object begins with.
_HEAD = object.__basicsize__
_pointer_at = ctypes.c_void_p.from_address


def _read_address(array: Array) -> int:
    """The same from where NumPy keeps it, six times as fast: small models do little else."""
    return _pointer_at(id(array) + _HEAD).value or 0


def _may_read_addresses() -> bool:
    if sys.implementation.name != "cpython":
        return False
    whole = np.zeros((3, 5), np.int16)
    return all(_read_address(one) == _told_address(one) for one in (whole, whole[1:, 2:], whole.T))


address_of = _read_address if _may_read_addresses() else _told_address


def give_back() -> None:
    """Return memory that is free to the system, where the C library can: it keeps what large
    weights lay in, for later, which after compiling is as much as the program itself takes."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)


def aligned_empty(
    shape: tuple[int, ...], dtype: np.dtype[Any], alignment: int = ALIGNMENT
) -> Array:
    """A fresh array whose first element lies at a multiple of the alignment."""
    size = math.prod(shape) * dtype.itemsize
    try:
        memory = np.empty(size + alignment, np.uint8)
    except (MemoryError, ValueError):
        raise EvaluationError(
            f"there is no memory for {dtype}{list(shape)}, {size >> 20} MiB",
            hint="try smaller inputs, or a larger machine",
        ) from None
    return np.ndarray(shape, dtype, memory, -address_of(memory) % alignment)


def is_usable(array: Array, alignment: int = 1) -> bool:
    """Whether kernels can work on the array where it lies."""
    flags = array.flags
    if not (flags.c_contiguous and flags.aligned):
        return False
    return alignment == 1 or address_of(array) % alignment == 0


def aligned_copy(array: Array, alignment: int = ALIGNMENT) -> Array:
    """The same elements, contiguous and aligned."""
    copy = aligned_empty(array.shape, array.dtype, alignment)
    copy[...] = array
    return copy


def ready(array: Array, alignment: int) -> Array:
    """The array where it lies, or a copy that kernels can read."""
    return array if is_usable(array, alignment) else aligned_copy(array, max(alignment, ALIGNMENT))


class _Unlocked:
    """An array's memory without the mark that it is read-only."""

    def __init__(self, array: Array) -> None:
        address, _ = array.__array_interface__["data"]
        self.__array_interface__ = {**array.__array_interface__, "data": (address, False)}
        self.array = array


def unlocked(array: Array) -> Array:
    """The same memory as a writable array, for libraries that take no other and only read it."""
    return np.asarray(_Unlocked(array))

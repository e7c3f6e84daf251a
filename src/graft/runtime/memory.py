"""Arrays at aligned addresses: sizes and shapes in, memory that NumPy owns out."""

from __future__ import annotations

import ctypes
import math
import sys
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from graft.base.dtypes import Array
from graft.base.errors import EvaluationError
from graft.program.program import ALIGNMENT

# Results below a size that C libraries keep anyway, and what all results that are remembered may
# take together.
KEPT_BYTES, _MOST_BYTES = 1 << 16, 1 << 27
# Results that are too small for it to matter how their memory is aligned beyond what C libraries
# promise, which is the fastest way to get some.
_SMALL_BYTES, _C_ALIGNMENT = 1 << 10, 16
# How many are looked at before there is another one.
_LOOKS = 8


def aligned_size(count: int) -> int:
    """A number of bytes rounded up to whole units of alignment."""
    return -(-count // ALIGNMENT) * ALIGNMENT


def _told_address(array: Array) -> int:
    """The address of an array's first element, from NumPy's array interface."""
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


class ResultPool:
    """Memory for results: that of earlier, unreferenced ones where there is some.

    The system gives memory page by page, when it is first touched, which takes longer than to fill
    it. C libraries give large blocks back at once when they are free, so that every run would pay
    for it."""

    def __init__(self) -> None:
        self._arrays: dict[int, deque[Array]] = {}  # by size, the oldest first
        self._bytes = 0

    def empty(
        self, shape: tuple[int, ...], dtype: np.dtype[Any], alignment: int = ALIGNMENT
    ) -> Array:
        """As `aligned_empty`."""
        nbytes = math.prod(shape) * dtype.itemsize + alignment
        if not KEPT_BYTES <= nbytes <= _MOST_BYTES or not _REFERENCES_TELL:
            return aligned_empty(shape, dtype, alignment)
        memory = self._memory(_rounded(nbytes))
        return np.ndarray(shape, dtype, memory, -address_of(memory) % alignment)

    def allocator(
        self, shape: tuple[int, ...], dtype: np.dtype[Any], alignment: int = 1
    ) -> Callable[[], Array]:
        """What makes arrays for one result, run after run; `alignment` is what kernels need."""
        if math.prod(shape) * dtype.itemsize <= _SMALL_BYTES and alignment <= _C_ALIGNMENT:
            return partial(np.empty, shape, dtype)
        return partial(self.empty, shape, dtype, max(alignment, ALIGNMENT))

    def _memory(self, size: int) -> Array:
        pool = self._arrays.setdefault(size, deque())
        for _ in range(min(len(pool), _LOOKS)):
            memory, references = _oldest(pool)
            if references == _HELD_BY_NOBODY:
                return memory
        memory = np.empty(size, np.uint8)
        if self._bytes + size > _MOST_BYTES:
            self._arrays, self._bytes, pool = {}, 0, deque()
            self._arrays[size] = pool
        pool.append(memory)
        self._bytes += size
        return memory


def _rounded(size: int) -> int:
    """One of four sizes between two powers of two, so that results that grow find memory, too."""
    step = 1 << (size.bit_length() - 3)
    return -(-size // step) * step


def _oldest(arrays: deque[Array]) -> tuple[Array, int]:
    """The oldest memory, which becomes the newest, and how many hold it."""
    memory = arrays.popleft()
    references = sys.getrefcount(memory)
    arrays.append(memory)
    return memory, references


_HELD_BY_NOBODY = _oldest(deque([np.empty(0, np.uint8)]))[1]
# Without the interpreter's lock, reference counts are not reliable.
_REFERENCES_TELL = sys.implementation.name == "cpython" and (
    not hasattr(sys, "_is_gil_enabled") or sys._is_gil_enabled()
)

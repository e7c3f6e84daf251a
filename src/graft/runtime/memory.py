"""Arrays at aligned addresses: sizes and shapes in, memory that NumPy owns out."""

from __future__ import annotations

import ctypes
import math
import sys
from collections import deque
from collections.abc import Callable
from threading import Lock
from typing import Any, NamedTuple

import numpy as np

from graft.base.dtypes import Array
from graft.base.errors import EvaluationError
from graft.program.program import ALIGNMENT

# Results that are too small for it to matter how their memory is aligned beyond what C libraries
# promise, which is the fastest way to get some.
_SMALL_BYTES, _C_ALIGNMENT = 1 << 10, 16
# What all results that are remembered may take together, and how many there may be of a size.
_MOST_BYTES, _MOST_BLOCKS = 1 << 27, 1 << 9
# How many are looked at before there is another one.
_LOOKS = 4


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


def trim_heap() -> None:
    """Return free memory to the operating system, if the C library can. It would keep the memory of
    large weights, which after compiling is as much as the program itself needs."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)


# Gives an array and its address, run after run. What follows from a shape is computed beforehand,
# since a model with many results spends more time on their memory than on anything else in Python.
Allocator = Callable[[], tuple[Array, int]]


def aligned_empty(
    shape: tuple[int, ...], dtype: np.dtype[Any], alignment: int = ALIGNMENT
) -> Array:
    """A fresh array whose first element lies at a multiple of the alignment."""
    return _aligned_allocator(shape, dtype, alignment)()[0]


def _aligned_allocator(shape: tuple[int, ...], dtype: np.dtype[Any], alignment: int) -> Allocator:
    size = math.prod(shape) * dtype.itemsize

    def allocate() -> tuple[Array, int]:
        try:
            memory = np.empty(size + alignment, np.uint8)
        except (MemoryError, ValueError):
            raise EvaluationError(
                f"there is no memory for {dtype}{list(shape)}, {size >> 20} MiB",
                hint="try smaller inputs, or a larger machine",
            ) from None
        start = address_of(memory)
        offset = -start % alignment
        return np.ndarray(shape, dtype, memory, offset), start + offset

    return allocate


def _small_allocator(shape: tuple[int, ...], dtype: np.dtype[Any]) -> Allocator:
    empty, address = np.empty, address_of

    def allocate() -> tuple[Array, int]:
        array = empty(shape, dtype)
        return array, address(array)

    return allocate


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


class _Block(NamedTuple):
    """Memory for results, the offset there from which on it is aligned, and that address."""

    memory: Array
    offset: int
    address: int


class ResultPool:
    """Memory for results: that of earlier, unreferenced ones where there is some.

    The system gives memory page by page, when it is first touched, which takes longer than to fill
    it. C libraries give large blocks back at once when they are free, and smaller ones when many
    are, so that every run would pay for it."""

    def __init__(self) -> None:
        self._blocks: dict[int, deque[_Block]] = {}  # by size, the oldest first
        self._bytes = 0
        self._lock = Lock()

    def empty(
        self, shape: tuple[int, ...], dtype: np.dtype[Any], alignment: int = ALIGNMENT
    ) -> Array:
        """As `aligned_empty`."""
        return self.allocator(shape, dtype, alignment)()[0]

    def allocator(
        self, shape: tuple[int, ...], dtype: np.dtype[Any], alignment: int = 1
    ) -> Allocator:
        """What makes arrays for results of a shape; `alignment` is what kernels need."""
        nbytes = math.prod(shape) * dtype.itemsize
        if nbytes <= _SMALL_BYTES and alignment <= _C_ALIGNMENT:
            return _small_allocator(shape, dtype)
        if nbytes <= _MOST_BYTES and alignment <= ALIGNMENT and _REFERENCES_TELL:
            return self._kept_allocator(shape, dtype, _rounded(nbytes))
        return _aligned_allocator(shape, dtype, max(alignment, ALIGNMENT))

    def _kept_allocator(self, shape: tuple[int, ...], dtype: np.dtype[Any], size: int) -> Allocator:
        blocks, references = self._blocks.setdefault(size, deque()), sys.getrefcount

        def allocate() -> tuple[Array, int]:
            try:
                blocks.rotate(-1)  # the oldest becomes the newest; no thread finds it missing
                memory, offset, address = blocks[-1]
                if references(memory) != _HELD_BY_NOBODY:
                    memory, offset, address = self._block(size, blocks)
            except IndexError:  # there is none yet
                memory, offset, address = self._block(size, blocks)
            return np.ndarray(shape, dtype, memory, offset), address

        return allocate

    def _block(self, size: int, blocks: deque[_Block]) -> _Block:
        """One of the next blocks, or a new one."""
        with self._lock:
            for _ in range(min(len(blocks), _LOOKS)):
                block, references = _oldest(blocks)
                if references == _HELD_BY_NOBODY:
                    return block
            memory = np.empty(size + ALIGNMENT, np.uint8)
            offset = -address_of(memory) % ALIGNMENT
            block = _Block(memory, offset, address_of(memory) + offset)
            if self._bytes + size > _MOST_BYTES:
                for each in self._blocks.values():
                    each.clear()
                self._bytes = 0
            if len(blocks) < _MOST_BLOCKS:
                blocks.append(block)
                self._bytes += size
        return block


def _rounded(size: int) -> int:
    """One of four sizes between two powers of two, so that results that grow find memory, too."""
    step = 1 << max(size.bit_length() - 3, 0)
    return -(-size // step) * step


def _oldest(blocks: deque[_Block]) -> tuple[_Block, int]:
    """The oldest block, which becomes the newest, and how many hold its memory."""
    blocks.rotate(-1)
    block = blocks[-1]
    memory = block.memory
    return block, sys.getrefcount(memory)


_HELD_BY_NOBODY = _oldest(deque([_Block(np.empty(0, np.uint8), 0, 0)]))[1]
# Without the interpreter's lock, reference counts are not reliable.
_REFERENCES_TELL = sys.implementation.name == "cpython" and (
    not hasattr(sys, "_is_gil_enabled") or sys._is_gil_enabled()
)

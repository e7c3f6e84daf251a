"""Memory that is used again: results that nobody holds any more.

The system gives memory page by page, when it is first touched, which takes longer than to fill it.
C libraries give large pieces back at once when they are free, so that every run would pay for it.
"""

from __future__ import annotations

import math
import sys
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from graft.base.dtypes import Array
from graft.program.program import ALIGNMENT
from graft.runtime.memory import address_of, aligned_empty

# Results below a size that C libraries keep anyway, and what all results that are remembered may
# take together.
KEPT_BYTES, _MOST_BYTES = 1 << 16, 1 << 27
# Results that are too small for it to matter how their memory is aligned beyond what C libraries
# promise, which is the fastest way to get some.
_SMALL_BYTES, _C_ALIGNMENT = 1 << 10, 16
# How many are looked at before there is another one.
_LOOKS = 8


class Recycled:
    """Memory for results: that of earlier ones that nobody holds any more, where there is some."""

    def __init__(self) -> None:
        self._known: dict[int, deque[Array]] = {}  # by size, the oldest first
        self._bytes = 0

    def empty(
        self, shape: tuple[int, ...], dtype: np.dtype[Any], alignment: int = ALIGNMENT
    ) -> Array:
        """As `aligned_empty`."""
        wanted = math.prod(shape) * dtype.itemsize + alignment
        if not KEPT_BYTES <= wanted <= _MOST_BYTES or not _REFERENCES_TELL:
            return aligned_empty(shape, dtype, alignment)
        memory = self._memory(_rounded(wanted))
        return np.ndarray(shape, dtype, memory, -address_of(memory) % alignment)

    def allocator(
        self, shape: tuple[int, ...], dtype: np.dtype[Any], alignment: int = 1
    ) -> Callable[[], Array]:
        """What makes arrays for one result, run after run; `alignment` is what kernels need."""
        if math.prod(shape) * dtype.itemsize <= _SMALL_BYTES and alignment <= _C_ALIGNMENT:
            return partial(np.empty, shape, dtype)
        return partial(self.empty, shape, dtype, max(alignment, ALIGNMENT))

    def _memory(self, size: int) -> Array:
        known = self._known.setdefault(size, deque())
        for _ in range(min(len(known), _LOOKS)):
            memory, references = _oldest(known)
            if references == _HELD_BY_NOBODY:
                return memory
        memory = np.empty(size, np.uint8)
        if self._bytes + size > _MOST_BYTES:
            self._known, self._bytes, known = {}, 0, deque()
            self._known[size] = known
        known.append(memory)
        self._bytes += size
        return memory


def _rounded(size: int) -> int:
    """One of four sizes between two powers of two, so that results that grow find memory, too."""
    step = 1 << (size.bit_length() - 3)
    return -(-size // step) * step


def _oldest(known: deque[Array]) -> tuple[Array, int]:
    """The oldest memory, which becomes the newest, and how many hold it."""
    memory = known.popleft()
    references = sys.getrefcount(memory)
    known.append(memory)
    return memory, references


_HELD_BY_NOBODY = _oldest(deque([np.empty(0, np.uint8)]))[1]
# Without the interpreter's lock, references do not tell.
_REFERENCES_TELL = sys.implementation.name == "cpython" and (
    not hasattr(sys, "_is_gil_enabled") or sys._is_gil_enabled()
)

"""Memory with guards around it, and runs of machine code on it in a process of its own.

An array lies as close to a page that must not be touched as its alignment allows, so that a read or
write beyond it kills the process that does it. What room is left between is filled with a pattern,
by which writes to it show. The memory is shared, so that results come back from the child.
"""

from __future__ import annotations

import ctypes
import faulthandler
import math
import mmap
import os
import signal
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np

from graft.base.dtypes import Array

PATTERN = 0xC5
SECONDS = 120  # after which a run counts as hanging
_NO_ACCESS = 0


@dataclass(frozen=True)
class Guarded:
    """An array of some shape between two forbidden pages, next to the first or to the last."""

    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    alignment: int = 64
    at_end: bool = True
    _memory: mmap.mmap = field(init=False, repr=False)

    def __post_init__(self) -> None:
        pages = -(-max(1, self.nbytes + self.alignment) // mmap.PAGESIZE)
        object.__setattr__(self, "_memory", mmap.mmap(-1, (pages + 2) * mmap.PAGESIZE))
        self.bytes[...] = PATTERN
        base = np.frombuffer(self._memory, np.uint8).ctypes.data
        for page in (0, pages + 1):
            address = ctypes.c_void_p(base + page * mmap.PAGESIZE)
            if ctypes.CDLL(None).mprotect(address, mmap.PAGESIZE, _NO_ACCESS):
                raise OSError("pages cannot be protected")

    @property
    def nbytes(self) -> int:
        return math.prod(self.shape) * self.dtype.itemsize

    @cached_property
    def bytes(self) -> Array:
        """All that may be touched."""
        whole = np.frombuffer(self._memory, np.uint8)
        return whole[mmap.PAGESIZE : len(whole) - mmap.PAGESIZE]

    @property
    def _start(self) -> int:
        if not self.at_end:
            return 0
        return (len(self.bytes) - self.nbytes) // self.alignment * self.alignment

    @cached_property
    def array(self) -> Array:
        inner = self.bytes[self._start : self._start + self.nbytes]
        found: Array = inner.view(self.dtype).reshape(self.shape)
        return found

    def damaged(self) -> list[int]:
        """Bytes around the array that were written, counted from its beginning."""
        places = np.flatnonzero(self.bytes != PATTERN) - self._start
        return [int(place) for place in places if not 0 <= place < self.nbytes]


def guarded_copy(array: Array, alignment: int = 64, at_end: bool = True) -> Guarded:
    made = Guarded(array.shape, array.dtype, alignment, at_end)
    made.array[...] = array
    return made


def in_child(runs: Sequence[Callable[[], object]]) -> None:
    """Do all of it in a child process; its end by a signal is a failed assertion here."""
    child = os.fork()
    if child == 0:
        code = 1
        try:
            faulthandler.disable()  # the parent says what happened
            signal.signal(signal.SIGALRM, signal.SIG_DFL)
            signal.alarm(SECONDS)
            for run in runs:
                run()
            code = 0
        except BaseException:  # noqa: BLE001 - nothing may leave the child but its exit code
            traceback.print_exc()
        os._exit(code)
    _, status = os.waitpid(child, 0)
    if os.WIFSIGNALED(status):
        name = signal.Signals(os.WTERMSIG(status)).name
        raise AssertionError(f"the kernel ends by {name}: it leaves its buffers, or hangs")
    assert os.WEXITSTATUS(status) == 0, "the kernel cannot be run"

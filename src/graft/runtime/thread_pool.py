"""Threads that run programs together: a caller, and workers that wait for it in native code.

A worker is a Python thread that spends its life in one native call, outside the interpreter's lock.
Workers start with the first job, sleep when there is none for a while, and end with their pool or
the process. docs/runtime.md has the details.
"""

from __future__ import annotations

import ctypes
import os
import threading
import weakref
from collections.abc import Callable
from typing import Protocol

import numpy as np

from graft.base.cores import available_processors
from graft.base.dtypes import Array
from graft.base.errors import UserError
from graft.runtime.memory import address_of, aligned_empty
from graft.runtime.native import Library, system_address

# Names and memory that the native driver and the run time agree on. Whoever changes one of these
# changes `container.FORMAT` too.
WORK, STOP, BARRIER = "graft_work", "graft_stop", "graft_barrier"

# A record of a kernel call is five 64-bit words: function, buffers, scalars, the distance in bytes
# between the buffer tables of neighbouring threads, flags.

# Memory of a thread pool. Words that threads write while others poll lie on cache lines of their
# own. Behind it, each thread has a line for iterations that others claim of its share of a loop.
THREAD_POOL_BYTES, CLAIM_BYTES = 768, 64
PATIENCES = (192, 448, 640)  # of its three gates: how often to look, how often to offer the core
GIVE_AWAY = 264  # the address of `sched_yield`, for barriers that kernels bring along

# How often a waiting thread looks, and how often it looks and offers its core to others, before it
# sleeps. Looking takes some ten nanoseconds, offering some hundred, sleeping and being woken some
# ten microseconds. The one waited for may need the very core that the waiter holds, surely so with
# more threads than cores: hence few looks, and offers for longer than sleeping would take.
_LOOKS, _LOOKS_WHEN_CROWDED, _OFFERS = 100, 20, 1_000


_WORK = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_int64)
_STOP = ctypes.CFUNCTYPE(None, ctypes.c_void_p)
_Native = Callable[..., object]


class PoolUser(Protocol):
    """What leads to the memory of a thread pool."""

    def attach_pool(self) -> None: ...

    def detach_pool(self) -> None: ...


class ThreadPool:
    """The calling thread and `threads - 1` workers, who run one job at a time."""

    def __init__(self, library: Library, threads: int) -> None:
        self.threads = threads
        self._library = library
        self._work = _WORK(library.address(WORK))
        self._stop = _STOP(library.address(STOP))
        self._lock = threading.Lock()
        self._memories: list[Array] = []
        # Frames that lead to its memory, and have to hear of another one.
        self.frames: weakref.WeakSet[PoolUser] = weakref.WeakSet()
        self._reset()
        _POOLS.add(self)

    def _reset(self) -> None:
        self._memory = _pool_memory(self.threads)
        self._memories.append(self._memory)  # whoever works in an earlier one goes on doing so
        self._address = address_of(self._memory)
        self._finalizer: weakref.finalize[..., ThreadPool] | None = None

    @property
    def address(self) -> int:
        """Where its memory is."""
        return self._address

    @property
    def is_started(self) -> bool:
        """Whether the workers live."""
        return self._finalizer is not None and self._finalizer.alive

    def start(self) -> None:
        """Start the workers, if they do not live."""
        with self._lock:
            if not self.is_started:
                self._start()

    def _start(self) -> None:
        """Also after the process began to exit and ended the workers."""
        self._reset()
        try:
            self._start_workers()
        except RuntimeError as error:
            raise UserError(
                f"{self.threads - 1} more threads cannot be started: {error}",
                hint="ask for fewer with threads=",
            ) from error

    def _start_workers(self) -> None:
        workers: list[threading.Thread] = []
        # Ends the workers when the pool is collected or the process exits, whichever is first.
        stop_workers = weakref.finalize(
            self, _stop_workers, self._stop, self._memory, workers, self._library, self.frames
        )
        self._finalizer = stop_workers
        try:
            for thread in range(1, self.threads):
                worker = threading.Thread(
                    target=_run_worker,
                    args=(self._work, self._memory, thread, self._library),
                    name=f"graft-{thread}",
                    daemon=True,
                )
                worker.start()
                workers.append(worker)
        except BaseException:
            # Even on Ctrl-C: a pool without all its workers would wait for them for ever.
            stop_workers()
            self._reset()
            raise

    def forget_workers(self) -> None:
        """After a fork: the child has none of the threads and must not wait for them."""
        if self._finalizer is not None:
            self._finalizer.detach()
        self._lock = threading.Lock()
        self._reset()
        for frame in self.frames:
            frame.attach_pool()


def _pool_memory(threads: int) -> Array:
    memory = aligned_empty(((THREAD_POOL_BYTES + CLAIM_BYTES * threads) // 8,), np.dtype(np.int64))
    memory[:] = 0
    memory[GIVE_AWAY // 8] = system_address("sched_yield")
    crowded = threads > available_processors()
    for offset in PATIENCES:
        memory[offset // 8] = _LOOKS_WHEN_CROWDED if crowded else _LOOKS
        memory[offset // 8 + 1] = _OFFERS
    return memory


def _run_worker(work: _Native, memory: Array, thread: int, library: Library) -> None:
    """Run a worker. The arguments keep the memory and the code that it uses alive."""
    work(address_of(memory), thread)


def _stop_workers(
    stop: _Native,
    memory: Array,
    workers: list[threading.Thread],
    library: Library,
    frames: weakref.WeakSet[PoolUser],
) -> None:
    """End the workers and wait until they are gone.

    Not for ever: the garbage collector may come here from within `threading` itself, holding a lock
    that a worker needs to end. Workers keep what they run on, so that leaving before them is safe.
    """
    stop(address_of(memory))
    for worker in workers:
        worker.join(timeout=1.0)
    for frame in frames:
        frame.detach_pool()


_POOLS: weakref.WeakSet[ThreadPool] = weakref.WeakSet()


def _after_fork() -> None:
    for pool in list(_POOLS):
        pool.forget_workers()


os.register_at_fork(after_in_child=_after_fork)

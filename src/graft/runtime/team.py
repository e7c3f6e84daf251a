"""Threads that run programs together: a caller, and workers that wait for it in native code.

A worker is a Python thread that spends its life in one native call, outside the interpreter's lock.
Workers start with the first job, sleep when there is none for a while, and end with their team or
the process. docs/runtime.md tells the whole story.
"""

from __future__ import annotations

import ctypes
import os
import threading
import weakref
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import ClassVar

import numpy as np

from graft.base.dtypes import Array
from graft.base.errors import UserError
from graft.runtime.agreement import (
    CLAIM_BYTES,
    GIVE_AWAY,
    JOB_WORDS,
    PATIENCES,
    RUN,
    STOP,
    TEAM_BYTES,
    WORK,
)
from graft.runtime.cores import available_processors
from graft.runtime.memory import address_of, aligned_empty
from graft.runtime.native import Library, system_address

# How often a waiting thread looks, and how often it looks and offers its core to others, before it
# sleeps. Looking takes some ten nanoseconds, offering some hundred, sleeping and being woken some
# ten microseconds. The one waited for may need the very core that the waiter holds, surely so with
# more threads than cores: hence few looks, and offers for longer than sleeping would take.
_LOOKS, _LOOKS_WHEN_CROWDED, _OFFERS = 100, 20, 1_000


class Job(ctypes.Structure):
    """Step records at an address, for so many threads; `times` is where the driver writes what it
    measures, 0 for nowhere. The team writes its own address when it runs the job."""

    _fields_: ClassVar = [(word, ctypes.c_int64) for word in JOB_WORDS]

    team: int
    threads: int
    memory: Array  # of the team, where the job is prepared once and run often

    def __init__(self, steps: int, count: int, threads: int, times: int = 0) -> None:
        super().__init__(0, steps, count, threads, times)


_RUN = ctypes.CFUNCTYPE(None, ctypes.POINTER(Job))
_WORK = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_int64)
_STOP = ctypes.CFUNCTYPE(None, ctypes.c_void_p)
_Native = Callable[..., object]


class Team:
    """The calling thread and `threads - 1` workers, who run one job at a time."""

    def __init__(self, library: Library, threads: int) -> None:
        self.threads = threads
        self._library = library
        self._run = _RUN(library.address(RUN))
        self._work = _WORK(library.address(WORK))
        self._stop = _STOP(library.address(STOP))
        self._lock = threading.Lock()
        self._begin_anew()
        _TEAMS.add(self)

    def _begin_anew(self) -> None:
        self._memory = _team_memory(self.threads)
        self._address = address_of(self._memory)
        self._finalizer: weakref.finalize[..., Team] | None = None

    def turn(self) -> AbstractContextManager[object]:
        """To be held while running jobs; one thread alone disturbs nobody and need not wait."""
        return self._lock if self.threads > 1 else nullcontext()

    def run(self, job: Job) -> None:
        """Run a job, together or, where it is for one thread, by the caller alone."""
        if job.threads > 1 and not (self._finalizer and self._finalizer.alive):
            self._start()
        job.team = self._address
        self._run(job)

    def alone(self, job: Job) -> Callable[[], object]:
        """What runs a job for one thread by the caller, as often as it is called."""
        job.team, job.memory = self._address, self._memory
        return partial(self._run, job)

    def _start(self) -> None:
        """Also after the process began to exit and sent the workers home."""
        self._begin_anew()
        try:
            self._start_workers()
        except RuntimeError as error:
            raise UserError(
                f"{self.threads - 1} more threads cannot be started: {error}",
                hint="ask for fewer with threads=",
            ) from error

    def _start_workers(self) -> None:
        workers: list[threading.Thread] = []
        # Ends the workers when the team is collected or the process exits, whichever is first.
        dismiss = weakref.finalize(self, _dismiss, self._stop, self._memory, workers, self._library)
        self._finalizer = dismiss
        try:
            for thread in range(1, self.threads):
                worker = threading.Thread(
                    target=_live,
                    args=(self._work, self._memory, thread, self._library),
                    name=f"graft-{thread}",
                    daemon=True,
                )
                worker.start()
                workers.append(worker)
        except BaseException:
            # Even on Ctrl-C: a team without all its workers would wait for them for ever.
            dismiss()
            self._begin_anew()
            raise

    def forget_workers(self) -> None:
        """After a fork: the child has none of the threads and must not wait for them."""
        if self._finalizer is not None:
            self._finalizer.detach()
        self._lock = threading.Lock()
        self._begin_anew()


def _team_memory(threads: int) -> Array:
    memory = aligned_empty(((TEAM_BYTES + CLAIM_BYTES * threads) // 8,), np.dtype(np.int64))
    memory[:] = 0
    memory[GIVE_AWAY // 8] = system_address("sched_yield")
    crowded = threads > available_processors()
    for offset in PATIENCES:
        memory[offset // 8] = _LOOKS_WHEN_CROWDED if crowded else _LOOKS
        memory[offset // 8 + 1] = _OFFERS
    return memory


def _live(work: _Native, memory: Array, thread: int, library: Library) -> None:
    """A worker. Its arguments keep the memory and the code that it runs on in place."""
    work(address_of(memory), thread)


def _dismiss(
    stop: _Native, memory: Array, workers: list[threading.Thread], library: Library
) -> None:
    """Send workers home and wait until they are gone.

    Not for ever: the garbage collector may come here from within `threading` itself, holding a lock
    that a worker needs to end. Workers keep what they run on, so that leaving before them is safe.
    """
    stop(address_of(memory))
    for worker in workers:
        worker.join(timeout=1.0)


_TEAMS: weakref.WeakSet[Team] = weakref.WeakSet()


def _after_fork() -> None:
    for team in list(_TEAMS):
        team.forget_workers()


os.register_at_fork(after_in_child=_after_fork)

"""Calls of foreign code: a task in, its result out, or a `TimeoutError` when it takes too long.

A task that hangs in foreign code cannot be interrupted, only left alone: it runs in a thread of a
pool, so that its caller can go on. Threads of the pool are used again, the last one first: foreign
libraries keep workers for every thread that calls them, and find the same one each time. A call
costs two switches between threads: some 20 µs of processor time, and twice that where foreign code
has used the caches for itself. What a task leaves behind in its thread is undone.
"""

from __future__ import annotations

import ctypes
import os
import threading
from collections.abc import Callable
from contextvars import copy_context
from queue import Empty, SimpleQueue
from typing import Any, TypeVar

from graft.base.callbacks import described

T = TypeVar("T")

# The C library's; it keeps the interpreter's lock, for giving that away takes longer than the call.
_C = ctypes.PyDLL(None)
_MODES = ctypes.c_byte * 64  # as large as any `fenv_t`


class StrayExitError(Exception):
    """Foreign code raised what is no `Exception`: an exit, an interrupt, a panic of Rust's."""


class Containment:
    """What is to be found in this thread again after foreign code has run in it: floating-point
    modes (rounding, flushed denormals), which change what every later computation gives. Made once
    for many tasks where the thread runs nothing else."""

    def __init__(self) -> None:
        self._process, self._modes = os.getpid(), _MODES()
        _C.fegetenv(self._modes)

    def run(self, task: Callable[[], T]) -> T:
        """Run foreign code, and undo what it would leave here: modes, and context variables, among
        which are NumPy's error modes. A child that it forks ends with it. Whatever it raises is an
        `Exception`, but for an interrupt of the main thread, which may be the user's."""
        try:
            return copy_context().run(task)
        except Exception:
            raise
        except BaseException as error:
            is_main = threading.current_thread() is threading.main_thread()
            if isinstance(error, KeyboardInterrupt) and is_main:
                raise
            raise StrayExitError(described(error)) from error
        finally:
            _C.fesetenv(self._modes)
            if os.getpid() != self._process:
                os._exit(1)


def contained(task: Callable[[], T]) -> T:
    """Run foreign code in this thread, and undo what it would leave there."""
    return Containment().run(task)


class OverdueError(TimeoutError):
    """A task missed its deadline; `is_over` says whether it has ended since."""

    def __init__(self, message: str, is_over: Callable[[], bool]) -> None:
        super().__init__(message)
        self.is_over = is_over


class _Thread:
    """A thread of the pool; one task at a time."""

    def __init__(self) -> None:
        # Queues of C code: no hand-over is cheaper. What it takes is mostly misses of the caches,
        # which foreign code has filled with its own data.
        self._tasks: SimpleQueue[Callable[[], Any]] = SimpleQueue()
        self._answers: SimpleQueue[tuple[Any, Exception | None]] = SimpleQueue()
        self.is_idle = True
        threading.Thread(target=self._work, daemon=True, name="graft-supervised").start()

    def run(self, seconds: float, task: Callable[[], Any]) -> Any:
        self.is_idle = False
        self._tasks.put(task)
        try:
            result, failure = self._answers.get(timeout=min(seconds, threading.TIMEOUT_MAX))
        except Empty:
            reason = f"no answer within {seconds:.3g} s"
            raise OverdueError(reason, lambda: not self._answers.empty()) from None
        self.is_idle = True
        if failure is not None:
            try:
                raise failure
            finally:  # the error leads to this frame, and would keep all around it
                failure = None
        return result

    def _work(self) -> None:
        containment = Containment()
        while True:  # without a variable that would hold on to what is the caller's
            self._answers.put(_answer(containment, self._tasks.get()))


def _answer(containment: Containment, task: Callable[[], Any]) -> tuple[Any, Exception | None]:
    """What a task gives, or raises."""
    try:
        return containment.run(task), None
    except Exception as error:  # noqa: BLE001  handed on to the caller
        return None, error


_idle: list[_Thread] = []
os.register_at_fork(after_in_child=_idle.clear)  # threads do not survive it


def within(seconds: float, task: Callable[[], T]) -> T:
    """Run a task in a thread of the pool; raises `OverdueError` when it takes too long.

    The thread of a task that is overdue is given up, since it may never come back."""
    try:
        thread = _idle.pop()
    except IndexError:
        thread = _Thread()
    try:
        result: T = thread.run(seconds, task)
        return result
    finally:
        if thread.is_idle:  # not after a missed deadline, nor after an interrupt meanwhile
            _idle.append(thread)

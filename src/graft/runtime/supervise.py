"""Calls of foreign code: a task in, its result out, or a `TimeoutError` when it takes too long.

A task that hangs in foreign code cannot be interrupted, only left alone: it runs in a thread of a
pool, so that its caller can go on. Threads of the pool are used again, the last one first: foreign
libraries keep workers for every thread that calls them, and find the same one each time. A call
costs two switches between threads, some 20 µs. What a task leaves behind in its thread is undone.
"""

from __future__ import annotations

import ctypes
import os
import threading
import time
from collections.abc import Callable
from contextvars import copy_context
from typing import Any, TypeVar

from graft.base.callbacks import described

T = TypeVar("T")

# The C library's; it keeps the interpreter's lock, for giving that away takes longer than the call.
_C = ctypes.PyDLL(None)
_MODES = ctypes.c_byte * 64  # as large as any `fenv_t`


class StrayExitError(Exception):
    """Foreign code raised what is no `Exception`: an exit, an interrupt, a panic of Rust's."""


def contained(task: Callable[[], T]) -> T:
    """Run foreign code in this thread, and undo what it would leave there: floating-point modes
    (rounding, flushed denormals), which change what every later computation gives, and context
    variables, among which are NumPy's error modes. A child that it forks ends with it. Whatever it
    raises is an `Exception`, but for an interrupt of the main thread, which may be the user's."""
    process, modes = os.getpid(), _MODES()
    _C.fegetenv(modes)
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
        _C.fesetenv(modes)
        if os.getpid() != process:
            os._exit(1)


class OverdueError(TimeoutError):
    """A task missed its deadline; `is_over` tells whether it has come to an end since."""

    def __init__(self, message: str, is_over: Callable[[], bool]) -> None:
        super().__init__(message)
        self.is_over = is_over


class _Thread:
    """A thread of the pool; one task at a time."""

    def __init__(self) -> None:
        self._begin, self._done = threading.Lock(), threading.Lock()
        self._begin.acquire()
        self._done.acquire()
        self._task: Callable[[], Any] | None = None
        self._result: Any = None
        self._failure: Exception | None = None
        self.is_idle = True
        threading.Thread(target=self._work, daemon=True, name="graft-supervised").start()

    def run(self, seconds: float, task: Callable[[], Any]) -> Any:
        self._task, self.is_idle = task, False
        started = time.monotonic()
        self._begin.release()
        if not self._done.acquire(timeout=min(seconds, threading.TIMEOUT_MAX)):
            taken = time.monotonic() - started
            raise OverdueError(f"no answer within {taken:.3g} s", lambda: not self._done.locked())
        self.is_idle = True
        result, failure = self._result, self._failure
        self._result = self._failure = None
        if failure is not None:
            raise failure
        return result

    def _work(self) -> None:
        while True:
            self._begin.acquire()
            assert self._task is not None
            try:
                self._result = contained(self._task)
            except Exception as error:  # noqa: BLE001  handed on to the caller
                self._failure = error
            self._task = None  # holds on to nothing of the caller's
            self._done.release()


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

"""A process of its own for foreign code: functions and arrays in, results or an error out.

Code that crashes takes its process along, and code that hangs cannot be stopped within one. A
worker is a child process that runs functions for its parent, one at a time, and can be killed.
The operands of regions travel by shared memory, everything else as JSON and bytes through a pipe:
nothing that a child in disorder may write is more than data to its parent. A worker that has died
is started again by the next call; what it held is gone, which `generation` tells.
"""

from __future__ import annotations

import importlib
import json
import mmap
import os
import resource
import signal
import subprocess
import sys
import threading
import time
import warnings
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from typing import Any, NamedTuple

import numpy as np

from graft.base.callbacks import author_line, text_of
from graft.base.dtypes import Array, DType, dtype_of
from graft.base.errors import BackendError, CrashedError, GraftError
from graft.runtime.guard import FIRST_DEADLINE
from graft.runtime.memory import aligned_size
from graft.runtime.regions import deliver
from graft.runtime.spaces import Runner, with_transfers
from graft.runtime.supervise import contained

_LONGEST_WAIT = 1e6  # seconds, for `poll`, which knows no infinity
_LAST_BREATH = 1.0  # seconds
_START_DEADLINE = 120.0  # seconds; a busy machine may need some


class Message(NamedTuple):
    """A message between parent and child: facts that JSON can hold, and bytes."""

    facts: Any
    blobs: Sequence[bytes] = ()

    def send(self, pipe: Connection) -> None:
        pipe.send_bytes(json.dumps([self.facts, len(self.blobs)]).encode())
        for blob in self.blobs:
            pipe.send_bytes(blob)

    @classmethod
    def receive(cls, pipe: Connection) -> Message:
        facts, count = json.loads(pipe.recv_bytes())
        return cls(facts, [pipe.recv_bytes() for _ in range(count)])


# Runs in the child; found there by its module and name.
Task = Callable[[Message], Message]


class ForeignError(Exception):
    """What was raised in the child; an exception of the original's name is raised here."""


class SharedMemory:
    """Memory of parent and child, by a descriptor that both have; only the parent makes it grow."""

    def __init__(self, descriptor: int) -> None:
        self.descriptor = descriptor
        self._map: mmap.mmap | None = None

    @property
    def size(self) -> int:
        return 0 if self._map is None else len(self._map)

    def reserve(self, size: int) -> None:
        """Make room for so many bytes."""
        if size > self.size:
            room = 1 << max(size - 1, 4095).bit_length()
            os.ftruncate(self.descriptor, room)
            self.follow(room)

    def follow(self, size: int) -> None:
        """Map so many bytes."""
        if size != self.size:
            self._map = mmap.mmap(self.descriptor, size)

    def array(self, slot: _Slot) -> Array:
        offset, shape, dtype = slot
        assert self._map is not None
        return np.ndarray(tuple(shape), DType(dtype).numpy, self._map, offset)


_Slot = tuple[int, Sequence[int], str]  # an array in shared memory: offset, shape, dtype


class Worker:
    """A child process, started by the first call; calls from several threads take turns.

    A fresh interpreter unless `fork`: a fork has all that its parent has, and a driver that the
    parent uses already may not work in it."""

    def __init__(self, fork: bool = False) -> None:
        self.is_fork = fork
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | int | None = None  # a fork is a number
        self._pipe: Connection | None = None
        self._memory: SharedMemory | None = None
        self.generation = 0

    @property
    def is_alive(self) -> bool:
        """Whether it has been started, and has not been found dead since."""
        return self._process is not None

    def call(
        self, task: Task, facts: Any, *blobs: bytes, deadline: float = FIRST_DEADLINE
    ) -> Message:
        """What a task makes of these in the child."""
        with self._lock:
            return self._call(task, Message(facts, blobs), deadline)

    def run(
        self, key: int, inputs: Sequence[Array], outputs: Sequence[Array], deadline: float
    ) -> None:
        """Run what `load_runner` has loaded there as `key`."""
        slots: list[_Slot] = []
        size = 0
        for array in (*inputs, *outputs):
            slots.append((size, array.shape, dtype_of(array.dtype).value))
            size = aligned_size(size + array.nbytes)
        with self._lock:
            if self._process is None:
                raise CrashedError("its process died meanwhile")
            memory = self._started()
            memory.reserve(max(size, 1))
            for array, slot in zip(inputs, slots, strict=False):
                np.copyto(memory.array(slot), array)
            there = slots[: len(inputs)], slots[len(inputs) :]
            self._call(run_loaded, Message([key, memory.size, *there]), deadline)
            for array, slot in zip(outputs, there[1], strict=True):
                np.copyto(array, memory.array(slot))

    def stop(self) -> None:
        """End the process; a later call starts another."""
        with self._lock:
            self._kill()

    def _call(self, task: Task, message: Message, deadline: float) -> Message:
        is_new = self._process is None
        self._started()
        assert self._pipe is not None
        name = f"{task.__module__}:{task.__name__}"
        if is_new:  # to start an interpreter and to import modules does not count
            self._call(_nothing, Message(task.__module__), _START_DEADLINE)
        try:
            Message([name, message.facts], message.blobs).send(self._pipe)
            if not self._pipe.poll(min(deadline, _LONGEST_WAIT)):
                self._kill()
                raise TimeoutError(f"no answer within {deadline:.3g} s; its process was ended")
            (failure, facts), blobs = Message.receive(self._pipe)
        except (EOFError, OSError, ValueError, TypeError) as error:  # nothing, or nonsense
            if isinstance(error, TimeoutError):
                raise
            # what has crashed may still be about to end
            raise CrashedError(f"its process died ({self._kill(_LAST_BREATH)})") from None
        except BaseException:  # interrupted: nobody knows what the next answer is to
            self._kill()
            raise
        if failure == BackendError.__name__:
            raise BackendError(facts)
        if failure:
            raise type(failure, (ForeignError,), {})(facts)
        return Message(facts, blobs)

    def _started(self) -> SharedMemory:
        if self._process is None:
            ours, theirs = Pipe()
            memory = SharedMemory(os.memfd_create("graft-worker"))
            start = _fork if self.is_fork else _spawn
            self._process = start(ours, theirs, memory.descriptor)
            theirs.close()
            self._pipe, self._memory = ours, memory
            self.generation += 1
        assert self._memory is not None
        return self._memory

    def _kill(self, patience: float = 0.0) -> str:
        """End the process, unless it ends by itself in so many seconds, and say how it ended."""
        process, self._process = self._process, None
        if process is None:
            return "not started"
        assert self._pipe is not None
        assert self._memory is not None
        code = _ended(process, patience)
        self._pipe.close()
        os.close(self._memory.descriptor)
        return signal.Signals(-code).name if code < 0 else f"exit code {code}"

    def __del__(self) -> None:
        with suppress(Exception):  # the interpreter may be about to end
            self._kill()


def _spawn(_ours: Connection, theirs: Connection, memory: int) -> subprocess.Popen[bytes]:
    """A fresh interpreter that finds the same modules."""
    path = os.pathsep.join(entry for entry in sys.path if entry)
    descriptors = (theirs.fileno(), memory)
    return subprocess.Popen(
        [sys.executable, "-m", "graft.runtime.worker", *map(str, descriptors)],
        pass_fds=descriptors,
        env={**os.environ, "PYTHONPATH": path},
        stdin=subprocess.DEVNULL,
        stdout=2,  # standard output is the parent's to write
    )


def _fork(ours: Connection, theirs: Connection, memory: int) -> int:
    """A copy of this process."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # threads are not copied, as it warns
        child = os.fork()
    if child == 0:
        try:
            ours.close()
            serve(theirs, SharedMemory(memory))
        finally:
            os._exit(0)
    return child


def _ended(process: subprocess.Popen[bytes] | int, patience: float) -> int:
    """The exit code of a process that is no more after this."""
    if not isinstance(process, int):
        try:
            return process.wait(patience)
        except subprocess.TimeoutExpired:
            process.kill()
            return process.wait()
    latest = time.monotonic() + patience
    while time.monotonic() < latest:
        ended, status = os.waitpid(process, os.WNOHANG)
        if ended:
            return os.waitstatus_to_exitcode(status)
        time.sleep(0.001)
    os.kill(process, signal.SIGKILL)
    return os.waitstatus_to_exitcode(os.waitpid(process, 0)[1])


# In the child.

_memory: SharedMemory | None = None
_loaded: list[Runner] = []


def serve(pipe: Connection, memory: SharedMemory) -> None:
    """Do what the parent asks, until it has gone."""
    global _memory
    _memory = memory
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent decides
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    while True:
        try:
            (name, facts), blobs = Message.receive(pipe)
        except EOFError:
            return
        try:
            module, _, function = name.partition(":")
            task: Task = getattr(importlib.import_module(module), function)
            answer, own = contained(partial(task, Message(facts, blobs)))
            Message(["", answer], own).send(pipe)
        except BaseException as error:  # noqa: BLE001  handed on to the parent
            text = error.message if isinstance(error, GraftError) else text_of(error)
            where = "" if isinstance(error, BackendError) else author_line(error)
            text = f"{text}, at {where}" if where else text
            Message([type(error).__name__, text]).send(pipe)


def _nothing(message: Message) -> Message:
    """Have a module ready."""
    importlib.import_module(message.facts)
    return Message(None)


def keep_runner(runner: Runner) -> Message:
    """Keep a loaded runner for later calls; returns its key."""
    _loaded.append(with_transfers(runner))
    return Message(len(_loaded) - 1)


def run_loaded(message: Message) -> Message:
    """Run what was loaded on arrays in shared memory."""
    key, size, inputs, outputs = message.facts
    assert _memory is not None
    _memory.follow(size)
    arrays = [_memory.array(slot) for slot in outputs]
    results = _loaded[key]([_memory.array(slot) for slot in inputs], arrays)
    deliver(results, arrays, "the region")
    return Message(None)


if __name__ == "__main__":
    from graft.runtime import worker  # the module that tasks are found in, not `__main__`

    worker.serve(Connection(int(sys.argv[1])), SharedMemory(int(sys.argv[2])))

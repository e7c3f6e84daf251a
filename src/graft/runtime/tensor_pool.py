"""Device memory shared by the runs of a program: a pool of tensors, and runs that wait for memory.

A run allocates a tensor from the pool before the first step that uses it, and releases it after the
last. The pool keeps released tensors for later runs, and frees all of them when an allocation on a
device fails, so that it never keeps memory that a run needs.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from threading import Condition, Lock
from typing import Any, NamedTuple

import numpy as np

from graft.runtime.spaces import Device, FullDeviceError
from graft.runtime.supervise import OverdueError


class DeviceTensor(NamedTuple):
    """The device memory that a value requires; tensors of equal kinds are interchangeable."""

    space: str
    shape: tuple[int, ...]
    dtype: np.dtype[Any]


class TensorPool:
    """Unused tensors of devices. `bounded` calls a function of a memory space under a deadline."""

    def __init__(self, bounded: Callable[[str, Callable[[], Any]], Any]) -> None:
        self._bounded = bounded
        self._kept: dict[DeviceTensor, list[Any]] = {}
        self._lock = Lock()

    def allocate(self, kind: DeviceTensor, device: Device) -> Any:
        """A released tensor of the kind, or a new one."""
        with self._lock:
            tensors = self._kept.get(kind)
            if tensors:
                return tensors.pop()
        allocate = partial(device.allocate, kind.shape, kind.dtype)
        while True:
            try:
                return self._bounded(kind.space, allocate)
            except Exception as error:
                is_late = isinstance(error, OverdueError)
                if is_late or not self.clear():
                    raise FullDeviceError(kind.space, is_late) from error

    def release(self, kind: DeviceTensor, tensor: Any) -> None:
        """Return a tensor to the pool."""
        with self._lock:
            self._kept.setdefault(kind, []).append(tensor)

    def clear(self) -> bool:
        """Release everything; returns whether there was anything."""
        with self._lock:
            had_some = any(self._kept.values())
            self._kept = {}
        return had_some


class Occupancy:
    """Counts the runs of a program that hold device memory: a run whose allocation fails can then
    wait until another one has ended, and start again."""

    def __init__(self) -> None:
        self._runs = 0
        self._ended = 0  # runs that have released their memory: at their end, or to wait
        self._change = Condition()

    def enter(self) -> int:
        """Begin a run. Returns the number of ended ones, for `wait`."""
        with self._change:
            self._runs += 1
            return self._ended

    def leave(self) -> None:
        """End a run."""
        with self._change:
            self._runs -= 1
            self._ended += 1
            self._change.notify_all()

    def wait(self, since: int) -> bool:
        """End a run that got no memory and has released its own, and wait until another one ends.
        False if no other run held memory since it began: started again, it would fail again."""
        with self._change:
            self._runs -= 1
            was_alone = self._ended == since
            self._ended += 1
            if self._runs:
                self._change.wait()
                return True
            if was_alone:
                self._change.notify_all()  # what waits has waited for this run
            return not was_alone

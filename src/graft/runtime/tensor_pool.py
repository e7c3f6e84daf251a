"""Memory of devices among the runs of a program: tensors that are used again, and runs that wait.

A run takes a tensor from the pool before the first step that uses it and gives it back behind the
last. The pool keeps what it gets back for the next run, and lets go of all unused memory when a
device has no memory for something else: so a device never holds more than its runs need because of
the pool, unless it has room to spare.
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
    """Memory of a device that a value needs."""

    space: str
    shape: tuple[int, ...]
    dtype: np.dtype[Any]


class TensorPool:
    """Tensors of devices that no run uses at the moment; `bounded` runs what a space is asked
    for."""

    def __init__(self, bounded: Callable[[str, Callable[[], Any]], Any]) -> None:
        self._bounded = bounded
        self._kept: dict[DeviceTensor, list[Any]] = {}
        self._lock = Lock()

    def allocate(self, kind: DeviceTensor, device: Device) -> Any:
        """A tensor that was given back, or a new one."""
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
    """The runs of a program that hold memory of devices: where that is too little for another run,
    it waits for one of them to end."""

    def __init__(self) -> None:
        self._runs = 0
        self._ended = 0  # how many have, or have given back what they held to wait
        self._change = Condition()

    def enter(self) -> int:
        """Begin a run; what it gives is for `wait`."""
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
        """End a run that found no memory, and holds none now. True when it may begin again: another
        one has ended, or the others wait as well; False where it was alone all the time."""
        with self._change:
            self._runs -= 1
            was_alone = self._ended == since
            self._ended += 1
            if self._runs:
                self._change.wait()
                return True
            if was_alone:
                self._change.notify_all()  # they are no better off
            return not was_alone

"""Whether a machine provides its cores in full: a number of threads in, the cores they got out.

On a virtual machine two processors may share one core for seconds at a time, and other work may
take a core. Times taken meanwhile say nothing about a machine with that many cores, and slow down
some contenders more than others.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

import numpy as np

# Arithmetic that takes a core some milliseconds, in memory of its own.
_NUMBERS, _ITERATIONS = 8192, 60
# The share of the requested cores that counts as all of them.
_ENOUGH = 0.8
_PAUSE_SECONDS = 0.5
_ATTEMPTS = 3

T = TypeVar("T")


def cores_given(threads: int) -> float:
    """The number of cores' worth of work that so many threads get done."""
    _busy_seconds(1)  # wakes the processor up
    return threads * _busy_seconds(1) / _busy_seconds(threads)


def _busy_seconds(threads: int) -> float:
    workers = [threading.Thread(target=_work) for _ in range(threads)]
    start = time.perf_counter()
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    return time.perf_counter() - start


def _work() -> None:
    numbers = np.linspace(0.0, 1.0, _NUMBERS)
    results = np.empty_like(numbers)
    for _ in range(_ITERATIONS):
        np.sin(numbers, results)


@dataclass
class Watch:
    """Waits for full cores, for `patience` seconds in total; after that it no longer waits."""

    threads: int
    patience: float
    measure_cores: Callable[[int], float] = cores_given
    lost: float = 0.0

    def wait(self) -> None:
        """Return when the cores are available in full, or patience is used up."""
        start = time.monotonic()
        while not self.holds():
            time.sleep(_PAUSE_SECONDS)
            self.lost += time.monotonic() - start
            start = time.monotonic()

    def holds(self) -> bool:
        """Whether the cores are available in full; always true once waiting has been given up."""
        if self.threads == 1 or self.lost >= self.patience:
            return True
        return self.measure_cores(self.threads) >= _ENOUGH * self.threads

    def measured(self, measure: Callable[[], T]) -> T:
        """The result of a measurement during which cores were available in full, after a few
        attempts."""
        for _ in range(_ATTEMPTS):
            self.wait()
            result = measure()
            if self.holds():
                break
        return result

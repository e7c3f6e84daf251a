"""Detect contention: measure how many cores a number of threads get, and wait until they get all.

On a virtual machine two virtual processors may share a core for seconds at a time, and other
processes may occupy one. Timings during contention are not comparable, because it slows down some
programs more than others.
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
    """The speed-up of so many busy threads over one: the number of cores that they get."""
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
    """Waits while there is contention, for `patience` seconds over all calls; then no longer."""

    threads: int
    patience: float
    measure_cores: Callable[[int], float] = cores_given
    lost: float = 0.0

    def wait(self) -> None:
        """Return when all cores are available, or the patience is used up."""
        start = time.monotonic()
        while not self.holds():
            time.sleep(_PAUSE_SECONDS)
            self.lost += time.monotonic() - start
            start = time.monotonic()

    def holds(self) -> bool:
        """Whether all cores are available; always true once the patience is used up."""
        if self.threads == 1 or self.lost >= self.patience:
            return True
        return self.measure_cores(self.threads) >= _ENOUGH * self.threads

    def measured(self, measure: Callable[[], T]) -> T:
        """The result of a measurement without contention before and after it, or of the last of
        three attempts."""
        for _ in range(_ATTEMPTS):
            self.wait()
            result = measure()
            if self.holds():
                break
        return result

"""Circuit breakers: whether a backend that has failed is to be tried again.

A breaker is closed while all is well. It opens after some failures in a row, or at once after a
grave one, and then refuses all calls. After a while it is half open: one call is let through as a
trial. If that succeeds the breaker closes, otherwise it opens again for twice as long, up to a
limit. The doubled time is forgotten once the backend has proven itself (`settle`).
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from enum import Enum

PATIENCE = 3  # failures in a row
COOLDOWN, LONGEST_COOLDOWN = 5.0, 600.0  # seconds


class Admission(Enum):
    """What a breaker says to a call."""

    REFUSED = 0
    TRIAL = 1  # whether it closes again depends on this call
    GRANTED = 2


class Breaker:
    """One breaker, for any number of threads."""

    def __init__(
        self,
        patience: int = PATIENCE,
        cooldown: float = COOLDOWN,
        longest: float = LONGEST_COOLDOWN,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._patience, self._first, self._longest, self._clock = patience, cooldown, longest, clock
        self._cooldown = cooldown
        self._failures = 0
        self._until: float | None = None  # open until then; None: closed
        self._is_tried = False  # by one call, right now
        self._blocked: Callable[[], bool] | None = None
        self._lock = threading.Lock()

    @property
    def is_open(self) -> bool:
        """Whether a call would be refused now."""
        return self._until is not None and (
            self._is_tried or self._clock() < self._until or self._is_blocked()
        )

    @property
    def seconds_left(self) -> float:
        """How long it stays open yet."""
        return 0.0 if self._until is None else max(self._until - self._clock(), 0.0)

    def admit(self) -> Admission:
        """Ask to make a call; a trial has to be reported by `succeed`, `fail` or `cancel`."""
        if self._until is None:
            return Admission.GRANTED
        with self._lock:
            if self._until is None:
                return Admission.GRANTED
            if self.is_open:
                return Admission.REFUSED
            self._is_tried = True
            return Admission.TRIAL

    def succeed(self) -> None:
        """A call went well; a trial closes the breaker."""
        if self._failures or self._until is not None:
            with self._lock:
                self._failures = 0
                if self._is_tried:
                    self._until, self._is_tried = None, False

    def fail(self, at_once: bool = False, is_over: Callable[[], bool] | None = None) -> None:
        """A call failed. `at_once` opens whatever came before; `is_over` tells whether a call that
        did not answer has ended, before which there is no trial."""
        with self._lock:
            self._failures += 1
            if at_once or self._is_tried or self._failures >= self._patience:
                self._until = self._clock() + self._cooldown
                self._cooldown = min(2 * self._cooldown, self._longest)
                self._is_tried = False
                self._blocked = is_over and (lambda: not is_over())

    def cancel(self) -> None:
        """A trial came to nothing, for reasons that are not the backend's."""
        with self._lock:
            self._is_tried = False

    def settle(self) -> None:
        """Forget that it was open before."""
        self._cooldown = self._first

    def _is_blocked(self) -> bool:
        return self._blocked is not None and self._blocked()

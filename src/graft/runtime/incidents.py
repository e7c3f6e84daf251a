"""Incidents: what foreign backends did wrong while a model ran, kept for its user.

A log keeps the latest incidents and counts all of them, so that a device that fails for days does
not fill the memory.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import StrEnum

from graft.base.errors import GraftWarning
from graft.base.names import LONGEST_LINE, printable

KEPT = 64  # incidents per region


class Fault(StrEnum):
    """What went wrong, by how it was noticed."""

    RAISED = "raised"  # an exception, or results of the wrong number, shape or dtype
    UNWRITTEN = "unwritten"  # an output still held what it was poisoned with
    OVERWROTE = "overwrote"  # an input was changed
    DIFFERS = "differs"  # not what the host computes
    LATE = "late"  # no answer before the deadline
    LOST = "lost"  # the memory of the device cannot be reached
    CRASHED = "crashed"  # its process died
    NOT_LOADED = "not loaded"  # its code cannot be loaded here, or a package is missing


class RegionWarning(GraftWarning):
    """An accelerator failed and the host stood in for it."""

    def __str__(self) -> str:
        return printable(super().__str__(), LONGEST_LINE)


@dataclass(frozen=True, slots=True)
class Incident:
    """A failure of an accelerator: which region of which backend, and what happened.

    `difference` is the largest one from the host's results, where those were compared; `seconds` is
    when it happened (`time.time`)."""

    region: str
    backend: str
    reason: str
    fault: Fault = Fault.RAISED
    difference: float | None = None
    seconds: float = field(default_factory=time.time, compare=False)


class Incidents(list[Incident]):
    """The latest incidents, oldest first; `total` counts those as well that are kept no more."""

    def __init__(self, kept: Iterable[Incident] = (), total: int = 0) -> None:
        super().__init__(kept)
        self.total = total


class IncidentLog:
    """Incidents as they happen, from any thread."""

    def __init__(self) -> None:
        self._kept: deque[Incident] = deque(maxlen=KEPT)
        self._total = 0
        self._lock = threading.Lock()

    def add(self, incident: Incident) -> None:
        with self._lock:
            self._kept.append(incident)
            self._total += 1

    def snapshot(self) -> Incidents:
        with self._lock:
            return Incidents(self._kept, self._total)


def merged(logs: Iterable[IncidentLog]) -> Incidents:
    """The incidents of several logs, in order of time."""
    parts = [log.snapshot() for log in logs]
    together = sorted((one for part in parts for one in part), key=lambda one: one.seconds)
    return Incidents(together, sum(part.total for part in parts))

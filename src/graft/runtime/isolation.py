"""Regions in processes of their own: a worker and code in, a runner out."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Any

from graft.base.dtypes import Array
from graft.base.errors import UserError
from graft.runtime.guard import FIRST_DEADLINE
from graft.runtime.worker import Task, Worker

ISOLATIONS = ("none", "process")


def check_isolation(isolation: str) -> str:
    """The way in which a backend is isolated, if there is such a way."""
    if isolation not in ISOLATIONS:
        raise UserError(f"isolation is one of {', '.join(ISOLATIONS)}, not '{isolation}'")
    return isolation


class IsolatedRunner:
    """Runs code in a worker; `load` makes its runner there of facts and bytes.

    A worker that has been started again is given the code again. Tensors are copied to shared
    memory and back, and a device is the worker's own affair."""

    keeps_deadlines = True

    def __init__(self, worker: Worker, load: Task, facts: Any, code: bytes) -> None:
        self._worker, self._load, self._facts, self._code = worker, load, facts, code
        self._lock = threading.Lock()
        self._key, self._generation = 0, 0

    def prepare(self, deadline: float = FIRST_DEADLINE) -> None:
        """Load the code, unless the worker has it."""
        with self._lock:
            if self._generation != self._worker.generation or not self._generation:
                message = self._worker.call(self._load, self._facts, self._code, deadline=deadline)
                self._key = message.facts
                self._generation = self._worker.generation

    def __call__(
        self, inputs: Sequence[Array], outputs: Sequence[Array], deadline: float = FIRST_DEADLINE
    ) -> None:
        self.prepare(max(deadline, FIRST_DEADLINE))
        self._worker.run(self._key, inputs, outputs, deadline)

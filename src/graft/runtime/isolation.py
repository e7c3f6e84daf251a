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

    def __init__(
        self,
        worker: Worker,
        load: Task,
        facts: Any,
        code: bytes,
        deadline: float = FIRST_DEADLINE,
    ) -> None:
        self._worker, self._load, self._facts, self._code = worker, load, facts, code
        self._deadline = deadline  # for loading, and for runs without one
        self._lock = threading.Lock()
        self._key, self._generation = 0, 0

    def prepare(self) -> None:
        """Load the code, unless the worker has it."""
        with self._lock:
            if self._generation != self._worker.generation or not self._worker.is_alive:
                message = self._worker.call(
                    self._load, self._facts, self._code, deadline=self._deadline
                )
                self._key, self._generation = message.facts, self._worker.generation

    def __call__(
        self, inputs: Sequence[Array], outputs: Sequence[Array], deadline: float | None = None
    ) -> None:
        self.prepare()
        seconds = self._deadline if deadline is None else deadline
        self._worker.run(self._key, inputs, outputs, seconds)

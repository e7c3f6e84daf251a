"""Regions at run time: the accelerator's code, and the host's where that fails.

A region that raises, answers in the wrong shape or takes longer than its deadline is run again on
the host within the same inference, so that results stay right. Whoever runs the model is told by a
warning and in `incidents`. After repeated failures a circuit breaker stops trying.
"""

from __future__ import annotations

import threading
import time
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np

from graft.base.dtypes import Array, dtype_of
from graft.base.errors import EvaluationError, UserError

# Called with inputs and memory for the outputs; returns None, or arrays to copy there.
Runner = Callable[[Sequence[Array], Sequence[Array]], "Sequence[Array] | None"]

FALLBACKS = ("host", "error")


class RegionWarning(UserWarning):
    """An accelerator failed and the host stood in for it."""


@dataclass(frozen=True, slots=True)
class Incident:
    """A failure of an accelerator: which region of which backend, and what happened."""

    region: str
    backend: str
    reason: str


@dataclass(frozen=True, slots=True)
class Policy:
    """What to do about failures: `host` runs the region there, `error` raises.

    A region gets `deadline` seconds if there is one; it then runs in a thread and memory of its
    own, which costs a copy. The breaker opens after `patience` failures in a row, and at once
    after a missed deadline.
    """

    fallback: str = "host"
    deadline: float | None = None
    patience: int = 3

    def __post_init__(self) -> None:
        if self.fallback not in FALLBACKS:
            raise UserError(f"fallback is one of {', '.join(FALLBACKS)}, not '{self.fallback}'")


@dataclass
class Region:
    """A region, ready to run. `on_host` makes the host's runner when it is first needed."""

    name: str
    backend: str
    runner: Runner
    on_host: Callable[[], Runner] | None
    policy: Policy = Policy()
    incidents: list[Incident] = field(default_factory=list)
    open: bool = False  # the breaker: the accelerator is not tried any more
    _failures: int = 0
    _host: Runner | None = None
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def __call__(self, inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
        if not self.open:
            try:
                self._accelerated(inputs, outputs)
            except Exception as error:  # noqa: BLE001  whatever an accelerator raises
                self._failed(error)
            else:
                self._failures = 0
                return
        deliver(self._host_runner()(inputs, outputs), outputs, self.name)

    def _accelerated(self, inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
        deadline = self.policy.deadline
        if deadline is None:
            deliver(self.runner(inputs, outputs), outputs, self.name)
            return
        own_inputs = [array.copy() for array in inputs]
        own_outputs = [np.empty_like(array) for array in outputs]
        within(deadline, lambda: self._complete(own_inputs, own_outputs))
        for home, array in zip(outputs, own_outputs, strict=True):
            home[...] = array

    def _complete(self, inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
        deliver(self.runner(inputs, outputs), outputs, self.name)

    def _failed(self, error: Exception) -> None:
        reason = f"{type(error).__name__}: {error}"
        with self._lock:
            self.incidents.append(Incident(self.name, self.backend, reason))
            self._failures += 1
            self.open = self._failures >= self.policy.patience or isinstance(error, TimeoutError)
            given_up = self.open
        if self.policy.fallback == "error" or self.on_host is None:
            raise EvaluationError(
                f"the region '{self.name}' failed on {self.backend}: {reason}",
                hint="fallback='host' runs it on the host instead",
            ) from error
        then = "is not tried again" if given_up else "was run on the host"
        message = f"the region '{self.name}' failed on {self.backend} and {then}: {reason}"
        warnings.warn(message, RegionWarning, stacklevel=4)

    def _host_runner(self) -> Runner:
        with self._lock:
            if self._host is None:
                if self.on_host is None:
                    raise EvaluationError(f"the region '{self.name}' has no code for the host")
                self._host = self.on_host()
            return self._host


def within(seconds: float, task: Callable[[], None]) -> None:
    """Run a task in a thread of its own; raises TimeoutError when it takes too long."""
    failure: list[BaseException] = []

    def guarded() -> None:
        try:
            task()
        except BaseException as error:  # noqa: BLE001  handed on to the caller
            failure.append(error)

    thread = threading.Thread(target=guarded, daemon=True, name="graft-region")
    started = time.monotonic()
    thread.start()
    thread.join(seconds)
    if thread.is_alive():
        raise TimeoutError(f"no answer within {time.monotonic() - started:.3g} s")
    if failure:
        raise failure[0]


def deliver(results: Sequence[Array] | None, outputs: Sequence[Array], name: str) -> None:
    """Copy results home that were returned; refuses what does not fit."""
    if results is None:
        return
    if len(results) != len(outputs):
        raise EvaluationError(f"'{name}' gave {len(results)} results instead of {len(outputs)}")
    for index, (result, home) in enumerate(zip(results, outputs, strict=True)):
        array = np.asarray(result)
        if array is home:
            continue
        if array.dtype != home.dtype or array.shape != home.shape:
            raise EvaluationError(
                f"result {index} of '{name}' is {_shown(array)} instead of {_shown(home)}"
            )
        home[...] = array


def _shown(array: Array) -> str:
    return f"{dtype_of(array.dtype)}[{', '.join(map(str, array.shape))}]"

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
from typing import Any, NamedTuple

import numpy as np

from graft.base.dtypes import Array, dtype_of
from graft.base.errors import EvaluationError, GraftWarning, UserError
from graft.runtime.spaces import Device, Runner, device_of, is_simulated, refuse_arrays

HOME = "host"  # the memory space that every value can be brought to
FALLBACKS = ("host", "error")


class RegionWarning(GraftWarning):
    """An accelerator failed and the host stood in for it."""


class LostDeviceError(Exception):
    """What is in the memory of a device is lost; the inference has to begin again without it."""

    def __init__(self, space: str = "") -> None:
        super().__init__(f"the memory '{space}' is lost")
        self.space = space


class Spent(NamedTuple):
    """Seconds of one call: bringing values to the region and back, getting it to start, computing.
    `simulated` says that they are a model's."""

    transfer: float
    launch: float
    execution: float
    simulated: bool = False

    def with_transfer(self, seconds: float) -> Spent:
        """The same and some more on the way."""
        return self._replace(transfer=self.transfer + seconds)

    def with_launch(self, total: float) -> Spent:
        """The same where what is left of the whole went into getting started."""
        if self.simulated or not self.execution:
            return self
        return self._replace(launch=max(total - self.transfer - self.execution, 0.0))


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
    """A region, ready to run. `on_host` makes the host's runner when it is first needed.

    Operands are arrays or, where the runner has a device, what lies in the memory of that."""

    name: str
    backend: str
    runner: Runner
    on_host: Callable[[], Runner] | None
    policy: Policy = Policy()
    incidents: list[Incident] = field(default_factory=list)
    open: bool = False  # the breaker: the accelerator is not tried any more
    space: str = HOME  # the memory that its device has
    device: Device | None = None
    _failures: int = 0
    _host: Runner | None = None
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def __post_init__(self) -> None:
        self.device = self.device or device_of(self.runner)
        self.simulated = is_simulated(self.runner)
        if self.simulated:
            runner: Any = self.runner
            self._modelled = Spent(0.0, runner.launch_seconds, runner.seconds, simulated=True)

    def __call__(self, inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
        if self.attempt(inputs, outputs) is None:
            self.stand_in(inputs, outputs)

    def attempt(self, inputs: Sequence[Any], outputs: Sequence[Any]) -> Spent | None:
        """Run on the accelerator and tell where the time went, as far as that can be told from
        here; None where the host has to stand in."""
        if self.open:
            return None
        try:
            spent = self._accelerated(inputs, outputs)
        except (Exception, SystemExit) as error:  # whatever an accelerator raises
            self.failed(error)
            if self.device is not None and isinstance(error, TimeoutError):
                # what did not answer may yet write into the device's memory
                raise LostDeviceError from error
            return None
        self._failures = 0
        return spent

    def stand_in(self, inputs: Sequence[Array], outputs: Sequence[Array]) -> Spent:
        """Run on the host, on arrays in its memory."""
        runner = self._host_runner()
        begun = time.perf_counter()
        deliver(runner(inputs, outputs), outputs, self.name)
        return Spent(0.0, 0.0, time.perf_counter() - begun)

    def failed(self, error: BaseException) -> None:
        """Record what happened and warn of it; raises where the host is not to stand in."""
        reason = f"{type(error).__name__}: {error}"
        with self._lock:
            self.incidents.append(Incident(self.name, self.backend, reason))
            self._failures += 1
            if self._failures >= self.policy.patience or isinstance(error, TimeoutError):
                self.open = True
            given_up = self.open
        if self.policy.fallback == "error" or self.on_host is None:
            raise EvaluationError(
                f"the region '{self.name}' failed on {self.backend}: {reason}",
                hint="fallback='host' runs it on the host instead",
            ) from error
        then = "is not tried again" if given_up else "was run on the host"
        message = f"the region '{self.name}' failed on {self.backend} and {then}: {reason}"
        warnings.warn(message, RegionWarning, stacklevel=5)

    def transfer_seconds(self, size: int) -> float:
        """What a simulated device would take for so many bytes."""
        device: Any = self.device
        seconds: float = device.transfer_seconds(size)
        return seconds

    def _accelerated(self, inputs: Sequence[Any], outputs: Sequence[Any]) -> Spent:
        deadline = self.policy.deadline
        if deadline is None:
            return self._complete(inputs, outputs)
        spent: list[Spent] = []
        if self.device is not None:
            within(deadline, lambda: spent.append(self._complete(inputs, outputs)))
            return spent[0]
        begun = time.perf_counter()
        own_inputs = [array.copy() for array in inputs]
        own_outputs = [np.empty_like(array) for array in outputs]
        copied = time.perf_counter()
        within(deadline, lambda: spent.append(self._complete(own_inputs, own_outputs)))
        ended = time.perf_counter()
        for home, array in zip(outputs, own_outputs, strict=True):
            home[...] = array
        transfer = copied - begun + time.perf_counter() - ended
        return spent[0] if spent[0].simulated else spent[0].with_transfer(transfer)

    def _complete(self, inputs: Sequence[Any], outputs: Sequence[Any]) -> Spent:
        begun = time.perf_counter()
        results = self.runner(inputs, outputs)
        ended = time.perf_counter()
        copying = 0.0
        if self.device is not None:
            refuse_arrays(results)
        elif results is not None:
            deliver(results, outputs, self.name)
            copying = time.perf_counter() - ended
        if self.simulated:
            return self._modelled
        return Spent(copying, 0.0, ended - begun)

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

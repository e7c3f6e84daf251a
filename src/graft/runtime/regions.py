"""Regions at run time: the accelerator's code, and the host's beside it.

How a region runs on either is told here; whether what it gives is to be believed, and what happens
where it is not, is its guard's affair (`guard.py`).
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from graft.base.dtypes import Array, DType, array_type
from graft.base.errors import EvaluationError
from graft.runtime.breaker import Breaker
from graft.runtime.guard import AbandonedError, Guard, Policy
from graft.runtime.incidents import Fault, Incidents, RegionWarning, merged
from graft.runtime.spaces import (
    HOST_MEMORY,
    Device,
    OperandMemory,
    Runner,
    TimeSpent,
    device_of,
    is_simulated,
    refuse_arrays,
    rounding_of,
    with_transfers,
)

HOST_SPACE = "host"  # the memory space that every value can be brought to


@dataclass
class Region:
    """A region, ready to run. `on_host` makes the host's runner when it is first needed.

    `device_breaker` is the one of its backend's device, which the regions of a model share. A
    region whose code could not be loaded has no runner, and a `loader` for when it is tried."""

    name: str
    backend: str
    runner: Runner | None
    on_host: Callable[[], Runner] | None
    policy: Policy = field(default_factory=Policy)
    space: str = HOST_SPACE  # the memory that its device has
    device: Device | None = None
    device_breaker: Breaker = field(default_factory=Breaker)
    loader: Callable[[], Runner] | None = None
    _host: Runner | None = None
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def __post_init__(self) -> None:
        self.guard = Guard(self.policy, self.device_breaker)
        self.simulated = self.keeps_deadlines = False
        self.rounding = DType.FLOAT32
        if self.runner is not None:
            self._adopt(self.runner)

    def _adopt(self, runner: Any) -> None:
        self.runner, self.device = runner, self.device or device_of(runner)
        self._with_transfers = with_transfers(runner)
        self.keeps_deadlines = bool(getattr(runner, "keeps_deadlines", False))
        self.simulated, self.rounding = is_simulated(runner), rounding_of(runner)

    @property
    def open(self) -> bool:
        """Whether the breaker is: the accelerator is not tried for the time being."""
        return self.guard.is_open

    @property
    def incidents(self) -> Incidents:
        """What went wrong at run time."""
        return self.guard.log.snapshot()

    @property
    def has_host(self) -> bool:
        """Whether there is code of the host's to compare with and to fall back on."""
        return self.on_host is not None

    def __call__(self, inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
        """Run on arrays in the host's memory, which are the caller's to keep: what answers late
        does not write there."""
        while True:
            own = HOST_MEMORY.empty(outputs)
            try:
                self.run(inputs, own)
            except AbandonedError as error:
                if error.error is not None:
                    raise error.error from error
                continue  # without the accelerator
            HOST_MEMORY.store(own, outputs)
            return

    def run(
        self,
        inputs: Sequence[Any],
        outputs: Sequence[Any],
        memory: OperandMemory = HOST_MEMORY,
    ) -> TimeSpent:
        """Run under guard, on operands in some memory.

        Raises `AbandonedError` where the outputs must not be used again."""
        return self.guard.run(self, inputs, outputs, memory)

    def failed(self, error: BaseException, fault: Fault | None = None) -> None:
        """Record a failure that was noticed elsewhere."""
        self.guard.fail(self, error, fault)

    def accelerate(
        self,
        inputs: Sequence[Any],
        outputs: Sequence[Any],
        in_host_memory: bool,
        deadline: float | None = None,
    ) -> TimeSpent:
        """Run on the accelerator, and tell where the time went as far as that can be told from
        here. Operands in host memory are copied to its device where it has one."""
        if self.loader is not None:
            self._adopt(self.loader())
            self.loader = None
        runner: Any = self._with_transfers if in_host_memory else self.runner
        # lists and arrays of its own, for it may take the former apart and reshape the latter
        inputs, outputs = list(map(_handed_over, inputs)), list(map(_handed_over, outputs))
        arguments = inputs.copy(), outputs.copy()
        start = time.perf_counter()
        results = runner(*arguments, *(() if deadline is None else (deadline,)))
        end = time.perf_counter()
        copying = 0.0
        if not in_host_memory:
            refuse_arrays(results)
        elif results is not None:
            deliver(results, outputs, self.name)
            copying = time.perf_counter() - end
        if self.simulated:
            return _modelled(self.runner, outputs)
        return TimeSpent(copying, 0.0, end - start)

    def compute(self, inputs: Sequence[Array], outputs: Sequence[Array]) -> TimeSpent:
        """Run on the host, on arrays in its memory."""
        runner = self.host_runner()
        start = time.perf_counter()
        self.deliver(runner(inputs, outputs), outputs)
        return TimeSpent(0.0, 0.0, time.perf_counter() - start)

    def deliver(self, results: Sequence[Array] | None, outputs: Sequence[Array]) -> None:
        """Copy results that were returned instead of written into `outputs`."""
        deliver(results, outputs, self.name)

    def host_runner(self) -> Runner:
        """What runs the region on the host; made when it is first needed."""
        with self._lock:
            if self._host is None:
                if self.on_host is None:
                    raise EvaluationError(f"the region '{self.name}' has no code for the host")
                self._host = self.on_host()
            return self._host

    def transfer_seconds(self, size: int) -> float:
        """What a simulated device would take for so many bytes."""
        device: Any = self.device
        seconds: float = device.transfer_seconds(size)
        return seconds


def incidents_of(regions: Mapping[str, Region]) -> Incidents:
    """What went wrong in a model's regions, in order of time."""
    return merged(region.guard.log for region in regions.values())


def deliver(results: Sequence[Array] | None, outputs: Sequence[Array], name: str) -> None:
    """Copy returned results into `outputs`; refuses another dtype or shape."""
    if results is None:
        return
    if len(results) != len(outputs):
        raise EvaluationError(f"'{name}' gave {len(results)} results instead of {len(outputs)}")
    for index, (result, buffer) in enumerate(zip(results, outputs, strict=True)):
        array = np.asarray(result)
        if array is buffer:
            continue
        if array.dtype != buffer.dtype or array.shape != buffer.shape:
            raise EvaluationError(
                f"result {index} of '{name}' is {array_type(array)} instead of {array_type(buffer)}"
            )
        buffer[...] = array


def _modelled(runner: Any, outputs: Sequence[Any]) -> TimeSpent:
    """The time of a run by the model of a simulated device."""
    calls = runner.calls(outputs) if hasattr(runner, "calls") else 1
    return TimeSpent(0.0, calls * runner.launch_seconds, calls * runner.seconds, simulated=True)


def _handed_over(operand: Any) -> Any:
    """An operand for foreign code: the same memory as another array, or what a device gave."""
    return operand.view() if isinstance(operand, np.ndarray) else operand


__all__ = ["HOST_SPACE", "Policy", "Region", "RegionWarning", "deliver", "incidents_of"]

"""The guard of a region: every run of foreign code goes through it, and what it gives is checked.

A run has to answer before its deadline, without an exception, in the right shapes; its outputs have
to be written, its inputs left alone, and its numbers what the host's are. All results get a cheap
look (`comparison.py`); the first runs, and later ones within a budget, are compared with a run on
the host (a shadow run). A region that is caught is replaced by the host within that inference, an
incident is recorded, the user is warned, and the breaker opens. When it is half open, the trial is
compared with the host, and so are the first runs after it.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import count
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from graft.base.callbacks import described
from graft.base.compare import moved
from graft.base.dtypes import Array, DType, array_types
from graft.base.errors import CrashedError, EvaluationError, GraftError, UserError, warn_user
from graft.runtime.breaker import Admission, Breaker
from graft.runtime.comparison import find_difference, poison, suspicion, unwritten
from graft.runtime.incidents import Fault, Incident, IncidentLog, RegionWarning
from graft.runtime.memory import aligned_copy
from graft.runtime.spaces import HOST_MEMORY, LostDeviceError, OperandMemory, TimeSpent
from graft.runtime.supervise import OverdueError, contained, within

if TYPE_CHECKING:
    from graft.runtime.regions import Region

T = TypeVar("T")

FALLBACKS = ("host", "error")
VERIFICATIONS = ("sample", "always", "off")

FIRST_RUNS = 3  # that are compared with the host, and after a breaker has closed again
# Shares of a region's own time that looks and shadow runs may take, beyond the first runs. They are
# small, since a supervised call takes some 20 µs besides, and up to 80 µs where the region has used
# the caches for itself: that alone is near 1 % of a short network.
LOOK_SHARE, SHADOW_SHARE = 0.001, 0.001
# After so many suspicions that the host did not share, shadow runs for them count as sampled ones.
_FALSE_ALARMS = 3
# The default deadline: so many times the longest run so far, at least some seconds, since devices
# wake up and caches fill; until a run has been measured, a minute.
DEADLINE_FACTOR, LEAST_DEADLINE, FIRST_DEADLINE = 100.0, 10.0, 60.0
# After these, one failure opens the breaker; of these, those of the device concern all its regions.
_GRAVE = frozenset(Fault) - {Fault.RAISED}
_OF_DEVICE = frozenset((Fault.LATE, Fault.LOST, Fault.CRASHED))


@dataclass(frozen=True, slots=True)
class Policy:
    """How regions are guarded.

    `fallback` says what happens when one fails: `host` runs it there, `error` raises. `deadline` is
    how many seconds a run may take, by default a multiple of what it took before; none for
    infinity. `verify` says when results are compared with the host's: `sample` the first runs and
    some later ones, `always` or `off`."""

    fallback: str = "host"
    deadline: float | None = None
    verify: str = "sample"

    def __post_init__(self) -> None:
        _refuse_other("fallback", self.fallback, FALLBACKS)
        _refuse_other("verify", self.verify, VERIFICATIONS)
        if self.deadline is not None and not self.deadline > 0:
            raise UserError(f"deadline={self.deadline}: a region needs some time to answer")


def _refuse_other(name: str, value: str, choices: Sequence[str]) -> None:
    if value not in choices:
        raise UserError(f"{name} is one of {', '.join(choices)}, not '{value}'")


class AbandonedError(Exception):
    """A region did not answer and may yet write into its outputs: the inference has to begin again
    in other memory. `error` is what to raise instead, where the host is not to stand in."""

    def __init__(self, error: GraftError | None) -> None:
        super().__init__("a region may yet write into this memory")
        self.error = error


class RegionError(EvaluationError):
    """A region failed, and the host is not to stand in for it."""


class CaughtError(Exception):
    """Results that are not to be believed; `expected` are the host's, if it has been asked."""

    def __init__(
        self,
        fault: Fault,
        reason: str,
        difference: float | None = None,
        expected: Sequence[Array] | None = None,
    ) -> None:
        super().__init__(reason)
        self.fault, self.difference, self.expected = fault, difference, expected


class Guard:
    """The state of a region's guard, and the way of a guarded run.

    `device_breaker` is shared by the regions of one backend: what does not answer one of them would
    not answer the others."""

    def __init__(self, policy: Policy, device_breaker: Breaker | None = None) -> None:
        self.policy = policy
        self.breaker = Breaker()
        self.device_breaker = device_breaker or Breaker()
        self.log = IncidentLog()
        self._deadline = _Deadline(policy.deadline)
        self._budget = _Budget(policy.verify)
        self._false_alarms = 0
        self._looks = count()

    @property
    def is_open(self) -> bool:
        """Whether the host stands in without a try."""
        return self.breaker.is_open or self.device_breaker.is_open

    def start_over(self) -> None:
        """Check the next runs as the first ones are."""
        self._budget.first = FIRST_RUNS

    def run(
        self,
        region: Region,
        inputs: Sequence[Any],
        outputs: Sequence[Any],
        memory: OperandMemory = HOST_MEMORY,
    ) -> TimeSpent:
        """Run a region on operands in some memory, on the accelerator or else on the host."""
        admission = self._admit()
        if admission is Admission.REFUSED:
            return self._stand_in(region, inputs, outputs, memory)
        try:
            spent = self._checked(region, inputs, outputs, memory, admission is Admission.TRIAL)
        except (LostDeviceError, RegionError):
            raise  # reported where it was noticed
        except Exception as error:  # noqa: BLE001  whatever an accelerator raises
            return self._recover(region, error, inputs, outputs, memory)
        except BaseException:  # an interrupt, which says nothing of the accelerator
            self.breaker.cancel()
            self.device_breaker.cancel()
            raise
        self.breaker.succeed()
        self.device_breaker.succeed()
        return spent

    def transfer(self, region: Region, task: Callable[[], None], space: str) -> None:
        """Copy to or from the memory of a device, within the deadline; a device that fails is
        lost."""
        self._reach(region, space, task)

    def bounded(self, task: Callable[[], T]) -> T:
        """What a device is asked for, within the deadline."""
        return _bounded(self._deadline.seconds(()), task)

    @property
    def is_supervised(self) -> bool:
        """Whether there is a deadline, after which foreign code may still be running."""
        return self.policy.deadline is None or not math.isinf(self.policy.deadline)

    def fail(
        self,
        region: Region,
        error: BaseException,
        fault: Fault | None = None,
        operands: Sequence[Any] = (),
    ) -> None:
        """Record what happened, on which operands, and warn of it; raises where the host is not to
        stand in."""
        fault = fault or _fault_of(error)
        types = array_types(operands) if fault is Fault.RAISED else ""
        reason = str(error) if isinstance(error, CaughtError) else described(error, types)
        difference = error.difference if isinstance(error, CaughtError) else None
        incident = Incident(region.name, region.backend, reason, fault, difference)
        self.start_over()
        self.log.add(incident)
        if self.policy.fallback == "error" or not region.has_host:
            # without a breaker, which would let the host stand in next time
            raise RegionError(
                f"the region '{region.name}' failed on {region.backend}: {reason}",
                hint="fallback='host' runs it on the host instead",
            ) from error
        is_over = error.is_over if isinstance(error, OverdueError) else None
        self.breaker.fail(fault in _GRAVE, is_over)
        if fault in _OF_DEVICE:
            self.device_breaker.fail(at_once=True, is_over=is_over)
        else:
            self.device_breaker.succeed()  # it did answer
        warn_user(self._message(region, fault, reason), RegionWarning)

    def _message(self, region: Region, fault: Fault, reason: str) -> str:
        """What happened, in a sentence."""
        if fault is Fault.NOT_LOADED:  # nothing has failed: something is missing here
            return f"the region '{region.name}' runs on the host: {reason}"
        left = self.breaker.seconds_left
        then = f"is left to the host for {left:.3g} s" if left else "was run on the host"
        return f"the region '{region.name}' failed on {region.backend} and {then}: {reason}"

    def _admit(self) -> Admission:
        device = self.device_breaker.admit()
        if device is Admission.REFUSED:
            return device
        own = self.breaker.admit()
        if own is Admission.REFUSED and device is Admission.TRIAL:
            self.device_breaker.cancel()
        return device if own is Admission.GRANTED else own

    def _checked(
        self,
        region: Region,
        inputs: Sequence[Any],
        outputs: Sequence[Any],
        memory: OperandMemory,
        is_trial: bool,
    ) -> TimeSpent:
        """Run on the accelerator; raises where the results are not to be believed."""
        budget = self._budget
        is_first = budget.first > 0
        if region.has_host and (is_trial or budget.is_shadow_due()):
            spent = self._run_both(region, inputs, outputs, memory)
        else:
            in_host_memory = memory is HOST_MEMORY
            if is_first and in_host_memory:
                poison(outputs)
            spent = self._run_accelerated(region, inputs, outputs, memory)
            if in_host_memory and (is_first or budget.is_look_due()):
                self._look(region, inputs, outputs, is_first)
        if is_first:
            budget.first = max(budget.first - 1, 0)  # other threads count, too
            if not budget.first:
                self.breaker.settle()
                self.device_breaker.settle()
        return spent

    def _run_both(
        self,
        region: Region,
        inputs: Sequence[Any],
        outputs: Sequence[Any],
        memory: OperandMemory,
    ) -> TimeSpent:
        """Run on the accelerator and on the host, and compare."""
        host = region.host_runner()  # which may have to be made first
        start = time.perf_counter()
        operands = self._reach(region, memory.space, lambda: memory.copies(inputs, memory.inputs))
        expected = memory.empty(outputs)
        poison(expected)
        self._reach(region, memory.space, lambda: memory.store(expected, outputs))
        started = time.perf_counter()
        try:
            spent = self._run_accelerated(region, inputs, outputs, memory)
        except OverdueError:
            raise  # it may be at its inputs yet
        except Exception:
            self._restore(region, inputs, operands, memory)
            raise
        end = time.perf_counter()
        results = self._reach(region, memory.space, lambda: memory.arrays(outputs, memory.outputs))
        if self._restore(region, inputs, operands, memory):
            raise CaughtError(Fault.OVERWROTE, "it wrote over its inputs")
        region.deliver(host(operands, expected), expected)
        self._compare(region, operands, results, expected)
        seconds = time.perf_counter() - start
        self._budget.count_shadow(seconds - (end - started))
        return spent

    def _restore(
        self,
        region: Region,
        inputs: Sequence[Any],
        operands: Sequence[Array],
        memory: OperandMemory,
    ) -> bool:
        """Restore inputs that have changed; returns whether any had."""
        present = self._reach(region, memory.space, lambda: memory.arrays(inputs, memory.inputs))
        has_changed = not all(map(_same_bytes, present, operands))
        if has_changed:
            self._reach(region, memory.space, lambda: memory.store(operands, inputs))
        return has_changed

    def _look(
        self, region: Region, inputs: Sequence[Array], outputs: Sequence[Array], is_poisoned: bool
    ) -> None:
        """A cheap look at the results; where they are odd the host is asked."""
        start = time.perf_counter()
        missing = unwritten(outputs) if is_poisoned else ""
        if missing:
            raise CaughtError(Fault.UNWRITTEN, missing)
        odd = suspicion(outputs, next(self._looks))
        self._budget.count_look(time.perf_counter() - start)
        if not odd or not region.has_host:
            return
        if self._false_alarms >= _FALSE_ALARMS and not self._budget.affords_shadow():
            return
        host = region.host_runner()
        start = time.perf_counter()
        expected = HOST_MEMORY.empty(outputs)
        region.deliver(host(inputs, expected), expected)
        self._compare(region, inputs, outputs, expected)
        self._false_alarms += 1
        self._budget.count_shadow(time.perf_counter() - start)

    def _compare(
        self,
        region: Region,
        inputs: Sequence[Array],
        results: Sequence[Array],
        expected: Sequence[Array],
    ) -> None:
        difference = find_difference(results, expected, region.rounding)
        if difference is not None and region.rounding is not DType.FLOAT32:
            nearby = _nearby(region, inputs, expected)
            difference = find_difference(results, expected, region.rounding, nearby)
        if difference is not None:
            missing = unwritten(results)
            fault = Fault.UNWRITTEN if missing else Fault.DIFFERS
            raise CaughtError(fault, missing or difference.text, difference.largest, expected)

    def _run_accelerated(
        self,
        region: Region,
        inputs: Sequence[Any],
        outputs: Sequence[Any],
        memory: OperandMemory,
    ) -> TimeSpent:
        """Run on the accelerator, within the deadline."""
        operands = (*inputs, *outputs)
        seconds = self._deadline.seconds(operands)
        in_host_memory = memory is HOST_MEMORY
        start = time.perf_counter()
        if region.keeps_deadlines:
            spent = contained(partial(region.accelerate, inputs, outputs, in_host_memory, seconds))
        else:
            spent = _bounded(seconds, partial(region.accelerate, inputs, outputs, in_host_memory))
        seconds_spent = time.perf_counter() - start
        self._deadline.count(seconds_spent, operands)
        self._budget.count_run(seconds_spent)
        return spent

    def _recover(
        self,
        region: Region,
        error: BaseException,
        inputs: Sequence[Any],
        outputs: Sequence[Any],
        memory: OperandMemory,
    ) -> TimeSpent:
        """After a failure: the host's results in place of the accelerator's."""
        is_late = isinstance(error, OverdueError)
        try:
            self.fail(region, error, operands=inputs)
        except RegionError as raised:
            if is_late and memory is HOST_MEMORY:
                raise AbandonedError(raised) from error
            raise
        if is_late:  # what did not answer may yet write into its outputs
            if memory is HOST_MEMORY:
                raise AbandonedError(None) from error
            raise LostDeviceError(memory.space) from error
        expected = error.expected if isinstance(error, CaughtError) else None
        return self._stand_in(region, inputs, outputs, memory, expected)

    def _stand_in(
        self,
        region: Region,
        inputs: Sequence[Any],
        outputs: Sequence[Any],
        memory: OperandMemory,
        expected: Sequence[Array] | None = None,
    ) -> TimeSpent:
        """Run on the host, unless its results are known already."""
        start = time.perf_counter()
        execution = 0.0
        if expected is None:
            if memory is HOST_MEMORY:
                return region.compute(inputs, outputs)
            operands = self._reach(
                region, memory.space, lambda: memory.arrays(inputs, memory.inputs)
            )
            expected = memory.empty(outputs)
            execution = region.compute(operands, expected).execution
        known = expected
        self._reach(region, memory.space, lambda: memory.store(known, outputs))
        return TimeSpent(time.perf_counter() - start - execution, 0.0, execution)

    def _reach(self, region: Region, space: str, task: Callable[[], T]) -> T:
        """Read or write operands; a device that fails, or is late, is lost."""
        if not space:  # the host's memory
            return task()
        try:
            return self.bounded(task)
        except Exception as error:
            self.fail(region, error, Fault.LOST)
            raise LostDeviceError(space, isinstance(error, OverdueError)) from error


def _nearby(region: Region, inputs: Sequence[Array], expected: Sequence[Array]) -> Sequence[Array]:
    """The host's results on inputs changed in the last bit that the accelerator keeps."""
    draw = np.random.default_rng(0)
    results = HOST_MEMORY.empty(expected)
    changed = [aligned_copy(moved(draw, one, region.rounding)) for one in inputs]
    region.deliver(region.host_runner()(changed, results), results)
    return results


class _Deadline:
    """How long a run may take: as asked, or by what runs took before."""

    def __init__(self, seconds: float | None) -> None:
        self._asked = seconds
        self._longest, self._bytes = 0.0, 1

    def seconds(self, operands: Sequence[Any]) -> float:
        """For operands of this size; time is taken to grow with their bytes."""
        if self._asked is not None:
            return self._asked
        if not self._longest:
            return FIRST_DEADLINE
        growth = max(_bytes_of(operands) / self._bytes, 1.0)
        return max(LEAST_DEADLINE, DEADLINE_FACTOR * self._longest * growth)

    def count(self, seconds: float, operands: Sequence[Any]) -> None:
        if seconds > self._longest:
            self._longest, self._bytes = seconds, max(_bytes_of(operands), 1)


class _Budget:
    """When runs are checked: the first ones, and then as often as their share of time allows."""

    def __init__(self, verify: str) -> None:
        self._verify = verify
        self.first = FIRST_RUNS
        self._run = self._looks = self._shadows = 0.0  # seconds
        self._look = self._shadow = 0.0  # what the last one took

    def is_shadow_due(self) -> bool:
        if self._verify == "sample":
            return self.first > 0 or self.affords_shadow()
        return self._verify == "always"

    def affords_shadow(self) -> bool:
        return self._shadows + self._shadow <= SHADOW_SHARE * self._run

    def is_look_due(self) -> bool:
        return self._looks + self._look <= LOOK_SHARE * self._run

    def count_run(self, seconds: float) -> None:
        self._run += seconds

    def count_look(self, seconds: float) -> None:
        self._look = seconds
        if not self.first:
            self._looks += seconds

    def count_shadow(self, seconds: float) -> None:
        self._shadow = seconds
        if not self.first:
            self._shadows += seconds


def _bounded(seconds: float, task: Callable[[], T]) -> T:
    """What foreign code gives, within a deadline if there is one."""
    return contained(task) if math.isinf(seconds) else within(seconds, task)


def _fault_of(error: BaseException) -> Fault:
    if isinstance(error, CaughtError):
        return error.fault
    if isinstance(error, TimeoutError):
        return Fault.LATE
    if any(isinstance(one, ModuleNotFoundError) for one in (error, error.__cause__)):
        return Fault.NOT_LOADED
    return Fault.CRASHED if isinstance(error, CrashedError) else Fault.RAISED


def _bytes_of(operands: Sequence[Any]) -> int:
    """Bytes of the arrays among operands; values on a device count as 0."""
    return sum(operand.nbytes for operand in operands if isinstance(operand, np.ndarray))


def _same_bytes(one: Array, other: Array) -> bool:
    if one.dtype.kind == "O":
        return np.array_equal(one, other)
    return np.array_equal(one.reshape(-1).view(np.uint8), other.reshape(-1).view(np.uint8))

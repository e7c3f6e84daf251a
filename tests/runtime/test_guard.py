"""The guard of regions: what is wrong while a model runs is noticed, replaced and told."""

from __future__ import annotations

import ctypes
import itertools
import math
import time
from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from graft.base.dtypes import Array, DType
from graft.base.errors import EvaluationError, UserError
from graft.runtime import guard
from graft.runtime.breaker import Admission, Breaker
from graft.runtime.comparison import find_difference, poison, suspicion, unwritten
from graft.runtime.guard import FIRST_RUNS, AbandonedError, Policy
from graft.runtime.incidents import KEPT, Fault, Incident, IncidentLog
from graft.runtime.regions import Region, RegionWarning
from graft.runtime.supervise import OverdueError, within

X = np.arange(40, dtype=np.float32)


class Double:
    """Doubles, until `fault` says otherwise; counts its calls."""

    def __init__(self) -> None:
        self.fault: Callable[[Sequence[Array], Sequence[Array]], Any] | None = None
        self.calls = 0

    def __call__(self, inputs: Sequence[Array], outputs: Sequence[Array]) -> Any:
        self.calls += 1
        if self.fault is not None:
            return self.fault(inputs, outputs)
        np.multiply(inputs[0], 2, out=outputs[0])
        return None


class Case:
    """A region that doubles, and the host beside it, both counted."""

    def __init__(self, **policy: Any) -> None:
        self.device, self.host = Double(), Double()
        self.region = Region("r", "acc", self.device, lambda: self.host, Policy(**policy))

    def run(self, x: Array = X) -> Array:
        out = np.full_like(x, -1)
        self.region([x], [out])
        return out

    def right(self, times: int = 1) -> None:
        for _ in range(times):
            np.testing.assert_array_equal(self.run(), 2 * X)

    @property
    def faults(self) -> list[Fault]:
        return [incident.fault for incident in self.region.incidents]


POWER = 2000


class Magnifier(Double):
    """Numbers to their 2000th power, of operands rounded to float16."""

    rounding = DType.FLOAT16

    def __call__(self, inputs: Sequence[Array], outputs: Sequence[Array]) -> Any:
        rounded = inputs[0].astype(np.float16).astype(np.float32)
        if super().__call__([rounded], outputs) is None and self.fault is None:
            outputs[0][:] = (outputs[0] / 2) ** POWER


class ExactMagnifier(Double):
    def __call__(self, inputs: Sequence[Array], outputs: Sequence[Array]) -> Any:
        super().__call__(inputs, outputs)
        outputs[0][:] = (outputs[0] / 2) ** POWER


def nan(inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
    np.multiply(inputs[0], 2, out=outputs[0])
    outputs[0][3] = np.nan


def wrong(inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
    np.multiply(inputs[0], 2, out=outputs[0])
    outputs[0][-1] += 7


def constant(_inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
    outputs[0][...] = 3


def silent(_inputs: Sequence[Array], _outputs: Sequence[Array]) -> None:
    """Writes nothing."""


def partly(inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
    outputs[0][:-1] = 2 * inputs[0][:-1]


def overwrites(inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
    np.multiply(inputs[0], 2, out=outputs[0])
    ctypes.memset(inputs[0].ctypes.data, 0, inputs[0].nbytes)


@pytest.mark.parametrize("verify", ["sample", "always"])
@pytest.mark.parametrize(
    ("fault", "kind"),
    [
        (nan, Fault.DIFFERS),
        (wrong, Fault.DIFFERS),
        (constant, Fault.DIFFERS),
        (silent, Fault.UNWRITTEN),
        (partly, Fault.UNWRITTEN),
        (overwrites, Fault.OVERWROTE),
    ],
)
def test_first_runs_are_compared_with_the_host(fault: Any, kind: Fault, verify: str) -> None:
    case = Case(verify=verify)
    case.device.fault = fault
    before = X.copy()
    with pytest.warns(RegionWarning, match="is left to the host for 5 s"):
        case.right()
    np.testing.assert_array_equal(X, before)
    assert case.faults == [kind]
    assert case.region.open
    case.right(3)
    assert case.device.calls == 1


def test_the_largest_difference_is_recorded() -> None:
    case = Case()
    case.device.fault = wrong
    with pytest.warns(RegionWarning, match="differs from the host's by 7 where"):
        case.right()
    assert case.region.incidents[0].difference == pytest.approx(7)


@pytest.mark.parametrize(
    ("fault", "kind"), [(silent, Fault.UNWRITTEN), (nan, Fault.DIFFERS), (constant, Fault.DIFFERS)]
)
def test_a_look_without_samples(fault: Any, kind: Fault) -> None:
    case = Case(verify="off")
    case.device.fault = fault
    with pytest.warns(RegionWarning):
        case.right()
    assert case.faults == [kind]


def test_without_samples_nothing_odd_is_not_compared() -> None:
    case = Case(verify="off")
    case.right(5)
    assert case.host.calls == 0
    case.device.fault = wrong
    assert case.run()[-1] == 2 * X[-1] + 7


def test_a_look_at_later_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(guard, "LOOK_SHARE", math.inf)
    monkeypatch.setattr(guard, "SHADOW_SHARE", 0.0)
    case = Case()
    case.right(FIRST_RUNS + 2)
    assert case.host.calls == FIRST_RUNS
    case.device.fault = nan
    with pytest.warns(RegionWarning, match="is NaN where the host's is not"):
        case.right()
    assert case.faults == [Fault.DIFFERS]


def test_infinities_that_the_host_gives_as_well_are_no_fault(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(guard, "LOOK_SHARE", math.inf)
    monkeypatch.setattr(guard, "SHADOW_SHARE", 0.0)
    case = Case()
    x = np.where(X > 20, np.inf, X).astype(np.float32)
    for _ in range(FIRST_RUNS + 20):
        np.testing.assert_array_equal(case.run(x), 2 * x)
    assert case.region.incidents == []
    # after a few times nobody asks the host any more
    assert case.host.calls == FIRST_RUNS + 3


def test_samples_stay_within_their_share(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(guard, "SHADOW_SHARE", 0.2)
    clock = itertools.count()
    monkeypatch.setattr(guard, "time", SimpleNamespace(perf_counter=lambda: next(clock)))
    case = Case()
    case.right(FIRST_RUNS + 100)
    # By this clock a run takes 1 s. A compared one takes 2 s more, one before and one after it.
    assert case.host.calls - FIRST_RUNS == (FIRST_RUNS + 100) * 0.2 // 2


def test_always() -> None:
    case = Case(verify="always")
    case.right(10)
    assert case.host.calls == case.device.calls == 10


def test_a_trial_is_compared_and_closes_the_breaker() -> None:
    case = Case()
    now = [0.0]
    case.region.guard.breaker = Breaker(clock=lambda: now[0])
    case.device.fault = wrong
    with pytest.warns(RegionWarning):
        case.right()
    case.right(2)
    assert case.device.calls == 1
    now[0] = 5.1
    with pytest.warns(RegionWarning, match="is left to the host for 10 s"):
        case.right()  # still wrong, and noticed
    case.device.fault = None
    now[0] = 10.0
    case.right()
    assert case.device.calls == 2
    now[0] = 15.3
    host = case.host.calls
    case.right(6)
    assert not case.region.open
    assert case.device.calls == 8
    assert case.host.calls >= host + FIRST_RUNS  # the trial, and what comes after it
    assert len(case.region.incidents) == 2


def test_a_region_without_code_for_the_host_is_trusted() -> None:
    device = Double()
    region = Region("r", "acc", device, None, Policy("error"))
    out = np.empty_like(X)
    region([X], [out])
    np.testing.assert_array_equal(out, 2 * X)
    device.fault = silent
    with pytest.raises(EvaluationError, match="were not written"):
        region([X], [out])


def test_with_fallback_error_every_fault_is_raised() -> None:
    case = Case(fallback="error")
    case.right()
    case.device.fault = wrong
    for _ in range(2):
        with pytest.raises(EvaluationError, match="result 0 differs from the host's by 7"):
            case.run()
    assert case.region.incidents.total == 2
    case.device.fault = None
    calls = case.device.calls
    case.right()
    assert case.device.calls == calls + 1


def test_default_deadlines() -> None:
    deadline = guard._Deadline(None)
    assert deadline.seconds([X]) == 60
    deadline.count(0.01, [X])
    assert deadline.seconds([X]) == 10
    deadline.count(0.5, [X])
    assert deadline.seconds([X]) == 50
    assert deadline.seconds([X, X]) == 100  # twice the bytes
    assert guard._Deadline(2.0).seconds([X]) == 2


def test_late_answers_leave_their_memory_to_themselves() -> None:
    case = Case(deadline=0.05)

    def late(_inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
        time.sleep(0.3)
        outputs[0][...] = 7

    case.device.fault = late
    out = np.empty_like(X)
    with pytest.warns(RegionWarning, match="OverdueError"), pytest.raises(AbandonedError):
        case.region.run([X], [out])
    assert case.faults == [Fault.LATE]
    case.right()
    assert case.region.device_breaker.is_open
    time.sleep(0.4)


def test_no_trial_while_a_call_is_under_way() -> None:
    now, over = [0.0], [False]
    breaker = Breaker(clock=lambda: now[0])
    breaker.fail(at_once=True, is_over=lambda: over[0])
    now[0] = 100.0
    assert breaker.admit() is Admission.REFUSED
    over[0] = True
    assert breaker.admit() is Admission.TRIAL


def test_breakers_back_off_and_settle() -> None:
    now = [0.0]
    breaker = Breaker(patience=2, cooldown=1, longest=3, clock=lambda: now[0])
    breaker.fail()
    assert breaker.admit() is Admission.GRANTED
    left = []
    for _ in range(4):
        breaker.fail()
        left.append(breaker.seconds_left)
        assert breaker.admit() is Admission.REFUSED
        now[0] += breaker.seconds_left
        assert breaker.admit() is Admission.TRIAL
        assert breaker.admit() is Admission.REFUSED  # one at a time
    assert left == [1, 2, 3, 3]
    breaker.succeed()
    assert breaker.admit() is Admission.GRANTED
    breaker.settle()
    breaker.fail(at_once=True)
    assert breaker.seconds_left == 1


def test_incidents_are_bounded_and_counted() -> None:
    log = IncidentLog()
    for number in range(KEPT + 10):
        log.add(Incident("r", "acc", str(number)))
    found = log.snapshot()
    assert (len(found), found.total) == (KEPT, KEPT + 10)
    assert found[-1].reason == str(KEPT + 9)


def test_within() -> None:
    assert within(1.0, lambda: 3) == 3
    with pytest.raises(ZeroDivisionError):
        within(1.0, lambda: 1 // 0)
    with pytest.raises(OverdueError, match=r"no answer within 0\.0") as caught:
        within(0.05, lambda: time.sleep(0.2))
    assert not caught.value.is_over()
    assert within(1.0, lambda: 4) == 4  # by another thread
    time.sleep(0.3)
    assert caught.value.is_over()


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64", "int8", "int64", "complex64"])
@pytest.mark.parametrize("shape", [(), (0,), (3, 0), (1,), (17,), (9, 1000)])
def test_looks_at_any_array(dtype: str, shape: tuple[int, ...]) -> None:
    draw = np.random.default_rng(0)
    array = np.array(draw.standard_normal(shape) * 50).astype(dtype).reshape(shape)
    assert suspicion([array]) == unwritten([array]) == ""
    poison([array])
    if array.size and array.dtype.kind in "fc":
        assert "were not written" in unwritten([array])
        assert suspicion([array]) == "result 0 is not finite"
    elif array.size > 16:
        assert suspicion([array]) == "result 0 has the same number everywhere"


def test_large_numbers_are_finite() -> None:
    assert suspicion([np.linspace(1e37, 3e38, 40, dtype=np.float32)]) == ""


@pytest.mark.parametrize(
    ("ours", "theirs", "largest"),
    [
        (np.float32([1, 2]), np.float32([1, 2.01]), None),
        (np.float32([1, 2]), np.float32([1, 2.5]), 0.5),
        (np.float32([1, np.nan]), np.float32([1, np.nan]), None),
        (np.float32([1, np.inf]), np.float32([1, 5]), np.inf),
        (np.float32([1, -np.inf]), np.float32([1, np.inf]), np.inf),
        (np.int8([1] * 40), np.int8([14] * 40), None),
        (np.int8([1] * 40), np.int8([1] * 39 + [15]), 14),
        (np.int64([1]), np.int64([2]), 1),
        (np.array([True]), np.array([False]), 1),
        (np.zeros((0, 3), np.float32), np.zeros((0, 3), np.float32), None),
    ],
)
def test_differences(ours: Array, theirs: Array, largest: float | None) -> None:
    found = find_difference([ours], [theirs])
    assert (found and found.largest) == (largest if largest is None else pytest.approx(largest))


def test_unknown_wishes_are_refused() -> None:
    with pytest.raises(UserError, match="verify is one of sample, always, off, not 'maybe'"):
        Policy(verify="maybe")
    with pytest.raises(UserError, match="deadline=0: a region needs some time"):
        Policy(deadline=0)


def test_rounding_that_a_region_magnifies_is_no_fault() -> None:
    device, x = Magnifier(), np.linspace(0.998, 1.002, 40, dtype=np.float32)
    region = Region("r", "acc", device, ExactMagnifier, Policy(verify="always"))
    assert find_difference([(x.astype(np.float16) ** POWER)], [x**300]) is not None
    for _ in range(5):
        region([x], [np.empty_like(x)])
    assert not region.incidents
    device.fault = lambda _inputs, outputs: outputs[0].fill(1e4)
    with pytest.warns(RegionWarning, match="differs from the host's"):
        region([x], [np.empty_like(x)])

"""Timing: calls are repeated until the median's confidence interval is narrow, or time is up.

Other processes disturb single runs, so a price is a median with the interval that order statistics
give. A price with a wide interval is used once, but not stored. Where cores are shared with other
virtual machines, a measurement waits for all of them, for `PATIENCE` seconds per process at most.
"""

from __future__ import annotations

import math
import os
import resource
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, TypeVar

import numpy as np

from graft.base.callbacks import described
from graft.byoc.boundary import wished
from graft.byoc.contract import Backend, Cost, Source
from graft.byoc.cores import Watch
from graft.byoc.probe import samples, shape_at
from graft.byoc.region import region_hash
from graft.byoc.store import PriceStore
from graft.ir.graph import Graph
from graft.ir.types import TensorType
from graft.runtime.spaces import device_of, uploaded
from graft.runtime.supervise import within

T = TypeVar("T")

PATIENCE = 5.0  # seconds for which this process waits for busy cores, in total
WATCH = Watch(len(os.sched_getaffinity(0)), PATIENCE)

PRECISION = 0.03  # half the interval, as a share of the median
BUDGET = 0.3  # seconds for one price
RACE_BUDGET = 1.0  # seconds for each contender of a race
DEADLINE = 60.0  # seconds for a call of a backend
_FEWEST = 5
_KEPT = 0.1  # the largest relative spread of a price that is stored


def timed(run: Callable[[], object], budget: float | None = None) -> Cost:
    """The time of one call, measured for `budget` seconds at most (`BUDGET` by default)."""

    def lap() -> float:
        start = time.perf_counter()
        run()
        return time.perf_counter() - start

    run()  # the first call may allocate, load or compile
    deadline = time.monotonic() + (BUDGET if budget is None else budget)
    for times in _undisturbed(lap, _FEWEST):
        median, spread = interval(times)
        is_steady = spread <= PRECISION * median
        if len(times) >= _FEWEST and (is_steady or time.monotonic() >= deadline):
            break
    return Cost(median, Source.MEASURED, spread)


def calm(call: Callable[[], T], least: int, budget: float) -> list[T]:
    """Results of repeated calls, as many as `budget` seconds allow and at least so many."""
    call()  # the first call may allocate, load or compile
    deadline = time.perf_counter() + budget
    for results in _undisturbed(call, least):
        if time.perf_counter() >= deadline and len(results) >= least:
            break
    return results


def _undisturbed(call: Callable[[], T], least: int) -> Iterator[list[T]]:
    """After each call the results so far: of calls during which no thread of this process had to
    make way for another process; of all calls while those are fewer than `least`."""
    results: list[T] = []
    kept: list[T] = []
    while True:
        before = _interruptions()
        results.append(call())
        if _interruptions() == before:
            kept.append(results[-1])
        yield kept if len(kept) >= least else results


def _interruptions() -> int:
    """How often a thread of this process had to make way for another process's."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_nivcsw


def race(runs: Mapping[str, Callable[[], object]], budget: float | None = None) -> dict[str, float]:
    """The median time of each contender; they alternate, so that all see the same load."""
    times = laps(runs, RACE_BUDGET if budget is None else budget)
    return {name: float(np.median(own)) for name, own in times.items()}


def laps(runs: Mapping[str, Callable[[], object]], budget: float) -> dict[str, list[float]]:
    """The times of alternating contenders, lap by lap, for `budget` seconds each.

    Each contender runs once untimed in every lap: threads of the one before go on spinning for a
    while, and its data are in the caches."""
    times: dict[str, list[float]] = {name: [] for name in runs}
    deadline = time.perf_counter() + budget * len(runs)
    while time.perf_counter() < deadline or len(next(iter(times.values()))) < 3:
        for name, run in runs.items():
            run()
            start = time.perf_counter()
            run()
            times[name].append(time.perf_counter() - start)
    return times


def interval(samples: Sequence[float]) -> tuple[float, float]:
    """The median, and half the width of its 95 % interval."""
    ordered = np.sort(np.asarray(samples))
    count = len(ordered)
    reach = 0.98 * math.sqrt(count)
    low = ordered[max(0, math.floor(count / 2 - reach))]
    high = ordered[min(count - 1, math.ceil(count / 2 + reach))]
    return float(np.median(ordered)), float(high - low) / 2


def time_region(
    backend: Backend, region: Graph, deadline: float = DEADLINE, threads: int | None = None
) -> Cost:
    """The time of a region on a backend, without transfers; raises TimeoutError where the backend
    does not answer."""
    run = bounded(backend, deadline, lambda: _tried(backend, region, threads))
    # timed on the thread that has run it once, which matters to some libraries
    seconds = deadline + BUDGET + PATIENCE
    return bounded(backend, seconds, lambda: WATCH.measured(lambda: timed(run)))


def bounded(backend: Backend, seconds: float, task: Callable[[], T]) -> T:
    """The result of a call of a backend; raises TimeoutError after so many seconds."""
    return task() if backend.keeps_deadlines else within(seconds, task)


def _tried(backend: Backend, region: Graph, threads: int | None) -> Callable[[], object]:
    """A call of a region on sample inputs, which has been made once."""
    inputs: Sequence[Any] = samples(region)
    outputs: Sequence[Any] = [
        np.empty(shape_at(value, {}), value.dtype.numpy) for value in region.outputs
    ]
    runner = backend.loaded(backend.code(region), threads)
    device = device_of(runner)
    if device is not None:
        inputs, outputs = uploaded(device, inputs), uploaded(device, outputs)
    runner(inputs, outputs)
    return partial(runner, inputs, outputs)


class UnrunnableError(Exception):
    """A backend failed on a region that it was to be timed on; `in_time` unless it hung."""

    def __init__(self, message: str, in_time: bool = True) -> None:
        super().__init__(message)
        self.in_time = in_time

    @classmethod
    def of(cls, error: BaseException) -> UnrunnableError:
        """The error that a backend has raised, or its timeout, in words."""
        return cls(described(error), not isinstance(error, TimeoutError))


def timed_region_of(
    backend: Backend,
    region: Graph,
    store: PriceStore | None,
    deadline: float = DEADLINE,
    threads: int | None = None,
) -> Cost | None:
    """The measured price of a region, from the store or by running it; None where nothing can be
    measured: without a store, on a simulated device, or where shapes are known at run time only."""
    types = [value.type for value in (*region.inputs, *region.outputs)]
    static = all(isinstance(type_, TensorType) and type_.is_static for type_ in types)
    if store is None or backend.simulated or not static:
        return None
    region = wished(region, backend.limits)
    key = store.key(region_hash(region, contents=False), backend)
    cost = store.get(key)
    if cost is None:
        try:
            cost = time_region(backend, region, deadline, threads)
        except (Exception, SystemExit) as error:  # a plug-in may raise anything
            raise UnrunnableError.of(error) from error
        if cost.spread <= _KEPT * cost.seconds:  # else a later measurement may be more precise
            store.put(key, cost)
    return cost

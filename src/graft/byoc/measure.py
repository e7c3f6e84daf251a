"""Measuring: how long something takes, repeated until the answer is steady.

Neighbours on the machine disturb single runs, so a price is the median, with the interval that
order statistics give for it; measuring goes on until that interval is narrow or time is up. A price
with a wide one serves, but is not kept. On a virtual machine that lends its cores only at times, a
measurement waits for them, but only so long in all.
"""

from __future__ import annotations

import math
import os
import resource
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, TypeVar

import numpy as np

from graft.base.callbacks import described
from graft.base.dtypes import Array, DType
from graft.byoc.boundary import wished
from graft.byoc.contract import Backend, Cost, Source
from graft.byoc.cores import Watch
from graft.byoc.region import region_hash
from graft.byoc.sizes import number
from graft.byoc.store import PriceStore
from graft.ir.graph import Graph, Value
from graft.ir.types import TensorType
from graft.ops.indexed import index_limits
from graft.runtime.spaces import device_of, uploaded
from graft.runtime.supervise import within

T = TypeVar("T")

PATIENCE = 5.0  # seconds that this process waits in all for cores that others use
WATCH = Watch(len(os.sched_getaffinity(0)), PATIENCE)

PRECISION = 0.03  # half the interval, as a share of the median
BUDGET = 0.3  # seconds for one price
RACE_BUDGET = 1.0  # seconds for each contender of a race
_BELOW = 3  # what drawn integers are below
DEADLINE = 60.0  # seconds after which a backend is given up that does not answer
_FEWEST = 5
_KEPT = 0.1  # the spread, as a share, of a price that is worth keeping


def timed(run: Callable[[], object], budget: float | None = None) -> Cost:
    """What one call takes, measured for `BUDGET` seconds at most if nothing else is said: calls
    during which the system took the processor away do not count, if there are enough others."""
    run()  # the first call may allocate, load or compile
    samples: list[float] = []
    calm: list[float] = []
    deadline = time.perf_counter() + (BUDGET if budget is None else budget)
    while True:
        interruptions, start = _interruptions(), time.perf_counter()
        run()
        now = time.perf_counter()
        samples.append(now - start)
        if _interruptions() == interruptions:
            calm.append(now - start)
        result = calm if len(calm) >= _FEWEST else samples
        median, spread = interval(result)
        steady = len(result) >= _FEWEST and spread <= PRECISION * median
        if steady or (now >= deadline and len(samples) >= _FEWEST):
            return Cost(median, Source.MEASURED, spread)


def calm(call: Callable[[], T], least: int, budget: float) -> list[T]:
    """What calls give during which the system did not take the processor away, as many as the time
    allows; all calls, if those are not at least so many. A first call is for nothing."""
    call()
    results: list[T] = []
    kept: list[T] = []
    deadline = time.perf_counter() + budget
    while time.perf_counter() < deadline or len(results) < least:
        interruptions = _interruptions()
        results.append(call())
        if _interruptions() == interruptions:
            kept.append(results[-1])
    return kept if len(kept) >= least else results


def _interruptions() -> int:
    """How often a thread of this process had to make way for another process's."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_nivcsw


def race(runs: Mapping[str, Callable[[], object]], budget: float | None = None) -> dict[str, float]:
    """The median time of each contender, run in turns so that all see the same neighbours."""
    times = laps(runs, RACE_BUDGET if budget is None else budget)
    return {name: float(np.median(own)) for name, own in times.items()}


def laps(runs: Mapping[str, Callable[[], object]], budget: float) -> dict[str, list[float]]:
    """The times of contenders that take turns, lap by lap, for `budget` seconds each.

    Threads of the one before go on looking for work for a while, and its data are in the caches: so
    whoever's turn it is runs once for nothing first."""
    samples: dict[str, list[float]] = {name: [] for name in runs}
    deadline = time.perf_counter() + budget * len(runs)
    while time.perf_counter() < deadline or len(next(iter(samples.values()))) < 3:
        for name, run in runs.items():
            run()
            start = time.perf_counter()
            run()
            samples[name].append(time.perf_counter() - start)
    return samples


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
    """What a region takes on a backend, compiled and run by itself; transfers have a price of
    their own. Raises TimeoutError where a backend does not answer."""
    run = bounded(backend, deadline, lambda: _tried(backend, region, threads))
    # by the thread that will run it, which matters to some libraries
    seconds = deadline + BUDGET + PATIENCE
    return bounded(backend, seconds, lambda: WATCH.measured(lambda: timed(run)))


def bounded(backend: Backend, seconds: float, task: Callable[[], T]) -> T:
    """What is asked of a backend, within a deadline; raises TimeoutError after it."""
    return task() if backend.keeps_deadlines else within(seconds, task)


def _tried(backend: Backend, region: Graph, threads: int | None) -> Callable[[], object]:
    """A region that has run once."""
    inputs: Sequence[Any] = samples(region)
    outputs: Sequence[Any] = [
        np.empty(static_shape(value), value.dtype.numpy) for value in region.outputs
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
        except (Exception, SystemExit) as error:  # whatever a plug-in raises is its own affair
            in_time = not isinstance(error, TimeoutError)
            raise UnrunnableError(described(error), in_time) from error
        if cost.spread <= _KEPT * cost.seconds:  # else somebody else may be lucky another time
            store.put(key, cost)
    return cost


def static_shape(value: Value) -> tuple[int, ...]:
    """The extents of a tensor; those known at run time only are assumed."""
    return tuple(number(extent) for extent in value.tensor.shape or ())


def samples(graph: Graph, seed: int = 0) -> list[Array]:
    """Plausible data for the inputs of a graph; indices lie inside of what they point into."""
    limits = index_limits(graph)
    result: list[Array] = []
    for position, value in enumerate(graph.inputs):
        extents = map(number, limits.get(value, ()))
        result.append(sample(value, seed + position, max(min(_BELOW, *extents, _BELOW), 1)))
    return result


def sample(value: Value, seed: int, below: int = _BELOW) -> Array:
    """Plausible data for an input: moderate floats, small integers."""
    draw = np.random.default_rng(seed)
    shape, dtype = static_shape(value), value.dtype
    if dtype is DType.BOOL:
        return draw.random(shape) < 0.5
    if dtype.is_float:
        return draw.standard_normal(shape).astype(dtype.numpy)
    return draw.integers(0, below, shape).astype(dtype.numpy)

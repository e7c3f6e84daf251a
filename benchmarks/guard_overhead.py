"""What guarding regions costs: networks and a backend in; shares of run time out.

Each network is compiled with all that the backend can run on it, whatever that takes, so that there
are as many regions as there can be. Guarded runs (supervised, looked at, sampled, beyond the first
ones) and runs of the same module without a guard take turns, a few of each at a time. What they
take is compared within each round, so that slow changes of the machine do not count; the table has
the median of the rounds and half of its 95 % interval, in time of the processor and on the clock.
With `--isolation`, a guarded region also runs in a process of its own, and only the clock counts.
"""

from __future__ import annotations

import argparse
import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np

import graft
from benchmarks.harness import (
    DETECTORS,
    NETWORKS,
    Benchmark,
    Json,
    Record,
    Section,
    add_network_argument,
    chosen_networks,
    network_path,
)
from benchmarks.pages import DOCUMENT, paragraph, table
from graft.base.dtypes import Array
from graft.byoc.contract import Cost
from graft.byoc.discover import backend_named, find_backends
from graft.byoc.measure import interval
from graft.module import Module
from graft.runtime.guard import Policy
from graft.runtime.regions import Region
from graft.runtime.spaces import TimeSpent

WARM, LAPS = 5, 2
HEADER = ("network", "regions", "run", "processor", "clock")

Mode = Mapping[
    str, tuple[Callable[..., TimeSpent], Policy]
]  # by region: how it runs, and its guard


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.set_defaults(threads=1)
    add_network_argument(parser)
    parser.add_argument("--backend", default="openvino")
    parser.add_argument("--rounds", type=int, default=40)
    parser.add_argument("--isolation", action="store_true")


def measure(options: argparse.Namespace) -> Json:
    free(options.backend)
    isolation = "process" if options.isolation else None
    results = {}
    for name in chosen_networks(options, (*NETWORKS, *DETECTORS)):
        path, threads = network_path(name), options.threads
        module = graft.compile(
            path, options.backend, threads=threads, check=False, isolation=isolation
        )
        results[name] = compared(module, 2 if options.quick else options.rounds)
        print(*table(HEADER, [row(name, results[name])])[2:], flush=True)
    return results


def sections(record: Record) -> Iterator[Section]:
    rows = [row(name, result) for name, result in record.data.items()]
    lines = [*table(HEADER, rows), "", *paragraph(str(record.made))]
    yield Section(DOCUMENT, "guard-overhead", lines)


def free(name: str) -> None:
    """Let a backend's work be free, so that it gets all that it can do."""
    backend: Any = backend_named(name, find_backends())
    kind: Any = type(backend)
    kind.price = lambda _self, region: Cost(1e-9 * len(region.nodes))
    kind.simulated = True  # which is not raced against the host


def row(name: str, result: Json) -> list[str]:
    both = (result["processor"], result["clock"])
    shares = [f"{median - 1:+.2%} ± {spread:.2%}" for median, spread in both]
    return [name, str(result["regions"]), f"{result['run'] * 1e3:.2f} ms", *shares]


def compared(module: Module, rounds: int) -> Json:
    """Guarded runs beside unguarded ones."""
    draw = np.random.default_rng(0)
    feeds = {
        value.name: draw.standard_normal(value.shape).astype(value.dtype.numpy)
        for value in module.program.inputs
    }
    for _ in range(WARM):
        module.run(None, feeds)
    regions = module.regions.values()
    guarded = {region.name: (region.guard.run, region.guard.policy) for region in regions}
    unlimited = Policy(deadline=math.inf)  # results go straight to where they belong
    bare = {region.name: (partial(unguarded, region), unlimited) for region in regions}

    def lap(mode: Mode) -> Array:
        """Seconds of the processor and on the clock that some runs take."""
        for region in regions:
            region.guard.run, region.guard.policy = mode[region.name]  # type: ignore[method-assign]
        module.run(None, feeds)  # libraries have to find their way from another thread first
        started = time.process_time(), time.perf_counter()
        for _ in range(LAPS):
            module.run(None, feeds)
        return np.array([time.process_time() - started[0], time.perf_counter() - started[1]])

    spent = []
    for number in range(rounds):
        first, second = (bare, guarded) if number % 2 else (guarded, bare)
        both = lap(first), lap(second)
        spent.append(both if number % 2 else both[::-1])
    ratios = [with_guard / without for without, with_guard in spent]
    run = float(np.median([without for without, _ in spent], axis=0)[1]) / LAPS
    processor, clock = (interval([ratio[number] for ratio in ratios]) for number in (0, 1))
    return {"regions": len(regions), "run": run, "processor": processor, "clock": clock}


def unguarded(
    region: Region, _self: Region, inputs: Sequence[Any], outputs: Sequence[Any], *_memory: Any
) -> TimeSpent:
    """The accelerator's code and nothing else."""
    return region.accelerate(inputs, outputs, in_host_memory=True)


BENCHMARKS = (Benchmark("guard-overhead", measure, sections, add_arguments),)

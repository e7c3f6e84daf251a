"""What guarding regions costs: networks and a backend in; shares of run time out.

Each network is compiled with all that the backend can run on it, whatever that takes, so that there
are as many regions as there can be. Guarded runs (supervised, looked at, sampled, beyond the first
ones) and runs of the same module without a guard take turns; medians of both are compared, in time
of the processor, which neighbours do not disturb, and on the clock. With `--isolation`, a guarded
region also runs in a process of its own, and both are measured on the clock alone.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterator, Sequence
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
from graft.byoc.contract import Cost
from graft.byoc.discover import backend_named, find_backends
from graft.byoc.measure import sample
from graft.module import Module
from graft.runtime.regions import Region
from graft.runtime.spaces import Spent

WARM, LAPS = 5, 5
HEADER = ("network", "regions", "run", "processor, median", "processor, mean", "clock, median")


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
    shares = [f"{result[part]:+.2%}" for part in ("processor", "processor_mean", "clock")]
    return [name, str(result["regions"]), f"{result['run'] * 1e3:.2f} ms", *shares]


def compared(module: Module, rounds: int) -> Json:
    """Guarded runs beside unguarded ones."""
    feeds = {value.name: sample(value, 0) for value in module.signature.inputs}
    for _ in range(WARM):
        module.run(None, feeds)
    regions = module.regions.values()
    guarded = {region.name: region.guard.run for region in regions}
    bare = {region.name: partial(unguarded, region) for region in regions}
    spent: dict[str, list[tuple[float, float]]] = {"guarded": [], "bare": []}
    for _ in range(rounds):
        for mode, runs in (("bare", bare), ("guarded", guarded)):
            for region in regions:
                region.guard.run = runs[region.name]  # type: ignore[method-assign]
            module.run(None, feeds)  # libraries have to find their way from another thread first
            for _ in range(LAPS):
                clocks = time.process_time(), time.perf_counter()
                module.run(None, feeds)
                now = time.process_time(), time.perf_counter()
                spent[mode].append((now[0] - clocks[0], now[1] - clocks[1]))
    with_guard, without = (np.array(spent[mode]) for mode in ("guarded", "bare"))
    processor, clock = np.median(with_guard, axis=0) / np.median(without, axis=0) - 1
    return {
        "regions": len(regions),
        "run": float(np.median(without, axis=0)[1]),
        "processor": float(processor),
        "processor_mean": float(with_guard.mean(axis=0)[0] / without.mean(axis=0)[0] - 1),
        "clock": float(clock),
    }


def unguarded(
    region: Region, _self: Region, inputs: Sequence[Any], outputs: Sequence[Any], *_memory: Any
) -> Spent:
    """The accelerator's code and nothing else."""
    return region.accelerate(inputs, outputs, is_home=True)


BENCHMARKS = (Benchmark("guard-overhead", measure, sections, add_arguments),)

#!/usr/bin/env python3
"""What guarding regions costs: networks and a backend in; shares of run time out.

    python tools/guard_overhead.py [--networks NAMES] [--backend NAME] [--rounds N] [--isolation]

Each network is compiled with all that the backend can run on it, whatever that takes, so that there
are as many regions as there can be. Guarded runs (supervised, looked at, sampled, beyond the first
ones) and runs of the same module without a guard take turns; medians of both are compared, in time
of the processor, which neighbours do not disturb, and on the clock. With `--isolation`, a guarded
region also runs in a process of its own, and both are measured on the clock alone.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

import graft
from graft.byoc.contract import Cost
from graft.byoc.discover import backend_named, find_backends
from graft.module import Module
from graft.runtime.regions import Region
from graft.runtime.spaces import Spent

MODELS = Path(__file__).parent.parent / "models"
WARM, LAPS = 5, 5


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    everything = ",".join(sorted(path.stem for path in MODELS.glob("*.onnx")))
    parser.add_argument("--networks", default=everything)
    parser.add_argument("--backend", default="openvino")
    parser.add_argument("--rounds", type=int, default=40)
    parser.add_argument("--isolation", action="store_true")
    options = parser.parse_args()
    free(options.backend)
    print("| network | regions | run | processor, median | processor, mean | clock, median |")
    print("|---|---|---|---|---|---|")
    for name in options.networks.split(","):
        isolation = "process" if options.isolation else None
        module = graft.compile(
            MODELS / f"{name}.onnx", options.backend, threads=1, check=False, isolation=isolation
        )
        print(row(name, module, options.rounds), flush=True)
    return 0


def free(name: str) -> None:
    """Let a backend's work be free, so that it gets all that it can do."""
    backend: Any = backend_named(name, find_backends())
    kind: Any = type(backend)
    kind.price = lambda _self, region: Cost(1e-9 * len(region.nodes))
    kind.simulated = True  # which is not raced against the host


def row(name: str, module: Module, rounds: int) -> str:
    draw = np.random.default_rng(0)
    feeds = {
        value.name: draw.standard_normal(value.shape).astype(value.dtype.numpy)
        for value in module.program.inputs
    }
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
    mean = with_guard.mean(axis=0)[0] / without.mean(axis=0)[0] - 1
    run = np.median(without, axis=0)[1]
    return (
        f"| {name} | {len(regions)} | {run * 1e3:.2f} ms | {processor:+.2%} | {mean:+.2%}"
        f" | {clock:+.2%} |"
    )


def unguarded(
    region: Region, _self: Region, inputs: Sequence[Any], outputs: Sequence[Any], *_memory: Any
) -> Spent:
    """The accelerator's code and nothing else."""
    return region.accelerate(inputs, outputs, is_home=True)


if __name__ == "__main__":
    raise SystemExit(main())

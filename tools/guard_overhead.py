#!/usr/bin/env python3
"""What guarding regions costs: networks and a backend in; shares of run time out.

    python tools/guard_overhead.py [--networks NAMES] [--backend NAME] [--rounds N] [--isolation]

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
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

import graft
from graft.base.dtypes import Array
from graft.byoc.contract import Cost
from graft.byoc.discover import backend_named, find_backends
from graft.byoc.measure import interval, sample
from graft.module import Module
from graft.runtime.guard import Policy
from graft.runtime.regions import Region
from graft.runtime.spaces import Spent

MODELS = Path(__file__).parent.parent / "models"
WARM, LAPS = 5, 2

Mode = Mapping[str, tuple[Callable[..., Spent], Policy]]  # by region: how it runs, and its guard


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    everything = ",".join(sorted(path.stem for path in MODELS.glob("*.onnx")))
    parser.add_argument("--networks", default=everything)
    parser.add_argument("--backend", default="openvino")
    parser.add_argument("--rounds", type=int, default=40)
    parser.add_argument("--isolation", action="store_true")
    options = parser.parse_args()
    free(options.backend)
    print("| network | regions | run | processor | clock |")
    print("|---|---|---|---|---|")
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
    feeds = {value.name: sample(value, 0) for value in module.signature.inputs}
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
    run = np.median([without for without, _ in spent], axis=0)[1] / LAPS
    shares = [_share([ratio[clock] for ratio in ratios]) for clock in (0, 1)]
    return f"| {name} | {len(regions)} | {run * 1e3:.2f} ms | {shares[0]} | {shares[1]} |"


def _share(ratios: list[float]) -> str:
    median, spread = interval(ratios)
    return f"{median - 1:+.2%} ± {spread:.2%}"


def unguarded(
    region: Region, _self: Region, inputs: Sequence[Any], outputs: Sequence[Any], *_memory: Any
) -> Spent:
    """The accelerator's code and nothing else."""
    return region.accelerate(inputs, outputs, is_home=True)


if __name__ == "__main__":
    raise SystemExit(main())

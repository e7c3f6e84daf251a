#!/usr/bin/env python3
"""What guarding regions costs: networks and a backend in; shares of run time out.

    python tools/guard_overhead.py [--networks NAMES] [--backend NAME] [--runs N] [--isolation]

Each network is compiled with all that the backend can run on it, whatever that takes, so that there
are as many regions as there can be. What is counted is the time in the guard that is not spent in
the accelerator's own code: supervision, looks and shadow runs, without the first runs, which are
always compared with the host. With `--isolation`, it is also what a process of its own costs.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

import graft
from graft.byoc.contract import Cost
from graft.byoc.discover import backend_named, find_backends, register_backend, unregister_backend
from graft.byoc.measure import sample
from graft.ir.graph import Graph
from graft.module import Module

MODELS = Path(__file__).parent.parent / "models"
WARM = 5


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--networks", default=",".join(sorted(p.stem for p in MODELS.glob("*.onnx"))))
    parser.add_argument("--backend", default="openvino")
    parser.add_argument("--runs", type=int, default=200)
    parser.add_argument("--isolation", action="store_true")
    options = parser.parse_args()
    free(options.backend)
    print("| network | regions | run | guard per region call | share of run time |")
    print("|---|---|---|---|---|")
    for name in options.networks.split(","):
        isolation = "process" if options.isolation else None
        module = graft.compile(
            MODELS / f"{name}.onnx", options.backend, threads=1, check=False, isolation=isolation
        )
        print(row(name, module, options.runs), flush=True)
    return 0


def free(name: str) -> None:
    """Let a backend's work be free, so that it gets all that it can do."""
    backend: Any = backend_named(name, find_backends())
    kind: Any = type(backend)
    kind.price = lambda _self, region: Cost(1e-9 * len(region.nodes))
    kind.simulated = True  # which is not raced against the host


class Clock:
    """Counts the seconds of a function's calls, the outermost ones only."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self._function = function
        self.seconds, self.calls = 0.0, 0

    def __call__(self, *arguments: Any) -> Any:
        begun = time.perf_counter()
        try:
            return self._function(*arguments)
        finally:
            self.seconds += time.perf_counter() - begun
            self.calls += 1


def row(name: str, module: Module, runs: int) -> str:
    feeds = {value.name: sample(value, 0) for value in module.signature.inputs}
    for _ in range(WARM):
        module.run(None, feeds)
    guards, runners = [], []
    for region in module.regions.values():
        region.guard.run = Clock(region.guard.run)  # type: ignore[method-assign]
        region._from_home = Clock(region._from_home)
        guards.append(region.guard.run)
        runners.append(region._from_home)
    begun = time.perf_counter()
    for _ in range(runs):
        module.run(None, feeds)
    total = time.perf_counter() - begun
    own = sum(one.seconds for one in guards) - sum(one.seconds for one in runners)
    calls = max(sum(one.calls for one in guards), 1)
    return (
        f"| {name} | {len(guards)} | {total / runs * 1e3:.2f} ms | {own / calls * 1e6:.0f} µs"
        f" | {own / total:.2%} |"
    )


if __name__ == "__main__":
    raise SystemExit(main())

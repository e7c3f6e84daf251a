#!/usr/bin/env python3
"""Places nine networks on the simulated accelerator by three schemes, and tabulates what comes out.

    python tools/table2.py [--networks NAMES] [--write]

Greedy is what others do: everything that the accelerator can run goes there, in regions as large as
possible. Pruning sends regions with little work back. Exact is Graft's own choice. All times are a
model's: `simnpu` declares its own, the host's come from a roofline; nothing is measured, so that
the table is the same on every machine. `--write` puts it into docs/benchmarks.md.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from bench_pages import DOCUMENT, MODELS, chosen_pages, paragraph, table
from graft import __version__
from graft.byoc.contract import HOME
from graft.byoc.discover import own_backend
from graft.byoc.partition import Partition, PartitionOptions, partition, regions
from graft.byoc.price import Pricing
from graft.byoc.problem import Choice
from graft.byoc.sizes import node_work
from graft.cli.report import number, seconds_text
from graft.ir.graph import Graph
from graft.stages import import_graph, optimize

NETWORKS = (
    "resnet18",
    "resnet50",
    "inception_v3",
    "darknet53",
    "mobilenet_v2",
    "vgg19",
    "ssd512_mobilenet1.0",
    "ssd300_resnet34",
    "faster_rcnn_resnet50",
)
SCHEMES = ("greedy", "greedy+prune", "exact")


@dataclass(frozen=True, slots=True)
class Scheme:
    """What one way to choose comes to."""

    regions: int
    seconds: float
    nodes: float  # share that is offloaded
    macs: float  # the same of multiply-accumulates


@dataclass(frozen=True, slots=True)
class Placed:
    """A network on the simulated accelerator."""

    network: str
    nodes: int
    host_only: float
    schemes: tuple[Scheme, ...]  # as SCHEMES
    gap: float
    took: float  # seconds that choosing took, with matching and pricing


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--networks", metavar="NAMES", default=",".join(NETWORKS))
    parser.add_argument("--write", action="store_true", help="change the project's own page")
    options = parser.parse_args()
    pages = chosen_pages(options.write)
    found = []
    for network in options.networks.split(","):
        print(f"  {network}: ", end="", flush=True)
        found.append(placed(network, optimize(import_graph(MODELS / f"{network}.onnx")).graph))
        print(_in_short(found[-1]), flush=True)
    lines = report(found)
    print("\n".join(["", *lines]))
    pages.replace(Path(DOCUMENT), "table2", lines)


def placed(network: str, graph: Graph) -> Placed:
    """All schemes on one network."""
    start = time.perf_counter()
    pricing = Pricing(own_backend(HOME), in_place={}, store=None)
    found = partition(graph, [own_backend("simnpu")], pricing, PartitionOptions())
    took = time.perf_counter() - start
    choices = {**found.alternatives, "exact": found.choice}
    return Placed(
        network,
        len(found.found.nodes),
        choices["host-only"].seconds,
        tuple(_scheme(found, choices[name]) for name in SCHEMES),
        found.choice.gap,
        took,
    )


def _scheme(found: Partition, choice: Choice) -> Scheme:
    offloaded = regions(found.placement, choice)
    inside = [node for _, nodes, _ in offloaded for node in nodes]
    macs = {node: node_work(node).macs for node in found.found.nodes}
    return Scheme(
        len(offloaded),
        choice.seconds,
        len(inside) / len(macs),
        sum(macs[node] for node in inside) / max(sum(macs.values()), 1),
    )


def report(found: Sequence[Placed]) -> list[str]:
    """The table and what has to be said about it."""
    header = ["network", "nodes", "host only", *_columns("regions, time"), *_columns("nodes, MACs")]
    rows = [
        (
            one.network,
            number(one.nodes),
            seconds_text(one.host_only),
            *(f"{scheme.regions}, {seconds_text(scheme.seconds)}" for scheme in one.schemes),
            *(f"{scheme.nodes:.0%}, {scheme.macs:.1%}" for scheme in one.schemes),
        )
        for one in found
    ]
    worst = max(one.gap for one in found)
    proven = (
        "Every exact plan is proven best" if worst <= 1e-6 else f"The largest gap is {worst:.2%}"
    )
    slowest = max(found, key=lambda one: one.took)
    note = (
        "**All times are simulated**: the accelerator's are its declared model's, the host's come"
        " from a roofline, and nothing was run. Regions are those on the accelerator; nodes and"
        f" MACs are the shares that run there. {proven}; the longest search, with matching and"
        f" pricing, took {seconds_text(slowest.took)} ({slowest.network}). Made by"
        f" `python tools/table2.py --write` with Graft {__version__}."
    )
    return [*table(header, rows), "", *paragraph(note)]


def _columns(what: str) -> list[str]:
    return [f"{scheme}: {what}" for scheme in SCHEMES]


def _in_short(one: Placed) -> str:
    shown = (
        f"{name} {scheme.regions} regions, {seconds_text(scheme.seconds)}"
        for name, scheme in zip(SCHEMES, one.schemes, strict=True)
    )
    return f"{'; '.join(shown)}; chosen in {seconds_text(one.took)}"


if __name__ == "__main__":
    main()

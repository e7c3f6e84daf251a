"""Places nine networks on the simulated accelerator by three schemes, and tabulates what comes out.

Greedy is what others do: everything that the accelerator can run goes there, in regions as large as
possible. Pruning sends regions with little work back. Exact is Graft's own choice. `simnpu`'s times
are its model's; the host's are what its kernels take within a run of the whole network.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass

from benchmarks.harness import (
    DETECTORS,
    Benchmark,
    Json,
    Record,
    Section,
    add_network_argument,
    chosen_networks,
    network_path,
)
from benchmarks.pages import DOCUMENT, paragraph, table
from graft.base.quantities import number, time_text
from graft.byoc.contract import HOST_BACKEND
from graft.byoc.discover import own_backend
from graft.byoc.partition import Partition, PartitionOptions, partition, regions
from graft.byoc.price import Pricing
from graft.byoc.probe import samples
from graft.byoc.problem import Choice
from graft.ir.graph import Graph
from graft.stages import import_graph, optimize

NETWORKS = (
    "resnet18",
    "resnet50",
    "inception_v3",
    "darknet53",
    "mobilenet_v2",
    "vgg19",
    *DETECTORS,
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


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_network_argument(parser, NETWORKS)


def measure(options: argparse.Namespace) -> Json:
    results = []
    for network in chosen_networks(options, NETWORKS):
        print(f"  {network}: ", end="", flush=True)
        results.append(placed(network, optimize(import_graph(network_path(network))).graph))
        print(_in_short(results[-1]), flush=True)
    return [asdict(result) for result in results]


def sections(record: Record) -> Iterator[Section]:
    results = [
        Placed(**{**one, "schemes": tuple(Scheme(**scheme) for scheme in one["schemes"])})
        for one in record.data
    ]
    yield Section(DOCUMENT, "table2", [*report(results), *paragraph(str(record.made))])


def placed(network: str, graph: Graph) -> Placed:
    """All schemes on one network."""
    host = own_backend(HOST_BACKEND)
    pricing = Pricing(host, host.time_groups(graph, samples(graph)), store=None)
    start = time.perf_counter()
    placed = partition(graph, [own_backend("simnpu")], pricing, PartitionOptions())
    took = time.perf_counter() - start
    choices = {**placed.alternatives, "exact": placed.choice}
    return Placed(
        network,
        len(placed.candidates.nodes),
        choices["host-only"].seconds,
        tuple(_scheme(placed, choices[name]) for name in SCHEMES),
        placed.choice.gap,
        took,
    )


def _scheme(found: Partition, choice: Choice) -> Scheme:
    offloaded = regions(found.placement, choice)
    inside = [node for _, nodes, _ in offloaded for node in nodes]
    macs = found.candidates.macs
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
            time_text(one.host_only),
            *(f"{scheme.regions}, {time_text(scheme.seconds)}" for scheme in one.schemes),
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
        "**The accelerator is simulated**: its times are its declared model's. The host's are"
        " measured, kernel by kernel. Regions are those on the accelerator; nodes and MACs are the"
        f" shares that run there. {proven}; the longest search, with matching and pricing, took"
        f" {time_text(slowest.took)} ({slowest.network})."
    )
    return [*table(header, rows), "", *paragraph(note)]


def _columns(what: str) -> list[str]:
    return [f"{scheme}: {what}" for scheme in SCHEMES]


def _in_short(one: Placed) -> str:
    shown = (
        f"{name} {scheme.regions} regions, {time_text(scheme.seconds)}"
        for name, scheme in zip(SCHEMES, one.schemes, strict=True)
    )
    return f"{'; '.join(shown)}; chosen in {time_text(one.took)}"


BENCHMARKS = (Benchmark("placement", measure, sections, add_arguments),)

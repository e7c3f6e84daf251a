"""Places quantised networks on accelerators by their declared prices, each by itself and together.

Accelerators' times are what their vendors' tools, or cycle models, declare; emulators compute, and
their own time is no result. The host's are measured: what its kernels take within a run of the
whole network. Beside that host stands one which is assumed to be `SLOWER` times slower, as the
processor of a small board is. Regions of the plans over several accelerators are compiled and
checked. Networks in 8 bits, and the host's times of them, are kept in build/accelerators/.
"""

from __future__ import annotations

import argparse
import copy
import json
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace

import numpy as np

from benchmarks.accelerator_tables import CHART, PAGE, draw, report_lines
from benchmarks.harness import (
    Benchmark,
    Json,
    Record,
    Section,
    add_network_argument,
    chosen_networks,
    network_path,
)
from benchmarks.pages import ROOT
from graft.base.quantities import time_text
from graft.byoc.contract import HOST_BACKEND, Backend, Cost, Source
from graft.byoc.executable import Settings
from graft.byoc.partition import Partition, PartitionOptions, partition, regions
from graft.byoc.price import Pricing
from graft.byoc.probe import samples
from graft.byoc.problem import Choice, bill
from graft.compiler import compile_options
from graft.ir.graph import Graph
from graft.ir.parser import from_text
from graft.ir.printer import to_text
from graft.passes.duplicate_dequantize import duplicate_dequantize
from graft.passes.name_apart import name_apart
from graft.precision import RANDOM, quantize
from graft.quantize.report import INTEGER
from graft.stages import CompileOptions, Placed, import_graph, lower, optimize

FOLDER = ROOT / "build" / "accelerators"
NETWORKS = ("resnet18", "mobilenet_v2", "ssd512_mobilenet1.0")
ACCELERATORS = ("qnn", "ethosu:u55-128", "hexagon", "fpga")
# Each by itself, then together; without the fastest the others show what they are good for.
TARGETS = (*((name,) for name in ACCELERATORS), ACCELERATORS, ACCELERATORS[1:])
SLOWER = 30.0
HOSTS = (1.0, SLOWER)  # how many times slower than this machine


@dataclass(frozen=True, slots=True)
class Scheme:
    """What one way to choose comes to; shares are of all nodes, of MACs, and of the seconds."""

    regions: int
    seconds: float
    nodes: float
    macs: float
    transfers: float
    launches: float


@dataclass(frozen=True, slots=True)
class Part:
    """What one backend has of a plan."""

    backend: str
    nodes: int
    macs: float  # share
    regions: int
    seconds: float  # of execution


@dataclass(frozen=True, slots=True)
class Planned:
    """A network on some accelerators beside a host."""

    network: str
    targets: tuple[str, ...]
    slower: float  # the host, than this machine
    nodes: int
    host_only: float
    greedy: Scheme
    exact: Scheme
    gap: float
    parts: tuple[Part, ...]
    checked: int | None  # regions that hold, after parts that failed were cut; None: not checked
    demotions: tuple[str, ...] = ()  # what goes back to the host, and why


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_network_argument(parser, NETWORKS)


def measure(options: argparse.Namespace) -> Json:
    settings = Settings(options.threads)
    asked = compile_options((*ACCELERATORS, HOST_BACKEND), settings)
    for backend in asked.accelerators:
        if missing := backend.missing():
            sys.exit(f"{backend.name} cannot run here: {missing}")
    rows = []
    for network in chosen_networks(options, NETWORKS):
        graph = quantized_graph(network, options.threads)
        times = host_times(network, graph, asked.host)
        declared: dict[str, Cost | None] = {}
        for slower in HOSTS:
            pricing = replace(_pricing(asked.host, times, slower), declared=declared)
            for names in TARGETS:
                row = planned(network, graph, names, pricing, asked, slower)
                print(_in_short(row), flush=True)
                rows.append(asdict(row))
    tools = {backend.name: backend.priced_by for backend in asked.accelerators}
    return {"tools": tools, "backends": _backends_text(), "rows": rows}


def merge(earlier: Json, new: Json) -> Json:
    """Networks that were not placed this time stay as they are."""
    placed = {row["network"] for row in new["rows"]}
    rows = [*new["rows"], *(row for row in earlier["rows"] if row["network"] not in placed)]
    return {**new, "rows": sorted(rows, key=lambda row: NETWORKS.index(row["network"]))}


def sections(record: Record) -> Iterator[Section]:
    yield Section(PAGE, "", report_lines(record))


def quantized_graph(network: str, threads: int) -> Graph:
    """The network with every layer in 8 bits, as placement takes it. It is kept in Graft's own text
    form: detectors have operators that no ONNX is written of."""
    FOLDER.mkdir(parents=True, exist_ok=True)
    path, arrays = FOLDER / f"{network}.txt", FOLDER / f"{network}.npz"
    if not path.exists():
        asked = compile_options((HOST_BACKEND,), Settings(threads))
        result = quantize(optimize(import_graph(network_path(network))), RANDOM, asked, INTEGER)
        printed = to_text(result.optimized.graph)
        np.savez(arrays, **printed.constants)
        path.write_text(printed.text, encoding="utf-8")
    with np.load(arrays) as constants:
        graph = from_text(path.read_text(encoding="utf-8"), dict(constants))
    return name_apart(duplicate_dequantize(optimize(import_graph(graph)).graph))


def host_times(network: str, graph: Graph, host: Backend) -> Mapping[str, Cost]:
    """What the host's kernels take by the values that they make, measured once."""
    path = FOLDER / f"{network}-host.json"
    if not path.exists():
        times = host.time_groups(graph, samples(graph))
        rows = {name: [cost.seconds, cost.spread, cost.executions] for name, cost in times.items()}
        path.write_text(json.dumps(rows), encoding="utf-8")
    kept = json.loads(path.read_text(encoding="utf-8"))
    return {
        name: Cost(seconds, Source.MEASURED, spread, executions=executions)
        for name, (seconds, spread, executions) in kept.items()
    }


def _pricing(host: Backend, times: Mapping[str, Cost], slower: float) -> Pricing:
    """Prices of a host that is so many times slower: kernels, arithmetic and memory alike."""
    rates, slow = host.limits, copy.copy(host)
    assert rates.peak_flops is not None
    assert rates.peak_bytes_per_second is not None
    slow.limits = replace(
        rates,
        peak_flops=rates.peak_flops / slower,
        peak_bytes_per_second=rates.peak_bytes_per_second / slower,
    )
    scaled = {n: replace(c, seconds=slower * c.seconds) for n, c in times.items()}
    return Pricing(slow, scaled)


def planned(
    network: str,
    graph: Graph,
    names: Sequence[str],
    pricing: Pricing,
    asked: CompileOptions,
    slower: float,
) -> Planned:
    """The plan over some of the accelerators, with what it comes to; checked if they are many."""
    backends = [backend for backend in asked.accelerators if backend.name in names]
    found = partition(graph, backends, pricing, PartitionOptions())
    checked, demotions = None, ()
    if len(backends) > 1:
        by_name = {backend.name: backend for backend in backends}
        offloaded = lower(Placed(graph, by_name, found.plan, found), asked).offloaded
        if offloaded is not None:
            checked = len(offloaded.compiled)
            demotions = tuple(f"{one.backend}: {one.reason}" for one in offloaded.demotions)
    return Planned(
        network,
        tuple(names),
        slower,
        len(found.candidates.nodes),
        found.alternatives["host-only"].seconds,
        scheme_of(found, found.alternatives["greedy"]),
        scheme_of(found, found.choice),
        found.choice.gap,
        tuple(_parts(found)),
        checked,
        demotions,
    )


def scheme_of(found: Partition, choice: Choice) -> Scheme:
    """What a choice comes to."""
    offloaded = regions(found.placement, choice)
    inside = [node for _, nodes, _ in offloaded for node in nodes]
    macs = found.candidates.macs
    total = bill(found.placement.problem, choice.options, choice.stages)
    return Scheme(
        len(offloaded),
        choice.seconds,
        len(inside) / len(macs),
        sum(macs[node] for node in inside) / max(sum(macs.values()), 1),
        total.transfers / choice.seconds,
        total.launches / choice.seconds,
    )


def _parts(found: Partition) -> Iterator[Part]:
    """The backends that have work, the host last."""
    macs, problem = found.candidates.macs, found.placement.problem
    options = [problem.options[number] for number in found.choice.options]
    names = [site.name for site in problem.sites]
    offloaded = regions(found.placement, found.choice)
    for name in (*dict.fromkeys(names[1:]), names[0]):
        own = [option for option in options if names[option.site] == name]
        nodes = [found.candidates.nodes[number] for option in own for number in option.nodes]
        if nodes:
            yield Part(
                name,
                len(nodes),
                sum(macs[node] for node in nodes) / max(sum(macs.values()), 1),
                sum(backend == name for backend, _, _ in offloaded),
                sum(option.seconds for option in own),
            )


def _backends_text() -> str:
    """What `graft backends` prints."""
    command = [sys.executable, "-m", "graft", "backends"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return "\n".join(line.rstrip() for line in done.stdout.strip().splitlines())


def _in_short(row: Planned) -> str:
    times = (row.host_only, row.greedy.seconds, row.exact.seconds)
    host, greedy, exact = map(time_text, times)
    return (
        f"  {row.network} on {'+'.join(row.targets)}, host / {row.slower:g}: host {host}, greedy"
        f" {greedy} in {row.greedy.regions} regions, exact {exact} in {row.exact.regions}"
    )


BENCHMARKS = (
    Benchmark(
        "accelerators",
        measure,
        sections,
        add_arguments,
        {"onnxruntime-qnn": "onnxruntime-qnn", "ethos-u-vela": "Vela", "ziglang": "zig"},
        chart=(CHART, draw),
        merge=merge,
    ),
)

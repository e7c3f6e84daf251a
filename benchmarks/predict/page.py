"""Kernels of some models: measured on this machine, and predicted for other ones.

For each model comes a table of its kernels measured on this machine, on one thread, beside what
the machine allows; and one of predictions (`kernels.py`) for the machines of `MACHINES`.
"""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path

from benchmarks.harness import Benchmark, Json, Record, Section
from benchmarks.pages import MODELS, heading, text_table
from benchmarks.predict.kernels import (
    FINDING,
    NEGLIGIBLE,
    RUNS,
    Prediction,
    predict,
    static_graph,
)
from graft.target.target import HOST, named_target

MACHINES = ("icelake-server", "sapphirerapids", "znver3", "znver4", "neoverse-v1")
PAGE = Path("docs/kernels.md")
GOOD = 0.8  # of what the machine allows
USUAL = tuple(MODELS / f"{name}.onnx" for name in ("resnet50", "mobilenet_v2"))

_ALGORITHM = re.compile(r"\[([a-z]+:\d+)\]")  # of a kernel, in its label

By = Mapping[str, Sequence[Prediction]]  # a model's kernels by machine


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.set_defaults(threads=1)
    parser.add_argument(
        "--models", type=Path, nargs="+", default=USUAL, help="ONNX files with static shapes"
    )


def measure(options: argparse.Namespace) -> Json:
    """By model and machine, the kernels."""
    models = options.models[:1] if options.quick else options.models
    return {model.stem: _predictions(model) for model in models}


def _predictions(model: Path) -> Json:
    graph = static_graph(model)
    kernels = {}
    for name in (HOST, *MACHINES):
        print(f"{model.stem} on {name}", file=sys.stderr, flush=True)
        predictions = predict(graph, named_target(name), measure=name == HOST)
        kernels[name] = [asdict(prediction) for prediction in predictions]
    return kernels


def sections(record: Record) -> Iterator[Section]:
    models = {
        model: {name: [Prediction(**one) for one in each] for name, each in by.items()}
        for model, by in record.data.items()
    }
    yield Section(PAGE, "", list(_page(models, record)))


def _page(models: Mapping[str, By], record: Record) -> Iterator[str]:
    yield "# Kernel roofline: measured and predicted"
    yield ""
    yield "```text"
    yield record.made.command
    yield "```"
    yield ""
    yield (
        "How close each kernel is to its roofline. Float32, batch 1, one core. *Bound* is the time"
        " of a kernel's arithmetic at the machine's peak (multiply-adds, and additions that share"
        " their units), or of moving each tensor once between the memory levels that it has to"
        " cross, whichever is longer; *share* is the bound's time over the kernel's."
        " [Kernel time prediction](machine.md#kernel-time-prediction) describes the predictions."
    )
    yield from heading("Whole models, predicted")
    yield from text_table(
        ["model", *(named_target(name).machine.summary for name in MACHINES)],
        ([model, *(_whole(by[name], name) for name in MACHINES)] for model, by in models.items()),
    )
    yield ""
    yield (
        "Milliseconds; GFLOP/s (of the core's peak); the share of time in kernels"
        f" that reach {GOOD:.0%} of their bound."
    )
    for model, by in models.items():
        yield from heading(f"{model}: measured on this machine")
        load = "" if record.made.load is None else f", load average {record.made.load:.1f}"
        yield f"{record.made.machine}, {record.made.date}{load}, median of {RUNS} runs per call."
        yield ""
        yield from text_table(
            ["kernel", "calls", "measured µs", "bound µs", "share", "GFLOP/s"],
            _measured_rows(by[HOST]),
        )
        yield from heading(f"{model}: predicted")
        yield "µs (share of the bound), and the dominant bottleneck."
        yield ""
        yield from text_table(["kernel", *MACHINES], _predicted_rows(by))


def _whole(kernels: Sequence[Prediction], name: str) -> str:
    seconds = sum(kernel.seconds for kernel in kernels)
    rate = sum(kernel.flops for kernel in kernels) / seconds
    good = sum(kernel.seconds for kernel in kernels if kernel.of_bound >= GOOD) / seconds
    of_peak = rate / named_target(name).machine.peak_flops
    return f"{seconds * 1e3:.1f}; {rate / 1e9:.0f} ({of_peak:.0%}); {good:.0%}"


def _measured_rows(kernels: Sequence[Prediction]) -> Iterator[list[str]]:
    timed = sorted(
        (one for one in kernels if one.measured), key=lambda one: one.measured or 0, reverse=True
    )
    whole = sum(one.measured or 0 for one in timed)
    for one in timed:
        seconds = one.measured or 0.0
        if seconds < NEGLIGIBLE * whole:
            continue
        bound = one.least_cycles / one.gigahertz / 1e9
        share = f"{bound / seconds:.0%}" + ("" if bound / seconds >= FINDING else " *")
        cells = [str(one.calls), f"{seconds * 1e6:.0f}", f"{bound * 1e6:.0f}", share]
        yield [f"`{one.label}`", *cells, f"{one.flops / seconds / 1e9:.0f}"]
    bounds = sum(one.least_cycles / one.gigahertz / 1e9 for one in timed)
    flops = sum(one.flops for one in timed)
    cells = [f"{whole * 1e6:.0f}", f"{bounds * 1e6:.0f}", f"{bounds / whole:.0%}"]
    yield ["all", str(sum(one.calls for one in timed)), *cells, f"{flops / whole / 1e9:.0f}"]


def _predicted_rows(by: By) -> Iterator[list[str]]:
    """A row for each kernel that counts on one of the machines, joined by the node's name.

    Its algorithm, which machines differ in, stands with the cells."""
    rows: dict[str, dict[str, Prediction]] = {}
    for name in MACHINES:
        whole = sum(one.seconds for one in by[name])
        for one in by[name]:
            if one.seconds >= NEGLIGIBLE * whole:
                rows.setdefault(one.label.rpartition(" ")[2], {})[name] = one
    for cells in rows.values():
        label = _ALGORITHM.sub("", next(iter(cells.values())).label)
        yield [f"`{label}`", *(_cell(cells.get(name)) for name in MACHINES)]


def _cell(one: Prediction | None) -> str:
    if one is None:
        return ""
    algorithm = _ALGORITHM.search(one.label)
    name = f", {algorithm[1]}" if algorithm else ""
    return f"{one.seconds * 1e6:.0f} ({one.of_bound:.0%}) {one.bound}{name}"


BENCHMARKS = (Benchmark("kernels", measure, sections, add_arguments),)

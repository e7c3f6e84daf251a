"""Times the networks of models/ beside Graft's peers, in several settings.

What is timed, and how, is `graft bench`'s; each run starts all contenders anew. Detectors take one
image at a time and are left out of larger batches.
"""

from __future__ import annotations

import argparse
import datetime
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path

from benchmarks import network_chart, network_tables
from benchmarks.harness import (
    DETECTORS,
    NETWORKS,
    ONNXRUNTIME,
    Benchmark,
    Json,
    Record,
    Section,
    add_network_argument,
    chosen_networks,
    graft_bench,
    names_among,
    network_path,
)
from benchmarks.network_tables import Row, Setting
from benchmarks.pages import DOCUMENT, README, paragraph
from graft.base.quantities import time_text
from graft.cli.bench.contenders import CONTENDERS, PEERS
from graft.cli.bench.rounds import GRAFT
from graft.cli.options import positive
from graft.target.target import host_target

CHART = Path("docs/images/benchmarks.png")
MAIN, STRICT = "networks", "networks-strict"
SETTINGS = {
    MAIN: Setting(),
    STRICT: Setting(accuracy="strict"),
    "networks-one-thread": Setting(threads=1),
    "networks-batch": Setting(batch=8),
}
USUAL_PEERS = ("onnxruntime", "openvino", "torch")
RUNS = 3
QUICK_LIMITS = ("--rounds", "3", "--seconds", "5")


def add_arguments(name: str, parser: argparse.ArgumentParser) -> None:
    parser.set_defaults(threads=SETTINGS[name].threads)
    add_network_argument(parser)
    parser.add_argument(
        "--runs",
        metavar="N",
        type=positive,
        default=RUNS,
        help=f"independent ones (default {RUNS})",
    )
    parser.add_argument(
        "--peers",
        metavar="NAMES",
        type=names_among("peer", PEERS),
        default=USUAL_PEERS,
        help=f"of {', '.join(PEERS)} (default {','.join(USUAL_PEERS)})",
    )


def measure(name: str, options: argparse.Namespace) -> Json:
    """All runs of all networks in a setting."""
    setting = SETTINGS[name]
    contenders = (GRAFT, *options.peers)
    usual = (*NETWORKS, *DETECTORS) if setting.batch == 1 else NETWORKS
    limits = QUICK_LIMITS if options.quick else ()
    rows = []
    for network in chosen_networks(options, usual):
        runs = []
        for number in range(1, options.runs + 1):
            print(f"  {network}, run {number} of {options.runs}: ", end="", flush=True)
            arguments = setting.arguments(options.threads, options.peers)
            runs.append(graft_bench(network_path(network), *arguments, *limits))
            print(_in_short(Row(network, runs[-1:]), contenders), flush=True)
        rows.append({"network": network, "runs": runs})
    return {
        "processor": host_target().machine.summary,
        "date": datetime.date.today().isoformat(),
        "contenders": list(contenders),
        "rows": rows,
    }


def merge(recorded: Json, data: Json) -> Json:
    """The new record, with the speed-ups of others that were made on other processors."""
    others = (_speedups(recorded), *recorded.get("elsewhere", ()))
    elsewhere = [other for other in others if other["processor"] != data["processor"]]
    return {**data, "elsewhere": elsewhere}


def _speedups(recorded: Json) -> Json:
    rows = (Row(row["network"], row["runs"]) for row in recorded["rows"])
    return {
        "processor": recorded["processor"],
        "date": recorded["date"],
        "speedups": {row.network: row.speedup() for row in rows},
    }


def _in_short(row: Row, contenders: Sequence[str]) -> str:
    times = [
        f"{CONTENDERS[name].title} {time_text(seconds)}"
        for name in contenders
        if (seconds := row.seconds(name)) is not None
    ]
    speedup = row.speedup()
    result = [] if speedup is None else [f"{speedup:.2f} ×"]
    return "; ".join([*([", ".join(times)] if times else []), *result, *row.problems()])


def sections(name: str, record: Record) -> Iterator[Section]:
    data, rows = record.data, _rows(record)
    setting = SETTINGS[name].described(record.made.threads)
    notes = network_tables.notes(rows)
    yield Section(
        DOCUMENT,
        name,
        [
            f"{setting}, float32. {' '.join(network_tables.summary(rows))}",
            "",
            *([_image(CHART.relative_to(DOCUMENT.parent)), ""] if name == MAIN else []),
            *network_tables.full_table(rows, data["contenders"]),
            "",
            *([*notes, ""] if notes else []),
            *paragraph(str(record.made)),
        ],
    )
    if name == MAIN:
        intro = (
            f"{setting}, float32, medians, on {record.made.machine} ({data['processor']},"
            f" {record.made.date}). {' '.join(network_tables.summary(rows))} How measured, and what"
            f" other machines are predicted to do: [{DOCUMENT}]({DOCUMENT}),"
            " [docs/machine.md](docs/machine.md)."
        )
        short = network_tables.short_table(rows, data["contenders"], data.get("elsewhere", ()))
        yield Section(README, MAIN, [*paragraph(intro), "", _image(CHART), "", *short])
    if name == STRICT:
        yield Section(README, STRICT, paragraph(_strict_sentence(rows)))


def _rows(record: Record) -> list[Row]:
    return [Row(row["network"], row["runs"]) for row in record.data["rows"]]


def _strict_sentence(rows: Sequence[Row]) -> str:
    """The strict table in a sentence, for the page that has the default one."""
    each = [f"{row.network} {network_tables.speedup_text(row)}" for row in rows]
    return (
        "With `accuracy=\"strict\"`, which rules out Winograd's and Strassen's algorithms, against"
        f" the best peer: {', '.join(each)}. {' '.join(network_tables.summary(rows))}"
        f" The [table]({DOCUMENT}#strict-accuracy)."
    )


def _image(path: Path) -> str:
    return f"![Speed of Graft and its peers]({path.as_posix()})"


def draw(record: Record, path: Path) -> None:
    title = str(SETTINGS[MAIN].described(record.made.threads))
    network_chart.draw(_rows(record), record.data["contenders"], title, path)


def problems(data: Json) -> list[str]:
    if any(Row(row["network"], row["runs"]).speedup() is not None for row in data["rows"]):
        return []
    return ["nothing could be compared"]


BENCHMARKS = tuple(
    Benchmark(
        name,
        partial(measure, name),
        partial(sections, name),
        partial(add_arguments, name),
        {**ONNXRUNTIME, "openvino": "OpenVINO", "torch": "PyTorch", "onnx2torch": "onnx2torch"},
        (CHART, draw) if name == MAIN else None,
        problems=problems,
        merge=merge,
    )
    for name in SETTINGS
)

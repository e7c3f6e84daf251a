"""Quantises float networks by Graft and by ONNX Runtime, and times the results beside float ones.

Both calibrate on the same kind of random images. Graft chooses within a budget; ONNX Runtime's
static quantiser takes all it can. Errors are relative ones of the outputs, on images that neither
has seen. `--networks` measures some again and keeps what is recorded of others. A result that is
slower than float or over the budget makes the run a failure.
"""

from __future__ import annotations

import argparse
import json
import math
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import onnxruntime

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
)
from benchmarks.network_tables import MISSING, Row, Setting, geometric_mean, speedup_text
from benchmarks.pages import DOCUMENT, paragraph, table
from benchmarks.quantized import FAR_APART, FOLDER, float_file, images, quantized
from graft.cli.bench.rounds import GRAFT
from graft.cli.report import seconds_text
from graft.quantize.sensitivity import OutputError

PEERS = ("onnxruntime", "openvino")
BUDGET = 0.05
SAMPLES, CHECKED = 32, 16  # images that Graft is given, and that errors are measured on


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_network_argument(parser)
    parser.add_argument("--budget", metavar="SHARE", type=float, default=BUDGET)


def measure(options: argparse.Namespace) -> Json:
    rows = []
    arguments = Setting().arguments(options.threads, PEERS)
    for network in chosen_networks(options, (*NETWORKS, *DETECTORS)):
        plain = float_file(network)
        ours, report = _quantized_by_graft(plain, options)
        theirs = _quantized_by_peer(network)
        threads = ("--threads", str(options.threads))
        rows.append(
            {
                "network": network,
                "budget": options.budget,
                "report": report,
                "error": None if theirs is None else _error(plain, theirs),
                "float": graft_bench(plain, *arguments),
                "graft": graft_bench(ours, *threads, "--no-peers"),
                "onnxruntime": {}
                if theirs is None
                else graft_bench(theirs, *arguments, "--atol", str(FAR_APART)),
            }
        )
        print("\n".join(_table(rows[-1:])), flush=True)
    return rows


def merge(earlier: Json, new: Json) -> Json:
    """The new rows in the place of earlier ones of the same networks."""
    rows = {row["network"]: row for row in (*earlier, *new)}
    return [rows[name] for name in (*NETWORKS, *DETECTORS) if name in rows]


def problems(data: Json) -> list[str]:
    """Promises that were not kept."""
    found = []
    for row in data:
        report = row["report"]
        if report["quality"]["error"] > row["budget"]:
            found.append(f"{row['network']} is over its budget")
        if report["seconds"] > report["float_seconds"]:
            found.append(f"{row['network']} is slower than in float")
    return found


def _quantized_by_peer(network: str) -> Path | None:
    """ONNX Runtime's file; None where its quantiser gives up."""
    try:
        return quantized(network)
    except Exception as error:  # noqa: BLE001  (whatever it raises)
        print(f"ONNX Runtime does not quantise {network}: {error}", file=sys.stderr, flush=True)
        return None


def _quantized_by_graft(plain: Path, options: argparse.Namespace) -> tuple[Path, Json]:
    """The file that `graft quantize` writes, and what it says."""
    session = onnxruntime.InferenceSession(plain)
    folder = plain.with_suffix(".samples")
    folder.mkdir(exist_ok=True)
    for number, feeds in enumerate(images(session, SAMPLES, seed=1)):
        np.savez(folder / f"{number:03}.npz", **feeds)
    ours = FOLDER / f"{plain.stem}-graft.onnx"
    command = [sys.executable, "-m", "graft", "quantize", str(plain), "--data", str(folder)]
    command += ["--budget", str(options.budget), "--threads", str(options.threads)]
    done = subprocess.run(
        [*command, "-o", str(ours), "--json"], stdout=subprocess.PIPE, text=True, check=True
    )
    return ours, json.loads(done.stdout)


def _error(plain: Path, other: Path) -> float | None:
    """The relative error of a file's outputs in ONNX Runtime."""
    exact, session = onnxruntime.InferenceSession(plain), onnxruntime.InferenceSession(other)
    error = OutputError()
    for feeds in images(exact, CHECKED, seed=2):
        error.add(exact.run(None, feeds), session.run(None, feeds))
    # the number of boxes differs where detectors choose them from scores that differ
    return error.relative if math.isfinite(error.relative) else None


def sections(record: Record) -> Iterator[Section]:
    rows = record.data
    mean = geometric_mean([Row(row["network"], [row["float"]]) for row in rows])
    of_floats = "" if mean is None else f" Both in float, the geometric mean is {mean:.2f} ×."
    intro = f"{Setting().described(record.made.threads)}, budget {rows[0]['budget']}.{of_floats}"
    made = paragraph(str(record.made))
    yield Section(DOCUMENT, "precision", [*paragraph(intro), "", *_table(rows), "", *made])


def _table(rows: list[Json]) -> list[str]:
    header = [
        *("network", "float: Graft against the best peer", "ONNX Runtime static int8", "its error"),
        *("Graft auto", "its error", "units", "against Graft's float", "against ONNX Runtime's"),
    ]
    return table(header, [_cells(row) for row in rows])


def _cells(row: Json) -> list[str]:
    network, report = row["network"], row["report"]
    is_there = bool(row["onnxruntime"])
    theirs = Row(network, [row["onnxruntime"]]).seconds("onnxruntime") if is_there else None
    ours = Row(network, [row["graft"]]).seconds(GRAFT)
    counts = Counter(unit["precision"] for unit in report["units"])
    speedup = report["float_seconds"] / report["seconds"]
    return [
        network,
        speedup_text(Row(network, [row["float"]])),
        MISSING if theirs is None else seconds_text(theirs),
        MISSING if row["error"] is None else f"{row['error']:.2%}",
        MISSING if ours is None else seconds_text(ours),
        f"{report['quality']['error']:.2%}",
        ", ".join(f"{count} {kind}" for kind, count in counts.most_common()),
        f"{speedup:.2f} ×",
        MISSING if ours is None or theirs is None else f"{theirs / ours:.2f} ×",
    ]


BENCHMARKS = (
    Benchmark(
        "precision",
        measure,
        sections,
        add_arguments,
        {**ONNXRUNTIME, "openvino": "OpenVINO"},
        merge=merge,
        problems=problems,
    ),
)

"""Quantises float networks for AVX2, and times them beside float peers that are limited to it.

    make .venv-bench/.stamp
    .venv-bench/bin/python -m benchmarks precision-avx2 [--networks NAMES] [--resume] --write

On a machine that has AVX2 or more: Graft's code is that of `--machine x86-64-v3`, chosen and
measured as such, and the peers see a processor without AVX-512 and VNNI (`limited.py`). The rest
is as in `precision`: random images to calibrate on, errors on others, all contenders of a network
timed in turns, `--resume` after an interruption.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path

from benchmarks.harness import ONNXRUNTIME, Benchmark, Json, Record, Section
from benchmarks.limited import LEVEL, limited
from benchmarks.network_tables import Setting
from benchmarks.pages import DOCUMENT, paragraph, table
from benchmarks.precision import (
    CHECKED,
    TITLES,
    add_arguments,
    add_errors,
    add_times,
    empty_row,
    error_cell,
    means,
    merge,
    notes,
    problems,
    recorded,
    resumable_rows,
    said,
    say,
    times_and_ratios,
    units_cell,
)
from benchmarks.precision_files import SAMPLES, graft_file, quantized_by_graft
from benchmarks.quantized import FOLDER, float_file
from graft.cli.bench.rounds import GRAFT

AUTO = "graft-5%"
BUDGETS = {AUTO: 0.05}
PEERS = ("onnxruntime", "openvino", "torch")
PARTIAL = FOLDER / "precision-avx2.json"
COLUMNS = {**{n: TITLES[n] for n in (GRAFT, AUTO, *PEERS[:2])}, "torch": "torch.compile float"}
AGAINST: dict[str, tuple[Sequence[str], str]] = {
    "best float peer / auto, 5 %": (PEERS, AUTO),
    "best float peer / Graft float": (PEERS, GRAFT),
}


def measure(options: argparse.Namespace) -> Json:
    return resumable_rows(options, PARTIAL, _row, _tables)


def _row(network: str, options: argparse.Namespace) -> Json:
    row, plain = empty_row(network), float_file(network)
    files: dict[str, Path] = {GRAFT: plain}
    say(f"  graft quantize for {LEVEL}")
    with said(row, AUTO):
        arguments = ["--budget", str(BUDGETS[AUTO]), "--machine", LEVEL]
        name = f"graft-{LEVEL}"
        row["reports"][AUTO] = recorded(
            quantized_by_graft(network, arguments, name, options.threads)
        )
        files[AUTO] = graft_file(network, name)
    add_errors(row, files, (AUTO,), LEVEL)
    if not options.errors_only:
        files |= dict.fromkeys(PEERS, plain)
        add_times(row, files, options, {"machine": LEVEL}, limited)
    return row


def sections(record: Record) -> Iterator[Section]:
    intro = (
        f"{Setting().described(record.made.threads)}; Graft's code is for `{LEVEL}`, and peers see"
        " a processor that has nothing after AVX2. Calibrated on"
        f" {SAMPLES} random images, errors on {CHECKED} others (detectors: at their heads)."
    )
    made = paragraph(str(record.made))
    lines = [*paragraph(intro), "", *_tables(record.data), "", *made]
    yield Section(DOCUMENT, "precision-avx2", lines)


def _tables(rows: list[Json]) -> list[str]:
    header = ["network", "units", "error", *COLUMNS.values(), *AGAINST]
    lines = [
        [
            *(row["network"], units_cell(row, AUTO), error_cell(row, AUTO)),
            *times_and_ratios(row, COLUMNS, AGAINST),
        ]
        for row in rows
    ]
    timed = [row for row in rows if row["timing"]]
    return [*table(header, lines), "", *(means(timed, AGAINST) if timed else ()), *notes(rows)]


BENCHMARKS = (
    Benchmark(
        "precision-avx2",
        measure,
        sections,
        add_arguments,
        {**ONNXRUNTIME, "openvino": "OpenVINO", "torch": "PyTorch"},
        merge=merge,
        problems=partial(problems, budgets=BUDGETS),
    ),
)

#!/usr/bin/env python3
"""Times tabular models (scikit-learn, XGBoost, LightGBM) beside ONNX Runtime, few rows and many.

    python benchmarks/tabular.py --folder FOLDER [--python EXECUTABLE] [--models NAMES] [--write]

The models are those of `tabular_models.py`. FOLDER keeps them; what it lacks is exported by
EXECUTABLE, a Python that has scikit-learn and the converters. Figures are taken as in
`small_models.py`: a process of its own for each contender, model and number of rows, one thread,
medians of blocks of runs. Results are compared: scores within half a percent of the largest, and
labels but for two rows of a thousand (whose scores are close to a tie). `--write` puts the tables
into docs/benchmarks.md.
"""

from __future__ import annotations

import argparse
import datetime
import json
import subprocess
import sys
from pathlib import Path
from statistics import geometric_mean
from typing import Any

import numpy as np
import onnx

sys.path.append(str(Path(__file__).resolve().parent.parent / "tools"))

import graft
from bench_pages import DOCUMENT, chosen_pages, paragraph, table
from graft.cli.bench_machine import this_machine
from graft.cli.usage import positive
from small_models import CONTENDERS, Small, measured, process

ROWS = (1, 1000)
SLOWEST = 10
_CLOSE, _OTHER_LABELS = 5e-3, 2e-3


def main() -> None:
    options = _options()
    if options.process:
        small = _load(options.folder, options.models[0], options.rows[0])
        print(json.dumps(process(options.process, small)))
        return
    names = options.models or _exported(options.folder, options.python)
    pages, machine = chosen_pages(options.write), this_machine()
    ratios: dict[str, list[float]] = {}
    rows = []
    for name in names:
        row = [name]
        ratios[name] = []
        for count in options.rows:
            ours, peer = _measured(options, name, count)
            ratios[name].append(peer / ours)
            row += [f"{ours:,.1f}", f"{peer:,.1f}", f"{peer / ours:.2f} ×"]
        rows.append(row)
        print("  ".join(row), flush=True)
    lines = [
        *paragraph(" ".join(_summary(ratios, n, count) for n, count in enumerate(options.rows))),
        "",
        *_folded(options.rows, rows),
        "",
        *paragraph(_origin(machine, options)),
    ]
    print("\n".join(["", *lines]))
    pages.replace(DOCUMENT, "tabular", lines)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=(__doc__ or "").partition("\n")[0], allow_abbrev=False
    )
    parser.add_argument("--folder", type=Path, required=True, help="where the models are kept")
    parser.add_argument("--python", help="exports models that are not there yet")
    parser.add_argument("--models", nargs="+", default=[], metavar="NAME")
    parser.add_argument("--rows", nargs="+", type=positive, default=[*ROWS], metavar="N")
    parser.add_argument("--rounds", type=positive, default=1, metavar="N")
    parser.add_argument("--write", action="store_true", help="change the project's page")
    parser.add_argument("--process", choices=CONTENDERS, help=argparse.SUPPRESS)
    return parser.parse_args()


def _exported(folder: Path, python: str | None) -> list[str]:
    """The names of all models, exported if there are none yet."""
    if not any(folder.glob("*.onnx")):
        if python is None:
            raise SystemExit(f"{folder} has no models, and there is no --python to export them")
        script = Path(__file__).with_name("tabular_models.py")
        subprocess.run([python, str(script), str(folder)], check=True, stdout=subprocess.DEVNULL)
    return sorted(path.stem for path in folder.glob("*.onnx"))


def _load(folder: Path, name: str, rows: int) -> Small:
    with np.load(folder / f"{name}.npz") as arrays:
        feeds = {key: np.ascontiguousarray(arrays[key][:rows]) for key in arrays.files}
    for key, array in feeds.items():
        if array.dtype.kind == "U":
            feeds[key] = array.astype(object)
    return Small(onnx.load(folder / f"{name}.onnx"), feeds)


def _measured(options: argparse.Namespace, name: str, rows: int) -> tuple[float, float]:
    """Microseconds per run, of Graft and of ONNX Runtime."""
    where = ["--folder", str(options.folder), "--models", name, "--rows", str(rows)]
    figures, results = measured([__file__, *where], options.rounds)
    for own, peer in zip(results["graft"], results["onnxruntime"], strict=True):
        compare(name, own, peer)
    return figures["graft"], figures["onnxruntime"]


def compare(name: str, own: list[Any], peer: list[Any]) -> None:
    """Refuse results that are not the same but for rounding."""
    if peer and isinstance(peer[0], dict):
        if [row.keys() for row in own] != [row.keys() for row in peer]:
            raise SystemExit(f"{name}: other keys than ONNX Runtime's")
        own, peer = ([[*row.values()] for row in rows] for rows in (own, peer))
    found, expected = np.array(own), np.array(peer)
    if found.shape != expected.shape:
        raise SystemExit(f"{name}: {found.shape} where ONNX Runtime has {expected.shape}")
    if expected.dtype.kind == "f":
        largest = np.abs(expected[np.isfinite(expected)]).max(initial=0)
        same = np.allclose(found, expected, rtol=0, atol=_CLOSE * largest, equal_nan=True)
    else:
        same = np.count_nonzero(found != expected) <= _OTHER_LABELS * expected.size
    if not same:
        raise SystemExit(f"{name}: other results than ONNX Runtime's")


def _summary(ratios: dict[str, list[float]], position: int, rows: int) -> str:
    """What all models come to at one number of rows."""
    own = {name: each[position] for name, each in ratios.items()}
    slower = sum(ratio < 1 for ratio in own.values())
    slowest = sorted(own, key=own.__getitem__)[:SLOWEST]
    named = ", ".join(f"{name} {own[name]:.2f}" for name in slowest)
    return (
        f"{rows:,} row{'s' if rows > 1 else ''}: geometric mean {geometric_mean(own.values()):.2f}"
        f" × ONNX Runtime over {len(own)} models, {slower} slower than it; the slowest: {named}."
    )


def _folded(counts: list[int], rows: list[list[str]]) -> list[str]:
    """The table by model, which a reader unfolds."""
    header = ["model"]
    for count in counts:
        size = f"{count:,} row{'s' if count > 1 else ''}"
        header += [f"{size}: Graft, µs", "ONNX Runtime, µs", "ratio"]
    return ["<details>", "<summary>By model</summary>", "", *table(header, rows), "", "</details>"]


def _origin(machine: Any, options: argparse.Namespace) -> str:
    import onnxruntime

    return (
        f"Made on {datetime.date.today().isoformat()} on {machine}, load average"
        f" {machine.load:.1f} at the start; one thread, Graft {graft.__version__}, ONNX Runtime"
        f" {onnxruntime.__version__}; by `python benchmarks/tabular.py --folder FOLDER --rounds"
        f" {options.rounds} --write`."
    )


if __name__ == "__main__":
    main()

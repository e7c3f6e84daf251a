"""Times tabular models (scikit-learn, XGBoost, LightGBM) beside ONNX Runtime, few rows and many.

The models are those of `tabular_models.py`. FOLDER keeps them; what it lacks is exported by
EXECUTABLE, a Python that has scikit-learn and the converters. Figures are taken as in
`small_models.py`: a process of its own for each contender, model and number of rows, one thread,
medians of blocks of runs. Results are compared: scores within half a percent of the largest, and
labels but for two rows of a thousand (whose scores are close to a tie).
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from statistics import geometric_mean
from typing import Any

import numpy as np
import onnx

sys.path.append(str(Path(__file__).resolve().parent.parent / "tools"))

from benchmarks.harness import ONNXRUNTIME, Benchmark, Json, Record, Section
from benchmarks.pages import DOCUMENT, paragraph, table
from benchmarks.small_models import Small, measured, process
from graft.base.compare import Bound, compare_arrays
from graft.base.dtypes import Array
from graft.cli.options import positive

ROWS = (1, 1000)
SLOWEST = 10
_CLOSE, _OTHER_LABELS = 5e-3, 2e-3


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.set_defaults(threads=1)
    parser.add_argument("--folder", type=Path, help="where the models are kept")
    parser.add_argument("--python", help="exports models that are not there yet")
    parser.add_argument("--models", nargs="+", default=[], metavar="NAME")
    parser.add_argument("--rows", nargs="+", type=positive, default=[*ROWS], metavar="N")
    parser.add_argument("--rounds", type=positive, default=1, metavar="N")


def measure(options: argparse.Namespace) -> Json:
    """By model, microseconds of Graft and of ONNX Runtime for each number of rows."""
    if options.folder is None:
        raise SystemExit("--folder says where the models are kept")
    names = options.models or _exported(options.folder, options.python)
    models: dict[str, list[list[float]]] = {}
    for name in names:
        models[name] = [[*_measured(options, name, count)] for count in options.rows]
        print("  ".join(_row(name, models[name])), flush=True)
    return {"rows": options.rows, "models": models}


def sections(record: Record) -> Iterator[Section]:
    counts, models = record.data["rows"], record.data["models"]
    rows = [_row(name, figures) for name, figures in models.items()]
    lines = [
        *paragraph(" ".join(_summary(models, n, count) for n, count in enumerate(counts))),
        "",
        *_folded(counts, rows),
        "",
        *paragraph(str(record.made)),
    ]
    yield Section(DOCUMENT, "tabular", lines)


def _row(name: str, figures: list[list[float]]) -> list[str]:
    cells = [name]
    for ours, peer in figures:
        cells += [f"{ours:,.1f}", f"{peer:,.1f}", f"{peer / ours:.2f} ×"]
    return cells


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
    module = ["benchmarks.tabular", str(options.folder), name, str(rows)]
    figures, results = measured(module, options.rounds)
    for own, peer in zip(results["graft"], results["onnxruntime"], strict=True):
        compare(name, own, peer)
    return figures["graft"], figures["onnxruntime"]


def compare(name: str, own: list[Any], peer: list[Any]) -> None:
    """Refuse results that are not the same but for rounding."""
    if peer and isinstance(peer[0], dict):
        if [row.keys() for row in own] != [row.keys() for row in peer]:
            raise SystemExit(f"{name}: other keys than ONNX Runtime's")
        own, peer = ([[*row.values()] for row in rows] for rows in (own, peer))
    result, expected = (_array(side) for side in (own, peer))
    difference = compare_arrays(result, expected, Bound(of_largest=_CLOSE))
    others = 0.0 if difference.is_float else _OTHER_LABELS * difference.size
    if difference.problem or difference.mismatches > others:
        words = difference.words("ONNX Runtime's")
        raise SystemExit(f"{name}: {words}")


def _array(values: list[Any]) -> Array:
    """What a process has printed as JSON, as an array that can be compared."""
    array = np.array(values)
    return array.astype(object) if array.dtype.kind == "U" else array


def _summary(models: dict[str, list[list[float]]], position: int, rows: int) -> str:
    """What all models come to at one number of rows."""
    figures = {name: each[position] for name, each in models.items()}
    own = {name: peer / ours for name, (ours, peer) in figures.items()}
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


BENCHMARKS = (Benchmark("tabular", measure, sections, add_arguments, ONNXRUNTIME),)

if __name__ == "__main__":  # a process of its own
    folder, model, count, contender = sys.argv[1:]
    print(json.dumps(process(contender, _load(Path(folder), model, int(count)))))

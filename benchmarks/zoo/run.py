"""Exports architectures that nobody tuned for, and times Graft beside its peers on each.

Architectures are chosen by rules (`from_timm`, `from_transformers`, `from_torchvision`,
`from_estimators`) and get random weights. Both of these happen in turn, or what `--actions` names:

- `export` writes ONNX files into the folder, each in a process of its own with limits on time and
  memory, in an environment with pinned packages (`.venv-zoo`, made on first use; `--python` names
  the interpreter of another one). What fails is recorded with its reason.
- `time` compares outputs and then times the contenders with `graft bench`. Models that have results
  are skipped unless `--again` is given.

With no action, what the folder holds is reported. Exports must not run while something is timed.
"""

from __future__ import annotations

import argparse
import os
import shutil
from collections.abc import Sequence
from fnmatch import fnmatch
from pathlib import Path

from benchmarks.harness import Benchmark, Json
from benchmarks.pages import ROOT
from benchmarks.zoo.models import GROUPS, Exporter, Model, Records, environment_python
from benchmarks.zoo.report import CHART, draw, report_lines, sections
from benchmarks.zoo.timing import time_model
from graft.base.cores import available_cores

ACTIONS = ("export", "time")
# A model's file is deleted once it is timed where less than this is free.
SCARCE_BYTES = 10e9


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    parser.set_defaults(threads=available_cores())
    add("--actions", nargs="*", choices=ACTIONS, default=ACTIONS, help=" ".join(ACTIONS))
    add("--groups", type=_groups, default=list(GROUPS), metavar="NAMES", help=", ".join(GROUPS))
    add("--models", default="*", metavar="PATTERN", help="as 'timm/conv*'")
    add("--dynamic", action="store_true", help="timm with any batch size")
    add("--openvino", action="store_true", help="time it, too")
    add("--seconds", type=float, default=10.0, metavar="S", help="of timing a model, at most")
    add("--again", action="store_true", help="also time models that have results")
    add("--folder", type=Path, default=_cache_folder(), help="for files and results")
    add("--python", type=Path, help="the interpreter of an environment that has the packages")
    add("--keep", action="store_true", help="keep timed models' files on a full disk")


def measure(options: argparse.Namespace) -> Json:
    """Why models have no file, and what was measured of the others."""
    options.folder.mkdir(parents=True, exist_ok=True)
    exports = Records(options.folder / "exports.json")
    times = Records(options.folder / "times.json")
    if options.actions:
        python = options.python or environment_python(ROOT / ".venv-zoo")
        exporter = Exporter(python, options.folder, exports)
        models = [
            model
            for model in exporter.models(options.groups, options.dynamic)
            if fnmatch(model.name, options.models)
        ]
        if "export" in options.actions:
            _export(models, exporter)
        if "time" in options.actions:
            _time(models, times, options)
    data = {"exports": exports.by_name, "times": times.by_name}
    print("\n".join(report_lines(data)))
    return data


def _export(models: Sequence[Model], exporter: Exporter) -> None:
    """Export what has neither a file nor a recorded result."""
    for model in models:
        if exporter.exports.has(model.name):
            continue
        if model.file(exporter.folder).exists():
            exporter.exports.add(model.name, "")
        else:
            print(f"{model.name}: {exporter.export(model) or 'exported'}", flush=True)


def _time(models: Sequence[Model], times: Records, options: argparse.Namespace) -> None:
    peers = ["onnxruntime", *(["openvino"] if options.openvino else [])]
    for model in models:
        path = model.file(options.folder)
        if not path.exists() or (times.has(model.name) and not options.again):
            continue
        result = time_model(path, peers, options.threads, options.seconds)
        times.add(model.name, result.to_json())
        print(f"{model.name}: {result}", flush=True)
        if not options.keep and shutil.disk_usage(options.folder).free < SCARCE_BYTES:
            path.unlink()


def _groups(names: str) -> list[str]:
    chosen = names.split(",")
    unknown = set(chosen) - set(GROUPS)
    if unknown:
        raise argparse.ArgumentTypeError(f"there is no group {', '.join(sorted(unknown))}")
    return chosen


def _cache_folder() -> Path:
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "graft-zoo"


BENCHMARKS = (Benchmark("zoo", measure, sections, add_arguments, chart=(CHART, draw)),)

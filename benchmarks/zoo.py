#!/usr/bin/env python3
"""Exports architectures that nobody tuned for, and times Graft beside its peers on each.

    python benchmarks/zoo.py [export] [time] [report] [--groups NAMES] [--models PATTERN]
                             [--dynamic] [--openvino] [--threads N] [--seconds S] [--again]
                             [--folder FOLDER] [--python PYTHON] [--keep] [--write]

Architectures are chosen by rules (`zoo_timm`, `zoo_transformers`, `zoo_torchvision`, `zoo_classic`)
and get random weights. Without an action all three happen in turn:

- `export` writes ONNX files into the folder, each in a process of its own with limits on time and
  memory, in an environment with pinned packages (`.venv-zoo`, made on first use; `--python` names
  the interpreter of another one). What fails is recorded with its reason.
- `time` compares outputs and then times the contenders in alternating blocks, each in a process of
  its own, as `graft bench` does. Models that have results are skipped unless `--again` is given.
- `report` prints a table by family and a histogram; `--write` puts them into docs/zoo.md.

Exports must not run while something is timed.
"""

from __future__ import annotations

import argparse
import os
import shutil
import sys
from collections.abc import Sequence
from fnmatch import fnmatch
from pathlib import Path

from graft.cli.usage import positive
from graft.runtime.cores import available_cores
from zoo_models import GROUPS, Exporter, Model, Records, environment_python
from zoo_report import report_lines, write_page
from zoo_timing import time_model

ROOT = Path(__file__).resolve().parent.parent
ACTIONS = ("export", "time", "report")
# A model's file is deleted once it is timed where less than this is free.
SCARCE_BYTES = 10e9


def main() -> int:
    options = _options()
    options.folder.mkdir(parents=True, exist_ok=True)
    exports = Records(options.folder / "exports.json")
    times = Records(options.folder / "times.json")
    python = options.python or environment_python(ROOT / ".venv-zoo")
    exporter = Exporter(python, options.folder, exports)
    models = [
        one
        for one in exporter.models(options.groups, options.dynamic)
        if fnmatch(one.name, options.models)
    ]
    if "export" in options.actions:
        _export(models, exporter)
    if "time" in options.actions:
        _time(models, times, options)
    if "report" in options.actions:
        print("\n".join(report_lines(exports, times)))
        if options.write:
            write_page(ROOT, exports, times, python, _told(sys.argv[1:]))
    return 0


def _told(arguments: Sequence[str]) -> list[str]:
    """The arguments for a page: without where things are on this machine."""
    places = ("--folder", "--python")
    found = zip(["", *arguments], arguments, strict=False)
    return [one for before, one in found if before not in places and one not in places]


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


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("actions", nargs="*", default=list(ACTIONS), metavar="ACTION", help=", ".join(ACTIONS))
    add("--groups", type=_groups, default=list(GROUPS), metavar="NAMES", help=", ".join(GROUPS))
    add("--models", default="*", metavar="PATTERN", help="as 'timm/conv*'")
    add("--dynamic", action="store_true", help="timm with any batch size")
    add("--openvino", action="store_true", help="time it, too")
    add("--threads", type=positive, default=available_cores(), metavar="N")
    add("--seconds", type=float, default=10.0, metavar="S", help="of timing a model, at most")
    add("--again", action="store_true", help="also time models that have results")
    add("--folder", type=Path, default=_cache_folder(), help="for files and results")
    add("--python", type=Path, help="the interpreter of an environment that has the packages")
    add("--keep", action="store_true", help="keep timed models' files on a full disk")
    add("--write", action="store_true", help="write the report into docs/zoo.md")
    options = parser.parse_args()
    unknown = set(options.actions) - set(ACTIONS)
    if unknown:
        parser.error(f"there is no action {', '.join(sorted(unknown))}")
    return options


def _groups(names: str) -> list[str]:
    chosen = names.split(",")
    unknown = set(chosen) - set(GROUPS)
    if unknown:
        raise argparse.ArgumentTypeError(f"there is no group {', '.join(sorted(unknown))}")
    return chosen


def _cache_folder() -> Path:
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "graft-zoo"


if __name__ == "__main__":
    sys.exit(main())

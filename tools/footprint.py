#!/usr/bin/env python3
"""Measures what Graft costs beside the time of an inference: compiling, starting, memory.

    python tools/footprint.py [--networks NAMES] [--threads N] [--runs N] [--quick] [--write]

Each figure comes from a fresh process (tools/footprint_process.py), and is the median of the runs.
ONNX Runtime is measured in the same way on the same files. `--write` puts the tables into
docs/benchmarks.md between their markers; without it they go to build/bench/.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

from bench_pages import (
    DOCUMENT,
    MODELS,
    ROOT,
    add_common_arguments,
    chosen_pages,
    paragraph,
    parsed,
    table,
)
from graft import __version__
from graft.cli.bench_machine import this_machine
from graft.cli.bench_model import Subject, prepared
from graft.cli.inputs import add_input_arguments
from graft.cli.report import seconds_text, size_text
from graft.cli.usage import positive

RUNS = 3
PROCESS = Path(__file__).with_name("footprint_process.py")

Figures = Mapping[str, float]


@dataclass(frozen=True, slots=True)
class Footprint:
    """A network: seconds and bytes of each way to start it, and what its file says of itself."""

    network: str
    cold: Figures
    warm: Figures
    load: Figures
    onnxruntime: Figures
    saved: Mapping[str, Any]  # what `graft compile --json` prints


def main() -> None:
    options = _options()
    pages = chosen_pages(options.write)
    machine = this_machine()
    alone = medians([_process("import") for _ in range(options.runs)])
    print(f"import graft: {seconds_text(alone['import'])}", flush=True)
    found = []
    for network in options.networks:
        print(f"  {network}: ", end="", flush=True)
        found.append(_measured(network, options))
        print(_in_short(found[-1]), flush=True)
    where = (
        f"Made on {datetime.date.today().isoformat()} on {machine}, with {options.threads}"
        f" threads, Graft {__version__}; medians of {options.runs}. `import graft` alone takes"
        f" {seconds_text(alone['import'])}."
    )
    lines = [*starting(found), "", *memory(found), "", *paragraph(where)]
    print("\n".join(["", *lines]))
    pages.replace(DOCUMENT, "footprint", lines)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=(__doc__ or "").partition("\n")[0], allow_abbrev=False
    )
    add_common_arguments(parser)
    parser.add_argument(
        "--runs", metavar="N", type=positive, help=f"of each process (default {RUNS})"
    )
    options = parsed(parser)
    if options.runs is None:
        options.runs = 1 if options.quick else RUNS
    return options


def _measured(network: str, options: argparse.Namespace) -> Footprint:
    """All figures of a network, whose files live in a folder of their own."""
    with tempfile.TemporaryDirectory(prefix="graft-footprint-") as name:
        folder = Path(name)
        subject = prepared(MODELS / f"{network}.onnx", _usual_inputs(), folder)
        artifact = folder / "model.graft"

        def repeated(kind: str, model: Path, cache: Callable[[int], str]) -> Figures:
            return medians(
                [
                    _started(kind, model, subject, options.threads, folder / cache(run))
                    for run in range(options.runs)
                ]
            )

        cold = repeated("compile", subject.file, lambda run: f"cache-{run}")
        warm = repeated("compile", subject.file, lambda _: "cache-0")
        saved = _saved(subject.file, artifact, folder / "cache-0")
        load = repeated("load", artifact, lambda _: "cache-0")
        peer = repeated("onnxruntime", subject.file, lambda _: "cache-0")
    return Footprint(network, cold, warm, load, peer, saved)


def _usual_inputs() -> argparse.Namespace:
    """The options of a command that was given none, for a model as it is."""
    parser = argparse.ArgumentParser()
    add_input_arguments(parser)
    parser.set_defaults(batch=None, strict_import=False)
    return parser.parse_args([])


def _started(kind: str, model: Path, subject: Subject, threads: int, cache: Path) -> Figures:
    feeds = {name: (description or {})["file"] for name, description in subject.feeds}
    return _process(kind, str(model), json.dumps(feeds), str(threads), cache=cache)


def _process(*arguments: str, cache: Path | None = None) -> Figures:
    return _answer([str(PROCESS), *arguments], cache)


def _saved(model: Path, artifact: Path, cache: Path) -> Mapping[str, Any]:
    command = ["-m", "graft", "compile", str(model), "-o", str(artifact), "--json"]
    return _answer(command, cache)


def _answer(arguments: Sequence[str], cache: Path | None) -> dict[str, Any]:
    """The JSON object that a Python process prints."""
    environment = dict(os.environ)
    if cache is not None:
        environment["GRAFT_CACHE_DIR"] = str(cache)
    done = subprocess.run(
        [sys.executable, *arguments],
        cwd=ROOT,
        env=environment,
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    answer: dict[str, Any] = json.loads(done.stdout)
    return answer


def medians(runs: Sequence[Figures]) -> Figures:
    """Figure by figure."""
    return {name: median(one[name] for one in runs) for name in runs[0]}


def starting(found: Sequence[Footprint]) -> list[str]:
    """How long it takes until the first result is there."""
    header = (
        "network",
        "`graft.compile`, cold",
        "warm",
        "`.graft`: import",
        "load",
        "first run",
        "ONNX Runtime: import",
        "session",
        "first run",
    )
    rows = [
        (
            one.network,
            *(seconds_text(figures["ready"]) for figures in (one.cold, one.warm)),
            *(
                seconds_text(figures[part])
                for figures in (one.load, one.onnxruntime)
                for part in ("import", "ready", "first")
            ),
        )
        for one in found
    ]
    return table(header, rows)


def memory(found: Sequence[Footprint]) -> list[str]:
    """What a process holds after some runs and, in parentheses, held at most."""
    header = (
        "network",
        "`.graft` file",
        "from the file",
        "`graft.compile`, cold",
        "ONNX Runtime",
        "arena",
        "its lower bound",
    )
    rows = [
        (
            one.network,
            size_text(one.saved["file_bytes"]),
            *(
                f"{size_text(int(figures['steady']))} ({size_text(int(figures['peak']))})"
                for figures in (one.load, one.cold, one.onnxruntime)
            ),
            size_text(one.saved["arena_bytes"]),
            size_text(one.saved["arena_bound_bytes"]),
        )
        for one in found
    ]
    return table(header, rows)


def _in_short(one: Footprint) -> str:
    compiled = f"compiled in {seconds_text(one.cold['ready'])}, {seconds_text(one.warm['ready'])}"
    held = [size_text(int(figures["steady"])) for figures in (one.load, one.onnxruntime)]
    return f"{compiled} warm; holds {held[0]}, ONNX Runtime {held[1]}"


if __name__ == "__main__":
    main()

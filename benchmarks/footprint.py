"""Measures what Graft costs beside the time of an inference: compiling, starting, memory.

Each figure comes from a fresh process (`footprint_process.py`), and is the median of the runs.
ONNX Runtime is measured in the same way on the same files.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.harness import (
    NETWORKS,
    ONNXRUNTIME,
    Benchmark,
    Json,
    Record,
    Section,
    add_network_argument,
    chosen_networks,
    network_path,
)
from benchmarks.pages import DOCUMENT, ROOT, paragraph, table
from graft.base.quantities import size_text, time_text
from graft.cli.bench.model import Subject, prepared
from graft.cli.inputs import add_input_arguments
from graft.cli.options import positive

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


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_network_argument(parser, NETWORKS)
    parser.add_argument(
        "--runs", metavar="N", type=positive, default=RUNS, help=f"of a process (default {RUNS})"
    )


def measure(options: argparse.Namespace) -> Json:
    alone = medians([_process("import") for _ in range(options.runs)])
    print(f"import graft: {time_text(alone['import'])}", flush=True)
    networks = []
    for network in chosen_networks(options):
        print(f"  {network}: ", end="", flush=True)
        networks.append(_measured(network, options))
        print(_in_short(networks[-1]), flush=True)
    return {
        "runs": options.runs,
        "import": alone["import"],
        "networks": [asdict(one) for one in networks],
    }


def sections(record: Record) -> Iterator[Section]:
    data = record.data
    networks = [Footprint(**one) for one in data["networks"]]
    where = (
        f"Medians of {data['runs']}. `import graft` alone takes {time_text(data['import'])}."
        f" {record.made}"
    )
    lines = [*starting(networks), "", *memory(networks), "", *paragraph(where)]
    yield Section(DOCUMENT, "footprint", lines)


def _measured(network: str, options: argparse.Namespace) -> Footprint:
    """All figures of a network, whose files live in a folder of their own."""
    with tempfile.TemporaryDirectory(prefix="graft-footprint-") as name:
        folder = Path(name)
        subject = prepared(network_path(network), _usual_inputs(), folder)
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
    return {name: median(run[name] for run in runs) for name in runs[0]}


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
            *(time_text(figures["ready"]) for figures in (one.cold, one.warm)),
            *(
                time_text(figures[part])
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
    compiled = f"compiled in {time_text(one.cold['ready'])}, {time_text(one.warm['ready'])}"
    held = [size_text(int(figures["steady"])) for figures in (one.load, one.onnxruntime)]
    return f"{compiled} warm; holds {held[0]}, ONNX Runtime {held[1]}"


BENCHMARKS = (Benchmark("footprint", measure, sections, add_arguments, ONNXRUNTIME),)

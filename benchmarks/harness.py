"""What all benchmarks share: options in; a record as JSON, and pages rendered from it, out.

A benchmark measures, which gives data that JSON can hold, and renders sections of pages from these
data alone. Records lie in docs/results, a file per benchmark, so that a page can be rendered again
without measuring.
"""

from __future__ import annotations

import argparse
import datetime
import json
import shlex
import subprocess
import sys
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from importlib import metadata
from pathlib import Path
from typing import Any

from benchmarks.pages import MODELS, PREVIEW, RESULTS, ROOT, Pages
from graft import __version__
from graft.cli.machine import this_machine
from graft.cli.options import positive

NETWORKS = (
    "resnet18",
    "resnet50",
    "inception_v3",
    "darknet53",
    "mobilenet_v2",
    "vgg19",
    "vit_b_16",
)
# Their sizes depend on their data, and images come one by one.
DETECTORS = ("ssd512_mobilenet1.0", "ssd300_resnet34", "faster_rcnn_resnet50")
QUICK_NETWORKS = ("resnet18", "mobilenet_v2")
ONNXRUNTIME = {"onnxruntime": "ONNX Runtime"}

Json = Any


@dataclass(frozen=True, slots=True)
class Made:
    """When, where and how a record was measured."""

    date: str
    machine: str
    load: float | None  # average before anything was started, where it is known
    threads: int
    versions: Mapping[str, str]
    command: str

    def __str__(self) -> str:
        versions = ", ".join(f"{name} {version}" for name, version in self.versions.items())
        threads = "1 thread" if self.threads == 1 else f"{self.threads} threads"
        load = "" if self.load is None else f", load average {self.load:.1f} at the start"
        return (
            f"Made on {self.date} on {self.machine}{load}, with {threads}; {versions}; by"
            f" `{self.command}`."
        )


@dataclass(frozen=True, slots=True)
class Record:
    """What a benchmark has measured, and where that comes from."""

    made: Made
    data: Json

    def to_json(self) -> str:
        return json.dumps(asdict(self), indent=1, ensure_ascii=False) + "\n"

    @staticmethod
    def from_json(text: str) -> Record:
        fields = json.loads(text)
        return Record(Made(**fields["made"]), fields["data"])


@dataclass(frozen=True, slots=True)
class Section:
    """Lines of a page: those between the comments of a marker or, without one, all of them."""

    page: Path
    marker: str
    lines: Sequence[str]


@dataclass(frozen=True, slots=True)
class Benchmark:
    """A measurement and the rendering of what it finds."""

    name: str
    measure: Callable[[argparse.Namespace], Json]
    sections: Callable[[Record], Iterable[Section]]
    add_arguments: Callable[[argparse.ArgumentParser], None] = lambda _parser: None
    packages: Mapping[str, str] = field(default_factory=dict)  # versions beside Graft's, titles
    chart: tuple[Path, Callable[[Record, Path], None]] | None = None
    # Earlier data and new ones in, what is recorded out: the new ones unless a part was measured.
    merge: Callable[[Json, Json], Json] = lambda _earlier, new: new
    problems: Callable[[Json], Sequence[str]] = lambda _data: ()  # that make the run a failure

    @property
    def _module(self) -> str:
        return str(getattr(self.measure, "func", self.measure).__module__)

    def options(self, arguments: Sequence[str]) -> argparse.Namespace:
        parser = argparse.ArgumentParser(
            prog=f"python -m benchmarks {self.name}",
            description=(sys.modules[self._module].__doc__ or "").partition("\n")[0],
            allow_abbrev=False,
        )
        parser.add_argument("--threads", metavar="N", type=positive, default=2, help="(default 2)")
        parser.add_argument(
            "--quick", action="store_true", help="only see whether it works: few runs, few models"
        )
        parser.add_argument(
            "--write",
            action="store_true",
            help=f"record in {RESULTS}/ and change the project's pages, not copies of them",
        )
        parser.add_argument(
            "--pages-only", action="store_true", help="render the record again; measure nothing"
        )
        self.add_arguments(parser)
        options = parser.parse_args(arguments)
        if options.quick and options.write:
            parser.error("numbers of --quick are not worth writing")
        return options


def run(benchmark: Benchmark, arguments: Sequence[str]) -> int:
    """Measure, record and render, or only render; 1 where the run failed."""
    options = benchmark.options(arguments)
    if options.pages_only:
        return _render_again(benchmark)
    pages = Pages(ROOT if options.write else PREVIEW)
    path = pages.path(RESULTS / f"{benchmark.name}.json")
    machine = this_machine()
    for warning in machine.warnings(options.threads):
        print(f"warning: {warning}")
    data = benchmark.measure(options)
    problems = benchmark.problems(data)
    if options.write and path.exists():
        data = benchmark.merge(Record.from_json(path.read_text(encoding="utf-8")).data, data)
    command = shlex.join(["python", "-m", "benchmarks", benchmark.name, *arguments])
    made = Made(
        datetime.date.today().isoformat(),
        str(machine),
        machine.load,
        options.threads,
        {"Graft": __version__, **_versions(benchmark.packages)},
        command,
    )
    record = Record(made, data)
    path.write_text(record.to_json(), encoding="utf-8")
    render(benchmark, record, pages, show=True)
    if not options.write:
        print(f"without --write, record and pages are in {PREVIEW.relative_to(ROOT)}/")
    for problem in problems:
        print(problem, file=sys.stderr)
    return 1 if problems else 0


def _versions(packages: Mapping[str, str]) -> dict[str, str]:
    """By title, of those that are installed."""
    versions = {}
    for name, title in packages.items():
        with suppress(metadata.PackageNotFoundError):
            versions[title] = metadata.version(name)
    return versions


def _render_again(benchmark: Benchmark) -> int:
    path = ROOT / RESULTS / f"{benchmark.name}.json"
    if not path.exists():
        print(f"{benchmark.name}: not recorded yet")
        return 0
    render(benchmark, Record.from_json(path.read_text(encoding="utf-8")), Pages(ROOT))
    return 0


def render(benchmark: Benchmark, record: Record, pages: Pages, show: bool = False) -> None:
    """Write a record's sections into pages, and its chart where Matplotlib is there to draw it."""
    for section in benchmark.sections(record):
        if show and not section.page.name.startswith("README"):
            print("\n".join(["", *section.lines]), flush=True)
        pages.replace(section.page, section.marker, section.lines)
    if benchmark.chart is not None:
        path, draw = benchmark.chart
        try:
            draw(record, pages.path(path))
        except ModuleNotFoundError as error:
            print(f"{path} stays as it is: {error}")


def graft_bench(model: Path, *options: str) -> Json:
    """What `graft bench --json` tells of one model; with a `problem` where it could not start."""
    command = [sys.executable, "-m", "graft", "bench", str(model), "--json", *options]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    try:
        (result,) = json.loads(done.stdout)["models"]
    except ValueError:
        return {"problem": " ".join(done.stderr.split()), "contenders": [], "warnings": []}
    return {**result, "model": model.name}


def add_network_argument(
    parser: argparse.ArgumentParser, known: Sequence[str] = (*NETWORKS, *DETECTORS)
) -> None:
    """Which of the networks are meant."""
    parser.add_argument(
        "--networks",
        metavar="NAMES",
        type=names_among("network", known),
        help=f"of {', '.join(known)}, with commas",
    )


def names_among(noun: str, known: Collection[str]) -> Callable[[str], tuple[str, ...]]:
    """What parses an option of known names with commas between them."""

    def names(text: str) -> tuple[str, ...]:
        chosen = tuple(name.strip() for name in text.split(","))
        for name in chosen:
            if name not in known:
                raise argparse.ArgumentTypeError(
                    f"there is no {noun} '{name}'; there are {', '.join(known)}"
                )
        return chosen

    return names


def chosen_networks(options: argparse.Namespace, usual: Sequence[str] = NETWORKS) -> Sequence[str]:
    """Those that were named, else the usual ones, or a few of them to be quick."""
    if options.networks is not None:
        return tuple(options.networks)
    return [name for name in usual if name in QUICK_NETWORKS] if options.quick else usual


def network_path(network: str) -> Path:
    return MODELS / f"{network}.onnx"

"""What the zoo's times say: records in; a table by family, a histogram and a page out."""

from __future__ import annotations

import datetime
import math
import shlex
import subprocess
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

from graft.cli.bench_contenders import CONTENDERS
from graft.cli.bench_machine import this_machine
from graft.cli.bench_rounds import GRAFT
from graft.cli.report import lines_of, seconds_text, table
from page_parts import markdown_table, section
from zoo_models import PACKAGES, Records

PEER = "onnxruntime"
# Slower than this is behind for more than noise; slower than that is a fault.
LEVEL, FAULT = 0.97, 0.8
EDGES = (0.5, 0.65, 0.8, 0.97, 1.1, 1.25, 1.5, 2.0, 3.0)
PAGE, CHART = Path("docs/zoo.md"), Path("docs/images/zoo.png")

_FAMILIES = {
    "timm": "timm classifiers",
    "timm-dynamic": "timm classifiers, any batch",
    "segmentation": "torchvision segmentation",
    "classic": "scikit-learn, XGBoost, LightGBM",
}
_HEADER = ("family", "models", "mean", f"< {LEVEL}", f"< {FAULT}", "slowest")
_SLOWEST_SHOWN = 3
_BAR = 50


@dataclass(frozen=True, slots=True)
class Summary:
    """The speeds of a family's models: peer's time over Graft's."""

    speedups: Mapping[str, float]

    @property
    def mean(self) -> float:
        """The geometric mean."""
        logarithms = [math.log(one) for one in self.speedups.values()]
        return math.exp(sum(logarithms) / len(logarithms))

    def below(self, limit: float) -> int:
        return sum(one < limit for one in self.speedups.values())

    @property
    def slowest(self) -> list[str]:
        return sorted(self.speedups, key=self.speedups.__getitem__)

    def row(self, family: str) -> tuple[str, ...]:
        worst = [
            f"{name.rpartition('/')[2]} {self.speedups[name]:.2f}"
            for name in self.slowest[:_SLOWEST_SHOWN]
        ]
        counts = (str(self.below(LEVEL)), str(self.below(FAULT)))
        return (family, str(len(self.speedups)), f"{self.mean:.2f}", *counts, ", ".join(worst))


def family_of(name: str) -> str:
    """The row of the table that a model belongs to."""
    group, _, architecture = name.partition("/")
    if group == "transformers":
        return f"transformers {architecture.partition('-')[0]}"
    return _FAMILIES[group]


def summaries(times: Records, peer: str = PEER) -> dict[str, Summary]:
    """By family, and of all."""
    families: dict[str, dict[str, float]] = {}
    for name, record in times.by_name.items():
        if peer in record["speedups"]:
            speedup = record["speedups"][peer][0]
            for family in (family_of(name), "all"):
                families.setdefault(family, {})[name] = speedup
    order = sorted(families, key=lambda family: (family == "all", family))
    return {family: Summary(families[family]) for family in order}


def report_lines(exports: Records, times: Records) -> Iterator[str]:
    """The table, the histogram, and what could not be exported or compared."""
    for peer in CONTENDERS:
        found = summaries(times, peer)
        if found:
            yield f"{CONTENDERS[peer].title}'s time over Graft's, geometric means"
            rows = [one.row(family) for family, one in found.items()]
            yield from lines_of(table(rows, _HEADER, right=(1, 2, 3, 4)))
            yield ""
            yield from histogram_lines(list(found["all"].speedups.values()))
            yield ""
    yield from (f"not exported: {name}: {reason}" for name, reason in _not_exported(exports))
    yield from (f"not compared: {name}: {reason}" for name, reason in _not_compared(times))


def histogram(speedups: Sequence[float]) -> dict[str, int]:
    """How many models lie between two edges, in order."""
    positions = Counter(sum(one >= edge for edge in EDGES) for one in speedups)
    inner = [f"{low} to {high}" for low, high in pairwise(EDGES)]
    labels = [f"below {EDGES[0]}", *inner, f"{EDGES[-1]} and more"]
    return {label: positions[position] for position, label in enumerate(labels)}


def histogram_lines(speedups: Sequence[float]) -> Iterator[str]:
    counts = histogram(speedups)
    most = max(counts.values())
    for label, count in counts.items():
        bar = "#" * math.ceil(_BAR * count / most)
        yield f"{label:>12}  {count:>3}  {bar}".rstrip()


def _not_exported(exports: Records) -> list[tuple[str, str]]:
    return sorted((name, reason) for name, reason in exports.by_name.items() if reason)


def _not_compared(times: Records) -> list[tuple[str, str]]:
    return sorted(
        (name, f"{CONTENDERS[who].title}: {problem}")
        for name, record in times.by_name.items()
        for who, problem in record["problems"].items()
    )


def write_page(
    root: Path, exports: Records, times: Records, python: Path, arguments: Sequence[str]
) -> None:
    """Write docs/zoo.md, and the histogram as a picture, which the zoo's environment draws."""
    overall = summaries(times)["all"]
    speedups = list(overall.speedups.values())
    script = Path(__file__).with_name("zoo_plot.py")
    counts = [f"{label}={count}" for label, count in histogram(speedups).items()]
    subprocess.run([str(python), str(script), str(root / CHART), *counts], check=True)
    lines = _page_lines(exports, times, overall, shlex.join(arguments))
    (root / PAGE).write_text("\n".join(lines) + "\n", encoding="utf-8")


def _page_lines(
    exports: Records, times: Records, overall: Summary, arguments: str
) -> Iterator[str]:
    machine, today = this_machine(), datetime.date.today().isoformat()
    exported = sum(not reason for reason in exports.by_name.values())
    yield "# The zoo"
    yield ""
    yield "```text"
    yield f"python benchmarks/zoo.py {arguments}".rstrip()
    yield "```"
    yield ""
    yield (
        f"Architectures chosen by rules and exported with random weights: {len(exports.by_name)}"
        f" attempted, {exported} exported, {len(overall.speedups)} timed. Each contender runs in"
        " a process of its own with the same number of threads, in alternating blocks; numbers"
        " are the peer's median time over Graft's, so above 1 Graft is faster."
    )
    yield ""
    yield f"- {machine}, {today}"
    yield f"- {', '.join(_versions(times))}"
    yield f"- exported with {', '.join(PACKAGES)}"
    yield ""
    yield f"![Histogram of speeds]({CHART.relative_to('docs')})"
    for peer in CONTENDERS:
        found = summaries(times, peer)
        if found:
            yield from section(f"Beside {CONTENDERS[peer].title}")
            yield from markdown_table(_HEADER, [one.row(family) for family, one in found.items()])
    yield from section("Models")
    yield from markdown_table(
        ("model", "Graft", "ONNX Runtime", "speed"), _model_rows(times, overall)
    )
    for title, rows in (
        ("Not compared", _not_compared(times)),
        ("Not exported", _not_exported(exports)),
    ):
        if rows:
            yield from section(title)
            yield from markdown_table(("model", "reason"), rows)


def _versions(times: Records) -> list[str]:
    """The contenders and their versions; more than one where results were resumed."""
    found = {
        f"{CONTENDERS[who].title} {version.partition(' ')[0]}"
        for record in times.by_name.values()
        for who, version in record["versions"].items()
    }
    return sorted(found)


def _model_rows(times: Records, overall: Summary) -> Iterator[tuple[str, ...]]:
    for name in overall.slowest:
        seconds: dict[str, Any] = times.by_name[name]["seconds"]
        both = (seconds_text(seconds[who]) for who in (GRAFT, PEER))
        yield (name, *both, f"{overall.speedups[name]:.2f}")

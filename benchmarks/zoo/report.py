"""What the zoo's times say: records in; a table by family, a histogram and a page out."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

from benchmarks.harness import Json, Record, Section
from benchmarks.pages import heading, text_table
from benchmarks.zoo.models import PACKAGES
from benchmarks.zoo.plot import draw_histogram
from graft.base.quantities import time_text
from graft.cli.bench.contenders import CONTENDERS
from graft.cli.bench.rounds import GRAFT
from graft.cli.report import lines_of, table

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
        logarithms = [math.log(speedup) for speedup in self.speedups.values()]
        return math.exp(sum(logarithms) / len(logarithms))

    def below(self, limit: float) -> int:
        return sum(speedup < limit for speedup in self.speedups.values())

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


def summaries(times: Json, peer: str = PEER) -> dict[str, Summary]:
    """By family, and of all."""
    families: dict[str, dict[str, float]] = {}
    for name, record in times.items():
        if peer in record["speedups"]:
            speedup = record["speedups"][peer][0]
            for family in (family_of(name), "all"):
                families.setdefault(family, {})[name] = speedup
    order = sorted(families, key=lambda family: (family == "all", family))
    return {family: Summary(families[family]) for family in order}


def report_lines(data: Json) -> Iterator[str]:
    """The table, the histogram, and what could not be exported or compared."""
    exports, times = data["exports"], data["times"]
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
    positions = Counter(sum(speedup >= edge for edge in EDGES) for speedup in speedups)
    inner = [f"{low} to {high}" for low, high in pairwise(EDGES)]
    labels = [f"below {EDGES[0]}", *inner, f"{EDGES[-1]} and more"]
    return {label: positions[position] for position, label in enumerate(labels)}


def histogram_lines(speedups: Sequence[float]) -> Iterator[str]:
    counts = histogram(speedups)
    most = max(counts.values())
    for label, count in counts.items():
        bar = "#" * math.ceil(_BAR * count / most)
        yield f"{label:>12}  {count:>3}  {bar}".rstrip()


def _not_exported(exports: Json) -> list[tuple[str, str]]:
    return sorted((name, reason) for name, reason in exports.items() if reason)


def _not_compared(times: Json) -> list[tuple[str, str]]:
    return sorted(
        (name, f"{CONTENDERS[who].title}: {problem}")
        for name, record in times.items()
        for who, problem in record["problems"].items()
    )


def sections(record: Record) -> Iterator[Section]:
    if summaries(record.data["times"]):  # else models were only exported
        yield Section(PAGE, "", list(_page_lines(record)))


def draw(record: Record, path: Path) -> None:
    """The histogram as a picture, where something was timed."""
    families = summaries(record.data["times"])
    if families:
        draw_histogram(histogram(list(families["all"].speedups.values())), path)


def _page_lines(record: Record) -> Iterator[str]:
    exports, times = record.data["exports"], record.data["times"]
    overall = summaries(times)["all"]
    exported = sum(not reason for reason in exports.values())
    yield "# Model zoo"
    yield ""
    yield "```text"
    yield record.made.command
    yield "```"
    yield ""
    yield (
        f"Graft's speed on architectures selected by rules and exported with random weights:"
        f" {len(exports)} attempted, {exported} exported, {len(overall.speedups)} timed. Each"
        " contender runs in a separate process with the same number of threads, in alternating"
        " blocks; numbers are the peer's median time over Graft's, so above 1 Graft is faster."
    )
    yield ""
    yield f"- {record.made.machine}, {record.made.date}"
    yield f"- {', '.join(_versions(times))}"
    yield f"- exported with {', '.join(PACKAGES)}"
    yield ""
    yield f"![Histogram of speeds]({CHART.relative_to('docs')})"
    for peer in CONTENDERS:
        found = summaries(times, peer)
        if found:
            yield from heading(f"Speed against {CONTENDERS[peer].title}")
            yield from text_table(_HEADER, [one.row(family) for family, one in found.items()])
    yield from heading("Models")
    yield from text_table(("model", "Graft", "ONNX Runtime", "speed"), _model_rows(times, overall))
    for title, rows in (
        ("Not compared", _not_compared(times)),
        ("Not exported", _not_exported(exports)),
    ):
        if rows:
            yield from heading(title)
            yield from text_table(("model", "reason"), rows)


def _versions(times: Json) -> list[str]:
    """The contenders and their versions; more than one where results were resumed."""
    found = {
        f"{CONTENDERS[who].title} {version.partition(' ')[0]}"
        for record in times.values()
        for who, version in record["versions"].items()
    }
    return sorted(found)


def _model_rows(times: Json, overall: Summary) -> Iterator[tuple[str, ...]]:
    for name in overall.slowest:
        seconds = times[name]["seconds"]
        both = (time_text(seconds[who]) for who in (GRAFT, PEER))
        yield (name, *both, f"{overall.speedups[name]:.2f}")

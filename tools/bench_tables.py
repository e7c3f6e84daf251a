"""What comparisons say: those of several runs in, speed-ups, notes and Markdown tables out.

`graft bench` gives Graft's time over a peer's. Here it is the other way round: how many times as
fast as the best peer Graft is. The best peer of a run is the one against which that is least.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import prod
from statistics import median

from bench_pages import item, paragraph, table
from graft.cli.bench_contenders import CONTENDERS
from graft.cli.bench_report import Comparison, Standing, Timing, warnings
from graft.cli.bench_rounds import GRAFT
from graft.cli.bench_statistics import Ratio
from graft.cli.report import counted, seconds_text

MISSING = "-"


@dataclass(frozen=True, slots=True)
class Setting:
    """How networks are run, and the marker of the place for the results."""

    marker: str
    threads: int
    batch: int
    accuracy: str = "default"

    def __str__(self) -> str:
        strictly = "" if self.accuracy == "default" else f", accuracy {self.accuracy}"
        return f"{counted(self.threads, 'thread')}, batch {self.batch}{strictly}"


@dataclass(frozen=True, slots=True)
class Row:
    """A network and how all contenders did on it, in each of the runs."""

    network: str
    runs: Sequence[Comparison]

    def seconds(self, contender: str) -> float | None:
        """The median over the runs of a contender's median time."""
        found = [one.summary.median for one in self._timings(contender)]
        return median(found) if found else None

    def ratios(self) -> list[Ratio]:
        """Best peer's time over Graft's in each run in which there is one."""
        return [best for run in self.runs if (best := _best(run)) is not None]

    def speedup(self) -> float | None:
        """The median of these."""
        found = [one.value for one in self.ratios()]
        return median(found) if found else None

    def problems(self) -> Iterator[str]:
        """Why there are times missing, each reason once."""
        reasons = [run.problem for run in self.runs if run.problem]
        for run in self.runs:
            reasons += [
                f"{one.contender.title}: {one.why_not}" for one in run.standings if one.reason
            ]
        yield from dict.fromkeys(reasons)

    def _timings(self, contender: str) -> list[Timing]:
        return [
            one.timing
            for one in self._standings()
            if one.timing is not None and one.contender.name == contender
        ]

    def _standings(self) -> Iterator[Standing]:
        return (one for run in self.runs for one in run.standings)


def _best(run: Comparison) -> Ratio | None:
    """The least of the speed-ups."""
    ratios = [
        one.timing.ratio
        for one in run.standings
        if one.timing is not None and one.timing.ratio is not None
    ]
    return min((_inverse(one) for one in ratios), key=lambda one: one.value, default=None)


def _inverse(ratio: Ratio) -> Ratio:
    low, high = ratio.low, ratio.high
    return Ratio(
        1 / ratio.value, None if high is None else 1 / high, None if low is None else 1 / low
    )


def full_table(rows: Sequence[Row], contenders: Sequence[str]) -> list[str]:
    """A row per network, with the speed-up of each run."""
    titles = [CONTENDERS[name].title for name in contenders]
    header = ["network", *titles, "Graft against the best peer, each run", "median"]
    return table(
        header,
        [[*_times(row, contenders), _each_run(row), speedup_text(row)] for row in rows],
    )


def short_table(rows: Sequence[Row], contenders: Sequence[str]) -> list[str]:
    """The same without the single runs."""
    titles = [CONTENDERS[name].title for name in contenders]
    header = ["network", *titles, "Graft against the best peer"]
    return table(header, [[*_times(row, contenders), speedup_text(row)] for row in rows])


def _times(row: Row, contenders: Sequence[str]) -> list[str]:
    seconds = [row.seconds(name) for name in contenders]
    return [row.network, *(MISSING if one is None else seconds_text(one) for one in seconds)]


def _each_run(row: Row) -> str:
    ratios = row.ratios()
    if len(ratios) == 1 and ratios[0].low is not None:
        (only,) = ratios
        return f"{only.value:.2f} ({only.low:.2f} to {only.high:.2f})"
    return ", ".join(f"{one.value:.2f}" for one in ratios) or MISSING


def speedup_text(row: Row) -> str:
    """Graft against the best peer, or that nobody knows."""
    speedup = row.speedup()
    return MISSING if speedup is None else f"{speedup:.2f} ×"


def geometric_mean(rows: Sequence[Row]) -> float | None:
    """Of the networks' speed-ups."""
    found = [one for row in rows if (one := row.speedup()) is not None]
    return prod(found) ** (1 / len(found)) if found else None


def summary(rows: Sequence[Row]) -> list[str]:
    """What the table comes to, in a line."""
    mean = geometric_mean(rows)
    return [] if mean is None else [f"Geometric mean: {mean:.2f} ×."]


def notes(rows: Sequence[Row], threads: int) -> list[str]:
    """Whatever a reader has to know of single cells: reasons for missing ones, warnings."""
    lines = []
    for row in rows:
        lines += [f"{row.network}: not timed: {one}" for one in row.problems()]
        found = [one for run in row.runs for one in warnings(run, threads)]
        lines += [f"{row.network}: {one}" for one in dict.fromkeys(found)]
    return [part for line in lines for part in item(line)]


def versions(rows: Sequence[Row], graft: str) -> str:
    """All contenders with their versions, as far as any run got to know them."""
    found = {GRAFT: graft}
    for row in rows:
        for run in row.runs:
            for one in run.standings:
                if one.version:
                    found.setdefault(one.contender.name, one.version)
    return ", ".join(f"{CONTENDERS[name].title} {version}" for name, version in found.items())


def provenance(machine: str, date: str, versions_text: str, command: str) -> list[str]:
    """Where the numbers come from."""
    return paragraph(f"Made on {date} on {machine}; {versions_text}; by `{command}`.")

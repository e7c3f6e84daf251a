"""What comparisons say: those of several runs in, speed-ups, notes and Markdown tables out.

`graft bench` gives Graft's time over a peer's. Here it is the other way round: how many times as
fast as the best peer Graft is. The best peer of a run is the one against which that is least.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from math import prod
from statistics import median

from benchmarks.harness import Json
from benchmarks.pages import item, table
from graft.base.quantities import counted, time_text
from graft.cli.bench.contenders import CONTENDERS
from graft.cli.bench.rounds import Ratio

MISSING = "-"


@dataclass(frozen=True, slots=True)
class Setting:
    """How networks are run."""

    threads: int = 2
    batch: int = 1
    accuracy: str = "default"

    def described(self, threads: int) -> Setting:
        """The same with as many threads as there were."""
        return replace(self, threads=threads)

    def arguments(self, threads: int, peers: Sequence[str]) -> list[str]:
        """Options of `graft bench`; a batch of one is the networks' own."""
        options = ["--threads", str(threads), "--accuracy", self.accuracy]
        options += ["--peers", ",".join(peers)]
        return options if self.batch == 1 else [*options, "--batch", str(self.batch)]

    def __str__(self) -> str:
        strictly = "" if self.accuracy == "default" else f", accuracy {self.accuracy}"
        return f"{counted(self.threads, 'thread')}, batch {self.batch}{strictly}"


@dataclass(frozen=True, slots=True)
class Row:
    """A network and how all contenders did on it: what `graft bench --json` tells, run by run."""

    network: str
    runs: Sequence[Json]

    def seconds(self, contender: str) -> float | None:
        """The median over the runs of a contender's median time."""
        medians = [
            one["timing"]["summary"]["median"]
            for run in self.runs
            for one in run["contenders"]
            if one["timing"] is not None and one["name"] == contender
        ]
        return median(medians) if medians else None

    def ratios(self) -> list[Ratio]:
        """Best peer's time over Graft's in each run in which there is one."""
        return [best for run in self.runs if (best := _best(run)) is not None]

    def speedup(self) -> float | None:
        """The median of these."""
        values = [ratio.value for ratio in self.ratios()]
        return median(values) if values else None

    def problems(self) -> Iterator[str]:
        """Why there are times missing, each reason once."""
        reasons = [run["problem"] for run in self.runs if run["problem"]]
        for run in self.runs:
            for one in run["contenders"]:
                if one["reason"]:
                    why_not = ": ".join(filter(None, (one["reason"], one["hint"])))
                    reasons.append(f"{CONTENDERS[one['name']].title}: {why_not}")
        yield from dict.fromkeys(reasons)


def _best(run: Json) -> Ratio | None:
    """The least of the speed-ups."""
    ratios = [
        Ratio(**one["timing"]["ratio"])
        for one in run["contenders"]
        if one["timing"] is not None and one["timing"]["ratio"] is not None
    ]
    return min((_inverse(ratio) for ratio in ratios), key=lambda one: one.value, default=None)


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


def short_table(
    rows: Sequence[Row], contenders: Sequence[str], elsewhere: Sequence[Json] = ()
) -> list[str]:
    """The same without the single runs, and with the speed-ups that were measured elsewhere."""
    titles = [CONTENDERS[name].title for name in contenders]
    others = [f"on {one['processor']} ({one['date']})" for one in elsewhere]
    header = ["network", *titles, "Graft against the best peer", *others]
    return table(
        header,
        [
            [
                *(*_times(row, contenders), speedup_text(row)),
                *(_times_text(one["speedups"].get(row.network)) for one in elsewhere),
            ]
            for row in rows
        ],
    )


def _times(row: Row, contenders: Sequence[str]) -> list[str]:
    seconds = [row.seconds(name) for name in contenders]
    return [row.network, *(MISSING if one is None else time_text(one) for one in seconds)]


def _each_run(row: Row) -> str:
    ratios = row.ratios()
    if len(ratios) == 1 and ratios[0].low is not None:
        (only,) = ratios
        return f"{only.value:.2f} ({only.low:.2f} to {only.high:.2f})"
    return ", ".join(f"{ratio.value:.2f}" for ratio in ratios) or MISSING


def speedup_text(row: Row) -> str:
    """Graft against the best peer, or that nobody knows."""
    return _times_text(row.speedup())


def _times_text(speedup: float | None) -> str:
    return MISSING if speedup is None else f"{speedup:.2f} ×"


def geometric_mean(rows: Sequence[Row]) -> float | None:
    """Of the networks' speed-ups."""
    result = [one for row in rows if (one := row.speedup()) is not None]
    return prod(result) ** (1 / len(result)) if result else None


def summary(rows: Sequence[Row]) -> list[str]:
    """What the table comes to, in a line."""
    mean = geometric_mean(rows)
    return [] if mean is None else [f"Geometric mean: {mean:.2f} ×."]


def notes(rows: Sequence[Row]) -> list[str]:
    """Whatever a reader has to know of single cells: reasons for missing ones, warnings."""
    lines = []
    for row in rows:
        lines += [f"{row.network}: not timed: {problem}" for problem in row.problems()]
        warnings = [one for run in row.runs for one in run["warnings"]]
        lines += [f"{row.network}: {warning}" for warning in dict.fromkeys(warnings)]
    return [part for line in lines for part in item(line)]

"""Reports of comparisons: text, Markdown or JSON."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from graft.base.quantities import counted, time_text
from graft.cli.bench.contenders import Contender
from graft.cli.bench.rounds import CONFIDENCE, GRAFT, Ratio, Summary
from graft.cli.machine import Machine
from graft.cli.report import Block, print_lines, print_verbatim, section, table

_HEADER = ("contender", "version", "median", "best", "10 %", "90 %", "cores", "ratio")
_NUMBERS = (2, 3, 4, 5, 6, 7)
_LEGEND = (
    "median, best and percentiles: of single runs; cores: how many were busy on average",
    "ratio: Graft's time over the contender's, below 1 where Graft is faster, with its"
    f" {100 * CONFIDENCE:.0f} % confidence interval",
)


@dataclass(frozen=True, slots=True)
class Timing:
    """The measurements of a contender; the ratio is Graft's time over its own."""

    summary: Summary
    cores_used: float
    ratio: Ratio | None  # none for Graft itself


@dataclass(frozen=True, slots=True)
class Standing:
    """The result of a contender: a timing, or a reason why there is none, and possibly a remedy."""

    contender: Contender
    version: str = ""
    prepare_seconds: float | None = None
    timing: Timing | None = None
    reason: str = ""
    hint: str = ""

    @property
    def why_not(self) -> str:
        """Why it was not timed, in one line."""
        return f"{self.reason}: {self.hint}" if self.hint else self.reason


@dataclass(frozen=True, slots=True)
class Comparison:
    """The results of all contenders on a model; with a `problem`, none could start."""

    path: Path
    inputs: Sequence[tuple[str, str]] = ()
    standings: Sequence[Standing] = ()
    rounds: int = 0
    seconds: float = 0.0
    problem: str = ""
    disturbed: int = 0  # rounds left out: the machine did not give its cores in full

    @property
    def graft_timed(self) -> Timing | None:
        """The timing of Graft, if there is one."""
        own = (standing.timing for standing in self.standings if standing.contender.name == GRAFT)
        return next(own, None)

    @property
    def best_peer(self) -> Standing | None:
        """The fastest peer that was timed."""
        timed = {
            standing.timing.summary.median: standing
            for standing in self.standings
            if standing.timing is not None and standing.contender.name != GRAFT
        }
        return timed[min(timed)] if timed else None


@dataclass(frozen=True, slots=True)
class Form:
    """A format of reports: a heading for all comparisons of a run, and a report for each."""

    heading: Callable[[Machine, int], Iterator[Any]]
    comparison: Callable[[Comparison, int], Iterator[Any]]
    show: Callable[[Iterator[Any]], None]  # prints what they give


def _text_heading(machine: Machine, threads: int) -> Iterator[str]:
    yield str(machine)
    yield f"{counted(threads, 'thread')} for every contender, each in a process of its own"
    yield from (f"warning: {warning}" for warning in machine.warnings(threads))


def _markdown_heading(machine: Machine, threads: int) -> Iterator[str]:
    yield from (f"- {line}" for line in _text_heading(machine, threads))
    yield from (f"- {line}" for line in _LEGEND)


def _text(comparison: Comparison, threads: int) -> Iterator[Block]:
    yield ""
    yield str(comparison.path)
    if comparison.problem:
        yield f"  {comparison.problem}"
        return
    yield from (f"  {name} {type_}" for name, type_ in comparison.inputs)
    rows = _rows(comparison)
    if rows:
        title = f"{_rounds(comparison)} in {time_text(comparison.seconds)}"
        yield from section(title, [*table(rows, _HEADER, _NUMBERS), *_LEGEND])
    missing = [(one.contender.title, one.why_not) for one in comparison.standings if one.reason]
    if missing:
        yield from section("Not timed", table(missing))
    yield ""
    yield from (f"warning: {warning}" for warning in warnings(comparison, threads))
    yield _conclusion(comparison)


def _markdown(comparison: Comparison, threads: int) -> Iterator[str]:
    yield ""
    yield f"### {comparison.path.name}"
    yield ""
    if comparison.problem:
        yield _escaped(comparison.problem)
        return
    rows = _rows(comparison)
    if rows:
        yield _markdown_row(_HEADER)
        yield _markdown_row("---:" if n in _NUMBERS else "---" for n in range(len(_HEADER)))
        yield from map(_markdown_row, rows)
        yield ""
        yield f"{_rounds(comparison)}. {_conclusion(comparison)}"
        yield ""
    for standing in comparison.standings:
        if standing.reason:
            yield f"- {standing.contender.title} was not timed: {_escaped(standing.why_not)}"
    yield from (f"- warning: {warning}" for warning in warnings(comparison, threads))


TEXT = Form(_text_heading, _text, print_lines)
MARKDOWN = Form(_markdown_heading, _markdown, print_verbatim)


def to_json(machine: Machine, threads: int, comparisons: Sequence[Comparison]) -> dict[str, Any]:
    """The results as JSON; times are in seconds."""
    return {
        "machine": asdict(machine),
        "threads": threads,
        "warnings": machine.warnings(threads),
        "confidence": CONFIDENCE,
        "models": [_comparison_json(comparison, threads) for comparison in comparisons],
    }


def warnings(comparison: Comparison, threads: int) -> list[str]:
    """Reasons why a comparison is unfair."""
    return [
        f"{one.contender.title} kept {one.timing.cores_used:.1f} cores busy, more than its share"
        for one in comparison.standings
        if one.timing is not None and one.timing.cores_used > threads + 0.5
    ]


def _rows(comparison: Comparison) -> list[tuple[str, ...]]:
    return [
        (standing.contender.title, standing.version, *_figures(standing.timing))
        for standing in comparison.standings
        if standing.timing is not None
    ]


def _figures(timing: Timing) -> tuple[str, ...]:
    summary = timing.summary
    times = (summary.median, summary.best, summary.tenth, summary.ninetieth)
    ratio = "" if timing.ratio is None else _ratio_text(timing.ratio)
    return (*map(time_text, times), f"{timing.cores_used:.1f}", ratio)


def _ratio_text(ratio: Ratio) -> str:
    if ratio.low is None or ratio.high is None:
        return f"{ratio.value:.3g} (too few rounds for an interval)"
    return f"{ratio.value:.3g} ({ratio.low:.3g} to {ratio.high:.3g})"


def _rounds(comparison: Comparison) -> str:
    """The number of rounds that count, and of those that do not."""
    text = counted(comparison.rounds, "round")
    if not comparison.disturbed:
        return text
    return f"{text} (and {comparison.disturbed} left out, without all cores at full speed)"


def _conclusion(comparison: Comparison) -> str:
    best, own = comparison.best_peer, comparison.graft_timed
    if own is not None and len(comparison.standings) == 1:
        return f"Graft's time, with nobody to compare: {time_text(own.summary.median)}"
    if best is None or best.timing is None or best.timing.ratio is None:
        return "Nothing could be compared."
    ratio = _ratio_text(best.timing.ratio)
    return f"Graft's time over that of the best peer, {best.contender.title}: {ratio}"


def _markdown_row(cells: Iterator[str] | Sequence[str]) -> str:
    return f"| {' | '.join(map(_escaped, cells))} |"


def _escaped(cell: str) -> str:
    """Text in Markdown, without columns, tags, links and code."""
    return re.sub(r"[|<\[`]", r"\\\g<0>", cell)


def _comparison_json(comparison: Comparison, threads: int) -> dict[str, Any]:
    best = comparison.best_peer
    return {
        "model": str(comparison.path),
        "problem": comparison.problem or None,
        "inputs": [{"name": name, "type": type_} for name, type_ in comparison.inputs],
        "rounds": comparison.rounds,
        "disturbed_rounds": comparison.disturbed,
        "seconds": comparison.seconds,
        "warnings": warnings(comparison, threads),
        "contenders": [_standing_json(standing) for standing in comparison.standings],
        "best_peer": None if best is None else best.contender.name,
    }


def _standing_json(standing: Standing) -> dict[str, Any]:
    timing = standing.timing
    return {
        "name": standing.contender.name,
        "version": standing.version or None,
        "prepare_seconds": standing.prepare_seconds,
        "reason": standing.reason or None,
        "hint": standing.hint or None,
        "timing": None if timing is None else asdict(timing),
    }

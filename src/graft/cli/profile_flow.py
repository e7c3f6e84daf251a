"""Where the time of a flow goes: a session and its inputs in; a table, JSON and a trace out.

Kernels are listed as for static programs, with the number of their turns. Beside them stand the
steps of the flow itself, with what Python takes for each: around a stretch, for a decision.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from graft.base.errors import Place
from graft.base.progress import Progress, quietly
from graft.cli.profile import (
    CAVEATS,
    RUNS,
    node_text,
    profiled_runs,
    rate_text,
    step_slices,
)
from graft.cli.profile_regions import (
    RegionTime,
    SimulatedTrack,
    region_json,
    region_lines,
    region_slices,
    region_times,
)
from graft.cli.report import Block, counted, section, table
from graft.cli.trace import Slice, write_events
from graft.runtime.flow import (
    Choice,
    Demand,
    Evaluation,
    FlowStep,
    Handing,
    Measuring,
    Offload,
    Reading,
    Repetition,
    Stretch,
    Sweep,
    Trimming,
)
from graft.runtime.flow_profile import FlowProfile, Moment
from graft.runtime.flow_profile import Path as StepPath
from graft.runtime.flow_session import FlowSession
from graft.runtime.program import KernelCall, PythonStep, Step, Transfer
from graft.runtime.session import Profile

if TYPE_CHECKING:
    from graft.ir.evaluate import Data

KINDS = ("native", "reference", "region", "transfer", "python")
_HEADER = ("kernel or step", "ONNX node", "turns", "µs", "share", "GFLOP/s", "GB/s")
_DECISIONS: Mapping[type[FlowStep], str] = {
    Choice: "if",
    Demand: "demand",
    Repetition: "loop",
    Sweep: "scan",
    Reading: "size from data",
    Measuring: "sizes from data",
    Handing: "list, optional or lookup",
    Trimming: "cut to size",
}


@dataclass(frozen=True, slots=True)
class Row:
    """A step with the median of its time in a run, all turns together, without what runs in it."""

    label: str
    place: Place
    kind: str
    turns: int
    seconds: float
    share: float
    flops: int
    bytes: int

    def rate(self, amount: int) -> float | None:
        """Billions per second; None where nothing is counted or measured."""
        return amount / self.seconds / 1e9 if amount and self.seconds > 0 else None


@dataclass(frozen=True, eq=False)
class MeasuredFlow:
    """Steps in the order in which they first end, and the run whose duration is the median."""

    rows: Sequence[Row]
    typical: FlowProfile
    threads: int
    regions: Sequence[RegionTime]

    def seconds(self, *kinds: str) -> float:
        """The medians of steps of these kinds together."""
        return sum(row.seconds for row in self.rows if row.kind in kinds)

    def count(self, kind: str) -> int:
        """How many steps are of a kind."""
        return sum(row.kind == kind for row in self.rows)


def measured_flow(
    session: FlowSession, feeds: Mapping[str, Data], progress: Progress = quietly
) -> MeasuredFlow:
    """Run a few times and measure every step."""
    profiles = sorted(profiled_runs(session, feeds, progress), key=lambda one: one.seconds)
    typical = profiles[RUNS // 2]
    times = [_times(profile) for profile in profiles]
    medians = {
        path: float(np.median([one.get(path, 0.0) for one in times])) for path in _times(typical)
    }
    regions = region_times([_flat(profile) for profile in profiles])
    return MeasuredFlow(_rows(typical, medians), typical, session.threads, regions)


def _times(profile: FlowProfile) -> dict[StepPath, float]:
    """The time of each step within a run."""
    found: dict[StepPath, float] = {}
    for moment in profile.moments:
        found[moment.path] = found.get(moment.path, 0.0) + moment.own
    return found


def _rows(run: FlowProfile, medians: Mapping[StepPath, float]) -> list[Row]:
    total = sum(medians.values())
    moments: dict[StepPath, list[Moment]] = {}
    for moment in run.moments:
        moments.setdefault(moment.path, []).append(moment)
    found = []
    for path, seconds in medians.items():
        own = moments[path]
        label, place, kind = _described(own[0])
        work = [one.step for one in own if isinstance(one.step, Step)]
        found.append(
            Row(
                label,
                place,
                kind,
                len(own),
                seconds,
                seconds / total if total else 0.0,
                sum(step.flops for step in work),
                sum(step.bytes for step in work),
            )
        )
    return found


def _described(moment: Moment) -> tuple[str, Place, str]:
    """What a step is called, where it comes from, and its kind."""
    step = moment.step
    match step:
        case KernelCall():
            return step.label, step.place, "native"
        case Transfer():
            return step.label, step.place, "transfer"
        case PythonStep():
            return step.label, step.place, "reference" if moment.spent is None else "region"
        case Evaluation():
            return f"{step.label} (reference)", step.place, "reference"
        case Offload():
            return step.label, step.place, "region"
        case Stretch():
            steps = step.program.steps
            first = next((one.place for one in steps if one.place.node), Place())
            return f"around {counted(len(steps), 'native step')}", first, "python"
    return _DECISIONS[type(step)], getattr(step, "place", Place()), "python"


def _flat(profile: FlowProfile) -> Profile:
    """The steps of native programs as if they were one program's."""
    inner = [one for one in profile.moments if isinstance(one.step, Step)]
    seconds = np.array([one.seconds for one in inner])
    busy = np.array([one.busy for one in inner]).T
    begins = np.array([one.begins for one in inner]).T
    spent = {number: one.spent for number, one in enumerate(inner) if one.spent is not None}
    steps = tuple(one.step for one in inner if isinstance(one.step, Step))
    return Profile(profile.outputs, steps, seconds, busy, begins, spent)


def flow_lines(found: MeasuredFlow) -> Iterator[Block]:
    """The steps as a table, the slowest first."""
    yield from table(map(_cells, _slowest_first(found)), _HEADER, right=(2, 3, 4, 5, 6))
    yield ""
    counts = [(found.count(kind), kind) for kind in KINDS[:-1]]
    said = [counted(n, f"{kind} step") for n, kind in counts if n or kind in KINDS[:2]]
    decisions = found.count("python")
    said.append(counted(decisions, "stretch or decision", "stretches or decisions"))
    yield f"{', '.join(said)}, {counted(found.threads, 'thread')}; medians of {RUNS} runs"
    yield f"total {found.typical.seconds * 1e6:,.1f} µs for a whole run,"
    yield (
        f"{found.seconds(*KINDS[:-1]) * 1e6:,.1f} µs for kernels and what else computes,"
        f" {found.seconds('python') * 1e6:,.1f} µs in Python around them"
    )
    yield from CAVEATS
    if found.regions:
        yield from section("Regions", region_lines(found.regions))


def _cells(row: Row) -> tuple[str, ...]:
    return (
        row.label,
        node_text(row.place),
        str(row.turns),
        f"{row.seconds * 1e6:,.1f}",
        f"{row.share:.1%}",
        rate_text(row.rate(row.flops)),
        rate_text(row.rate(row.bytes)),
    )


def _slowest_first(found: MeasuredFlow) -> list[Row]:
    return sorted(found.rows, key=lambda row: -row.seconds)


def flow_json(found: MeasuredFlow) -> dict[str, Any]:
    """The same for programs."""
    return {
        "runs": RUNS,
        "threads": found.threads,
        "total_seconds": found.typical.seconds,
        "step_seconds": found.seconds(*KINDS),
        "python_seconds": found.seconds("python"),
        **{f"{kind}_steps": found.count(kind) for kind in KINDS},
        "regions": region_json(found.regions),
        "steps": [
            {
                "label": row.label,
                "node": row.place.node,
                "kind": row.place.kind,
                "native": row.kind == "native",
                "turns": row.turns,
                "seconds": row.seconds,
                "share": row.share,
                "gflops_per_second": row.rate(row.flops),
                "gigabytes_per_second": row.rate(row.bytes),
            }
            for row in _slowest_first(found)
        ],
    }


def write_flow_trace(found: MeasuredFlow, path: Path) -> None:
    """Write the typical run as trace events, a track per thread. The steps of the flow are the
    caller's, around the kernels that run within them."""
    write_events(path, _slices(found.typical), found.threads)


def _slices(run: FlowProfile) -> Iterator[Slice]:
    simulated = SimulatedTrack()
    for moment in run.moments:
        label, place, kind = _described(moment)
        if isinstance(moment.step, Step):
            own = list(step_slices(moment.step, kind, moment.begins, moment.busy))
            yield from own
            if moment.spent is not None:
                yield from region_slices(moment.step, moment.spent, own[0], simulated)
        else:
            end = moment.begin + round(moment.seconds * 1e9)
            yield Slice(label, kind, moment.begin, end, args={"node": node_text(place)})

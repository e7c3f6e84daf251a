"""Where the time goes: a session and its inputs in; a table, JSON and a trace of its steps out."""

from __future__ import annotations

from collections.abc import Container, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

import numpy as np

from graft.base.errors import Place
from graft.base.names import LONGEST_LINE, printable
from graft.base.progress import Progress, Stage, quietly
from graft.cli.profile_regions import (
    RegionTime,
    SimulatedTrack,
    region_json,
    region_lines,
    region_of,
    region_slices,
    region_times,
)
from graft.cli.report import Block, counted, figure, section, table
from graft.cli.trace import Slice, write_events
from graft.runtime.program import KernelCall, Step, Transfer
from graft.runtime.session import Profile, Session

if TYPE_CHECKING:
    from graft.ir.evaluate import Data

P = TypeVar("P", covariant=True)


class Profiled(Protocol[P]):
    """What can be run and profiled."""

    def run(self, output_names: None, feeds: Mapping[str, Any]) -> Sequence[Any]: ...

    def profile(self, feeds: Mapping[str, Any]) -> P: ...


RUNS = 20
KINDS = ("native", "reference", "region", "transfer")
WARM_UP_RUNS = 3
_HEADER = ("kernel", "ONNX node", "µs", "share", "GFLOP/s", "GB/s")

CAVEATS = (
    "GFLOP/s: of the plain algorithm's operations; Winograd convolution does fewer",
    "GB/s: of all memory that a step reads or writes, each byte once",
)


@dataclass(frozen=True, slots=True)
class StepTime:
    """A step and its median time; rates are None where nothing is counted or measured."""

    step: Step
    seconds: float
    share: float

    @property
    def gflops(self) -> float | None:
        """Billions of operations per second."""
        return self._rate(self.step.flops)

    @property
    def gigabytes(self) -> float | None:
        """Billions of bytes read and written per second."""
        return self._rate(self.step.bytes)

    def _rate(self, amount: int) -> float | None:
        return amount / self.seconds / 1e9 if amount and self.seconds > 0 else None


@dataclass(frozen=True, eq=False)
class Measured:
    """Steps in the order in which they run, and the run whose duration is the median."""

    steps: Sequence[StepTime]
    typical: Profile
    regions: Sequence[RegionTime] = ()

    @property
    def run_seconds(self) -> float:
        """How long a whole run takes. On a busy machine that is more than the steps' medians
        together: each run is held up somewhere, and each time somewhere else."""
        return float(self.typical.seconds.sum())

    @property
    def step_seconds(self) -> float:
        """The steps' medians together, of which shares are shares."""
        return sum(one.seconds for one in self.steps)

    def count(self, kind: str) -> int:
        """How many steps are of a kind."""
        return sum(kind_of(one.step, self.typical) == kind for one in self.steps)

    @property
    def threads(self) -> int:
        """How many threads share the work."""
        return len(self.typical.busy)


def measured(session: Session, feeds: Mapping[str, Data], progress: Progress = quietly) -> Measured:
    """Run a few times and measure every step."""
    profiles = profiled_runs(session, feeds, progress)
    profiles.sort(key=lambda one: float(one.seconds.sum()))
    medians = np.median([one.seconds for one in profiles], axis=0)
    total = float(medians.sum())
    steps = [
        StepTime(step, float(seconds), float(seconds) / total if total else 0.0)
        for step, seconds in zip(session.program.steps, medians, strict=True)
    ]
    return Measured(steps, profiles[RUNS // 2], region_times(profiles))


def profiled_runs(session: Profiled[P], feeds: Mapping[str, Data], progress: Progress) -> list[P]:
    """Profiles of some runs, after those that warm up."""
    for _ in range(WARM_UP_RUNS):
        session.run(None, feeds)
    profiles = []
    for number in range(RUNS):
        progress(Stage("run", number + 1, RUNS))
        profiles.append(session.profile(feeds))
    return profiles


def kind_of(step: Step, run: Profile) -> str:
    """Whether a step is native code, a region of another backend, a transfer for one, or runs on
    the reference evaluator."""
    if isinstance(step, KernelCall):
        return "native"
    if isinstance(step, Transfer):
        return "transfer"
    regions = {region_of(run.steps[index]) for index in run.spent}
    return "region" if step.function in regions else "reference"


def profile_lines(found: Measured) -> Iterator[Block]:
    """The steps as a table, the slowest first."""
    emulated = {one.name for one in found.regions if one.simulated}
    rows = [_row(one, emulated) for one in _slowest_first(found)]
    yield from table(rows, _HEADER, right=(2, 3, 4, 5))
    yield ""
    counts = [(found.count(kind), kind) for kind in KINDS]
    said = [counted(n, f"{kind} step") for n, kind in counts if n or kind in KINDS[:2]]
    yield f"{', '.join(said)}, {counted(found.threads, 'thread')}; medians of {RUNS} runs"
    yield f"total {found.run_seconds * 1e6:,.1f} µs for a whole run,"
    yield f"{found.step_seconds * 1e6:,.1f} µs for the steps above, of which shares are shares"
    yield from CAVEATS
    if found.regions:
        yield from section("Regions", region_lines(found.regions))


def profile_json(found: Measured) -> dict[str, Any]:
    """The same for programs."""
    return {
        "runs": RUNS,
        "threads": found.threads,
        "total_seconds": found.run_seconds,
        "step_seconds": found.step_seconds,
        **{f"{kind}_steps": found.count(kind) for kind in KINDS},
        "regions": region_json(found.regions),
        "steps": [
            {
                "label": one.step.label,
                "node": one.step.place.node,
                "kind": one.step.place.kind,
                "native": isinstance(one.step, KernelCall),
                "seconds": one.seconds,
                "share": one.share,
                "gflops_per_second": one.gflops,
                "gigabytes_per_second": one.gigabytes,
            }
            for one in _slowest_first(found)
        ],
    }


def write_trace(found: Measured, path: Path) -> None:
    """Write the typical run as trace events, a track per thread."""
    run, simulated = found.typical, SimulatedTrack()
    slices: list[Slice] = []
    for index, step in enumerate(run.steps):
        begins, busy = run.begins[:, index].tolist(), run.busy[:, index].tolist()
        own = list(step_slices(step, kind_of(step, run), begins, busy))
        slices += own
        if index in run.spent:
            slices += region_slices(step, run.spent[index], own[0], simulated)
    write_events(path, slices, found.threads)


def step_slices(
    step: Step, kind: str, begins: Sequence[int], busy: Sequence[float]
) -> Iterator[Slice]:
    """What each thread did of a step, by its own clock: when it began, and for how long. What the
    caller does alone is its own."""
    alone = not isinstance(step, KernelCall) or step.serial
    args = {"node": node_text(step.place), "flops": step.flops, "bytes": step.bytes}
    for thread in range(1 if alone else len(begins)):
        if begins[thread]:
            end = begins[thread] + round(busy[thread] * 1e9)
            yield Slice(step.label, kind, begins[thread], end, thread, args=args)


def _slowest_first(found: Measured) -> list[StepTime]:
    return sorted(found.steps, key=lambda one: -one.seconds)


def _row(one: StepTime, emulated: Container[str]) -> tuple[str, ...]:
    """`emulated` are regions that the host computes in place of a device that does not exist."""
    step = one.step
    own = isinstance(step, KernelCall) or region_of(step) not in emulated
    label = step.label if own else f"{step.label} (emulated)"
    time, share = f"{one.seconds * 1e6:,.1f}", f"{one.share:.1%}"
    return (
        label,
        node_text(step.place),
        time,
        share,
        rate_text(one.gflops),
        rate_text(one.gigabytes),
    )


def rate_text(rate: float | None) -> str:
    """A rate in three digits or more."""
    return figure(rate) if rate is None else f"{rate:.3g}" if rate < 1000 else f"{rate:,.0f}"


def node_text(place: Place) -> str:
    """Where a step comes from in the model."""
    kind = f" ({place.kind})" if place.node and place.kind else place.kind
    return printable(f"{place.node}{kind}", LONGEST_LINE)

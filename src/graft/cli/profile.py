"""Profiles: a session and its inputs in; a table, JSON and a trace of its steps out.

Steps are kernels, regions, transfers and evaluated nodes. For programs whose sizes or steps depend
on data, iterations are counted, and other instructions are listed with their time in Python.
"""

from __future__ import annotations

from collections.abc import Container, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from graft.base.errors import Location
from graft.base.names import LONGEST_LINE, printable
from graft.base.progress import Progress, Stage, quietly
from graft.base.quantities import counted
from graft.cli.profile_regions import (
    RegionTime,
    SimulatedTrack,
    region_json,
    region_lines,
    region_of,
    region_slices,
    region_times,
    write_events,
)
from graft.cli.profile_regions import Slice as TraceSlice
from graft.cli.report import Block, figure, section, table
from graft.program.bytecode_work import (
    Assign,
    Collect,
    JoinSlices,
    PythonWork,
    ReadExtents,
    ReadItem,
    Release,
)
from graft.program.bytecode_work import Path as StepPath
from graft.program.instructions import (
    Alias,
    Assert,
    BindSymbol,
    Evaluate,
    If,
    KernelCall,
    ListOp,
    Loop,
    RegionCall,
    Scan,
    Segment,
    SizeFunction,
    Slice,
    Switch,
    Transfer,
)
from graft.program.program import Program
from graft.runtime.profile import Moment, Profile
from graft.runtime.session import Session

if TYPE_CHECKING:
    from graft.ir.evaluate import Data


RUNS = 20
KINDS = ("native", "reference", "region", "transfer", "python")
WARM_UP_RUNS = 3
_HEADER = ("kernel", "ONNX node", "µs", "share", "GFLOP/s", "GB/s")
_LONG_HEADER = ("kernel or step", "ONNX node", "iterations", *_HEADER[2:])

CAVEATS = (
    "GFLOP/s: of the plain algorithm's operations; Winograd convolution does fewer",
    "GB/s: of all memory that a step reads or writes, each byte once",
)
_DECISIONS: Mapping[type[PythonWork], str] = {
    If: "if",
    Switch: "variant",
    Assert: "assert",
    Loop: "loop",
    Scan: "scan",
    BindSymbol: "size from data",
    SizeFunction: "sizes from data",
    ListOp: "list, optional or lookup",
    Slice: "slice",
    Alias: "view",
    Assign: "list, optional or lookup",
    ReadItem: "size from data",
    ReadExtents: "size from data",
    Release: "memory of devices",
    Collect: "list, optional or lookup",
    JoinSlices: "list, optional or lookup",
}
_STRAIGHT = (Segment, RegionCall, Transfer, Evaluate, Alias)


@dataclass(frozen=True, slots=True)
class StepTime:
    """A step with the median of its time per run, all iterations together, without the steps in
    it."""

    step: PythonWork | KernelCall
    label: str
    location: Location
    kind: str
    iterations: int
    seconds: float
    share: float
    flops: int
    bytes: int

    @property
    def gflops(self) -> float | None:
        """Billions of operations per second; None where nothing is counted or measured."""
        return self._rate(self.flops)

    @property
    def gigabytes(self) -> float | None:
        """Billions of bytes read and written per second."""
        return self._rate(self.bytes)

    def _rate(self, amount: int) -> float | None:
        return amount / self.seconds / 1e9 if amount and self.seconds > 0 else None


@dataclass(frozen=True, eq=False)
class MeasuredRuns:
    """Steps in the order in which they first end, and the run of median duration."""

    steps: Sequence[StepTime]
    typical: Profile
    threads: int
    regions: Sequence[RegionTime] = ()
    decides: bool = False  # whether sizes or steps depend on data

    @property
    def run_seconds(self) -> float:
        """The duration of a run. On a busy machine it exceeds the sum of the steps' medians: each
        run is delayed somewhere else."""
        return self.typical.seconds

    def seconds(self, *kinds: str) -> float:
        """The sum of the medians of steps of these kinds, which shares refer to."""
        return sum(step.seconds for step in self.steps if step.kind in kinds)

    def count(self, kind: str) -> int:
        """The number of steps of a kind."""
        return sum(step.kind == kind for step in self.steps)


def decides(program: Program) -> bool:
    """Whether a program's sizes or steps depend on data."""
    straight = all(isinstance(instruction, _STRAIGHT) for instruction in program.body.instructions)
    return not (straight and all(value.is_static for value in program.inputs))


def measured(
    session: Session, feeds: Mapping[str, Data], progress: Progress = quietly
) -> MeasuredRuns:
    """Run several times and measure every step."""
    profiles = sorted(_profiled_runs(session, feeds, progress), key=lambda one: one.seconds)
    typical, is_long = profiles[RUNS // 2], decides(session.program)
    times = [_times(profile) for profile in profiles]
    moments = _by_path(typical, is_long)
    medians = {path: float(np.median([time.get(path, 0.0) for time in times])) for path in moments}
    total = sum(medians.values())
    steps = [_step_time(own, medians[path], total) for path, own in moments.items()]
    return MeasuredRuns(steps, typical, session.threads, region_times(profiles), is_long)


def _profiled_runs(
    session: Session, feeds: Mapping[str, Data], progress: Progress
) -> list[Profile]:
    """Profiles of several runs, after warm-up."""
    for _ in range(WARM_UP_RUNS):
        session.run(None, feeds)
    profiles = []
    for number in range(RUNS):
        progress(Stage("run", number + 1, RUNS))
        profiles.append(session.profile(feeds))
    return profiles


def _times(profile: Profile) -> dict[StepPath, float]:
    """The time of each step within a run."""
    result: dict[StepPath, float] = {}
    for moment in profile.moments:
        result[moment.path] = result.get(moment.path, 0.0) + moment.own
    return result


def _by_path(profile: Profile, is_long: bool) -> dict[StepPath, list[Moment]]:
    """The moments of each step; Python around kernels only if `is_long`."""
    result: dict[StepPath, list[Moment]] = {}
    for moment in profile.moments:
        if is_long or kind_of(moment) != "python":
            result.setdefault(moment.path, []).append(moment)
    return result


def _step_time(own: Sequence[Moment], seconds: float, total: float) -> StepTime:
    label, location = described(own[0])
    return StepTime(
        step=own[0].step,
        label=label,
        location=location,
        kind=kind_of(own[0]),
        iterations=len(own),
        seconds=seconds,
        share=seconds / total if total else 0.0,
        flops=sum(one.flops for one in own),
        bytes=sum(one.bytes for one in own),
    )


def kind_of(moment: Moment) -> str:
    """The kind of a step: native code, region, transfer, reference evaluator, or Python."""
    match moment.step:
        case KernelCall():
            return "native"
        case Transfer():
            return "transfer"
        case RegionCall():
            return "region"
        case Evaluate():
            return "reference"
    return "python"


def described(moment: Moment) -> tuple[str, Location]:
    """The label of a step, and its source location."""
    step = moment.step
    match step:
        case KernelCall() | Transfer() | RegionCall():
            return step.label, step.location
        case Evaluate():
            return f"{step.label.removesuffix(' (reference)')} (reference)", step.location
        case Segment():
            first = next((call.location for call in step.calls if call.location.node), Location())
            return f"around {counted(len(step.calls), 'native step')}", first
    return _DECISIONS[type(step)], getattr(step, "location", Location())


def profile_lines(measured: MeasuredRuns) -> Iterator[Block]:
    """The steps as a table, the slowest first."""
    emulated = {region.name for region in measured.regions if region.simulated}
    rows = [_row(one, emulated, measured.decides) for one in _slowest_first(measured)]
    header = _LONG_HEADER if measured.decides else _HEADER
    yield from table(rows, header, right=range(2, len(header)))
    yield ""
    counts = [(measured.count(kind), kind) for kind in KINDS[:-1]]
    parts = [counted(n, f"{kind} step") for n, kind in counts if n or kind in KINDS[:2]]
    if measured.decides:
        parts.append(
            counted(measured.count("python"), "segment or decision", "segments or decisions")
        )
    yield f"{', '.join(parts)}, {counted(measured.threads, 'thread')}; medians of {RUNS} runs"
    yield f"total {measured.run_seconds * 1e6:,.1f} µs for a whole run,"
    kernels = measured.seconds(*KINDS[:-1]) * 1e6
    if measured.decides:
        around = measured.seconds("python") * 1e6
        yield f"{kernels:,.1f} µs for kernels and what else computes,"
        yield f"{around:,.1f} µs in Python around them"
    else:
        yield f"{kernels:,.1f} µs for the steps above, of which shares are shares"
    yield from CAVEATS
    if measured.regions:
        yield from section("Regions", region_lines(measured.regions))


def profile_json(measured: MeasuredRuns) -> dict[str, Any]:
    """The same as JSON."""
    return {
        "runs": RUNS,
        "threads": measured.threads,
        "total_seconds": measured.run_seconds,
        "step_seconds": measured.seconds(*KINDS),
        "python_seconds": measured.seconds("python"),
        **{f"{kind}_steps": measured.count(kind) for kind in KINDS},
        "regions": region_json(measured.regions),
        "steps": [
            {
                "label": one.label,
                "node": one.location.node,
                "kind": one.location.kind,
                "native": one.kind == "native",
                "iterations": one.iterations,
                "seconds": one.seconds,
                "share": one.share,
                "gflops_per_second": one.gflops,
                "gigabytes_per_second": one.gigabytes,
            }
            for one in _slowest_first(measured)
        ],
    }


def write_trace(measured: MeasuredRuns, path: Path) -> None:
    """Write the typical run as trace events, a track per thread. Instructions are on the caller's
    track, around the kernels within them."""
    write_events(path, _slices(measured), measured.threads)


def _slices(measured: MeasuredRuns) -> Iterator[TraceSlice]:
    simulated = SimulatedTrack()
    for moment in measured.typical.moments:
        if kind_of(moment) == "python" and not measured.decides:
            continue
        own = list(_step_slices(moment))
        yield from own
        if moment.spent is not None and own:
            yield from region_slices(moment.step, moment.spent, own[0], simulated)


def _step_slices(moment: Moment) -> Iterator[TraceSlice]:
    """The slices of a step per thread, by its own clock; serial steps only have the caller's."""
    label, location = described(moment)
    step = moment.step
    alone = not isinstance(step, KernelCall) or step.serial
    args: dict[str, Any] = {"node": node_text(location)}
    if isinstance(step, KernelCall):
        args |= {"flops": moment.flops, "bytes": moment.bytes}
    for thread in range(1 if alone else len(moment.begins)):
        begin = moment.begins[thread]
        if begin:
            end = begin + round(moment.busy[thread] * 1e9)
            yield TraceSlice(label, kind_of(moment), begin, end, thread, args=args)


def _slowest_first(measured: MeasuredRuns) -> list[StepTime]:
    return sorted(measured.steps, key=lambda one: -one.seconds)


def _row(one: StepTime, emulated: Container[str], with_iterations: bool) -> tuple[str, ...]:
    """`emulated` are regions that the host computes in place of a simulated device."""
    step = one.step
    own = not isinstance(step, RegionCall | Transfer) or region_of(step) not in emulated
    return (
        one.label if own else f"{one.label} (emulated)",
        node_text(one.location),
        *((str(one.iterations),) if with_iterations else ()),
        f"{one.seconds * 1e6:,.1f}",
        f"{one.share:.1%}",
        rate_text(one.gflops),
        rate_text(one.gigabytes),
    )


def rate_text(rate: float | None) -> str:
    """A rate in three digits or more."""
    return figure(rate) if rate is None else f"{rate:.3g}" if rate < 1000 else f"{rate:,.0f}"


def node_text(location: Location) -> str:
    """The ONNX node of a step."""
    kind = f" ({location.kind})" if location.node and location.kind else location.kind
    return printable(f"{location.node}{kind}", LONGEST_LINE)

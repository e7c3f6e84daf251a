"""Times of regions: profiles in; transfer, launch and execution of each region as bars, JSON and
trace events out.

Times of simulated devices come from a model and are labelled. Their trace events are on a track of
their own, since the host that stands in for them takes another time.

Slices of a track nest or are disjoint, or viewers draw them wrongly. So they are rounded to whole
nanoseconds before they become the format's microseconds: equal numbers stay equal.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from graft.cli.report import Block, Cell, table
from graft.program.bytecode_work import PythonWork
from graft.program.instructions import KernelCall, RegionCall, Transfer
from graft.runtime.profile import Profile
from graft.runtime.spaces import TimeSpent

if TYPE_CHECKING:
    from rich.console import Console, ConsoleOptions, RenderResult
    from rich.measure import Measurement


SIMULATED = "(simulated)"
PARTS = ("transfer", "launch", "execution")
_FILLS = "▒░█"
_LEAST_BAR, _BAR_WIDTH = 10, 40  # columns
_HEADER = ("region", "", "µs", *PARTS)


@dataclass(frozen=True, slots=True)
class RegionTime:
    """A region and its median seconds of transfer, launch and execution."""

    name: str
    parts: tuple[float, float, float]
    simulated: bool

    @property
    def seconds(self) -> float:
        return sum(self.parts)


def region_times(profiles: Sequence[Profile]) -> list[RegionTime]:
    """The regions in the order in which they run, with their transfers."""
    samples: dict[str, list[list[float]]] = {}
    simulated: dict[str, bool] = {}
    for number, profile in enumerate(profiles):
        for moment in profile.moments:
            spent = moment.spent
            if spent is None:
                continue
            name = region_of(moment.step)
            rows = samples.setdefault(name, [[0.0] * len(PARTS) for _ in profiles])
            for part, seconds in enumerate(spent[: len(PARTS)]):
                rows[number][part] += seconds
            simulated[name] = spent.simulated
    result = []
    for name, rows in samples.items():
        transfer, launch, execution = map(float, np.median(rows, axis=0))
        result.append(RegionTime(name, (transfer, launch, execution), simulated[name]))
    return result


def region_of(step: PythonWork | KernelCall) -> str:
    """The region that a step runs, or transfers for."""
    assert isinstance(step, RegionCall | Transfer)
    return step.region if isinstance(step, Transfer) else step.function


def region_lines(regions: Sequence[RegionTime]) -> Iterator[Block]:
    """A bar for each region, and a legend."""
    longest = max((region.seconds for region in regions), default=0.0)
    rows: list[tuple[Cell, ...]] = [
        (
            f"{region.name} {SIMULATED}" if region.simulated else region.name,
            Bar(region.parts, longest),
            *(f"{seconds * 1e6:,.1f}" for seconds in (region.seconds, *region.parts)),
        )
        for region in regions
    ]
    yield from table(rows, _HEADER, right=(2, 3, 4, 5))
    yield ", ".join(f"{fill} {part}" for fill, part in zip(_FILLS, PARTS, strict=True))
    if not all(region.simulated for region in regions):
        yield "launch: with the region's guard, which takes about 20 µs where it has a deadline"
    if any(region.simulated for region in regions):
        yield f"{SIMULATED}: what a model of the device says; the host computed in its place"


@dataclass(frozen=True, slots=True)
class Bar:
    """Adjacent parts; each end is rounded to a character."""

    parts: Sequence[float]
    longest: float  # fills the width

    def text(self, width: int) -> str:
        """The bar in so many columns."""
        if self.longest <= 0:
            return ""
        ends = np.rint(np.cumsum([0.0, *self.parts]) / self.longest * width).astype(int)
        return "".join(fill * int(end) for fill, end in zip(_FILLS, np.diff(ends), strict=True))

    def __rich_measure__(self, console: Console, options: ConsoleOptions) -> Measurement:
        from rich.measure import Measurement

        return Measurement(_LEAST_BAR, _BAR_WIDTH).with_maximum(options.max_width)

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        from rich.text import Text

        yield Text(self.text(min(options.max_width, _BAR_WIDTH)), no_wrap=True)


def region_json(regions: Sequence[RegionTime]) -> list[dict[str, Any]]:
    """The same as JSON."""
    return [
        {
            "region": region.name,
            "simulated": region.simulated,
            **{f"{part}_seconds": value for part, value in zip(PARTS, region.parts, strict=True)},
        }
        for region in regions
    ]


@dataclass
class SimulatedTrack:
    """The time until which the simulated devices of a trace are busy."""

    free: int = 0


def region_slices(
    step: PythonWork | KernelCall, spent: TimeSpent, around: Slice, simulated: SimulatedTrack
) -> Iterator[Slice]:
    """Launch, transfer and execution in this order: inside the slice of the step, or, for a
    simulated device, one after the other on a track of its own."""
    begin, most, process, label = around.begin, around.end, around.process, ""
    if spent.simulated:
        begin, most = max(begin, simulated.free), sys.maxsize
        process, label = DEVICES, f" {SIMULATED}"
    name = region_of(step)
    args = {"region": name, "simulated": spent.simulated}
    for part in ("launch", "transfer", "execution"):
        # A device's clock may say that it took longer than the step that waited for it.
        end = min(begin + round(getattr(spent, part) * 1e9), most)
        if end > begin:
            yield Slice(f"{part} {name}{label}", part, begin, end, 0, process, args)
        begin = end
    if spent.simulated:
        simulated.free = begin


PROGRAM, DEVICES = 1, 2  # the processes of a trace: what runs, and what simulated devices would do


@dataclass(frozen=True, slots=True)
class Slice:
    """An interval of a thread, in nanoseconds."""

    name: str
    category: str
    begin: int
    end: int
    thread: int = 0
    process: int = PROGRAM
    args: Mapping[str, Any] = field(default_factory=dict)


def write_events(path: Path, slices: Iterable[Slice], threads: int) -> None:
    """Write the slices of a program of so many threads; time begins with the first."""
    ordered = sorted(slices, key=lambda one: (one.begin, -one.end))
    origin = ordered[0].begin if ordered else 0
    names = _names(threads, any(one.process == DEVICES for one in ordered))
    events = [*names, *(_event(one, origin) for one in ordered)]
    trace = {"traceEvents": events, "displayTimeUnit": "ns"}
    path.write_text(json.dumps(trace), encoding="utf-8")


def _names(threads: int, with_devices: bool) -> Iterator[dict[str, Any]]:
    """The names of processes and threads."""
    yield _name("process_name", PROGRAM, 0, "graft")
    for thread in range(threads):
        # The first thread is the caller's: it also does what Python does between kernels.
        note = " (calls the others)" if thread == 0 and threads > 1 else ""
        yield _name("thread_name", PROGRAM, thread, f"thread {thread}{note}")
    if with_devices:
        yield _name("process_name", DEVICES, 0, "devices (simulated)")
        yield _name("thread_name", DEVICES, 0, "all devices")


def _name(kind: str, process: int, thread: int, name: str) -> dict[str, Any]:
    return {"ph": "M", "name": kind, "pid": process, "tid": thread, "args": {"name": name}}


def _event(one: Slice, origin: int) -> dict[str, Any]:
    return {
        "ph": "X",
        "name": one.name,
        "cat": one.category,
        "pid": one.process,
        "tid": one.thread,
        "ts": (one.begin - origin) / 1000,
        "dur": (one.end - one.begin) / 1000,
        "args": dict(one.args),
    }

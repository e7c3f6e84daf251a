"""Where the time goes: a session and its inputs in; a table, JSON and a trace of its steps out."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from graft.cli.report import counted, figure, table
from graft.runtime.program import KernelCall, Step
from graft.runtime.session import Profile, Session

if TYPE_CHECKING:
    from graft.ir.evaluate import Data

RUNS = 20
_WARM_UP_RUNS = 3
_HEADER = ("kernel", "ONNX node", "µs", "share", "GFLOP/s", "GB/s")

_CAVEATS = (
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

    @property
    def run_seconds(self) -> float:
        """How long a whole run takes. On a busy machine that is more than the steps' medians
        together: each run is held up somewhere, and each time somewhere else."""
        return float(self.typical.seconds.sum())

    @property
    def step_seconds(self) -> float:
        """The steps' medians together, of which shares are shares."""
        return sum(one.seconds for one in self.steps)

    @property
    def native(self) -> int:
        """How many steps are native code; all others run on the reference evaluator."""
        return sum(isinstance(one.step, KernelCall) for one in self.steps)

    @property
    def threads(self) -> int:
        """How many threads share the work."""
        return len(self.typical.busy)


def measured(session: Session, feeds: Mapping[str, Data]) -> Measured:
    """Run a few times and measure every step."""
    for _ in range(_WARM_UP_RUNS):
        session.run(None, feeds)
    profiles = sorted(
        (session.profile(feeds) for _ in range(RUNS)), key=lambda one: float(one.seconds.sum())
    )
    medians = np.median([one.seconds for one in profiles], axis=0)
    total = float(medians.sum())
    steps = [
        StepTime(step, float(seconds), float(seconds) / total if total else 0.0)
        for step, seconds in zip(session.program.steps, medians, strict=True)
    ]
    return Measured(steps, profiles[RUNS // 2])


def profile_lines(found: Measured) -> Iterator[str]:
    """The steps as a table, the slowest first."""
    yield from table([_row(one) for one in _slowest_first(found)], _HEADER, right=(2, 3, 4, 5))
    yield ""
    reference = len(found.steps) - found.native
    steps = f"{counted(found.native, 'native step')}, {counted(reference, 'reference step')}"
    yield f"{steps}, {counted(found.threads, 'thread')}; medians of {RUNS} runs"
    yield f"total {found.run_seconds * 1e6:,.1f} µs for a whole run,"
    yield f"{found.step_seconds * 1e6:,.1f} µs for the steps above, of which shares are shares"
    yield from _CAVEATS


def profile_json(found: Measured) -> dict[str, Any]:
    """The same for programs."""
    return {
        "runs": RUNS,
        "threads": found.threads,
        "total_seconds": found.run_seconds,
        "step_seconds": found.step_seconds,
        "native_steps": found.native,
        "reference_steps": len(found.steps) - found.native,
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
    """Write the typical run as trace events, which Perfetto and Chrome's about:tracing show."""
    trace = {"traceEvents": list(_events(found.typical)), "displayTimeUnit": "ns"}
    path.write_text(json.dumps(trace), encoding="utf-8")


def _slowest_first(found: Measured) -> list[StepTime]:
    return sorted(found.steps, key=lambda one: -one.seconds)


def _row(one: StepTime) -> tuple[str, ...]:
    time, share = f"{one.seconds * 1e6:,.1f}", f"{one.share:.1%}"
    return (one.step.label, _node(one.step), time, share, _short(one.gflops), _short(one.gigabytes))


def _short(rate: float | None) -> str:
    return figure(rate) if rate is None else f"{rate:.3g}" if rate < 1000 else f"{rate:,.0f}"


def _node(step: Step) -> str:
    place = step.place
    return f"{place.node} ({place.kind})" if place.node and place.kind else place.node or place.kind


def _events(run: Profile) -> Iterator[dict[str, Any]]:
    """One track per thread. All of them are drawn from the start of a step on, for as long as each
    of them worked on it: when a thread began within the step is not measured."""
    for thread in range(len(run.busy)):
        name = {"name": f"thread {thread}"}
        yield {"ph": "M", "name": "thread_name", "pid": 1, "tid": thread, "args": name}
    begins = np.concatenate([[0.0], np.cumsum(run.seconds)])
    for index, step in enumerate(run.steps):
        native = isinstance(step, KernelCall)
        alone = not isinstance(step, KernelCall) or step.serial
        for thread in range(1 if alone else len(run.busy)):
            yield {
                "ph": "X",
                "name": step.label,
                "cat": "native" if native else "reference",
                "pid": 1,
                "tid": thread,
                "ts": float(begins[index]) * 1e6,
                "dur": float(run.busy[thread, index]) * 1e6,
                "args": {"node": _node(step), "flops": step.flops, "bytes": step.bytes},
            }

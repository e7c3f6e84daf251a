from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest
from tests.cli.test_trace import check_nesting

from graft.base.errors import Location
from graft.cli.profile import RUNS, MeasuredRuns, measured, profile_json, profile_lines, write_trace
from graft.cli.profile_regions import PARTS, Bar
from graft.cli.report import lines_of
from graft.program.instructions import (
    Block,
    Evaluate,
    EvaluatedGraph,
    Instruction,
    KernelCall,
    RegionCall,
    Transfer,
)
from graft.program.program import Program, Target
from graft.runtime.profile import Moment, Profile
from graft.runtime.regions import TimeSpent
from graft.runtime.session import Session

Step = KernelCall | Instruction

NODES = Location("m", "c", "Conv"), Location("m", "", "TopK")
STEPS: tuple[Step, ...] = (
    KernelCall("k0", (), label="conv", location=NODES[0]),
    KernelCall("k1", (), label="relayout", serial=True),
    Evaluate("sort_2", (), (), EvaluatedGraph("", ()), "sort (reference)", NODES[1]),
)
WORK = ((4_000_000, 2_000), (0, 0), (0, 0))


def moments(
    steps: tuple[Step, ...], seconds: list[float], spent: dict[int, TimeSpent] | None = None
) -> list[Moment]:
    """Steps one after the other."""
    found, begin = [], 7
    for number, (step, taken) in enumerate(zip(steps, seconds, strict=True)):
        flops, moved = WORK[number] if steps is STEPS else (0, 0)
        both = (taken, taken / 2), (begin, begin)
        times = begin, taken, taken, *(both if steps is STEPS else ((taken,), (begin,)))
        own = (spent or {}).get(number)
        found.append(Moment((number,), step, *times, own, flops, moved))
        begin += round(taken * 1e9)
    return found


def fake(profiles: list[Profile], threads: int) -> Session:
    """Something that takes as long as is written, run after run."""
    runs = iter(profiles)
    program = Program(Target(""), (), (), Block((), (), ()), ())
    made = SimpleNamespace(
        program=program, threads=threads, run=lambda *_: [], profile=lambda _feeds: next(runs)
    )
    return cast(Session, made)


def session(seconds: list[list[float]]) -> Session:
    return fake([Profile([], sum(one), moments(STEPS, one)) for one in seconds], 2)


def test_total_is_that_of_a_run_and_not_of_the_medians() -> None:
    """Each run is held up in another step, so that no step's median shows it."""
    held_up = [[1e-3 + (run % 3 == step) * 9e-3 for step in range(3)] for run in range(RUNS)]
    found = measured(session(held_up), {})
    assert [one.seconds for one in found.steps] == pytest.approx([1e-3] * 3)
    assert sum(one.seconds for one in found.steps) == pytest.approx(3e-3)
    assert found.run_seconds == pytest.approx(12e-3)
    facts = profile_json(found)
    assert (facts["total_seconds"], facts["step_seconds"]) == pytest.approx((12e-3, 3e-3))


def test_rows_are_sorted_and_say_what_is_not_known() -> None:
    lines = lines_of(profile_lines(measured(session([[1e-3, 5e-4, 2.5e-3]] * RUNS), {})))
    assert lines[:4] == [
        "kernel            ONNX node       µs  share  GFLOP/s   GB/s",
        "sort (reference)  TopK       2,500.0  62.5%        -      -",
        "conv              c (Conv)   1,000.0  25.0%        4  0.002",
        "relayout                       500.0  12.5%        -      -",
    ]
    assert lines[5] == f"2 native steps, 1 reference step, 2 threads; medians of {RUNS} runs"
    assert lines[6] == "total 4,000.0 µs for a whole run,"


def test_steps_that_take_no_time() -> None:
    found = measured(session([[0.0, 0.0, 0.0]] * RUNS), {})
    assert [(one.share, one.gflops, one.gigabytes) for one in found.steps] == [(0, None, None)] * 3


# Regions of other backends.

GRAFTED: tuple[Step, ...] = (
    Transfer("acc_0", 0, 1, True, label="to acc"),
    RegionCall("acc_0", (), (), label="acc: 3 nodes"),
    KernelCall("k0", (), label="conv"),
    RegionCall("sim_1", (), (), label="sim: 1 node"),
)
SPENT = {
    0: TimeSpent(30e-6, 0.0, 0.0),
    1: TimeSpent(0.0, 10e-6, 40e-6),
    3: TimeSpent(0.0, 5e-6, 35e-6, simulated=True),
}


def grafted() -> MeasuredRuns:
    times = [30e-6, 50e-6, 100e-6, 900e-6]
    profile = Profile([], sum(times), moments(GRAFTED, times, SPENT))
    return measured(fake([profile] * RUNS, 1), {})


def test_regions_as_stacked_bars() -> None:
    lines = lines_of(profile_lines(grafted()))
    assert "1 native step, 0 reference steps, 2 region steps, 1 transfer step, 1 thread" in lines[6]
    regions = lines[lines.index("Regions") + 1 :]
    full, half = "▒" * 15 + "░" * 5 + "█" * 20, ("░" * 2 + "█" * 18).ljust(40)
    assert regions == [
        f"  region             {'':40}    µs  transfer  launch  execution",
        f"  acc_0              {full}  80.0      30.0    10.0       40.0",
        f"  sim_1 (simulated)  {half}  40.0       0.0     5.0       35.0",
        "  ▒ transfer, ░ launch, █ execution",
        "  launch: with the region's guard, which takes about 20 µs where it has a deadline",
        "  (simulated): what a model of the device says; the host computed in its place",
    ]


def test_emulated_steps_are_not_taken_for_the_device() -> None:
    lines = lines_of(profile_lines(grafted()))
    assert lines[1].startswith("sim: 1 node (emulated)")
    assert not any("acc: 3 nodes (" in line for line in lines)


def test_regions_for_programs() -> None:
    facts = profile_json(grafted())
    assert (facts["region_steps"], facts["transfer_steps"], facts["reference_steps"]) == (2, 1, 0)
    assert facts["regions"] == [
        {
            "region": "acc_0",
            "simulated": False,
            "transfer_seconds": pytest.approx(30e-6),
            "launch_seconds": pytest.approx(10e-6),
            "execution_seconds": pytest.approx(40e-6),
        },
        {
            "region": "sim_1",
            "simulated": True,
            "transfer_seconds": 0.0,
            "launch_seconds": pytest.approx(5e-6),
            "execution_seconds": pytest.approx(35e-6),
        },
    ]


def test_regions_in_the_trace(tmp_path: Path) -> None:
    write_trace(grafted(), tmp_path / "trace.json")
    events = json.loads((tmp_path / "trace.json").read_text("utf-8"))["traceEvents"]
    check_nesting(events)
    parts = {event["name"]: event for event in events if "region" in event.get("args", {})}
    assert list(parts) == [
        "transfer acc_0",
        "launch acc_0",
        "execution acc_0",
        "launch sim_1 (simulated)",
        "execution sim_1 (simulated)",
    ]
    own, simulated = parts["execution acc_0"], parts["execution sim_1 (simulated)"]
    assert (own["ts"], own["dur"]) == pytest.approx((40, 40))
    assert (simulated["ts"], simulated["dur"]) == pytest.approx((185, 35))
    assert own["pid"] != simulated["pid"]
    assert {event["cat"] for event in parts.values()} == set(PARTS)
    kinds = {event["name"]: event["cat"] for event in events if "node" in event.get("args", {})}
    assert (kinds["to acc"], kinds["acc: 3 nodes"]) == ("transfer", "region")


def test_no_bars_without_time() -> None:
    assert Bar((0.0, 0.0, 0.0), 0.0).text(40) == ""
    assert Bar((1.0, 1.0, 2.0), 4.0).text(40) == "▒" * 10 + "░" * 10 + "█" * 20
    assert Bar((1.0, 1.0, 2.0), 4.0).text(20) == "▒" * 5 + "░" * 5 + "█" * 10

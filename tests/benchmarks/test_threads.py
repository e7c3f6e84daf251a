"""Simulated schedules: what jobs, barriers and memory make of so many threads."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from benchmarks.threads import Step, Team

from benchmarks import threads
from graft.backends.host.lowering.builder import build_assembled
from graft.backends.host.lowering.segments import SegmentCompiler
from graft.byoc.executable import Accuracy
from graft.ir.builder import Builder
from graft.ir.types import tensor
from graft.ops.indexed import IndexRanges
from graft.passes.pipeline import optimize
from graft.target.machine import MACHINES
from graft.target.target import named_target

ZEN = MACHINES["znver4"]
AT_ONCE = replace(ZEN, meeting_seconds=0.0)  # for threads that meet without waiting


@pytest.mark.parametrize(
    ("jobs", "count", "share"),
    [(8, 4, 2 / 8), (7, 4, 2 / 7), (3, 4, 1 / 3), (1, 64, 1.0), (0, 2, 0.0), (100, 1, 1.0)],
)
def test_the_busiest_thread_counts(jobs: int, count: int, share: float) -> None:
    step = Step("", 1.0, jobs, 0)
    assert Team(count, AT_ONCE).seconds(step) == pytest.approx(share)


def test_barriers_and_memory() -> None:
    rate = ZEN.memory_bytes_per_second
    step = Step("", 1e-3, 6400, int(rate * 1e-3))
    slow, slower = (replace(ZEN, meeting_seconds=seconds) for seconds in (2e-6, 2e-5))
    team = Team(64, slow, memory_cores=8)
    assert team.seconds(step) == pytest.approx(1e-3 / 8 + 64e-6)
    assert team.limit(step) == "memory"
    assert Team(64, slower).limit(step) == "barrier"
    assert Team(64, ZEN).limit(Step("", 1e-3, 8, 0)) == "few jobs"
    assert Team(64, ZEN).limit(Step("", 1e-3, 65, 0)) == "uneven"
    assert Team(64, ZEN).limit(Step("", 1e-3, 1, 0)) == "one job"


@pytest.mark.parametrize("machine", ["host", "icelake-server"])
def test_report(machine: str) -> None:
    g = Builder()
    x = g.input("x", tensor("float32", 48, 64))
    weights = g.constant(np.ones((96, 64), np.float32))
    graph = optimize(g.build(g("nn.softmax", g("nn.dense", x, weights))))
    target = named_target(machine)
    compiler = SegmentCompiler(target, Accuracy.DEFAULT, {})
    fused, assembly, guards = compiler.assembled(graph, IndexRanges(graph), {})
    built = build_assembled(fused, assembly, compiler, guards)
    steps = threads.steps_of(built, assembly.functions, target.machine, machine == "host")
    assert [step.jobs for step in steps if "softmax" in step.label] == [48]
    assert all(step.seconds > 0 and step.memory_bytes == 0 for step in steps)
    text = "\n".join(threads.report("model", steps, [Team(n, target.machine) for n in (1, 8)]))
    assert "efficiency" in text
    assert "8 threads lose" in text

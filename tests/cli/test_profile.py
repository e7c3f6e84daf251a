from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest

from graft.base.errors import Place
from graft.cli.profile import RUNS, measured, profile_json, profile_lines
from graft.runtime.program import KernelCall, PythonStep
from graft.runtime.session import Profile, Session

STEPS = (
    KernelCall("k0", (), label="conv", flops=4_000_000, bytes=2_000, place=Place("m", "c", "Conv")),
    KernelCall("k1", (), label="relayout", serial=True),
    PythonStep("sort_2", (), (), label="sort (reference)", place=Place("m", "", "TopK")),
)


def session(seconds: list[list[float]]) -> Session:
    """Something that takes as long as is written, run after run."""
    runs = iter(seconds)

    def profile(_feeds: Any) -> Profile:
        times = np.array(next(runs))
        return Profile([], STEPS, times, np.stack([times, times / 2]))

    program = SimpleNamespace(steps=STEPS)
    fake = SimpleNamespace(program=program, run=lambda *_: [], profile=profile)
    return cast(Session, fake)


def test_total_is_that_of_a_run_and_not_of_the_medians() -> None:
    """Each run is held up in another step, so that no step's median shows it."""
    held_up = [[1e-3 + (run % 3 == step) * 9e-3 for step in range(3)] for run in range(RUNS)]
    found = measured(session(held_up), {})
    assert [one.seconds for one in found.steps] == pytest.approx([1e-3] * 3)
    assert found.step_seconds == pytest.approx(3e-3)
    assert found.run_seconds == pytest.approx(12e-3)
    facts = profile_json(found)
    assert (facts["total_seconds"], facts["step_seconds"]) == pytest.approx((12e-3, 3e-3))


def test_rows_are_sorted_and_say_what_is_not_known() -> None:
    lines = list(profile_lines(measured(session([[1e-3, 5e-4, 2.5e-3]] * RUNS), {})))
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

"""Detectors on a GPU: what counts as the same detection, rows, and contenders that fail."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from benchmarks.gpu import Contender, Job
from benchmarks.gpu_detectors import CONTENDERS, HEADER, StageTimes, agreement, merge, row

from benchmarks import gpu_detectors
from graft.base.progress import Stage

BOXES = np.array([[0, 0, 10, 10], [20, 20, 40, 40], [0, 0, 9, 10]], np.float32)
SCORES, LABELS = np.array([0.9, 0.8, 0.7], np.float32), np.array([1, 2, 1])
EXPECTED = BOXES, SCORES, LABELS


def test_detections_agree_by_label_and_overlap() -> None:
    assert agreement(EXPECTED, EXPECTED) == 1
    assert agreement([BOXES[::-1], SCORES, LABELS[::-1]], EXPECTED) == 1
    assert agreement([BOXES, SCORES, np.array([1, 3, 1])], EXPECTED) == pytest.approx(2 / 3)
    empty = np.array([[5, 5, 5, 9]], np.float32), SCORES[:1], LABELS[:1]
    assert agreement(empty, empty) == 1
    assert agreement([BOXES + 8, SCORES, LABELS], EXPECTED) == 0
    assert agreement([BOXES[:1], SCORES[:1], LABELS[:1]], EXPECTED) == pytest.approx(1 / 3)


def test_rows_have_what_was_measured() -> None:
    result: Any = {
        "seconds": {"graft": 2e-3, "torch": 8e-3, "host": 1e-2},
        "agreement": dict.fromkeys(CONTENDERS, 0.98),
        "facts": {"graft": {"compile_seconds": 94.0}},
    }
    shown = row("ssd", result)
    assert len(shown) == len(HEADER)
    assert shown[1:6] == ["2.00", "8.00", "10.00", "4.00", "5.00"]
    assert shown[-1] == "94 s"
    del result["seconds"]["torch"]
    assert row("ssd", result)[2:6] == ["none", "10.00", "", "5.00"]
    assert merge({"networks": {"a": 1, "b": 2}}, {"networks": {"b": 3}})["networks"] == {
        "a": 1,
        "b": 3,
    }


def test_seconds_are_added_up_by_stage(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = iter([0.0, 1.0, 3.0, 7.0, 8.0])
    monkeypatch.setattr(time, "perf_counter", lambda: next(clock))
    times = StageTimes()
    for name in ("lowering", "compiling kernels", "lowering"):
        times(Stage(name))
    assert times.finished() == {"compiling kernels": 4.0, "lowering": 3.0, "starting": 1.0}


def _slow(_job: None) -> Any:
    time.sleep(60)


def _wrong(_job: None) -> Any:
    raise ValueError("no such kernel")


def test_contenders_that_fail_or_take_too_long_say_so() -> None:
    slow, wrong = Contender(_slow, None), Contender(_wrong, None)
    assert "no such kernel" in wrong.result()
    assert slow.result(0.1) == "it is not ready in time"
    wrong.end()


def _count_others(job: Job) -> Any:
    """Finds how many other contenders are being prepared, and takes some time."""
    mark = job.folder / str(time.monotonic_ns())
    mark.touch()
    others = len([*job.folder.iterdir()]) - 1
    time.sleep(0.2)
    mark.unlink()
    return (others, {}), time.monotonic


def test_contenders_are_prepared_one_after_another(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gpu_detectors, "PREPARE", dict.fromkeys(CONTENDERS, _count_others))
    contenders, results = gpu_detectors.prepare_contenders(
        Job("ssd", tmp_path), last=time.monotonic() + 60
    )
    for contender in contenders.values():
        contender.end()
    assert results == dict.fromkeys(CONTENDERS, (0, {}))

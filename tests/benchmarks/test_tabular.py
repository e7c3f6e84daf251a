"""The comparison of tabular models, and that a process of it measures a model."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from benchmarks.pages import ROOT
from benchmarks.small_models import MODELS

from benchmarks import tabular

NAN = float("nan")


@pytest.mark.parametrize(
    ("own", "peer"),
    [
        ([[1.0, 2.0]], [[1.0, 2.001]]),
        ([1.0, NAN], [1.0, NAN]),
        (["a", "b"], ["a", "b"]),
        ([0] * 999 + [1], [0] * 1000),  # a tie
        ([{"a": 0.5, "b": 0.5}], [{"a": 0.5, "b": 0.5001}]),
        ([], []),
    ],
)
def test_results_that_are_the_same(own: list[Any], peer: list[Any]) -> None:
    tabular.compare("it", own, peer)


@pytest.mark.parametrize(
    ("own", "peer"),
    [
        ([[1.0, 2.0]], [[1.0, 2.1]]),
        ([1.0, 2.0], [1.0, NAN]),
        ([1.0], [[1.0]]),
        (["a", "b"], ["a", "c"]),
        ([0, 1], [0, 2]),
        ([{"a": 0.5}], [{"b": 0.5}]),
        ([{"a": 0.5}], [{"a": 0.6}]),
    ],
)
def test_results_that_differ(own: list[Any], peer: list[Any]) -> None:
    with pytest.raises(SystemExit, match="it: "):
        tabular.compare("it", own, peer)


def test_a_process_measures_as_many_rows_as_asked_for(tmp_path: Path) -> None:
    small = MODELS["scaler"]()
    onnx.save(small.model, tmp_path / "scaler.onnx")
    np.savez(tmp_path / "scaler.npz", x=np.ones((9, 8), np.float32))
    command = [sys.executable, "-m", "benchmarks.tabular", str(tmp_path), "scaler", "5", "graft"]
    done = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, text=True, check=True)
    answer = json.loads(done.stdout)
    assert np.shape(answer["results"]) == (1, 5, 8)
    assert all(seconds > 0 for seconds in answer["graft"])

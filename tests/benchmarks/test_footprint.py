from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from benchmarks.footprint import PROCESS, Footprint, medians, memory, starting
from benchmarks.profiles import profile_section
from tests.cli.fakes import SOURCES
from tests.cli.tiny import saved

import graft

FIGURES = {"import": 0.1, "ready": 2.0, "first": 0.005, "steady": 2e8, "peak": 3e8}
SAVED = {"file_bytes": 10**8, "arena_bytes": 5000, "arena_bound_bytes": 4000}
ONE = Footprint("m", {**FIGURES, "ready": 9.0}, FIGURES, FIGURES, FIGURES, SAVED)


def test_tables() -> None:
    start = starting([ONE])
    assert start[2] == "| m | 9 s | 2 s | 100 ms | 2 s | 5 ms | 100 ms | 2 s | 5 ms |"
    held = memory([ONE])
    assert held[2].startswith("| m | 100 MB | 200 MB (300 MB) | 200 MB (300 MB) |")
    assert held[2].endswith("| 5 kB | 4 kB |")
    for lines in (start, held):
        assert len({line.count("|") for line in lines}) == 1


def test_medians() -> None:
    assert medians([{"a": 1, "b": 5}, {"a": 9, "b": 4}, {"a": 2, "b": 6}]) == {"a": 2, "b": 5}


@pytest.mark.parametrize("kind", ["load", "compile", "onnxruntime"])
def test_a_process_tells_seconds_and_bytes(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GRAFT_CACHE_DIR", str(tmp_path / "cache"))
    model = saved(tmp_path, "g (float[2, 3] x) => (float[2, 3] y) { y = Neg (x) }")
    np.save(tmp_path / "x.npy", np.ones((2, 3), np.float32))
    if kind == "load":
        graft.compile(model, threads=1).save(tmp_path / "m.graft")
        model = str(tmp_path / "m.graft")
    found = answer([kind, model, json.dumps({"x": "x.npy"}), "1"], monkeypatch)
    assert {"import", "ready", "first", "steady", "peak"} == found.keys()
    assert 0 < found["first"] < found["import"] + found["ready"]
    assert 1e7 < found["steady"] <= found["peak"] < 1e10


def test_importing_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    found = answer(["import"], monkeypatch)
    assert 0 < found["import"] < 10


def answer(arguments: list[str], monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    monkeypatch.setenv("PYTHONPATH", str(SOURCES))
    command = [sys.executable, str(PROCESS), *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def test_profiles_are_cut_out() -> None:
    output = "m\n\nInputs\n  x\n\nProfile\n  kernel  µs\n  a        1\n\n  end\n\ncompiled in 1 s\n"
    assert profile_section(output) == ["kernel  µs", "a        1", "", "end"]

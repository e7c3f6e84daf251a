from __future__ import annotations

import json
import os
import subprocess
import sys
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.cli.tiny import MIXED, NATIVE, TWO_INPUTS, saved

from graft.cli.main import main
from graft.cli.profile import RUNS

Json = dict[str, Any]
SOURCES = Path(__file__).resolve().parents[2] / "src"

# What a compiled file must run without.
ROOMS = ("compiler", "module", "frontends", "backends", "passes", "ops", "rewrite", "llvm", "loop")
COMPILER = ("onnx", "graft.ir.graph", "graft.ir.evaluate", *(f"graft.{room}" for room in ROOMS))
LISTING = """
import sys
from graft.cli.main import main
code = main(sys.argv[1:])
print(*sys.modules, sep=chr(10), file=sys.stderr)
sys.exit(code)
"""


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GRAFT_CACHE_DIR", str(tmp_path / "cache"))


@pytest.fixture
def file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> str:
    path = str(tmp_path / "model.graft")
    assert main(["compile", saved(tmp_path, NATIVE), "-o", path]) == 0
    capsys.readouterr()
    return path


def ran(capsys: pytest.CaptureFixture[str], *arguments: str) -> Json:
    assert main(["run", *arguments, "--json"]) == 0
    captured = capsys.readouterr()
    assert captured.err == ""
    facts: Json = json.loads(captured.out)
    return facts


def refused(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    assert main(["run", *arguments]) == 1
    captured = capsys.readouterr()
    assert captured.out == ""
    return captured.err


def test_file_and_model_and_reference_agree(
    file: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model = saved(tmp_path, NATIVE)
    from_file = ran(capsys, file, "--seed", "5", "--threads", "1")
    from_model = ran(capsys, model, "--seed", "5", "--threads", "1")
    reference = ran(capsys, model, "--seed", "5", "--target", "reference")
    assert from_file["outputs"] == from_model["outputs"]
    assert from_file["inputs"] == reference["inputs"]
    for native, plain in zip(from_file["outputs"], reference["outputs"], strict=True):
        assert native["shape"] == plain["shape"]
        assert native["max"] == pytest.approx(plain["max"], rel=1e-5)
    assert (from_file["steps"], from_file["threads"], from_model["threads"]) == (4, 1, 1)
    assert from_file["load_seconds"] > 0
    assert from_model["placement"] == {"host": 4}
    assert reference["placement"] == {"reference": 4}
    assert reference["threads"] is None
    assert from_model["compile_seconds"] > 0


def test_given_inputs_and_saved_outputs(
    file: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    x, y = np.zeros((3, 7), np.float32), np.arange(7, dtype=np.float32).reshape(1, 7)
    np.savez(tmp_path / "inputs.npz", allow_pickle=False, x=x, y=y)
    folder = tmp_path / "out"
    options = ["--input", str(tmp_path / "inputs.npz"), "--output-dir", str(folder)]
    assert main(["run", file, *options, "--threads", "2"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == f"{file} (4 native steps, 2 threads)"
    assert lines[-1].startswith("loaded in ")
    expected = np.tile(y.T + np.float32(1 / 7), (1, 3))
    np.testing.assert_allclose(np.load(folder / "t.npy"), expected, rtol=1e-6)


def test_wrong_inputs_of_a_file(
    file: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    np.save(tmp_path / "x.npy", np.zeros((3, 8), np.float32))
    text = refused(capsys, file, "--input", f"x={tmp_path}/x.npy")
    assert "the input 'x' wants float32[3, 7], but" in text
    text = refused(capsys, file, "--input", f"w={tmp_path}/x.npy")
    assert "there is no input 'w'\n  hint: inputs: 'x', 'y'" in text
    text = refused(capsys, file, "--dim", "batch=2")
    assert "no input has a dynamic dim 'batch'\n  hint: dynamic dims: none" in text


def test_files_that_are_none(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert "No such file" in refused(capsys, str(tmp_path / "missing.graft"))
    (tmp_path / "text.graft").write_text("kernel k() {}\n", encoding="utf-8")
    assert "text.graft" in refused(capsys, str(tmp_path / "text.graft"))


def test_a_file_runs_without_the_compiler(file: str) -> None:
    outcome = subprocess.run(
        [sys.executable, "-c", LISTING, "run", file, "--profile", "--json"],
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": str(SOURCES)},
        check=True,
    )
    assert json.loads(outcome.stdout)["profile"]["native_steps"] == 4
    loaded = outcome.stderr.split()
    assert "graft.runtime.session" in loaded
    assert [name for name in loaded if name.startswith(COMPILER)] == []


def test_profile_in_json(file: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert ran(capsys, file)["profile"] is None
    profile = ran(capsys, file, "--profile", "--threads", "2")["profile"]
    assert (profile["runs"], profile["threads"]) == (RUNS, 2)
    assert (profile["native_steps"], profile["reference_steps"]) == (4, 0)
    steps = profile["steps"]
    times = [one["seconds"] for one in steps]
    assert times == sorted(times, reverse=True)
    assert sum(times) == pytest.approx(profile["step_seconds"])
    assert sum(one["share"] for one in steps) == pytest.approx(1)
    assert profile["total_seconds"] > 0
    nodes = {one["node"]: one for one in steps}
    assert nodes.keys() == {"first", "plus", "second", "turn"}
    assert nodes["plus"]["kind"] == "Add"
    assert nodes["plus"]["gflops_per_second"] == pytest.approx(21e-9 / nodes["plus"]["seconds"])
    moved = 4 * (21 + 7 + 21) * 1e-9
    assert nodes["plus"]["gigabytes_per_second"] == pytest.approx(moved / nodes["plus"]["seconds"])
    assert nodes["turn"]["gflops_per_second"] is None


def test_profile_of_a_model_that_is_partly_native(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    trace = tmp_path / "trace.json"
    options = ["--profile", "--trace", str(trace), "--threads", "2"]
    assert main(["run", saved(tmp_path, MIXED), *options]) == 0
    lines = capsys.readouterr().out.splitlines()
    start = lines.index("Profile")
    assert lines[start + 1].split() == ["kernel", "ONNX", "node", "µs", "share", "GFLOP/s", "GB/s"]
    rows = lines[start + 2 : lines.index("", start)]
    assert any("last (Softmax)" in row for row in rows)
    total = lines[start + 2 + len(rows) + 1]
    native = len(rows) - 1
    expected = f"{native} native steps, 1 reference step, 2 threads; medians of {RUNS} runs"
    assert total.strip() == expected
    check_trace(json.loads(trace.read_text(encoding="utf-8")), native)


def check_trace(trace: Json, native: int) -> None:
    """A track for each thread, on which steps follow one another."""
    events = trace["traceEvents"]
    names = [one["args"]["name"] for one in events if one["ph"] == "M"]
    assert names == ["graft", "thread 0 (calls the others)", "thread 1"]
    spans = [one for one in events if one["ph"] == "X"]
    first = [one for one in spans if one["tid"] == 0]
    assert len(first) == native + 1
    assert [one["tid"] for one in spans if one["cat"] == "reference"] == [0]
    starts = [one["ts"] for one in first]
    assert starts[0] == 0
    assert starts == sorted(starts)
    for one, following in pairwise(first):
        assert 0 <= one["dur"] <= following["ts"] - one["ts"] + 1e-6
    assert any(one["tid"] == 1 for one in spans)


LOOPING = """
    net (int64 turns, float[n, 8] x) => (float[n, 8] y) {
        always = Constant <value = bool {1}> ()
        [again] y = Loop (turns, always, x) <
            body = one (int64 i, bool c, float[n, 8] v) => (bool same, float[n, 8] w) {
                same = Identity (c)
                [wave] s = Sin (v)
                [root] w = Softmax <axis = -1> (s)
            }
        >
    }
"""


def test_flows_have_a_profile(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Kernels with their iterations, and what is around them, in the table and in the trace."""
    path, file, trace = saved(tmp_path, LOOPING), tmp_path / "m.graft", tmp_path / "trace.json"
    turns = tmp_path / "turns.npy"
    np.save(turns, np.array(5))
    assert main(["compile", path, "-o", str(file)]) == 0
    capsys.readouterr()
    for model in (path, str(file)):
        options = ["--profile", "--trace", str(trace), "--threads", "2", "--dim", "n=3", "--json"]
        assert main(["run", model, "--input", f"turns={turns}", *options]) == 0
        profile = json.loads(capsys.readouterr().out)["profile"]
        native = [one for one in profile["steps"] if one["native"]]
        assert {one["node"] for one in native} >= {"again/body/root"}
        assert {one["iterations"] for one in native} == {5}
        segments = [one for one in profile["steps"] if one["label"].startswith("around ")]
        assert [one["iterations"] for one in segments] == [5]
        assert profile["native_steps"] == len(native)
        assert (
            0 < profile["python_seconds"] < profile["step_seconds"] <= profile["total_seconds"] * 2
        )
        events = json.loads(trace.read_text(encoding="utf-8"))["traceEvents"]
        names = [one["args"]["name"] for one in events if one["ph"] == "M"]
        assert names == ["graft", "thread 0 (calls the others)", "thread 1"]
        slices = [one for one in events if one["ph"] == "X"]
        assert sum(one["name"].startswith("around ") for one in slices) == 5


def test_profiles_of_flows_as_text(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["run", saved(tmp_path, TWO_INPUTS), "--profile", "--threads", "1"]) == 0
    lines = capsys.readouterr().out.splitlines()
    start = lines.index("Profile")
    assert lines[start + 1].split()[:6] == ["kernel", "or", "step", "ONNX", "node", "iterations"]
    assert any(line.strip().startswith("around ") for line in lines[start:])
    text = " ".join(lines[start:])
    assert f"1 segment or decision, 1 thread; medians of {RUNS} runs" in text
    assert "µs in Python around them" in text

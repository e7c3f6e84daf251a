from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import pytest
from tests.cli.fakes import SOURCES, fake, let_workers_import
from tests.cli.tiny import NATIVE, TWO_INPUTS, saved

from graft import __version__
from graft.cli.bench.contenders import CONTENDERS, PEERS
from graft.cli.bench.report import MARKDOWN, TEXT, Comparison, Standing, Timing, to_json
from graft.cli.bench.rounds import Ratio, Summary
from graft.cli.machine import Machine
from graft.cli.main import main
from graft.cli.report import lines_of

STANDINGS = [
    Standing(
        CONTENDERS["graft"],
        "0.1.0",
        1.5,
        Timing(Summary(50, 0.2, 0.1, 0.15, 0.4), 1.9, None),
    ),
    Standing(
        PEERS["onnxruntime"],
        "1.0",
        0.5,
        Timing(Summary(50, 0.1, 0.05, 0.08, 0.2), 2.6, Ratio(2.0, 1.9, 2.1)),
    ),
    Standing(
        PEERS["openvino"],
        "2.0",
        0.5,
        Timing(Summary(50, 0.08, 0.05, 0.07, 0.2), 1.0, Ratio(2.5, None, None)),
    ),
    Standing(PEERS["torch"], reason="no importer | at all", hint="pip install onnx2torch"),
]
COMPARISON = Comparison(Path("a/m.onnx"), [("x", "float32[1]")], STANDINGS, 12, 3.0)
MACHINE = Machine("Abacus 9", "AVX2", 2, "Linux x86_64", "3.11.0", 0.4)


def test_text() -> None:
    text = "\n".join(lines_of(TEXT.comparison(COMPARISON, 2)))
    assert "12 rounds in 3 s" in text
    (line,) = (one for one in text.splitlines() if "ONNX Runtime  1.0" in one)
    assert " ".join(line.split()[3:]) == "100 ms 50 ms 80 ms 200 ms 2.6 2 (1.9 to 2.1)"
    assert "torch.compile  no importer | at all: pip install onnx2torch" in text
    assert "warning: ONNX Runtime kept 2.6 cores busy, more than its share" in text
    last = "the best peer, OpenVINO: 2.5 (too few rounds for an interval)"
    assert text.endswith(last)


def test_markdown() -> None:
    lines = list(MARKDOWN.comparison(COMPARISON, 2))
    assert "### m.onnx" in lines
    assert {line.count("|") for line in lines if line.startswith("|")} == {9}
    assert "| Graft | 0.1.0 | 200 ms | 100 ms | 150 ms | 400 ms | 1.9 |  |" in lines
    missing = r"- torch.compile was not timed: no importer \| at all: pip install onnx2torch"
    assert missing in lines


def test_json_of_a_comparison() -> None:
    facts = json.loads(json.dumps(to_json(MACHINE, 2, [COMPARISON])))
    assert facts["machine"]["processor"] == "Abacus 9"
    (model,) = facts["models"]
    assert (model["best_peer"], model["rounds"], model["problem"]) == ("openvino", 12, None)
    graft, onnxruntime, _, torch = model["contenders"]
    assert graft["timing"]["ratio"] is None
    assert onnxruntime["timing"]["ratio"] == {"value": 2.0, "low": 1.9, "high": 2.1}
    assert onnxruntime["timing"]["summary"]["median"] == 0.1
    assert torch == {
        "name": "torch",
        "version": None,
        "prepare_seconds": None,
        "reason": "no importer | at all",
        "hint": "pip install onnx2torch",
        "timing": None,
    }


def test_machine_warns_of_other_work_and_of_too_many_threads() -> None:
    assert MACHINE.warnings(2) == []
    busy = Machine("Abacus 9", "AVX2", 2, "Linux x86_64", "3.11.0", 0.6)
    assert "load average 0.6 on 2 cores" in busy.warnings(2)[0]
    assert MACHINE.warnings(3) == ["there are 3 threads, but only 2 cores"]


def test_graft_beside_onnxruntime(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PYTHONPATH", str(SOURCES))
    good, bad = saved(tmp_path, TWO_INPUTS), str(tmp_path / "missing.onnx")
    arguments = [bad, good, "--peers", "onnxruntime", "--threads", "1", "--dim", "batch=3"]
    assert main(["bench", *arguments, "--rounds", "2", "--json"]) == 0
    captured = capsys.readouterr()
    assert captured.err == ""
    facts = json.loads(captured.out)
    assert facts["threads"] == 1
    assert facts["machine"]["cores"] >= 1
    missing, compared = facts["models"]
    assert "No such file" in missing["problem"]
    assert compared["problem"] is None
    assert compared["inputs"][0] == {"name": "x", "type": "float32[3, 1]"}
    assert (compared["rounds"], compared["best_peer"]) == (2, "onnxruntime")
    graft, onnxruntime = compared["contenders"]
    assert graft["version"].startswith(f"{__version__} (")
    for one in (graft, onnxruntime):
        summary = one["timing"]["summary"]
        assert 0 < summary["best"] <= summary["median"] <= summary["ninetieth"] < 1
        assert summary["runs"] >= 10
        assert one["reason"] is None
    found = onnxruntime["timing"]["ratio"]
    assert found["value"] > 0
    assert found["low"] is None


def test_simulations_are_not_timed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PYTHONPATH", str(SOURCES))
    arguments = ["--target", "simnpu,host", "--pin", "plus=simnpu", "--threads", "1"]
    model = saved(tmp_path, NATIVE, 20)
    assert main(["bench", model, *arguments, "--no-peers", "--rounds", "2"]) == 1
    text = " ".join(capsys.readouterr().out.split())
    assert "Graft what it runs on simnpu is simulated" in text
    assert "median" not in text
    assert main(["run", model, *arguments]) == 0
    assert capsys.readouterr().out.endswith("ms, a simulation included\n")


def test_graft_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PYTHONPATH", str(SOURCES))
    arguments = [saved(tmp_path, TWO_INPUTS), "--no-peers", "--threads", "1", "--rounds", "2"]
    assert main(["bench", *arguments]) == 0
    assert "Graft's time, with nobody to compare: " in capsys.readouterr().out
    assert main(["bench", *arguments, "--json"]) == 0
    (model,) = json.loads(capsys.readouterr().out)["models"]
    (graft,) = model["contenders"]
    assert (model["rounds"], model["best_peer"], graft["reason"]) == (2, None, None)
    assert graft["timing"]["summary"]["median"] > 0


def test_strict_accuracy_reaches_graft(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PYTHONPATH", str(SOURCES))
    arguments = [saved(tmp_path, TWO_INPUTS), "--no-peers", "--accuracy", "strict"]
    assert main(["bench", *arguments, "--threads", "1", "--rounds", "1", "--json"]) == 0
    (graft,) = json.loads(capsys.readouterr().out)["models"][0]["contenders"]
    assert "accuracy strict" in graft["version"]


def test_contenders_that_differ_or_die_are_not_timed(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Graft is then left alone with one that differs, so that nothing is timed at all."""
    let_workers_import(tmp_path, monkeypatch)
    for name in ("wrong", "leaves"):
        for known in (PEERS, CONTENDERS):
            monkeypatch.setitem(known, name, fake(name))
    assert main(["bench", saved(tmp_path, TWO_INPUTS), "--peers", "wrong,leaves"]) == 1
    captured = capsys.readouterr()
    assert captured.err == ""
    assert "Leaves  its process ended with code 7" in captured.out
    assert "Wrong   differs from graft, and no majority tells which is right: " in captured.out
    assert "Graft   differs from wrong, " in captured.out
    assert captured.out.endswith("Nothing could be compared.\n")
    assert "median" not in captured.out


def test_one_bad_model_alone_is_an_error(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["bench", str(tmp_path / "missing.onnx")]) == 1
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith("graft: error: cannot read ")


@pytest.mark.parametrize(
    "arguments",
    [
        [],
        ["m", "--peers", "tensorrt"],
        ["m", "--peers", "onnxruntime", "--no-peers"],
        ["m", "--accuracy", "high"],
        ["m", "--threads", "0"],
        ["m", "--batch", "-1"],
        ["m", "--rounds", "many"],
        ["m", "--seconds", "nan"],
        ["m", "--json", "--markdown"],
    ],
)
def test_wrong_usage(arguments: Sequence[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", *arguments]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert "error: " in captured.err

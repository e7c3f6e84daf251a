from __future__ import annotations

import sys
from pathlib import Path

import pytest

from graft.cli import demo
from graft.cli.main import main


def test_the_walk_has_all_its_steps(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["demo"]) == 0
    captured = capsys.readouterr()
    assert captured.err == ""
    steps = ["1. Import", "2. Passes", "3. Fusion", "4. Placement", "5. Check", "6. Run"]
    positions = [captured.out.index(step) for step in (*steps, "What to try next")]
    assert positions == sorted(positions)
    assert "1,814,073,344 multiply-accumulates" in captured.out
    assert "host: 112 nodes" in captured.out
    assert "yes: 1,000 numbers" in captured.out
    assert max(map(len, captured.out.splitlines())) <= 100


def test_without_onnxruntime_it_says_so(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    assert main(["demo"]) == 0
    text = capsys.readouterr().out
    assert "not checked: ONNX Runtime is not installed" in text
    assert "per inference" in text


def test_outside_a_checkout(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(demo, "__file__", str(tmp_path / "site" / "graft" / "cli" / "demo.py"))
    assert main(["demo"]) == 1
    captured = capsys.readouterr()
    assert captured.out == ""
    assert "the demo needs the models of a source checkout" in captured.err

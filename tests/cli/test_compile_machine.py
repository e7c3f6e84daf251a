"""`graft compile --machine`."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tests.cli.tiny import NATIVE, saved

from graft.cli.main import main
from graft.runtime.container import read
from graft.target.target import known_targets


def test_help_lists_the_machines(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["compile", "--help"]) == 0
    lines = capsys.readouterr().out.splitlines()
    for name, summary in known_targets().items():
        assert f"  {name:<12} {summary}" in lines


def test_a_file_for_another_machine(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path, file = saved(tmp_path, NATIVE), tmp_path / "model.graft"
    assert main(["compile", path, "-o", str(file), "--machine", "aarch64", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["machine"] == "aarch64"
    target = read(file).header["target"]
    assert target["triple"] == "aarch64-unknown-linux-gnu"
    assert target["features"] == ["fp-armv8", "neon"]
    assert min(target["core"]) > 1e9


@pytest.mark.parametrize(
    ("machine", "stage", "sign"),
    [
        ("aarch64", "asm", "fmla\tv"),
        ("aarch64", "llvm", 'target triple = "aarch64-unknown-linux-gnu"'),
        ("x86-64-v3", "asm", "%ymm"),
        ("x86-64", "loops", "float32x4"),
    ],
)
def test_stages_for_another_machine(
    machine: str, stage: str, sign: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["compile", saved(tmp_path, NATIVE), "--emit", stage, "--machine", machine]) == 0
    assert sign in capsys.readouterr().out


def test_a_machine_that_nobody_knows(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = saved(tmp_path, NATIVE)
    assert main(["compile", path, "-o", "model.graft", "--machine", "z80"]) == 2
    assert "z80" in capsys.readouterr().err


def test_graphs_are_for_no_machine(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = saved(tmp_path, NATIVE)
    assert main(["compile", path, "--emit", "graph", "--machine", "aarch64"]) == 2
    assert "--emit graph prints the same for every --machine" in capsys.readouterr().err

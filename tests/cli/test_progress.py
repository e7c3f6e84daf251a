"""What the compiler tells of its progress."""

from __future__ import annotations

from pathlib import Path

import onnx
import pytest
from tests.byoc.explained import network
from tests.cli.tiny import TWO_INPUTS, saved

import graft
from graft.base.progress import Stage


def names(stages: list[Stage]) -> list[str]:
    return list(dict.fromkeys(stage.name for stage in stages))


def test_stages_of_the_host(tmp_path: Path) -> None:
    stages: list[Stage] = []
    graft.compile(saved(tmp_path, TWO_INPUTS), report=stages.append)
    assert names(stages)[:3] == ["importing", "optimizing", "lowering"]
    passes = [stage for stage in stages if stage.name == "optimizing"]
    assert [stage.step for stage in passes] == list(range(1, passes[0].steps + 1))
    assert all(0 <= stage.step <= stage.steps for stage in stages)


def test_stages_of_other_backends(tmp_path: Path) -> None:
    path = tmp_path / "m.onnx"
    onnx.save(network(), path)
    stages: list[Stage] = []
    pinned = {"target": ["simnpu", "host"], "pins": ["first/Conv=simnpu"]}
    graft.compile(path, **pinned, report=stages.append)
    expected = ["timing the model on the host", "pricing candidates"]
    found = names(stages)
    assert [name for name in found if name in expected] == expected
    regions = [stage for stage in stages if stage.name == "compiling and checking regions"]
    assert (regions[0].step, regions[0].detail) == (1, "simnpu_0")
    assert regions[-1].step == regions[-1].steps


def test_print_shows_them(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    graft.compile(saved(tmp_path, TWO_INPUTS), report=print)
    assert capsys.readouterr().out.startswith("importing\noptimizing 1 of ")

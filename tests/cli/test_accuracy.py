"""`--accuracy` of `graft compile` and `graft run`."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tests.cli.tiny import NATIVE, saved

from graft.cli.main import main

# Random weights are drawn when the model is made: a constant of one value does as well.
LAYER = """
    layer (float[1, 64, 28, 28] x) => (float[1, 64, 28, 28] z) {
        shape = Constant <value_ints = [64, 64, 3, 3]> ()
        w = ConstantOfShape <value = float[1] {0.01}> (shape)
        z = Conv <pads = [1, 1, 1, 1]> (x, w)
    }
"""


@pytest.mark.parametrize(("accuracy", "chosen"), [("default", True), ("strict", False)])
def test_algorithm_that_compile_prints(
    accuracy: str, chosen: bool, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = saved(tmp_path, LAYER)
    assert main(["compile", path, "--emit", "loops", "--accuracy", accuracy]) == 0
    assert ("nn.conv2d[winograd:4]" in capsys.readouterr().out) == chosen


def test_graphs_are_of_no_accuracy(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = saved(tmp_path, LAYER)
    assert main(["compile", path, "--emit", "graph", "--accuracy", "strict"]) == 2
    assert "--emit graph prints the same for every --accuracy" in capsys.readouterr().err


def test_saved_file_keeps_the_choice(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path, file = saved(tmp_path, LAYER), str(tmp_path / "model.graft")
    assert main(["compile", path, "-o", file, "--accuracy", "strict"]) == 0
    capsys.readouterr()
    assert main(["run", file, "--profile", "--json"]) == 0
    assert "winograd" not in capsys.readouterr().out
    assert main(["run", file, "--accuracy", "strict"]) == 2
    assert "--accuracy is for models" in capsys.readouterr().err


def test_run_with_either_accuracy(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = saved(tmp_path, LAYER)
    for accuracy, chosen in (("default", True), ("strict", False)):
        assert main(["run", path, "--accuracy", accuracy, "--profile", "--json"]) == 0
        found = json.loads(capsys.readouterr().out)
        assert ("winograd" in json.dumps(found["profile"])) == chosen


def test_evaluator_has_one_accuracy(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = saved(tmp_path, NATIVE)
    assert main(["run", path, "--target", "reference", "--accuracy", "strict"]) == 2
    assert "--accuracy is for native code" in capsys.readouterr().err

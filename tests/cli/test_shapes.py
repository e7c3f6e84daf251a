"""`--shapes` on the command line: variants are compiled, saved, run, timed and explained."""

from __future__ import annotations

import json
from pathlib import Path

import onnx
import pytest
from tests.byoc.explained import network
from tests.cli.tiny import NATIVE, TWO_INPUTS, saved

from graft.cli.main import main

SHAPES = ("--shapes", "batch=1,8", "--shapes", "width=5")


def said(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    assert main(list(arguments)) == 0
    captured = capsys.readouterr()
    assert captured.err == ""
    return captured.out


def refused(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    assert main(list(arguments)) != 0
    captured = capsys.readouterr()
    assert captured.out == ""
    return captured.err


def test_run_says_which_variant(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = saved(tmp_path, TWO_INPUTS)
    sizes = ("--dim", "batch=8", "--dim", "width=5")
    facts = json.loads(said(capsys, "run", path, *SHAPES, *sizes, "--json"))
    assert facts["variant"] == "batch=8, width=5"
    alone = json.loads(said(capsys, "run", path, *sizes, "--json"))
    assert alone["variant"] is None
    assert facts["outputs"] == alone["outputs"]
    general = json.loads(said(capsys, "run", path, *SHAPES, "--dim", "batch=3", "--json"))
    assert general["variant"] == ""
    assert ", batch=8, width=5 ran in " in said(capsys, "run", path, *SHAPES, *sizes)
    assert "the general program ran in " in said(capsys, "run", path, *SHAPES)


def test_a_file_with_variants(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path, file = saved(tmp_path, TWO_INPUTS), str(tmp_path / "m.graft")
    facts = json.loads(said(capsys, "compile", path, "-o", file, *SHAPES, "--json"))
    assert list(facts["variants"]) == ["batch=1, width=5", "batch=8, width=5"]
    alone = json.loads(said(capsys, "compile", path, "-o", f"{file}.graft", "--json"))
    assert facts["kernel_calls"] > alone["kernel_calls"]
    assert facts["placement"] == alone["placement"]
    for batch, variant in (("1", "batch=1, width=5"), ("2", "")):
        sizes = ("--dim", f"batch={batch}", "--dim", "width=5")
        made = json.loads(said(capsys, "run", file, *sizes, "--json", "--profile"))
        assert made["variant"] == variant
        assert made["profile"]
        again = json.loads(said(capsys, "run", path, *sizes, "--json"))
        assert made["outputs"] == again["outputs"]
    assert "other variants: batch=1, width=5, batch=8, width=5" in said(capsys, "run", file)
    assert "batch=1, width=5 or batch=8, width=5: host" in said(
        capsys, "compile", path, "-o", file, *SHAPES
    )


def test_check_runs_the_variant(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = saved(tmp_path, TWO_INPUTS)
    text = said(capsys, "check", path, "--shapes", "batch=4", "--dim", "batch=4")
    assert text.endswith("Graft and ONNX Runtime agree.\n")


def test_bench_times_the_variant(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = saved(tmp_path, TWO_INPUTS)
    arguments = ("--peers", "onnxruntime", "--seconds", "1", "--rounds", "2", "--threads", "1")
    text = said(capsys, "bench", path, "--shapes", "batch=4", "--dim", "batch=4", *arguments)
    assert "| batch=4: host" in text


@pytest.fixture
def dynamic(tmp_path: Path) -> str:
    """The network with a batch of any size."""
    model = network()
    model.graph.input[0].type.tensor_type.shape.dim[0].dim_param = "batch"
    model.graph.output[0].type.tensor_type.shape.dim[0].dim_param = "batch"
    path = tmp_path / "small.onnx"
    onnx.save(model, path)
    return str(path)


def test_explain_takes_one_variant(dynamic: str, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ("explain", dynamic, "--target", "simnpu,host")
    variant = (*arguments, "--shapes", "batch=2", "--pin", "first/Conv=simnpu")
    assert said(capsys, *variant).startswith("small (batch=2)\n")
    found = json.loads(said(capsys, *variant, "--json"))
    general = json.loads(said(capsys, *arguments, "--json"))
    regions = {one["backend"] for one in found["regions"]}
    assert regions == {"simnpu"}
    assert general["regions"] == []  # the device wants static shapes
    assert "one variant at a time" in refused(capsys, *arguments, "--shapes", "batch=2,3")
    assert "'width', which is no" in refused(capsys, *arguments, "--shapes", "width=2")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["run", "m", "--shapes", "batch"], "'batch' is not of the form NAME=SIZE,SIZE"),
        (["run", "m", "--shapes", "=1"], "'=1' is not of the form NAME=SIZE,SIZE"),
        (["run", "m", "--shapes", "batch=0"], "'0' is not a positive whole number"),
        (["run", "m", "--shapes", "batch=1,"], "'' is not a positive whole number"),
        (["run", "m.graft", "--shapes", "batch=1"], "--shapes is for models"),
        (["run", "m", "--target", "reference", "--shapes", "n=1"], "--shapes is for native code"),
        (["compile", "m", "--emit", "loops", "--shapes", "n=1"], "--shapes is for saving a .graft"),
        (["compile", "m", "--emit", "plan", "--shapes", "n=1"], "--shapes is for saving a .graft"),
        (
            ["run", "m", "--target", "simnpu", "--shapes", "n=1", "--plan", "p"],
            "--plan is for one plan, and --shapes makes one per variant",
        ),
        (
            ["run", "m", "--target", "simnpu", "--shapes", "n=1", "--save-plan", "p"],
            "--save-plan is for one plan",
        ),
    ],
)
def test_options_that_make_no_sense(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert message in refused(capsys, *arguments)


def test_names_that_the_model_lacks(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    told = refused(capsys, "run", saved(tmp_path, TWO_INPUTS), "--shapes", "length=1")
    assert "shapes= names 'length'" in told
    assert "there are 'batch', 'width'" in told
    told = refused(capsys, "run", saved(tmp_path, NATIVE), "--shapes", "batch=1")
    assert "no input of the model has a symbolic dim" in told

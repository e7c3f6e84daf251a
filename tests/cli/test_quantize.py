"""`graft quantize`: the table, files that others run, and mistakes with their messages."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
from tests.quantize.models import residual, samples

import graft
from graft.byoc import measure
from graft.byoc.formats.onnx_model import to_onnx
from graft.cli.main import USAGE, main
from graft.runtime.native import host_architecture
from graft.target.target import named_target


@pytest.fixture(autouse=True)
def _short_races(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(measure, "RACE_BUDGET", 0.02)
    monkeypatch.setattr("graft.backends.host.executable._PROFILE_SECONDS", 0.02)


@pytest.fixture
def model(tmp_path: Path) -> str:
    path = tmp_path / "model.onnx"
    onnx.save(to_onnx(residual()), path)
    return str(path)


@pytest.fixture
def data(tmp_path: Path) -> str:
    folder = tmp_path / "data"
    folder.mkdir()
    for number, sample in enumerate(samples(residual(), 6)):
        np.save(folder / f"{number}.npy", sample["x"])
    return str(folder)


def said(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    assert main(["quantize", *arguments]) == 0
    return capsys.readouterr().out


def refused(capsys: pytest.CaptureFixture[str], *arguments: str, code: int = 1) -> str:
    assert main(["quantize", *arguments]) == code
    captured = capsys.readouterr()
    assert captured.out == ""
    return captured.err


def test_table(model: str, data: str, capsys: pytest.CaptureFixture[str]) -> None:
    text = said(capsys, model, "--data", data, "--budget", "20%")
    assert "Units" in text
    assert "Time against error, predicted" in text
    assert "4 calibrated on, 2 others measured on" in text
    assert "relative output error 0.2; " in text
    assert "on others with 99% confidence" in text


def test_files(model: str, data: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    written, compiled = tmp_path / "int8.onnx", tmp_path / "int8.graft"
    common = (model, "--data", data, "--precision", "int8", "--json")
    facts = json.loads(said(capsys, *common, "-o", str(written)))
    assert {unit["precision"] for unit in facts["units"]} == {"int8"}
    assert 0 < facts["quality"]["error"] < 0.06
    said(capsys, *common, "-o", str(compiled))
    sample = samples(residual(), 1, seed=8)[0]
    theirs = onnxruntime.InferenceSession(written).run(None, sample)[0]
    ours = graft.load(compiled).run(None, sample)[0]
    assert np.argmax(theirs) == np.argmax(ours)
    np.testing.assert_array_equal(graft.compile(written).run(None, sample)[0], ours)


@pytest.mark.skipif(host_architecture() != "x86_64", reason="its levels are x86's")
def test_a_lesser_machine(
    model: str, data: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    compiled = tmp_path / "int8.graft"
    common = (model, "--data", data, "--precision", "int8", "-o", str(compiled))
    said(capsys, *common, "--machine", "x86-64-v2")
    assert graft.load(compiled).program.target.features == named_target("x86-64-v2").features
    assert "is for aarch64" in refused(capsys, *common, "--machine", "aarch64")
    other = ("--machine", "x86-64-v2", "--target", "onednn,host")
    assert "--machine is for the host alone" in refused(capsys, *common, *other, code=USAGE)


def test_page(model: str, data: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """All facts are in it, as data."""
    page = tmp_path / "front.html"
    text = said(capsys, model, "--data", data, "--budget", "20%", "--html", str(page))
    assert f"{page} plots time against error" in text
    _, _, rest = page.read_text(encoding="utf-8").partition('id="data">')
    facts = json.loads(rest.partition("</script>")[0])
    assert len(facts["units"]) == 7
    assert facts["front"][0]["counts"] == {"float32": 7}
    assert facts["front"][0]["error"] == 0
    assert facts["quality"]["error"] <= facts["quality"]["error_bound"] <= 0.2


def test_random_data_are_worth_little(model: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["quantize", model, "--data", "random", "--precision", "int8"]) == 0
    assert "not how accurate it is" in capsys.readouterr().err


def test_mistakes(
    model: str, data: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert "needs samples" in refused(capsys, model, code=USAGE)
    assert "neither .onnx nor .graft" in refused(
        capsys, model, "--data", data, "-o", "out.txt", code=USAGE
    )
    assert "is no share of 1" in refused(capsys, model, "--data", data, "--budget", "7", code=USAGE)
    for option, name in (("-o", "a.onnx"), ("--html", "a.html")):
        message = refused(capsys, model, "--data", data, option, str(tmp_path / "missing" / name))
        assert f"missing' to write '{name}' to" in message
        assert "calibrating" not in message
    empty = tmp_path / "empty"
    empty.mkdir()
    assert "holds no .npy" in refused(capsys, model, "--data", str(empty))
    np.save(empty / "one.npy", np.zeros((1, 3, 16, 16), np.float32))
    assert "too few samples (1)" in refused(capsys, model, "--data", str(empty))
    np.save(empty / "two.npy", np.zeros((1, 3, 8, 8), np.float32))
    assert "two.npy holds float32[1, 3, 8, 8]" in refused(capsys, model, "--data", str(empty))
    np.save(empty / "two.npy", np.zeros((1, 3, 16, 16), np.uint8))
    assert "two.npy holds uint8[1, 3, 16, 16]" in refused(capsys, model, "--data", str(empty))
    np.save(empty / "two.npy", np.zeros((1, 3, 16, 16), np.float32))
    assert "too few samples (2): a budget" in refused(capsys, model, "--data", str(empty))
    np.save(empty / "two.npy", np.full((1, 3, 16, 16), np.nan, np.float32))
    assert "NaN or infinity" in refused(capsys, model, "--data", str(empty))

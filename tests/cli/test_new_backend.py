"""`graft new-backend`: what it writes is installed out of tree and passes its own tests."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from tests.byoc.fakes import Fake

from graft.byoc.discover import register_backend, unregister_backend
from graft.cli.main import main

ROOT = Path(__file__).resolve().parents[2]


def command(*arguments: str, folder: Path, site: Path) -> subprocess.CompletedProcess[str]:
    paths = os.pathsep.join([str(site), str(ROOT / "src")])
    return subprocess.run(
        [sys.executable, *arguments],
        cwd=folder,
        env=os.environ | {"PYTHONPATH": paths},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A package as it is written, and the folder that it is installed to."""
    base = tmp_path_factory.mktemp("scaffold")
    package, site = base / "graft-tiny-npu", base / "site"
    assert main(["new-backend", "tiny_npu", "--directory", str(package)]) == 0
    options = ("--quiet", "--no-deps", "--no-build-isolation", "--no-index", "--target", str(site))
    pip = command("-m", "pip", "install", *options, str(package), folder=base, site=site)
    assert pip.returncode == 0, pip.stderr
    return package, site


@pytest.mark.usefixtures("one_core")
def test_its_own_tests_pass(installed: tuple[Path, Path]) -> None:
    package, site = installed
    outcome = command("-m", "pytest", "-q", "-p", "no:cacheprovider", folder=package, site=site)
    assert outcome.returncode == 0, outcome.stdout + outcome.stderr
    assert "2 passed" in outcome.stdout


@pytest.mark.usefixtures("one_core")
def test_it_is_listed_and_conforms(installed: tuple[Path, Path]) -> None:
    package, site = installed
    listing = command("-m", "graft", "backends", folder=package, site=site)
    assert listing.returncode == 0, listing.stderr
    assert "tiny_npu" in listing.stdout
    checking = ("check", "--backend", "tiny_npu", "--examples", "4", "--seed", "7")
    outcome = command("-m", "graft", *checking, "--json", folder=package, site=site)
    assert outcome.returncode == 0, outcome.stdout + outcome.stderr
    facts = json.loads(outcome.stdout)
    assert facts["ok"] is True
    assert facts["seed"] == 7
    assert facts["untested"] == []
    assert {pattern["name"] for pattern in facts["patterns"]} >= {"conv2d_relu", "nn.conv2d", "add"}


def test_what_is_written(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / "new"
    folder.mkdir()  # an empty one will do
    assert main(["new-backend", "npu", "--directory", str(folder), "--json"]) == 0
    facts = json.loads(capsys.readouterr().out)
    written = {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}
    assert written == set(facts["files"])
    assert "src/graft_npu/backend.py" in written
    for path in written:
        text = (folder / path).read_text(encoding="utf-8")
        assert "$" not in text
        assert "class_name" not in text
    assert 'npu = "graft_npu.backend:Npu"' in (folder / "pyproject.toml").read_text("utf-8")


def test_the_usual_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["new-backend", "my_npu"]) == 0
    assert (tmp_path / "graft-my-npu" / "README.md").is_file()
    assert "pip install -e graft-my-npu" in capsys.readouterr().out


@pytest.mark.parametrize("name", ["", "9lives", "My", "my-npu", "my npu", "class", "../x", "é"])
def test_names_that_do_not_do(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "new"
    assert main(["new-backend", name, "--directory", str(folder)]) == 2
    assert f"'{name}' is no name for a backend" in capsys.readouterr().err
    assert not folder.exists()


@pytest.mark.parametrize("name", ["host", "simnpu"])
def test_names_that_are_taken(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["new-backend", name, "--directory", str(tmp_path / "new")]) == 1
    assert f"there is a backend '{name}' already, from graft-compiler" in capsys.readouterr().err


def test_a_name_registered_in_this_process_is_taken(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    register_backend(Fake("pretender"))
    try:
        assert main(["new-backend", "pretender", "--directory", str(tmp_path / "new")]) == 1
    finally:
        unregister_backend("pretender")
    assert "'pretender' already, from this process" in capsys.readouterr().err


def test_nothing_is_overwritten(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "README.md").write_text("mine")
    assert main(["new-backend", "npu", "--directory", str(tmp_path)]) == 1
    assert f"'{tmp_path}' is there already" in capsys.readouterr().err
    assert [path.name for path in tmp_path.iterdir()] == ["README.md"]
    assert main(["new-backend", "npu", "--directory", str(tmp_path / "README.md")]) == 1
    assert (tmp_path / "README.md").read_text() == "mine"

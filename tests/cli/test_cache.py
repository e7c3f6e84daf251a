from __future__ import annotations

import json
from pathlib import Path

import pytest
from tests.cli.tiny import NATIVE, saved

from graft.cli.main import main
from graft.llvm.cache import DEFAULT_LIMIT


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("GRAFT_CACHE_DIR", str(tmp_path / "kept"))
    return tmp_path / "kept"


def test_empty(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["cache"]) == 0
    lines = capsys.readouterr().out.splitlines()
    expected = [f"folder   {folder}", "kernels  0", "size     0 B of at most 537 MB"]
    assert lines == [*expected, "prices   0"]
    assert not folder.exists()


def test_counts_and_clears(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    output = str(tmp_path / "model.graft")
    assert main(["compile", saved(tmp_path, NATIVE), "-o", output]) == 0
    capsys.readouterr()
    assert main(["cache", "--json"]) == 0
    facts = json.loads(capsys.readouterr().out)
    size = sum(path.stat().st_size for path in folder.rglob("*.o"))
    assert size > 0
    where = {"folder": str(folder), "limit": DEFAULT_LIMIT, "prices": 0}
    assert facts == {**where, "kernels": 5, "bytes": size, "removed": None}  # and the driver
    assert main(["cache", "--clear", "--json"]) == 0
    facts = json.loads(capsys.readouterr().out)
    gone = {"kernels": 5, "bytes": size}
    assert facts == {**where, "kernels": 0, "bytes": 0, "removed": gone}
    assert list(folder.rglob("*.o")) == []
    assert main(["cache", "--clear"]) == 0
    assert capsys.readouterr().out.startswith("removed 0 kernels, 0 B\nfolder ")

"""Machines where nothing can be kept: one warning, and everything works."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from graft.base import cache_folder
from graft.base.cache_folder import CacheWarning, default_folder, is_private, keep_text
from graft.llvm.cache import KernelCache

KEY = "ab" * 32


@pytest.fixture(autouse=True)
def _forgetful(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(cache_folder, "_warned", set())
    is_private.cache_clear()
    yield
    is_private.cache_clear()


def find_nothing(cache: KernelCache, path: Path) -> None:
    """Try all that can be kept; nothing is."""
    cache.put(KEY, b"code")
    assert cache.get(KEY) is None
    keep_text(path, "")


def test_the_folder_of_kernels_is_the_users_alone(tmp_path: Path) -> None:
    cache = KernelCache(tmp_path / "cache")
    (tmp_path / "cache" / "kernels").mkdir(parents=True, mode=0o755)
    cache.put(KEY, b"code")
    assert cache.get(KEY) == b"code"
    assert (tmp_path / "cache" / "kernels").stat().st_mode & 0o777 == 0o700


def test_a_folder_of_somebody_else_is_not_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache = KernelCache(tmp_path)
    cache.put(KEY, b"code")
    is_private.cache_clear()
    monkeypatch.setattr(os, "geteuid", lambda: 4321)
    with pytest.warns(CacheWarning, match="kernels: it belongs to another user") as caught:
        find_nothing(cache, tmp_path / "text")
    assert len(caught) == 1
    monkeypatch.undo()
    is_private.cache_clear()
    assert cache.get(KEY) == b"code"


def test_a_file_in_the_way_costs_one_warning(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    cache = KernelCache(tmp_path / "file")
    with pytest.warns(CacheWarning, match="nothing is kept for the next time") as caught:
        find_nothing(cache, tmp_path / "file" / "text")
    assert len(caught) == 1


def test_a_full_disk_costs_one_warning(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    cache = KernelCache(tmp_path)
    monkeypatch.setattr(os, "replace", full)
    with pytest.warns(CacheWarning, match="No space left on device") as caught:
        find_nothing(cache, tmp_path / "text")
    assert len(caught) == 1
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == []


def test_nobody_knows_the_home(monkeypatch: pytest.MonkeyPatch) -> None:
    def unknown() -> Path:
        raise RuntimeError("Could not determine home directory.")

    for name in ("GRAFT_CACHE_DIR", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(Path, "home", unknown)
    cache = KernelCache(default_folder())
    with pytest.warns(CacheWarning, match="set GRAFT_CACHE_DIR") as caught:
        find_nothing(cache, default_folder() / "text")
    assert len(caught) == 1
    assert cache.usage().entries == 0


SCRIPT = """
import numpy, onnx, graft
text = '<ir_version: 8, opset_import: ["": 17]> g (float[3] x) => (float[3] y) { y = Relu (x) }'
module = graft.compile(onnx.parser.parse_model(text))
print(module.run(None, {"x": numpy.float32([-1, 0, 2])})[0].tolist())
"""


def test_a_model_compiles_and_runs_where_nothing_can_be_kept(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    source = str(Path(cache_folder.__file__).parents[2])
    environment = {**os.environ, "GRAFT_CACHE_DIR": f"{tmp_path}/file", "PYTHONPATH": source}
    command = [sys.executable, "-c", SCRIPT]
    result = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120)
    assert result.stdout == "[0.0, 0.0, 2.0]\n", result.stderr
    assert result.stderr.count("CacheWarning") == 1
    assert "Traceback" not in result.stderr

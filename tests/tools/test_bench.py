"""The driver of the benchmarks: settings in, a table for each of them out."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.cli.fakes import SOURCES
from tests.cli.tiny import NATIVE, saved

import bench
import bench_pages
import plot_bench


def test_one_run_gives_the_default_and_the_strict_table(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    Path(saved(tmp_path, NATIVE)).rename(tmp_path / "resnet18.onnx")
    monkeypatch.setenv("PYTHONPATH", str(SOURCES))
    monkeypatch.setattr(bench, "MODELS", tmp_path)
    monkeypatch.setattr(plot_bench, "draw", lambda *_: None)
    pages = bench_pages.Pages(tmp_path / "pages")
    monkeypatch.setattr(bench, "chosen_pages", lambda _: pages)
    arguments = ["--networks", "resnet18", "--peers", "onnxruntime", "--threads", "1", "--quick"]
    monkeypatch.setattr("sys.argv", ["bench.py", *arguments, "--settings", "main,strict"])
    assert bench.main() == 0
    page = pages.path(bench_pages.DOCUMENT).read_text(encoding="utf-8")
    for marker, setting in (
        ("networks", "1 thread, batch 1, float32."),
        ("networks-strict", "1 thread, batch 1, accuracy strict, float32."),
    ):
        block = page.partition(f"<!-- {marker}: start -->")[2].partition("<!-- ")[0]
        assert block.strip().startswith(setting)
        (row,) = (line for line in block.splitlines() if line.startswith("| resnet18 |"))
        assert row.count("ms") + row.count("µs") == 2
    readme = pages.path(bench_pages.README).read_text(encoding="utf-8")
    strict = readme.partition("<!-- networks-strict: start -->")[2].partition("<!-- ")[0]
    assert "best peer: resnet18 " in " ".join(strict.split())


def test_unknown_settings_are_refused(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.argv", ["bench.py", "--settings", "main,fast"])
    with pytest.raises(SystemExit):
        bench.main()
    assert "there is no setting 'fast'" in capsys.readouterr().err

"""The benchmark of the networks: options in; a record, and the tables rendered from it, out."""

from __future__ import annotations

from pathlib import Path

import pytest
from benchmarks.__main__ import benchmark_named, main
from benchmarks.pages import DOCUMENT, README, RESULTS, between
from tests.cli.fakes import SOURCES
from tests.cli.tiny import NATIVE, saved

from benchmarks import harness, network_chart, networks


@pytest.fixture
def preview(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where records and pages go; resnet18 is a tiny model."""
    Path(saved(tmp_path, NATIVE)).rename(tmp_path / "resnet18.onnx")
    monkeypatch.setenv("PYTHONPATH", str(SOURCES))
    monkeypatch.setattr(networks, "network_path", lambda name: tmp_path / f"{name}.onnx")
    monkeypatch.setattr(network_chart, "draw", lambda *_: None)
    monkeypatch.setattr(harness, "ROOT", tmp_path)
    monkeypatch.setattr(harness, "PREVIEW", tmp_path / "preview")
    return tmp_path / "preview"


def test_networks_are_recorded_and_rendered(preview: Path) -> None:
    options = ["--networks", "resnet18", "--peers", "onnxruntime", "--threads", "1", "--quick"]
    assert main(["networks-strict", *options, "--runs", "1"]) == 0
    block = between((preview / DOCUMENT).read_text(encoding="utf-8"), "networks-strict")
    assert block.startswith("1 thread, batch 1, accuracy strict, float32.")
    (row,) = (line for line in block.splitlines() if line.startswith("| resnet18 |"))
    assert row.count("ms") + row.count("µs") == 2
    record = harness.Record.from_json((preview / RESULTS / "networks-strict.json").read_text())
    (section, short) = benchmark_named("networks-strict").sections(record)
    assert "\n".join(section.lines) == block
    assert (short.page, short.marker) == (README, "networks-strict")
    assert "best peer: resnet18 " in " ".join(short.lines)


def test_a_model_that_cannot_be_read_is_a_problem(preview: Path) -> None:
    (preview.parent / "resnet18.onnx").write_text("no model")
    assert main(["networks", "--networks", "resnet18", "--quick", "--runs", "1"]) == 1
    assert "resnet18: not timed: " in (preview / DOCUMENT).read_text(encoding="utf-8")


def test_unknown_peers_are_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["networks", "--peers", "abacus"])
    assert "there is no peer 'abacus'" in capsys.readouterr().err


def test_speed_ups_on_other_processors_stay_in_the_table() -> None:
    path = harness.ROOT / RESULTS / "networks.json"
    recorded = harness.Record.from_json(path.read_text(encoding="utf-8")).data
    recorded = {**recorded, "processor": "AMD Zen 2", "date": "2026-01-02", "elsewhere": []}
    data = {**recorded, "processor": "Intel Ice Lake SP", "rows": recorded["rows"][:1]}
    merged = networks.merge(recorded, data)
    assert [one["processor"] for one in merged["elsewhere"]] == ["AMD Zen 2"]
    assert networks.merge(merged, data)["elsewhere"] == merged["elsewhere"]
    rows = [networks.Row(row["network"], row["runs"]) for row in data["rows"]]
    table = networks.network_tables.short_table(rows, data["contenders"], merged["elsewhere"])
    assert table[0].endswith("| Graft against the best peer | on AMD Zen 2 (2026-01-02) |")
    speedup = networks.network_tables.speedup_text(rows[0])
    assert table[2].endswith(f"| {speedup} | {speedup} |")

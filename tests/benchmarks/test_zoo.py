"""The zoo's bookkeeping: names, records, families, means and histograms."""

from __future__ import annotations

from pathlib import Path

import pytest
from benchmarks.harness import Made, Record
from benchmarks.zoo.models import Model, Records
from benchmarks.zoo.report import EDGES, family_of, histogram, report_lines, sections, summaries

from graft.cli.bench.rounds import GRAFT


def timed(speedup: float) -> dict[str, object]:
    """A record of a model on which Graft is so many times as fast as ONNX Runtime."""
    return {
        "seconds": {GRAFT: 0.01, "onnxruntime": 0.01 * speedup},
        "speedups": {"onnxruntime": [speedup, None, None]},
        "prepare_seconds": {},
        "versions": {GRAFT: "1.0 (host: 3 nodes)", "onnxruntime": "2.0"},
        "problems": {},
    }


@pytest.fixture
def times(tmp_path: Path) -> Records:
    records = Records(tmp_path / "times.json")
    records.add("timm/a", timed(0.5))
    records.add("timm/b", timed(2.0))
    records.add("transformers/decoder-c", timed(3.5))
    failed = {**timed(1.0), "seconds": {}, "speedups": {}, "problems": {GRAFT: "does not fit"}}
    records.add("classic/d", failed)
    return records


def test_records_last(times: Records, tmp_path: Path) -> None:
    again = Records(tmp_path / "times.json")
    assert again.by_name == times.by_name
    assert again.has("timm/a")
    assert not again.has("timm/z")


def test_dynamic_models_have_files_of_their_own() -> None:
    folder = Path("folder")
    assert Model("timm", "a").file(folder) == Path("folder/timm/a.onnx")
    assert Model("timm", "a", is_dynamic=True).file(folder) == Path("folder/timm-dynamic/a.onnx")


def test_families() -> None:
    assert family_of("timm/a") == "timm classifiers"
    assert family_of("timm-dynamic/a") == "timm classifiers, any batch"
    assert family_of("transformers/speech-data2vec-audio") == "transformers speech"


def test_means_are_geometric_and_all_come_last(times: Records) -> None:
    found = summaries(times.by_name)
    assert list(found) == ["timm classifiers", "transformers decoder", "all"]
    assert found["timm classifiers"].mean == pytest.approx(1.0)
    assert found["all"].row("all") == (
        "all",
        "3",
        "1.52",
        "1",
        "1",
        "a 0.50, b 2.00, decoder-c 3.50",
    )


def test_every_model_is_in_the_histogram() -> None:
    speedups = [0.1, *EDGES, 100.0]
    counts = histogram(speedups)
    assert sum(counts.values()) == len(speedups)
    assert counts["below 0.5"] == 1
    assert counts["0.5 to 0.65"] == 1
    assert counts["3.0 and more"] == 2


def test_failures_are_listed(times: Records, tmp_path: Path) -> None:
    exports = Records(tmp_path / "exports.json")
    exports.add("timm/a", "")
    exports.add("timm/e", "needs a licence")
    lines = list(report_lines({"exports": exports.by_name, "times": times.by_name}))
    assert "not exported: timm/e: needs a licence" in lines
    assert "not compared: classic/d: Graft: does not fit" in lines
    assert not any("timm/a: " in line for line in lines)


def test_the_page(times: Records) -> None:
    made = Made("2026-01-02", "Abacus", 0.0, 2, {}, "python -m benchmarks zoo --threads 2")
    (section,) = sections(Record(made, {"exports": {"timm/a": ""}, "times": times.by_name}))
    assert "python -m benchmarks zoo --threads 2" in section.lines
    assert "| timm/a | 10 ms | 5 ms | 0.50 |" in section.lines
    assert "- Graft 1.0, ONNX Runtime 2.0" in section.lines


def test_models_that_were_only_exported_change_no_page() -> None:
    made = Made("2026-01-02", "Abacus", 0.0, 2, {}, "python -m benchmarks zoo --threads 2")
    assert list(sections(Record(made, {"exports": {"timm/a": ""}, "times": {}}))) == []

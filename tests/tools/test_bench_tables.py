from __future__ import annotations

from pathlib import Path

import pytest

from bench_tables import (
    Row,
    Setting,
    full_table,
    geometric_mean,
    notes,
    provenance,
    short_table,
    summary,
    versions,
)
from graft.cli.bench_contenders import CONTENDERS
from graft.cli.bench_report import Comparison, Standing, Timing
from graft.cli.bench_statistics import Ratio, Summary

NAMES = ("graft", "onnxruntime", "openvino", "torch")


def timed(name: str, seconds: float, ratio: Ratio | None, cores: float = 2.0) -> Standing:
    timing = Timing(Summary(9, seconds, seconds, seconds, seconds), cores, ratio)
    return Standing(CONTENDERS[name], "1.0", 0.5, timing)


def run(graft: float, first: float, second: float) -> Comparison:
    """Times in seconds; torch.compile is not there."""
    standings = [
        timed("graft", graft, None),
        timed("onnxruntime", first, Ratio(graft / first, 0.4, 0.8), cores=2.7),
        timed("openvino", second, Ratio(graft / second, None, None)),
        Standing(CONTENDERS["torch"], reason="no | way", hint="pip"),
    ]
    return Comparison(Path("m.onnx"), (), standings, 9, 1.0)


ROW = Row("m", [run(0.1, 0.2, 0.3), run(0.1, 0.4, 0.25), run(0.2, 0.3, 0.5)])
REFUSED = Row("n", [Comparison(Path("n.onnx"), problem="no such thing")])


def test_the_best_peer_is_chosen_in_each_run() -> None:
    assert [one.value for one in ROW.ratios()] == pytest.approx([2.0, 2.5, 1.5])
    assert ROW.speedup() == pytest.approx(2.0)
    assert ROW.seconds("onnxruntime") == 0.3
    assert ROW.seconds("torch") is None


def test_an_interval_turns_round_with_its_ratio() -> None:
    (found,) = Row("m", [run(0.1, 0.2, 0.3)]).ratios()
    assert (found.low, found.high) == pytest.approx((1.25, 2.5))


def test_tables_have_a_cell_for_everything() -> None:
    full = full_table([ROW, REFUSED], NAMES)
    assert full[0].startswith("| network | Graft | ONNX Runtime | OpenVINO | torch.compile |")
    assert full[2] == "| m | 100 ms | 300 ms | 300 ms | - | 2.00, 2.50, 1.50 | 2.00 × |"
    assert full[3] == "| n | - | - | - | - | - | - |"
    assert len({line.count("|") for line in full}) == 1
    assert short_table([ROW], NAMES)[2] == "| m | 100 ms | 300 ms | 300 ms | - | 2.00 × |"
    single = full_table([Row("m", [run(0.1, 0.2, 0.3)])], NAMES)
    assert "| 2.00 (1.25 to 2.50) | 2.00 × |" in single[2]


def test_nothing_is_left_out_in_silence() -> None:
    found = notes([ROW, REFUSED], threads=2)
    assert found == [
        "- m: not timed: torch.compile: no | way: pip",
        "- m: ONNX Runtime kept 2.7 cores busy, more than its share",
        "- n: not timed: no such thing",
    ]


def test_mean_of_what_was_compared() -> None:
    other = Row("o", [run(0.1, 0.8, 0.9)])
    assert geometric_mean([ROW, REFUSED, other]) == pytest.approx(4.0)
    assert summary([ROW, other]) == ["Geometric mean: 4.00 ×."]
    assert geometric_mean([REFUSED]) is None
    assert summary([REFUSED]) == []


def test_provenance() -> None:
    found = versions([REFUSED, ROW], "0.1")
    assert found == "Graft 0.1, ONNX Runtime 1.0, OpenVINO 1.0"
    lines = provenance("Abacus 9", "2026-01-02", found, "python tools/bench.py")
    assert " ".join(lines).startswith("Made on 2026-01-02 on Abacus 9; Graft 0.1, ")
    assert max(map(len, lines)) <= 100
    assert str(Setting("networks", 1, 8)) == "1 thread, batch 8"
    strict = Setting("networks-strict", 2, 1, accuracy="strict")
    assert str(strict) == "2 threads, batch 1, accuracy strict"

from __future__ import annotations

import pytest
from benchmarks.harness import Json
from benchmarks.network_tables import (
    Row,
    Setting,
    full_table,
    geometric_mean,
    notes,
    short_table,
    summary,
)

NAMES = ("graft", "onnxruntime", "openvino", "torch")


def timed(name: str, seconds: float, ratio: list[float | None] | None) -> Json:
    ratios = None if ratio is None else dict(zip(("value", "low", "high"), ratio, strict=True))
    timing = {"summary": {"median": seconds}, "cores_used": 2.0, "ratio": ratios}
    return {"name": name, "version": "1.0", "reason": None, "hint": None, "timing": timing}


def run(graft: float, first: float, second: float) -> Json:
    """Times in seconds; torch.compile is not there."""
    contenders = [
        timed("graft", graft, None),
        timed("onnxruntime", first, [graft / first, 0.4, 0.8]),
        timed("openvino", second, [graft / second, None, None]),
        {"name": "torch", "reason": "no | way", "hint": "pip", "timing": None},
    ]
    warnings = ["ONNX Runtime kept 2.7 cores busy, more than its share"]
    return {"problem": None, "contenders": contenders, "warnings": warnings}


ROW = Row("m", [run(0.1, 0.2, 0.3), run(0.1, 0.4, 0.25), run(0.2, 0.3, 0.5)])
REFUSED = Row("n", [{"problem": "no such thing", "contenders": [], "warnings": []}])


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
    found = notes([ROW, REFUSED])
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


def test_settings_in_words() -> None:
    assert str(Setting(threads=1, batch=8)) == "1 thread, batch 8"
    assert str(Setting(accuracy="strict")) == "2 threads, batch 1, accuracy strict"
    assert Setting(batch=8).arguments(1, ["openvino"])[-4:] == [
        "--peers",
        "openvino",
        "--batch",
        "8",
    ]

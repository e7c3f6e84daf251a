"""The tables about placement and size: Table 2, no harm, lines of code."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.byoc.fakes import chain, conv_relu

from benchmarks import lines_of_code, no_harm, placement
from graft.frontends.onnx.importer import import_model
from graft.passes.pipeline import optimize


def test_three_schemes_on_a_network(models_dir: Path) -> None:
    found = placement.placed("resnet18", optimize(import_model(models_dir / "resnet18.onnx")))
    greedy, pruned, exact = found.schemes
    assert exact.seconds <= min(greedy.seconds, pruned.seconds, found.host_only) + 1e-12
    assert greedy.macs == pytest.approx(1.0)
    assert pruned.regions <= greedy.regions
    assert found.gap <= 1e-6
    assert all(0 <= scheme.nodes <= 1 for scheme in found.schemes)


def test_a_graph_without_any_work() -> None:
    found = placement.placed("softmax", chain("nn.softmax"))
    assert [scheme.regions for scheme in found.schemes] == [0, 0, 0]
    assert [scheme.macs for scheme in found.schemes] == [0, 0, 0]


def test_the_table_says_what_is_simulated() -> None:
    lines = placement.report([placement.placed("small", conv_relu())])
    rows = [line for line in lines if line.startswith("|")]
    assert len(rows) == 3
    assert len({row.count("|") for row in rows}) == 1
    assert any("simulated" in line for line in lines)
    assert "Every exact plan is proven best" in " ".join(lines)


def judged(name: str, predicted: float, **times: float) -> no_harm.Outcome:
    """Three laps with a disturbance in the second, which hits everybody."""
    laps = {contender: [seconds, 3 * seconds, seconds] for contender, seconds in times.items()}
    return no_harm.judged(name, "fast", 1, dict.fromkeys(times, predicted), laps)


def test_harm_is_named() -> None:
    good = judged("a", 0.9, host=2.0, offloaded=1.5, chosen=1.0)
    bad = judged("b", 1.0, host=1.0, offloaded=1.5, chosen=1.2)
    assert good.harm == pytest.approx(-1 / 3)
    assert good.harm_spread == pytest.approx(0)  # the disturbance cancels out
    assert good.chosen.spread == pytest.approx(1.0)
    assert good.error == pytest.approx(-0.1)
    assert not good.harmed
    assert bad.harmed
    fine = " ".join(no_harm.report([good]))
    assert "No chosen plan is more than 3% slower" in fine
    assert "All predictions are within 15% of what was measured." in fine
    assert (
        "| a | fast | 1 | 2 s ± 100% | 1.5 s ± 100% | 1 s ± 100% | -33.3% ± 0.0% | 900 ms | -10% |"
        in fine
    )
    named = " ".join(no_harm.report([good, bad]))
    assert "other two: b with fast." in named
    assert "Predicted more than 15% off: b with fast." in named


def test_a_difference_within_its_interval_is_no_harm() -> None:
    times = {"host": [1.0, 1.0, 1.0], "offloaded": [2.0] * 3, "chosen": [0.9, 1.05, 1.2]}
    found = no_harm.judged("a", "fast", 1, dict.fromkeys(times, 1.0), times)
    assert found.harm == pytest.approx(0.05)
    assert not found.harmed
    # What the table shows, the sentence under it does not deny.
    assert no_harm.verdict([found]) == (
        "Measured more than 3% slower than the better of the other two, but not beyond the"
        " interval: a with fast. All predictions are within 15% of what was measured."
    )


SOURCE = '''"""A module."""

# a comment
import os  # with a comment


class Thing:
    """What it is.

    At length.
    """

    def go(self) -> str:
        """Go."""
        return """two
lines"""


X = "no docstring"
'''


def test_lines_of_code() -> None:
    assert lines_of_code.code_lines(SOURCE) == 6
    assert lines_of_code.code_lines("") == 0
    assert lines_of_code.code_lines('"""Only words."""\n') == 0


def test_backends_are_counted(tmp_path: Path) -> None:
    for name, text in (("one", SOURCE), ("host", SOURCE), ("empty", "")):
        (tmp_path / name).mkdir()
        (tmp_path / name / "backend.py").write_text(text)
    (tmp_path / "one" / "runtime.py").write_text("x = 1\n")
    (tmp_path / "folder").mkdir()
    assert lines_of_code.backends(tmp_path) == {"empty": 0, "one": 7}
    assert "| one | 7 |" in lines_of_code.report(lines_of_code.backends(tmp_path))
    assert "| TVM DNNL (oneDNN) | 1,636 |" in lines_of_code.report({})
    assert "| paper: TI TIDL (DSP) | 3,085 |" in lines_of_code.report({})


def test_packages_are_counted(tmp_path: Path) -> None:
    (tmp_path / "one" / "inner").mkdir(parents=True)
    for name in ("top.py", "one/a.py", "one/inner/b.py"):
        (tmp_path / name).write_text("x = 1\n")
    counts = lines_of_code.packages(tmp_path)
    assert counts == {"one": {"files": 2, "lines": 2}, ".": {"files": 1, "lines": 1}}
    rows = lines_of_code.package_report(counts, before={"one": (1, 4), "gone": (1, 2)})
    assert rows[2:] == [
        "| . | 0 | 0 | 1 | 1 | new |",
        "| gone | 1 | 2 | 0 | 0 | -100% |",
        "| one | 1 | 4 | 2 | 2 | -50% |",
        "| all | 2 | 6 | 3 | 3 | -50% |",
    ]

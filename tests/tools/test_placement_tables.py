"""The tables about placement and size: Table 2, no harm, lines of code."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.byoc.fakes import chain, conv_relu

import loc
import no_harm
import table2
from graft.frontends.onnx.importer import import_model
from graft.passes.pipeline import optimize


def test_three_schemes_on_a_network(models_dir: Path) -> None:
    found = table2.placed("resnet18", optimize(import_model(models_dir / "resnet18.onnx")))
    greedy, pruned, exact = found.schemes
    assert exact.seconds <= min(greedy.seconds, pruned.seconds, found.host_only) + 1e-12
    assert greedy.macs == pytest.approx(1.0)
    assert pruned.regions <= greedy.regions
    assert found.gap <= 1e-6
    assert all(0 <= scheme.nodes <= 1 for scheme in found.schemes)


def test_a_graph_without_any_work() -> None:
    found = table2.placed("softmax", chain("nn.softmax"))
    assert [scheme.regions for scheme in found.schemes] == [0, 0, 0]
    assert [scheme.macs for scheme in found.schemes] == [0, 0, 0]


def test_the_table_says_that_it_is_simulated() -> None:
    lines = table2.report([table2.placed("small", conv_relu())])
    rows = [line for line in lines if line.startswith("|")]
    assert len(rows) == 3
    assert len({row.count("|") for row in rows}) == 1
    assert any("simulated" in line for line in lines)
    assert "Every exact plan is proven best" in " ".join(lines)


def test_harm_is_named() -> None:
    good = no_harm.Outcome("a", "fast", 1, 0.9, host=2.0, offloaded=1.5, chosen=1.0)
    bad = no_harm.Outcome("b", "slow", 1, 1.0, host=1.0, offloaded=1.5, chosen=1.2)
    assert good.harm == pytest.approx(-1 / 3)
    assert good.error == pytest.approx(-0.1)
    fine = " ".join(no_harm.report([good], "a machine", 2))
    assert "No chosen plan is more than 3% slower" in fine
    assert "| a | fast | 1 | 2 s | 1.5 s | 1 s | -33.3% | 900 ms | -10% |" in fine
    assert "other two: b with slow." in " ".join(no_harm.report([good, bad], "a machine", 2))


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
    assert loc.code_lines(SOURCE) == 6
    assert loc.code_lines("") == 0
    assert loc.code_lines('"""Only words."""\n') == 0


def test_backends_are_counted(tmp_path: Path) -> None:
    for name, text in (("one", SOURCE), ("host", SOURCE), ("empty", "")):
        (tmp_path / name).mkdir()
        (tmp_path / name / "backend.py").write_text(text)
    (tmp_path / "one" / "runtime.py").write_text("x = 1\n")
    (tmp_path / "folder").mkdir()
    assert loc.backends(tmp_path) == {"empty": 0, "one": 7}
    assert "| one | 7 |  |" in loc.report(loc.backends(tmp_path))
    assert "| TVM DNNL (oneDNN) | 1,636 |  |" in loc.report({})

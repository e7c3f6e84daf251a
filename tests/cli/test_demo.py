from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

from graft.byoc.contract import Backend, Cost, PatternTable
from graft.byoc.discover import Discovery
from graft.cli import demo
from graft.cli.main import main
from graft.compiler import compile as compile_model
from graft.ir.graph import Graph
from graft.module import Module
from graft.rewrite.pattern import is_op


@pytest.fixture(autouse=True)
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    """Contenders run for a moment."""
    monkeypatch.setattr(demo, "_SECONDS", 0.1)


@pytest.fixture
def small(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A network of three layers in the place of ResNet-18."""
    lines = [
        f"y{n} = Conv <pads = [1, 1, 1, 1]> (x{n}, w, b)  x{n + 1} = Relu (y{n})" for n in (0, 1, 2)
    ]
    model = onnx.parser.parse_model(f"""<ir_version: 8, opset_import: ["": 17]>
        small (float[1, 8, 6, 6] x0) => (float[1, 8, 1, 1] z)
        {{ {"  ".join(lines)}  z = GlobalAveragePool (x3) }}""")
    draw = np.random.default_rng(0)
    for name, shape in (("w", (8, 8, 3, 3)), ("b", (8,))):
        array = draw.standard_normal(shape, dtype=np.float32) / 8
        model.graph.initializer.append(onnx.numpy_helper.from_array(array, name))
    onnx.save(model, tmp_path / demo.MODEL)
    monkeypatch.setattr(demo, "_models_folder", lambda: tmp_path)


class Accelerator(Backend):
    """Claims convolutions, and the evaluator runs them."""

    name = "onednn"
    version = "9"

    def patterns(self) -> PatternTable:
        return [("conv", is_op("nn.conv2d"))]

    def price(self, region: Graph) -> Cost:
        return Cost(1e-6)

    def missing(self) -> str:
        return self.lacking

    lacking = ""


def found(monkeypatch: pytest.MonkeyPatch, lacking: str) -> None:
    """Let the machine have one accelerator, which may lack something."""
    monkeypatch.setattr(Accelerator, "lacking", lacking)
    only = Discovery({"onednn": Accelerator()}, {"onednn": "a test"})
    monkeypatch.setattr(demo, "find_backends", lambda: only)


def test_the_walk_has_all_its_steps(capsys: pytest.CaptureFixture[str]) -> None:
    """With whatever accelerator this machine has."""
    assert main(["demo"]) == 0
    captured = capsys.readouterr()
    assert captured.err == ""
    steps = ["1. Import", "2. Passes", "3. Fusion", "4. Candidates", "6. Check", "7. Run", "8. Ano"]
    positions = [captured.out.index(step) for step in (*steps, "What to try next")]
    assert positions == sorted(positions)
    assert "1,814,073,344 multiply-accumulates" in captured.out
    assert "yes: 1,000 numbers" in captured.out
    assert "(as placed on " in captured.out
    assert "host alone: " in captured.out
    assert captured.out.count("(simulated)") == 3
    assert max(map(len, captured.out.splitlines())) <= 100


@pytest.mark.usefixtures("small")
def test_candidates_and_plan_are_shown(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    found(monkeypatch, "")
    # the plan is shown, not run: the backend compiles nothing
    monkeypatch.setattr(demo, "compile", lambda graph, *_, **__: compile_model(graph))
    assert main(["demo"]) == 0
    text = capsys.readouterr().out
    assert "4. Candidates: what could onednn run?" in text
    assert "onednn 9: 3 candidates from its patterns" in text
    assert "3 of 10 nodes" in text
    assert "3 x  nn.conv2d" in text
    assert "not nn.bias_add" in text
    assert "5. Plan" in text
    assert "proven best" in text or "above the best" in text
    assert "greedy+prune:" in text
    assert "as planned with onednn: " in text


@pytest.mark.usefixtures("small")
def test_the_placed_module_is_checked_not_the_hosts(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A placed module that computes nonsense is told as such, right though the host may be."""
    found(monkeypatch, "")

    def compiled(graph: Graph, target: Sequence[str] = (), **_options: Any) -> Module:
        module = compile_model(graph)
        right = module.run
        if target:  # all its results are one too large
            wrong: Any = lambda *given: [data + 1 for data in right(*given)]  # noqa: E731
            module.run = wrong  # type: ignore[method-assign]
        return module

    monkeypatch.setattr(demo, "compile", compiled)
    assert main(["demo"]) == 0
    assert "NO, 8 are wrong: 8 numbers" in capsys.readouterr().out


@pytest.mark.usefixtures("small")
def test_without_accelerators_it_says_what_is_missing(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    found(monkeypatch, "its library is not there")
    assert main(["demo"]) == 0
    text = capsys.readouterr().out
    assert "not onednn: its library is not there" in text
    assert "not openvino: it is not installed" in text
    assert "as planned" not in text


@pytest.mark.usefixtures("small")
def test_without_onnxruntime_it_says_so(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    found(monkeypatch, "not here")
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    assert main(["demo"]) == 0
    text = capsys.readouterr().out
    assert "not checked: ONNX Runtime is not installed" in text
    assert "host alone: " in text


def test_outside_a_checkout(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(demo, "__file__", str(tmp_path / "site" / "graft" / "cli" / "demo.py"))
    assert main(["demo"]) == 1
    captured = capsys.readouterr()
    assert captured.out == ""
    assert "the demo needs the models of a source checkout" in captured.err

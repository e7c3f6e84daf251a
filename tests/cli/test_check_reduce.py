"""`graft check --reduce`: the smallest model that still fails."""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from tests.byoc.fakes import Fake, flat
from tests.cli.fakes import SOURCES
from tests.cli.hostile import NAMES
from tests.cli.tiny import saved

from graft.byoc.contract import Runner
from graft.byoc.discover import register_backend, unregister_backend
from graft.cli.check import reduce_failing as check_reduce
from graft.cli.check.reduce import Case, Trials, ddmin, reduce_case
from graft.cli.main import main
from graft.ops import OPS, get_op
from graft.rewrite.pattern import is_op

# A network with one node that tests break, in the middle, and a second output without it.
NETWORK = """
    <ir_version: 8, opset_import: ["": 17, "local": 1]>
    net (float[n, 24] x) => (float[n, 24] z, float[n, 24] other) {
        [first] a = Sigmoid (x)
        [second] b = local.shifted (a)
        [third] c = Tanh (b)
        [fourth] d = Softmax <axis = -1> (c)
        [fifth] z = Mul (d, a)
        [aside] other = Neg (a)
    }
    <domain: "local", opset_import: ["": 17]>
    shifted (a) => (b) {
        one = Constant <value_float = 1.0> ()
        b = Add (a, one)
    }
"""


@pytest.fixture(autouse=True)
def workers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let processes find this Graft."""
    monkeypatch.setenv("PYTHONPATH", str(SOURCES))


@pytest.fixture
def calm(monkeypatch: pytest.MonkeyPatch) -> None:
    """What tests break is broken in this process only, so no other need be asked."""
    monkeypatch.setattr(check_reduce, "crash", lambda options: None)


def reduced(
    capsys: pytest.CaptureFixture[str], path: str, *arguments: str, code: int = 1
) -> dict[str, Any]:
    out = str(Path(path).with_name("small.onnx"))
    assert main(["check", path, "--reduce", out, *arguments, "--json"]) == code
    captured = capsys.readouterr()
    assert captured.err == ""
    facts: dict[str, Any] = json.loads(captured.out)
    if code:
        onnx.checker.check_model(out)
        assert facts["confirmed"] is True
        assert len(onnx.load(out).graph.node) == facts["nodes"]
    return facts


def break_kernel(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """Let native code, and it alone, compute something else."""
    broken = replace(get_op(name), scalar=lambda _attrs, x: x * 0.5)
    monkeypatch.setitem(OPS._entries, name, broken)


@pytest.mark.usefixtures("calm")
def test_a_wrong_kernel_is_left_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    break_kernel(monkeypatch, "tanh")
    facts = reduced(capsys, saved(tmp_path, NETWORK), "--dim", "n=5")
    assert (facts["operators"], facts["nodes_before"]) == (["Tanh"], 6)
    (value,) = onnx.load(tmp_path / "small.onnx").graph.input
    assert [dim.dim_value for dim in value.type.tensor_type.shape.dim] == [1, 1]
    # the command that is printed does what it says
    command = shlex.split(facts["command"])
    assert command[:2] == ["graft", "check"]
    assert main(command[1:]) == 1
    assert "DIFFER" in capsys.readouterr().out


@pytest.mark.usefixtures("calm")
def test_a_wrong_operator_of_the_evaluator(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    op = get_op("add")
    wrong = lambda attrs, *operands: op.evaluate(attrs, *operands) * np.float32(3)  # noqa: E731
    monkeypatch.setitem(OPS._entries, "add", replace(op, evaluate=wrong))
    facts = reduced(capsys, saved(tmp_path, NETWORK), "--target", "reference")
    # the function has been inlined
    assert facts["operators"][-1] == "Add"
    assert facts["nodes"] <= 2


@pytest.mark.usefixtures("calm")
def test_an_error_is_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fails(*arguments: object) -> None:
        raise ZeroDivisionError("broken")

    monkeypatch.setitem(OPS._entries, "tanh", replace(get_op("tanh"), scalar=fails))
    facts = reduced(capsys, saved(tmp_path, NETWORK), "--dim", "n=5")
    assert facts["failure"].startswith("Graft fails (")
    assert facts["operators"] == ["Tanh"]


class Wrong(Fake):
    """Compiles, and then gives half as much again as it should."""

    def __init__(self) -> None:
        super().__init__("wrong", [("conv", is_op("nn.conv2d"))], price=flat(1e-9), simulated=True)

    def load(self, blob: bytes) -> Runner:
        right = super().load(blob)
        return lambda inputs, outputs: [one * np.float32(1.5) for one in right(inputs, outputs)]


@pytest.fixture
def wrong() -> Iterator[None]:
    register_backend(Wrong)
    yield
    unregister_backend("wrong")


@pytest.mark.usefixtures("calm", "wrong")
def test_a_wrong_backend(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    weights = np.random.default_rng(0).standard_normal((4, 3, 3, 3), dtype=np.float32)
    text = """
        net (float[1, 3, 8, 8] x) => (float[1, 4] y) {
            [start] a = Exp (x)
            [conv] b = Conv <pads = [1, 1, 1, 1]> (a, w)
            [pool] c = GlobalAveragePool (b)
            [rows] d = Flatten (c)
            [end] y = Softmax (d)
        }
    """
    path = saved(tmp_path, text)
    model = onnx.load(path)
    model.graph.initializer.append(onnx.numpy_helper.from_array(weights, "w"))
    onnx.save(model, path)
    placed = ("--target", "wrong,host", "--pin", "conv=wrong", "--no-check", "--verify", "off")
    facts = reduced(capsys, path, *placed)
    assert facts["operators"] == ["Conv"]
    assert "--pin" in facts["command"]


def test_nothing_to_reduce(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    facts = reduced(capsys, saved(tmp_path, NETWORK), code=0)
    assert (facts["agrees"], facts["reduced"]) == (True, None)
    assert not (tmp_path / "small.onnx").exists()


def test_a_crash(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Every other process is broken, and dies of it."""
    (tmp_path / "sitecustomize.py").write_text(
        "import dataclasses, os\nfrom graft.ops import OPS\n"
        "broken = dataclasses.replace(OPS.get('tanh'), scalar=lambda *arguments: os.abort())\n"
        "OPS._entries['tanh'] = broken\n"
    )
    monkeypatch.setenv("PYTHONPATH", f"{SOURCES}:{tmp_path}")
    path = saved(tmp_path, "net (float[1] x) => (float[1] z) { a = Exp (x)  z = Tanh (a) }")
    facts = reduced(capsys, path)
    assert facts["failure"] == "Graft crashes (SIGABRT)"
    assert facts["operators"] == ["Tanh"]


def test_refusals(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    drawing = "net (float[4] x) => (float[4] z) { z = RandomNormalLike (x) }"
    assert main(["check", saved(tmp_path, drawing), "--reduce"]) == 1
    assert "draws random numbers" in capsys.readouterr().err


@pytest.mark.usefixtures("calm")
@pytest.mark.parametrize("name", NAMES)
def test_hostile_names(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    break_kernel(monkeypatch, "tanh")
    path, out = saved(tmp_path, "n (float[4] x) => (float[4] z) { z = Exp (x) }"), tmp_path / "out"
    model = onnx.load(path)
    named = NAMES[name]
    model.graph.node.append(onnx.helper.make_node("Tanh", ["z"], [named], named))
    model.graph.output[0].name = named
    onnx.save(model, path)
    assert main(["check", path, "--reduce", str(out / "small.onnx")]) == 1
    captured = capsys.readouterr()
    assert all(line.isprintable() for line in captured.out.splitlines())
    assert "1 of 2 nodes left (Tanh)" in captured.out
    assert {one.name for one in out.iterdir()} <= {"small.onnx", "small-inputs"}
    assert {one.name for one in tmp_path.iterdir()} == {"model.onnx", "out"}


def test_delta_debugging_keeps_what_fails_only_together() -> None:
    tried: list[list[int]] = []

    def fails(items: list[int]) -> bool:
        tried.append(items)
        return {3, 17, 18} <= set(items)

    assert ddmin(list(range(40)), fails) == [3, 17, 18]
    assert len(tried) < 100
    assert ddmin(list(range(1000)), lambda items: 777 in items) == [777]


def test_trials_are_bounded(tmp_path: Path) -> None:
    model = onnx.load(saved(tmp_path, NETWORK))
    case = Case(model, {"x": np.ones((2, 24), np.float32)})
    trials = Trials(lambda case: False, most=7)
    assert reduce_case(case, {}, trials).size == 6
    assert trials.exhausted

"""The options on placement that `compile`, `run`, `check` and `bench` share."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import onnx
import pytest
from tests.byoc.explained import network

from graft.backends.simnpu.backend import SimNpu
from graft.byoc.contract import Cost, Runner
from graft.byoc.discover import register_backend, unregister_backend
from graft.byoc.plan import parse_plan
from graft.cli.main import main
from graft.ir.graph import Graph

PLACED = ("--target", "simnpu,host", "--pin", "first/Conv=simnpu")


class Wrong(SimNpu):
    """Compiles, and then computes nonsense."""

    name = "wrong"

    def load(self, blob: bytes) -> Runner:
        def run(_inputs: Any, outputs: Any) -> None:
            for one in outputs:
                one[...] = 42

        return run


class Hanging(SimNpu):
    """Thinks about prices for longer than anybody waits."""

    name = "hanging"

    def price(self, region: Graph) -> Cost:
        time.sleep(60)
        return super().price(region)


@pytest.fixture
def hanging() -> Iterator[None]:
    register_backend(Hanging)
    yield
    unregister_backend("hanging")


@pytest.fixture
def wrong() -> Iterator[None]:
    register_backend(Wrong)
    yield
    unregister_backend("wrong")


@pytest.fixture
def model(tmp_path: Path) -> str:
    path = tmp_path / "small.onnx"
    onnx.save(network(), path)
    return str(path)


def said(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    assert main(list(arguments)) == 0
    captured = capsys.readouterr()
    assert captured.err == ""
    return captured.out


def refused(capsys: pytest.CaptureFixture[str], code: int, *arguments: str) -> str:
    assert main(list(arguments)) == code
    captured = capsys.readouterr()
    assert captured.out == ""
    return captured.err


def test_run_with_an_accelerator(
    model: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "small.plan"
    facts = json.loads(said(capsys, "run", model, *PLACED, "--save-plan", str(file), "--json"))
    assert facts["placement"]["simnpu"] > 0
    alone = json.loads(said(capsys, "run", model, "--json"))
    for key in ("min", "max", "mean"):
        assert facts["outputs"][0][key] == pytest.approx(alone["outputs"][0][key], rel=1e-3)
    plan = parse_plan(file.read_text("utf-8"))
    assert {region.backend for region in plan.regions} == {"simnpu"}
    again = json.loads(
        said(capsys, "run", model, "--target", "simnpu,host", "--plan", str(file), "--json")
    )
    assert again["placement"] == facts["placement"]


def test_a_compiled_file_with_regions_runs(
    model: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "small.graft"
    facts = json.loads(said(capsys, "compile", model, "-o", str(file), *PLACED, "--json"))
    assert facts["placement"]["simnpu"] > 0
    made = json.loads(said(capsys, "run", str(file), "--json"))
    alone = json.loads(said(capsys, "run", model, "--json"))
    assert made["outputs"][0]["max"] == pytest.approx(alone["outputs"][0]["max"], rel=1e-3)


def test_the_stages_of_placement(
    model: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text = said(capsys, "compile", model, "--emit", "plan", *PLACED)
    plan = parse_plan(text)
    assert plan.to_text() == text
    file = tmp_path / "small.plan"
    file.write_text(text, encoding="utf-8")
    parted = said(
        capsys,
        *("compile", model, "--emit", "partitioned"),
        *("--target", "simnpu,host", "--plan", str(file)),
    )
    assert parted.count(" = region(") == len(plan.regions)
    assert "simnpu_0" in parted


def test_check_with_an_accelerator(model: str, capsys: pytest.CaptureFixture[str]) -> None:
    text = said(capsys, "check", model, *PLACED)
    assert "simnpu (simulated): " in text
    assert text.endswith("Graft and ONNX Runtime agree.\n")
    facts = json.loads(said(capsys, "check", model, *PLACED, "--json"))
    assert facts["placement"]["nodes"]["simnpu"] > 0


def test_check_tells_what_went_back_to_the_host(
    wrong: None, model: str, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ("--target", "wrong,host", "--pin", "first/Conv=wrong", "--fallback", "host")
    assert main(["check", model, *arguments]) == 0
    text = capsys.readouterr().out
    assert "  wrong gave %" in text
    assert "back to the host: its result" in text


def test_a_pin_that_does_not_hold_is_an_error(
    wrong: None, model: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["run", model, "--target", "wrong,host", "--pin", "first/Conv=wrong"]) == 1
    text = capsys.readouterr().err
    assert "the pin 'first/Conv=wrong' cannot hold for %" in text
    assert "differs from the host's" in text


def test_wrong_results_go_back_to_the_host_and_are_told(
    wrong: None, model: str, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ("--target", "wrong,host", "--pin", "first/Conv=wrong", "--fallback", "host")
    assert main(["run", model, *arguments, "--json"]) == 0
    captured = capsys.readouterr()
    assert "graft: warning: wrong_0 goes back to the host: its result" in captured.err
    assert "wrong" not in json.loads(captured.out)["placement"]


def test_no_check_trusts_until_it_runs(
    wrong: None, model: str, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ("--target", "wrong,host", "--pin", "first/Conv=wrong", "--no-check", "--json")
    assert main(["run", model, *arguments]) == 0
    captured = capsys.readouterr()
    facts = json.loads(captured.out)
    assert facts["placement"]["wrong"] > 0
    # on a slow machine there is time for a second trial
    assert {incident["fault"] for incident in facts["incidents"]} == {"differs"}
    assert "graft: warning: the region 'wrong_0' failed on wrong and is left" in captured.err
    alone = json.loads(said(capsys, "run", model, "--json"))
    assert facts["outputs"][0]["mean"] == pytest.approx(alone["outputs"][0]["mean"], rel=1e-3)


@pytest.mark.usefixtures("hanging")
@pytest.mark.parametrize(
    "command",
    [
        ("run",),
        ("check",),
        ("explain",),
        ("compile", "-o", "it.graft"),
        ("compile", "--emit", "plan"),
        ("quantize", "--data", "random"),
    ],
    ids=" ".join,
)
def test_every_command_has_a_deadline(
    command: tuple[str, ...], model: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    name, *rest = [str(tmp_path / one) if one.endswith(".graft") else one for one in command]
    assert main([name, model, *rest, "--target", "hanging,host", "--deadline", "0.2"]) == 0
    assert "no answer within 0.2 s; it is not asked again" in capsys.readouterr().err


def test_a_file_is_verified_and_has_a_deadline(
    model: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = str(tmp_path / "small.graft")
    said(capsys, "compile", model, *PLACED, "--verify", "off", "--deadline", "20", "-o", file)
    facts = json.loads(said(capsys, "run", file, "--verify", "always", "--deadline", "5", "--json"))
    assert facts["incidents"] == []
    message = refused(capsys, 2, "run", file, "--verify", "always", "--fallback", "host")
    assert "--fallback is for models, and a .graft file is compiled already" in message


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["run", "m", "--pin", "a=host"], "--pin is about backends other than the host"),
        (["bench", "m", "--verify", "off"], "--verify is about backends other than the host"),
        (["check", "m", "--deadline", "1"], "--deadline is about backends other than the host"),
        (["check", "m", "--deadline", "-1"], "'-1' is not a number of seconds above 0"),
        (["check", "m", "--measure"], "--measure is about backends other than the host"),
        (["run", "m", "--target", "host", "--no-check"], "--no-check is about backends other"),
        (["run", "m", "--target", "reference,simnpu"], "the reference evaluator runs whole"),
        (["run", "m", "--target", "a,,b"], "'a,,b' is no list of backends"),
        (["run", "m", "--target", "simnpo,host"], "did you mean 'simnpu'?"),
        (["check", "m", "--target", "simnpo"], "did you mean 'simnpu'?"),
        (["bench", "m", "--target", "simnpo"], "did you mean 'simnpu'?"),
        (["compile", "m", "-o", "m.graft", "--target", "simnpo"], "did you mean 'simnpu'?"),
        (["run", "m.graft", "--pin", "a=host"], "--pin is for models"),
        (["run", "m", "--target", "simnpu", "--fallback", "moon"], "invalid choice: 'moon'"),
        (
            ["run", "m", "--target", "simnpu", "--plan", "p", "--pin", "a=host"],
            "--plan replays a plan, and --pin is for choosing one",
        ),
        (["compile", "m", "--emit", "plan"], "--emit plan wants a backend beside the host"),
        (["compile", "m", "--emit", "loops", "--target", "simnpu"], "--target is for --emit plan"),
        (
            ["compile", "m", "--emit", "plan", "--target", "simnpu", "--plan", "p"],
            "--emit plan chooses a plan",
        ),
        (
            ["compile", "m", "--emit", "plan", "--target", "simnpu", "--measure"],
            "--measure is for saving a .graft file",
        ),
        (
            ["compile", "m", "-o", "m.graft", "--target", "simnpu", "--machine", "aarch64"],
            "--machine is for the host alone",
        ),
        (["bench", "m", "n", "--target", "simnpu", "--save-plan", "p"], "is for one model"),
    ],
)
def test_wrong_usage(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert message in refused(capsys, 2, *arguments)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("nonsense", "this is no plan"),
        ("graft plan 1\nmodel 0\n", "the plan was made for another model"),
    ],
)
def test_plans_that_cannot_be_replayed(
    text: str, message: str, model: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "bad.plan"
    file.write_text(text, encoding="utf-8")
    arguments = ("run", model, "--target", "simnpu", "--plan", str(file))
    assert message in refused(capsys, 1, *arguments)
    assert "cannot read the plan" in refused(capsys, 1, *arguments[:-1], str(tmp_path / "none"))


def test_bench_measures_what_was_asked_for(
    model: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "small.plan"
    options = ("--peers", "onnxruntime", "--seconds", "0", "--rounds", "1", "--threads", "1")
    placed = ("--target", "csource,host", "--pin", "first/Conv=csource")
    text = said(capsys, "bench", model, *placed, *options, "--save-plan", str(file))
    assert "csource: " in text
    assert parse_plan(file.read_text("utf-8")).regions

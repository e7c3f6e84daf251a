"""`graft check --backend`: reports, exit codes, and options that make no sense."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest
from tests.byoc.kit.wrong import Wrong, without

from graft.byoc.contract import Match
from graft.byoc.discover import register_backend, unregister_backend
from graft.cli.main import main
from graft.ir.parser import from_text
from graft.rewrite.rule import Refusal


class Picky(Wrong):
    """Accepts no addition."""

    def supports(self, match: Match) -> Refusal | None:
        return Refusal("sums are not for us") if match.root.op.name == "add" else None


@pytest.fixture(autouse=True)
def backends() -> Iterator[None]:
    made = {
        "good": Wrong("nn.relu", "add"),
        "bad": Wrong("nn.conv2d", behave=without("strides", (1, 1))),
        "picky": Picky("nn.relu", "add"),
    }
    for name, backend in made.items():
        backend.name = name
        register_backend(backend)
    yield
    for name in made:
        unregister_backend(name)


def test_a_good_backend(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check", "--backend", "good", "--examples", "4"]) == 0
    lines = capsys.readouterr().out.splitlines()
    # four of each pattern, one of each of the eight dtypes beside float32, twice four together
    assert lines[0].startswith("good 1: 2 patterns, 32 graphs tried, ")
    assert lines[0].endswith(" 0 failures (seed 0)")
    assert [line.split()[0] for line in lines[1:]] == ["nn.relu", "add", "combined"]


def test_a_bad_backend_is_shown_a_graph(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check", "--backend", "bad", "--json"]) == 1
    facts = json.loads(capsys.readouterr().out)
    assert facts["ok"] is False
    failure = facts["failures"][0]
    assert failure["pattern"] == "nn.conv2d"
    (node,) = from_text(failure["graph"]).nodes
    assert node.op.name == "nn.conv2d"
    assert main(["check", "--backend", "bad"]) == 1
    assert "FAILED nn.conv2d: its result %conv2d differs" in capsys.readouterr().out


def test_untested_patterns_fail(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check", "--backend", "picky", "--examples", "3"]) == 1
    out = capsys.readouterr().out
    assert "× sums are not for us" in out
    assert "FAILED add: no example of it was accepted" in out


def test_further_reasons_are_counted(capsys: pytest.CaptureFixture[str]) -> None:
    class Moody(Wrong):
        """Refuses every kind of operand for a reason of its own."""

        def supports(self, match: Match) -> Refusal | None:
            (value,) = match.inputs
            return Refusal(f"rank {len(value.shape or ())} is not for us") if value.shape else None

    backend = Moody("nn.relu")
    backend.name = "moody"
    register_backend(backend)
    try:
        assert main(["check", "--backend", "moody", "--examples", "12", "--json"]) in (0, 1)
        (pattern,) = json.loads(capsys.readouterr().out)["patterns"]
        more = len(pattern["refused"]) - 2
        assert more > 1
        main(["check", "--backend", "moody", "--examples", "12"])
        assert f"; and {more} more reasons: --json lists them" in capsys.readouterr().out
    finally:
        unregister_backend("moody")


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["--backend", "goood"], 2, "there is no backend 'goood'\n  hint: did you mean 'good'?"),
        (["model.onnx", "--backend", "good"], 2, "a model and --backend are given"),
        ([], 2, "what is to be checked?"),
        (["model.onnx", "--examples", "3"], 2, "--examples is about --backend NAME"),
        (["--backend", "good", "--measure"], 2, "--measure is about a model"),
        (["--backend", "good", "--examples", "0"], 2, "'0' is not a positive whole number"),
    ],
)
def test_mistakes(
    arguments: list[str], code: int, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["check", *arguments]) == code
    assert message in capsys.readouterr().err


_DYING = """
import os, signal, sys
open(sys.argv[-1], "w").write("add\\ngraph @example() {}\\n")
os.kill(os.getpid(), signal.SIGSEGV)
"""


def test_a_backend_that_takes_its_process_down(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("graft.cli.check.backend._CHILD", _DYING)
    assert main(["check", "--backend", "simnpu", "--json"]) == 1
    facts = json.loads(capsys.readouterr().out)
    assert facts["failures"] == [
        {
            "pattern": "add",
            "reason": "it takes the whole process down (SIGSEGV)",
            "graph": "graph @example() {}\n",
            "nodes": 0,
        }
    ]

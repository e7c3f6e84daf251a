from __future__ import annotations

import json
from collections.abc import Iterator
from types import MappingProxyType

import numpy as np
import pytest

from graft.byoc import JsonBackend, discover
from graft.byoc.contract import Backend
from graft.byoc.discover import BrokenBackend, Discovery, register_backend, unregister_backend
from graft.cli import backends
from graft.cli.main import main


class Absent(Backend):
    name = "absent"
    version = "7"
    device = "card"
    simulated = True

    def missing(self) -> str:
        return "no card is plugged in: plug one in"


class Rude(Backend):
    name = "rude"

    def missing(self) -> str:
        raise RuntimeError("never ask")


class Misspelt(JsonBackend):
    name = "misspelt"
    kernels = MappingProxyType({"Relu": np.negative})


@pytest.fixture(autouse=True)
def registered() -> Iterator[None]:
    register_backend(Absent)
    register_backend(Rude)
    register_backend(Misspelt)
    yield
    unregister_backend("misspelt")
    unregister_backend("absent")
    unregister_backend("rude")


def test_what_there_is_and_what_is_missing(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["backends"]) == 0
    captured = capsys.readouterr()
    assert captured.err == ""
    lines = captured.out.splitlines()
    assert lines[0].split() == ["name", "version", "device", "from", "available"]
    rows = {line.split()[0]: line for line in lines[1:] if line and not line.startswith(" ")}
    assert rows["host"].endswith("yes")
    assert "simulated" in rows["simnpu"]
    assert rows["absent"].split()[1:] == ["7", "card", "(simulated)", "this", "process", "no"]
    assert "  absent: no card is plugged in: plug one in" in lines
    assert rows["misspelt"].endswith("no")
    wrong = "  misspelt: misspelt.patterns raised UserError: the kernel 'Relu' is neither a pattern"
    assert any(line.startswith(wrong) for line in lines)
    told = "  rude: it cannot say: RuntimeError: never ask, at "
    assert any(line.startswith(told) and line.endswith("test_backends.py:31") for line in lines)


def test_broken_ones_are_told(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    known = discover.find_backends()
    broken = BrokenBackend("shaky", "shaky-pack 2", "ImportError: no libshaky")
    monkeypatch.setattr(
        backends, "find_backends", lambda: Discovery(known.backends, known.origins, (broken,))
    )
    assert main(["backends"]) == 0
    text = capsys.readouterr().out
    assert "What does not load\n  shaky (from shaky-pack 2): ImportError: no libshaky" in text
    assert main(["backends", "--json"]) == 0
    facts = json.loads(capsys.readouterr().out)
    assert facts["broken"] == [
        {"name": "shaky", "origin": "shaky-pack 2", "reason": "ImportError: no libshaky"}
    ]
    by_name = {one["name"]: one for one in facts["backends"]}
    assert by_name["host"]["available"] is True
    assert by_name["host"]["missing"] is None
    assert by_name["absent"]["missing"].startswith("no card")


def test_one_that_cannot_run_here_says_what_is_missing(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["explain", "m.onnx", "--target", "absent,host"]) == 1
    error = capsys.readouterr().err
    assert "the backend 'absent' cannot run here: no card is plugged in" in error

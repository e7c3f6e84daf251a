"""`graft backends --machine`."""

from __future__ import annotations

import json

import pytest
from tests.conftest import Golden

from graft.cli import machine
from graft.cli.main import main
from graft.target.target import host_target


def test_this_machine(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["backends", "--machine"]) == 0
    lines = capsys.readouterr().out.splitlines()
    host = host_target().machine
    assert lines[0] == f"this machine: {host.summary} ({host.name})"
    rows = [line.split() for line in lines]
    assert ["FMAs", "per", "cycle", f"{host.vector_fmas:g}", "table"] in rows
    assert any(row[:1] == ["cores"] and row[-1] == "system" for row in rows)


def test_a_named_machine(capsys: pytest.CaptureFixture[str], golden: Golden) -> None:
    assert main(["backends", "--machine", "icelake-server"]) == 0
    golden("machine-icelake-server", capsys.readouterr().out)


def test_json_tells_each_source(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["backends", "--machine", "--json"]) == 0
    facts = json.loads(capsys.readouterr().out)
    host = host_target()
    assert facts["features"] == list(host.features)
    assert facts["vector_fmas"] == {"value": host.machine.vector_fmas, "source": "table"}
    assert facts["peak_flops"]["source"] == "table"
    assert [cache["size"]["value"] for cache in facts["caches"]] == list(host.cache_bytes)
    assert facts["cores"] >= 1
    assert main(["backends", "--machine", "neoverse-v1", "--json"]) == 0
    facts = json.loads(capsys.readouterr().out)
    assert facts["microarchitecture"] == "neoverse-v1"
    assert facts["cores"] is None
    assert {cache["shared_by"]["source"] for cache in facts["caches"]} == {"table"}
    assert facts["meeting_seconds"] == {"value": pytest.approx(3 * 46e-9), "source": "table"}
    assert facts["calling_seconds"]["value"] > 0
    assert facts["crossing_bytes_per_cycle"]["value"] > 0


def test_one_core_says_why_nothing_between_cores_is_measured(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    reason = "This process may use one core only"
    for cores in (1, 2):
        monkeypatch.setattr(machine, "available_cores", lambda cores=cores: cores)
        assert main(["backends", "--machine"]) == 0
        assert (reason in capsys.readouterr().out) == (cores == 1)


def test_a_machine_that_nobody_knows(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["backends", "--machine", "z80"]) == 2
    assert "z80" in capsys.readouterr().err

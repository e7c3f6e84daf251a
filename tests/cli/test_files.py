"""`graft inspect`, `explain` and `check` of `.graft` files."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.cli.tiny import MIXED, NATIVE, TWO_INPUTS, saved

from graft.backends.reference.runtime import ReferenceRuntime
from graft.cli.main import main
from graft.runtime import c_source, loaders
from graft.runtime.container import FORMAT

STRINGS = """
    words (string[n] s, float[n] x) => (string[n] t, float[n] y) {
        [twice] t = StringConcat (s, s)
        [grow] y = Exp (x)
    }
"""


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GRAFT_CACHE_DIR", str(tmp_path / "cache"))


def compiled(folder: Path, text: str, *options: str) -> str:
    path = str(folder / "model.graft")
    assert main(["compile", saved(folder, text, 20), "-o", path, *options]) == 0
    return path


def told(capsys: pytest.CaptureFixture[str], *arguments: str, code: int = 0) -> str:
    capsys.readouterr()
    assert main(list(arguments)) == code
    captured = capsys.readouterr()
    assert captured.err == ""
    return captured.out


def facts(capsys: pytest.CaptureFixture[str], *arguments: str, code: int = 0) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(told(capsys, *arguments, "--json", code=code))
    return found


def refused(capsys: pytest.CaptureFixture[str], code: int, *arguments: str) -> str:
    capsys.readouterr()
    assert main(list(arguments)) == code
    return capsys.readouterr().err


def test_whoever_compiles_is_told_of_the_evaluator(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    compiled(tmp_path, STRINGS)
    captured = capsys.readouterr()
    assert "1 node runs on the reference evaluator" in captured.err
    assert "operators string.concat" in captured.err
    assert "reference: 1 node\n" in captured.out


def test_inspect(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = compiled(tmp_path, STRINGS)
    text = told(capsys, "inspect", file)
    for line in (
        f"{FORMAT}, written by Graft",
        "s  string[n]",
        "On the reference evaluator: 1 step\n  string.concat  twice\n",
        "with string.concat",
        "It can run here",
    ):
        assert line in text
    found = facts(capsys, "inspect", file)
    assert found["format"] == FORMAT
    assert found["evaluator"]["operators"] == ["string.concat"]
    assert found["placement"]["nodes"] == {"host": 1, "reference": 1}
    assert found["inputs"][0] == {"name": "s", "type": "string[n]"}


def test_inspect_a_file_of_another_version(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    file = compiled(tmp_path, STRINGS)
    monkeypatch.setattr(ReferenceRuntime, "version", "9.9")
    text = told(capsys, "inspect", file, code=1)
    assert "It cannot run here: it needs the reference evaluator's operators string.concat" in text


def test_inspect_a_file_for_another_machine(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = compiled(tmp_path, NATIVE, "--machine", "aarch64")
    assert "It cannot run here: it is for aarch64" in told(capsys, "inspect", file, code=1)
    assert "arena" in told(capsys, "explain", file)


@pytest.mark.parametrize("fallback", ["host", "error"])
@pytest.mark.parametrize("fault", ["not installed", "another version"])
def test_inspect_a_file_whose_backend_is_missing(
    fallback: str,
    fault: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """What is missing is said, also where the host stands in for it."""
    options = ("--target", "csource,host", "--pin", "first=csource", "--fallback", fallback)
    file = compiled(tmp_path, NATIVE, *options)
    assert told(capsys, "inspect", file).endswith("\nIt can run here\n")
    if fault == "not installed":
        monkeypatch.setattr(loaders, "GROUP", "nowhere")
        reason = "no installed package announces the run time of 'csource'"
    else:
        monkeypatch.setattr(loaders.announced("csource").load(), "version", "9.9")
        monkeypatch.setattr(loaders.announced("csource").load(), "loads", None)
        reason = "version 9.9 is installed"
    is_served = fallback == "host"
    text = told(capsys, "inspect", file, code=0 if is_served else 1)
    outcome = text.splitlines()[-1]
    run = "can run here, with 1 region that the host runs instead: it lacks csource"
    assert outcome.startswith(f"It {run if is_served else 'cannot run here: it needs csource'}")
    assert reason in outcome
    found = facts(capsys, "inspect", file, code=0 if is_served else 1)
    assert found["runs_here"] == is_served
    (missing,) = found["missing"]
    assert (missing["backend"], missing["regions"], missing["fallback"]) == ("csource", 1, fallback)


@pytest.mark.parametrize("text", [NATIVE, TWO_INPUTS, MIXED, STRINGS])
def test_all_commands_take_all_files(
    text: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = compiled(tmp_path, text)
    for command in ("inspect", "explain", "check", "run"):
        assert told(capsys, command, file)
        assert facts(capsys, command, file)


def test_explain(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    options = ("--target", "csource,host", "--pin", "first=csource", "--fallback", "host")
    file = compiled(tmp_path, NATIVE, *options)
    text = told(capsys, "explain", file)
    assert "csource" in text.partition("Regions")[2]
    assert "the host runs it" in text
    assert "Memory" in text
    assert told(capsys, "explain", file, "--node", "a").startswith("a: csource, in ")
    assert "told to make 'nobody'" in refused(capsys, 1, "explain", file, "--node", "nobody")
    (region,) = facts(capsys, "explain", file)["regions"]
    assert region["backend"] == "csource"


def test_explain_says_why_nodes_are_on_the_evaluator(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = compiled(tmp_path, STRINGS)
    assert "native programs have no strings" in told(capsys, "explain", file)
    assert "t: the reference evaluator: " in told(capsys, "explain", file, "--node", "t")


def test_check_alone(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = compiled(tmp_path, NATIVE)
    text = told(capsys, "check", file)
    assert "All checksums match." in text
    assert "gives the same twice" in text
    np.save(tmp_path / "x.npy", np.full((3, 7), np.nan, np.float32))
    found = facts(capsys, "check", file, "--input", f"x={tmp_path / 'x.npy'}")
    assert found["agrees"]
    assert [one["not_finite"] for one in found["outputs"]] == [21, 21]


def test_check_where_a_backend_is_missing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The results are right, the host's; the check fails, and says so apart from them."""
    file = compiled(tmp_path, NATIVE, "--target", "csource,host", "--pin", "first=csource")
    monkeypatch.setattr(c_source.load, "missing", lambda: "it needs a crystal")
    capsys.readouterr()
    assert main(["check", file]) == 1
    text, warning = capsys.readouterr()
    assert "runs on the host: csource 1 cannot run here: it needs a crystal" in warning
    assert "gives the same twice" in text
    assert "DIFFERS" not in text
    assert "csource_0: csource 1 cannot run here: it needs a crystal" in text
    assert "Not all of it ran where it was compiled for" in text


def test_check_of_random_numbers(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = compiled(tmp_path, MIXED.replace("<seed = 1.0>", ""))
    text = told(capsys, "check", file, code=1)
    assert "DIFFERS" in text
    assert "draws random numbers, which never agree" in text


def test_check_finds_damage(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = Path(compiled(tmp_path, NATIVE))
    data = bytearray(file.read_bytes())
    data[-1000] ^= 1
    file.write_bytes(data)
    assert "this file is damaged" in refused(capsys, 1, "check", str(file))


def test_check_against_the_model(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = compiled(tmp_path, TWO_INPUTS)
    model = saved(tmp_path, TWO_INPUTS)
    text = told(capsys, "check", file, "--against", model, "--dim", "batch=3")
    assert "File and model agree." in text
    other = TWO_INPUTS.replace("Relu", "Exp")
    found = facts(capsys, "check", file, "--against", saved(tmp_path, other), code=1)
    assert not found["agrees"]
    assert not found["outputs"][0]["agrees"]
    message = refused(capsys, 1, "check", file, "--against", saved(tmp_path, NATIVE))
    assert "was not compiled from" in message


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("inspect", "FILE", "--text"), "--text is for models"),
        (("explain", "FILE", "--target", "simnpu"), "--target is for models"),
        (("explain", "FILE", "--html", "x.html"), "--html is for models"),
        (("check", "FILE", "--target", "simnpu"), "--target is for models"),
        (("check", "FILE", "--nodes"), "--nodes is for models"),
        (("check", "FILE", "--reduce"), "--reduce is for models"),
        (("check", "m.onnx", "--against", "m.onnx"), "--against is for .graft files"),
    ],
)
def test_options_that_are_about_models(
    arguments: tuple[str, ...],
    message: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    file = str(tmp_path / "model.graft")
    given = [file if one == "FILE" else one for one in arguments]
    assert message in refused(capsys, 2, *given)

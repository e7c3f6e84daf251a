from __future__ import annotations

import errno
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import onnx
import pytest
from tests.cli.tiny import TWO_INPUTS, saved

import graft
from graft.base.errors import InternalError, Location, UserError
from graft.cli import inspect
from graft.cli.main import COMMANDS, main

SOURCES = Path(__file__).resolve().parents[2] / "src"
COMMAND = [sys.executable, "-m", "graft"]
# Without a buffer, Python does not notice that a pipe took only part of what it was given.
ENVIRONMENT = {**os.environ, "PYTHONPATH": str(SOURCES), "PYTHONUNBUFFERED": ""}


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--version"]) == 0
    assert capsys.readouterr().out == f"graft {graft.__version__}\n"


def test_help_names_every_command_and_fits_the_terminal(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["--help"]) == 0
    text = capsys.readouterr().out
    assert all(f"\n  {name} " in text for name in COMMANDS)
    assert max(map(len, text.splitlines())) <= 90


def test_the_readme_names_every_command() -> None:
    text = (SOURCES.parent / "README.md").read_text("utf-8")
    rows = [line for line in text.splitlines() if line.startswith("| `graft ")]
    named = {line.split("`")[1].split()[1] for line in rows}
    assert named == set(COMMANDS)
    assert any("`graft check --backend NAME`" in line for line in rows)


@pytest.mark.parametrize("name", COMMANDS)
def test_each_command_explains_itself_with_examples(
    name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([name, "--help"]) == 0
    text = capsys.readouterr().out
    assert f"examples:\n  graft {name}" in text
    assert max(map(len, text.splitlines())) <= 90


@pytest.mark.parametrize(
    "arguments",
    [
        ["graft"],
        ["inspect"],
        ["inspect", "a", "b"],
        ["inspect", "a", "--tex"],
        ["inspect", "a", "--text", "--json"],
        ["run", "a", "--dim", "n"],
        ["run", "a", "--dim", "n=-1"],
        ["run", "a", "--dim", "=1"],
        ["run", "a", "--seed", "x"],
        ["run", "a", "--input", "x.npy"],
        ["run", "a", "--input", "x="],
        ["check", "a", "--rtol", "-1"],
        ["check", "a", "--atol", "nan"],
        ["check", "a", "--atol", "much"],
        ["compile", "a", "--emit", "assembly"],
        ["compile", "a"],
        ["compile", "a", "-o", "a.txt"],
        ["compile", "a", "-o", "a.graft", "--threads", "0"],
        ["compile", "a", "--emit", "graph", "--json"],
        ["compile", "a", "--emit", "asm", "--threads", "1"],
        ["run", "a", "--threads", "-1"],
        ["run", "a", "--target", "moon"],
        ["run", "a", "--trace", "t.json"],
        ["run", "a.graft", "--target", "host"],
        ["run", "a", "--target", "reference", "--profile"],
        ["run", "a", "--target", "reference", "--threads", "2"],
        ["cache", "here"],
    ],
)
def test_wrong_usage(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(arguments) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert "error: " in captured.err


def test_without_arguments_the_help_is_shown(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert "commands:" in captured.err


def fails_with(error: BaseException, monkeypatch: pytest.MonkeyPatch) -> None:
    def execute(_options: object) -> int:
        raise error

    monkeypatch.setattr(inspect, "execute", execute)


def test_user_errors_have_a_message_and_no_traceback(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    fails_with(
        UserError("too small", Location("m.onnx", "n", "Conv"), "make it larger"), monkeypatch
    )
    assert main(["inspect", "m"]) == 1
    expected = "graft: error: too small\n  at node 'n' (Conv) in m.onnx\n  hint: make it larger\n"
    assert capsys.readouterr() == ("", expected)


@pytest.mark.parametrize("error", [InternalError("oh"), ZeroDivisionError("oh"), KeyError("oh")])
def test_bugs_ask_to_be_reported(
    error: Exception, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    fails_with(error, monkeypatch)
    assert main(["inspect", "m"]) == 3
    text = capsys.readouterr().err
    assert "graft: internal error: " in text
    assert "oh" in text
    assert "please report it" in text
    assert "Traceback" not in text


@pytest.mark.parametrize("where", ["before", "after", "environment"])
def test_tracebacks_on_demand(
    where: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    fails_with(ZeroDivisionError("oh"), monkeypatch)
    if where == "environment":
        monkeypatch.setenv("GRAFT_DEBUG", "1")
    before, after = (["--debug"] if where == at else [] for at in ("before", "after"))
    assert main([*before, "inspect", "m", *after]) == 3
    assert "ZeroDivisionError: oh" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("error", "message"),
    [
        (PermissionError(errno.EACCES, "Permission denied", "f"), "Permission denied: 'f'"),
        (OSError(errno.ENOSPC, "No space left on device"), "No space left on device"),
        (MemoryError(), "out of memory"),
    ],
)
def test_what_the_system_refuses(
    error: Exception,
    message: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    fails_with(error, monkeypatch)
    assert main(["inspect", "m"]) == 1
    assert capsys.readouterr().err.startswith(f"graft: error: {message}\n")


def test_interrupt_in_process(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    fails_with(KeyboardInterrupt(), monkeypatch)
    assert main(["inspect", "m"]) == 130
    assert capsys.readouterr() == ("", "graft: interrupted\n")


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("missing.onnx", None, "No such file"),
        ("page.onnx", b"<!doctype html>", "web page"),
        ("empty.onnx", b"", "the model is empty"),
    ],
)
@pytest.mark.parametrize("command", [["inspect"], ["run"], ["compile", "--emit", "graph"]])
def test_unreadable_models(
    command: list[str],
    name: str,
    content: bytes | None,
    message: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    if content is not None:
        (tmp_path / name).write_bytes(content)
    assert main([*command, str(tmp_path / name)]) == 1
    captured = capsys.readouterr()
    assert captured.out == ""
    assert message in captured.err


def test_process_shows_no_traceback(tmp_path: Path) -> None:
    (tmp_path / "bad.onnx").write_bytes(b"\x08\xff not a model")
    outcome = subprocess.run(
        [*COMMAND, "run", str(tmp_path / "bad.onnx")],
        capture_output=True,
        text=True,
        env=ENVIRONMENT,
        check=False,
    )
    assert outcome.returncode == 1
    assert outcome.stdout == ""
    assert outcome.stderr.startswith("graft: error: not a readable ONNX model")
    assert "Traceback" not in outcome.stderr


def test_interrupted_process_ends_with_130(tmp_path: Path) -> None:
    """The input is a pipe that nothing is written to, so the process waits for it."""
    model = saved(tmp_path, TWO_INPUTS)
    pipe = tmp_path / "x.npy"
    os.mkfifo(pipe)
    process = subprocess.Popen(
        [*COMMAND, "run", model, "--input", f"x={pipe}"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=ENVIRONMENT,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )
    try:
        writer = _opened_when_read(pipe)
        output, errors = _interrupted(process)
        os.close(writer)
    finally:
        process.kill()
    assert (process.returncode, output, errors) == (130, "", "graft: interrupted\n")


def _interrupted(process: subprocess.Popen[str]) -> tuple[str, str]:
    """Press Ctrl-C until the process ends: CPython does not see a signal that arrives just before a
    system call that blocks until that call returns."""
    for _ in range(12):
        process.send_signal(signal.SIGINT)
        try:
            return process.communicate(timeout=5)
        except subprocess.TimeoutExpired:
            continue
    raise TimeoutError("the process does not end")


def _opened_when_read(pipe: Path) -> int:
    """A descriptor for writing, which there can be once the other process reads."""
    for _ in range(600):
        try:
            return os.open(pipe, os.O_WRONLY | os.O_NONBLOCK)
        except OSError:  # nobody reads yet
            time.sleep(0.1)
    raise AssertionError("the process never opened its input")


def test_reader_that_leaves_early_causes_no_noise(models_dir: Path) -> None:
    arguments = [*COMMAND, "inspect", str(models_dir / "vit_b_16.onnx"), "--text"]
    process = subprocess.Popen(
        arguments, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=ENVIRONMENT
    )
    assert process.stdout is not None
    assert process.stderr is not None
    assert process.stdout.readline().startswith("graph @")
    process.stdout.close()
    errors = process.stderr.read()
    process.stderr.close()
    assert process.wait(timeout=60) == 141
    # a slow machine says what it is at
    assert [line for line in errors.splitlines() if not line.startswith("graft: importing")] == []


def test_names_that_the_terminal_cannot_show(tmp_path: Path) -> None:
    path = saved(tmp_path, TWO_INPUTS)
    model = onnx.load(path)
    model.graph.output[0].name = model.graph.node[1].output[0] = "ζ"
    onnx.save(model, path)
    outcome = subprocess.run(
        [*COMMAND, "inspect", path],
        capture_output=True,
        env={**ENVIRONMENT, "PYTHONIOENCODING": "ascii"},
        check=True,
    )
    assert rb"\u03b6" in outcome.stdout


@pytest.mark.parametrize(
    "arguments",
    [
        "compile nowhere.onnx -o no/model.graft",
        "compile nowhere.onnx -o model.graft --target simnpu,host --save-plan no/model.plan",
        "run nowhere.onnx --profile --trace no/trace.json",
        "explain nowhere.onnx --target simnpu,host --html no/page.html",
        "quantize nowhere.onnx --data random -o no/model.onnx",
    ],
)
def test_a_missing_folder_is_found_before_any_work(
    arguments: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(arguments.split()) == 1
    text = capsys.readouterr().err
    assert ": there is no folder 'no'" in text
    assert "hint: mkdir -p 'no'" in text


@pytest.mark.parametrize("exists", [False, True])
def test_a_file_that_may_not_be_written_is_found_before_any_work(
    exists: bool,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    file = tmp_path / "model.graft"
    if exists:
        file.touch()
    forbidden = file if exists else tmp_path
    monkeypatch.setattr(os, "access", lambda path, mode: path != forbidden)  # root may write all
    assert main(["compile", "nowhere.onnx", "-o", str(file)]) == 1
    assert f"no permission to write '{file}'" in capsys.readouterr().err


def test_values_of_dims_are_explained(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["run", "model.onnx", "--dim", "n=-1"]) == 2
    assert "the value of 'n=-1' is not a whole number from 0" in capsys.readouterr().err
    assert main(["run", "model.onnx", "--dim", "n"]) == 2
    assert "'n' is not NAME=VALUE, as in batch=4" in capsys.readouterr().err


def test_only_options_that_are_given_are_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["compile", "model.onnx", "--emit", "loops", "--json"]) == 2
    text = capsys.readouterr().err
    assert "--json is for saving a .graft file, not for --emit" in text
    assert "--threads" not in text


def test_numbers_of_options_are_explained(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check", "model.onnx", "--rtol", "little"]) == 2
    assert "'little' is not a number of 0 or more" in capsys.readouterr().err

"""Commands whose output nobody takes: closed, a pipe without a reader, a full disk."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx
import pytest
from tests.cli.tiny import saved

from graft.cli.main import main

SHELL = {
    "closed": "{command} >&-",
    "pipe": "{command} | head -0",
    "both closed": "{command} >&- 2>&-",
}


def command(arguments: str) -> str:
    return f"{sys.executable} -m graft {arguments}"


@pytest.mark.parametrize("way", SHELL)
def test_no_traceback(way: str, tmp_path: Path) -> None:
    line = SHELL[way].format(command=command("backends"))
    done = subprocess.run(
        line, shell=True, capture_output=True, text=True, check=False, env=dict(os.environ)
    )
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    "arguments",
    [
        "inspect {model}",
        "run {model} --json",
        "compile {model} --emit program",
        "check {model}",
        "explain {model} --target simnpu,host",
        "quantize {model} --data random --precision int8",
        "bench {model} --no-peers --rounds 1 --seconds 0.01",
        "cache",
    ],
)
def test_no_command_minds(arguments: str, tmp_path: Path) -> None:
    layer = "agraph (float[2, 3] x) => (float[2, 4] y) { y = MatMul (x, w) }"
    model = onnx.parser.parse_model(f'<ir_version: 8, opset_import: ["": 17]> {layer}')
    weight = onnx.numpy_helper.from_array(np.ones((3, 4), np.float32), "w")
    model.graph.initializer.append(weight)
    onnx.save(model, tmp_path / "m.onnx")
    line = command(arguments.format(model=tmp_path / "m.onnx"))
    done = subprocess.run(f"{line} >&-", shell=True, capture_output=True, text=True, check=False)
    assert "Traceback" not in done.stderr
    assert "error" not in done.stderr


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="there is no full device")
def test_a_full_disk_is_an_error() -> None:
    line = f"{command('backends')} > /dev/full"
    done = subprocess.run(line, shell=True, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert done.stderr.startswith("graft: error: No space left on device")
    assert "Traceback" not in done.stderr


def test_threads_that_no_machine_runs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = saved(tmp_path, "agraph (float[2] x) => (float[2] y) { y = Sin (x) }")
    commands = {
        "run": (),
        "bench": ("--no-peers",),
        "compile": ("-o", str(tmp_path / "it.graft")),
        "explain": ("--target", "simnpu,host"),
        "quantize": ("--data", "random"),
    }
    for name, rest in commands.items():
        assert main([name, str(path), *rest, "--threads", "20000"]) == 1
        assert "threads=20000" in capsys.readouterr().err

"""Weights are copied at most once: importing VGG-19 stays below twice the size of its file."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from graft.frontends.onnx.reader import write_filled

_MEASURE = """
import re, sys
from pathlib import Path
from graft.frontends.onnx.importer import import_model
from graft.passes.pipeline import optimize
optimize(import_model(sys.argv[1]))
# not getrusage, which remembers what the process that started this one had
print(int(re.search(r"VmHWM:\\s*(\\d+)", Path("/proc/self/status").read_text())[1]) * 1024)
"""


@pytest.mark.full
def test_peak_memory_of_vgg19(tmp_path: Path, models_dir: Path) -> None:
    path = tmp_path / "vgg19.onnx"
    write_filled(models_dir / "vgg19.onnx", path)
    command = [sys.executable, "-c", _MEASURE, str(path)]
    peak = int(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
    assert peak < 2 * path.stat().st_size

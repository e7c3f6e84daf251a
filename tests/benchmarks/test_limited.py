"""Libraries whose `cpuid` is answered for, and the table of contenders that are limited so."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from benchmarks.limited import limited, patch

from benchmarks import limited as module
from benchmarks import precision_avx2
from graft.runtime.native import host_architecture

NEEDED = host_architecture() == "x86_64" and shutil.which("cc") and shutil.which("objdump")
pytestmark = pytest.mark.skipif(not NEEDED, reason="needs a C compiler and objdump for x86-64")

# `constant` has the bytes of `cpuid` within another instruction.
LIBRARY = """
#include <cpuid.h>
unsigned ask(unsigned leaf, unsigned part, unsigned which) {
  unsigned r[4];
  __cpuid_count(leaf, part, r[0], r[1], r[2], r[3]);
  return r[which];
}
unsigned constant(void) { unsigned a; __asm__("mov $0x11a20f22, %0" : "=r"(a)); return a; }
"""
ASK = """
import ctypes, sys
library = ctypes.CDLL(sys.argv[1])
library.ask.restype = library.constant.restype = ctypes.c_uint
answers = [library.ask(*question) for question in [(7, 0, 1), (7, 0, 2), (7, 1, 0), (1, 0, 2)]]
print(*answers, library.constant())
"""
EBX_LATER, ECX_LATER, AVX2 = 1 << 16 | 1 << 30 | 1 << 31, 1 << 1 | 1 << 11, 1 << 5


@pytest.fixture
def library(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(module, "FOLDER", tmp_path)
    module._answers.cache_clear()
    source, path = tmp_path / "ask.c", tmp_path / "ask.so"
    source.write_text(LIBRARY, encoding="utf-8")
    subprocess.run(["cc", "-O1", "-shared", "-fPIC", source, "-o", path], check=True)
    return path


def _asked(library: Path) -> list[int]:
    command = [sys.executable, "-c", ASK, str(library)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return [int(word) for word in done.stdout.split()]


def test_nothing_after_avx2_is_seen(library: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plain = _asked(library)
    assert patch(library) == 1
    answers = module._answers()
    monkeypatch.setattr(module, "_patched", lambda _package: library.parent)
    with limited("onnxruntime"):
        assert os.environ["LD_PRELOAD"] == str(answers)
        features, more, extended, first, constant = _asked(library)
    assert "LD_PRELOAD" not in os.environ
    assert not features & EBX_LATER
    assert not more & ECX_LATER
    assert extended == 0
    assert features & AVX2 == plain[0] & AVX2
    assert (first, constant) == (plain[3], 0x11A20F22)


def test_a_library_that_does_not_ask(library: Path) -> None:
    code = library.read_bytes().replace(b"\x0f\xa2", b"\x90\x90")
    library.write_bytes(code)
    assert patch(library) == 0
    assert library.read_bytes() == code


def test_settings() -> None:
    with limited("torch"):
        assert os.environ["ATEN_CPU_CAPABILITY"] == "avx2"
    assert "ATEN_CPU_CAPABILITY" not in os.environ


def test_table() -> None:
    """The best peer counts, and one that failed is named."""
    ratios = {"graft": 1.0, "graft-5%": 0.5, "onnxruntime": 2.0, "openvino": 1.5}
    timing = {name: {"seconds": r / 100, "to_float": [r, r, r]} for name, r in ratios.items()}
    report = {"units": [{"precision": "int8"}] * 2, "quality": {"error": 0.02}}
    row = {"network": "resnet18", "reports": {"graft-5%": report}, "errors": {"graft-5%": 0.03}}
    row |= {"timing": timing, "problems": {"torch": "no"}}
    text = "\n".join(precision_avx2._tables([row]))
    cells = "2 int8 | 3.00% | 10 ms | 5 ms | 20 ms | 15 ms | - | 3.00 × | 1.50 ×"
    assert cells in text
    assert "best float peer / auto, 5 % 3.00 × (least 3.00)" in text
    assert "resnet18, torch: no" in text

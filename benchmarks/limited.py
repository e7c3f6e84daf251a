"""Peers that see a processor without anything after AVX2: a contender's name in, the environment
that its process has to be started in out.

PyTorch, oneDNN and MKL have settings for it. ONNX Runtime has none, and OpenVINO only one for a
part of its kernels: they ask the processor by `cpuid`. So copies of both (build/limited/) have an
illegal instruction of the same length in the place of each `cpuid`, and a small library, loaded
into their processes, answers for it (`limited_cpuid.c`). Needs a C compiler and objdump.
"""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import cache
from importlib import metadata
from pathlib import Path

from benchmarks.pages import ROOT

FOLDER = ROOT / "build" / "limited"
LEVEL = "x86-64-v3"  # what is left
_SOURCE = Path(__file__).with_name("limited_cpuid.c")
_CPUID, _ILLEGAL = b"\x0f\xa2", b"\x27\x27"
_PATCHED = ("onnxruntime", "openvino")
_LEFT_OUT = shutil.ignore_patterns("__pycache__", "include", "*_gpu_plugin*", "*_npu_plugin*")
_SETTINGS = {
    "torch": {
        "ATEN_CPU_CAPABILITY": "avx2",  # torch.compile's vectors, too
        "ONEDNN_MAX_CPU_ISA": "AVX2",
        "MKL_ENABLE_INSTRUCTIONS": "AVX2",
    }
}


@contextmanager
def limited(contender: str) -> Iterator[None]:
    """Start processes within as the contender has to be started to be limited; Graft's code is what
    its compiler was asked for."""
    before = dict(os.environ)
    os.environ.update(_environment(contender))
    try:
        yield
    finally:
        os.environ.clear()
        os.environ.update(before)


def _environment(contender: str) -> Mapping[str, str]:
    if contender not in _PATCHED:
        return _SETTINGS.get(contender, {})
    paths = [str(_patched(contender)), *filter(None, [os.environ.get("PYTHONPATH")])]
    return {"PYTHONPATH": os.pathsep.join(paths), "LD_PRELOAD": str(_answers())}


@cache
def _answers() -> Path:
    """The library that answers for `cpuid`."""
    FOLDER.mkdir(parents=True, exist_ok=True)
    path = FOLDER / "limited_cpuid.so"
    command = ["cc", "-O2", "-Wall", "-shared", "-fPIC", str(_SOURCE), "-o", str(path)]
    subprocess.run(command, check=True)
    return path


@cache
def _patched(package: str) -> Path:
    """A folder with a copy of an installed package whose libraries ask nobody but us, made where it
    is not there yet."""
    folder = FOLDER / f"{package}-{metadata.version(package)}"
    if folder.exists():
        return folder
    spec = importlib.util.find_spec(package)
    assert spec is not None, f"{package} is installed"
    assert spec.origin is not None, f"{package} has a folder"
    unfinished = FOLDER / f"{package}.part"
    shutil.rmtree(unfinished, ignore_errors=True)
    shutil.copytree(Path(spec.origin).parent, unfinished / package, ignore=_LEFT_OUT)
    counts = [patch(path) for path in unfinished.rglob("*.so*")]
    if not any(counts):
        raise RuntimeError(f"no library of {package} asks for the processor's features")
    unfinished.rename(folder)
    return folder


def patch(path: Path) -> int:
    """Replace each `cpuid` of a library; gives how many there were. Where instructions begin, the
    disassembler knows: the two bytes may also be a part of other ones."""
    code = bytearray(path.read_bytes())
    if _CPUID not in code:
        return 0
    common = ["objdump", "-j", ".text", str(path)]
    header = subprocess.run([*common, "-h"], capture_output=True, text=True, check=True).stdout
    match = re.search(r"\.text\s+\w+\s+(\w+)\s+\w+\s+(\w+)", header)
    assert match is not None, "a library has code"
    address, offset = (int(text, 16) for text in match.groups())
    found = 0
    with subprocess.Popen(
        [*common, "-d", "--no-show-raw-insn"], stdout=subprocess.PIPE, text=True
    ) as listing:
        for line in listing.stdout or ():
            instruction = re.match(r"\s*(\w+):\s+cpuid\s*$", line) if "cpuid" in line else None
            if instruction:
                start = int(instruction[1], 16) - address + offset
                assert code[start : start + 2] == _CPUID, "the section begins where it says"
                code[start : start + 2] = _ILLEGAL
                found += 1
    path.write_bytes(code)
    return found

"""The run time stands on base, programs and NumPy, not on LLVM, also while it runs a program."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from tests.runtime.kernels import chain, environment

from graft.runtime.artifact import Origin, save
from graft.runtime.native import host_architecture

SCRIPT = """
import sys, time
import numpy, ml_dtypes
before = set(sys.modules)
start = time.perf_counter()
from graft.runtime.session import load
session = load(sys.argv[1], threads=2)
elapsed = time.perf_counter() - start
assert session.run(None, {"x": numpy.zeros(9, "f4")})[0][0] == 16.0
print(f"{elapsed * 1000:.0f} ms")
print(*sorted(set(sys.modules) - before))
"""


def test_the_run_time_imports_no_compiler(tmp_path: Path) -> None:
    path = tmp_path / "model.graft"
    save(chain(9), path, Origin("0.1.0", {}))
    outcome = subprocess.run(
        [sys.executable, "-c", SCRIPT, str(path)],
        env=environment(),
        capture_output=True,
        text=True,
        check=True,
    )
    elapsed, modules = outcome.stdout.splitlines()
    print(f"importing the run time and loading a program took {elapsed}")
    names = modules.split()
    rooms = {".".join(name.split(".")[:2]) for name in names if name.startswith("graft")}
    assert rooms == {"graft", "graft.base", "graft.program", "graft.runtime"}
    foreign = {name.split(".")[0] for name in names} - set(sys.stdlib_module_names) - {"graft"}
    # Only x86-64's objects have a linker of Graft's own.
    assert foreign <= ({"numpy"} if host_architecture() == "x86_64" else {"numpy", "llvmlite"})

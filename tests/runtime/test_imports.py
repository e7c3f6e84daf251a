"""The run time stands on base, NumPy and llvmlite alone."""

from __future__ import annotations

import subprocess
import sys

from tests.runtime.kernels import environment

SCRIPT = """
import sys, time
import numpy, ml_dtypes
before = set(sys.modules)
start = time.perf_counter()
import graft.runtime.artifact, graft.runtime.session
elapsed = time.perf_counter() - start
print(f"{elapsed * 1000:.0f} ms")
print(*sorted(set(sys.modules) - before))
"""


def test_the_run_time_imports_no_compiler() -> None:
    outcome = subprocess.run(
        [sys.executable, "-c", SCRIPT],
        env=environment(),
        capture_output=True,
        text=True,
        check=True,
    )
    elapsed, modules = outcome.stdout.splitlines()
    print(f"importing the run time took {elapsed}")
    names = modules.split()
    rooms = {".".join(name.split(".")[:2]) for name in names if name.startswith("graft")}
    assert rooms == {"graft", "graft.base", "graft.runtime"}
    foreign = {name.split(".")[0] for name in names} - set(sys.stdlib_module_names) - {"graft"}
    assert foreign <= {"llvmlite", "numpy"}

"""Compiling many functions, in this process and in others."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from tests.llvm.kernels import elementwise, run

from graft.base.dtypes import DType
from graft.base.errors import InternalError
from graft.base.progress import Progress, Stage, quietly
from graft.llvm import pool
from graft.llvm.cache import KernelCache
from graft.llvm.load import load
from graft.loop.ir import Binary, BinaryKind, Const, Function
from graft.target.target import host_target

ROOT = Path(__file__).resolve().parents[2]


def functions(count: int) -> list[Function]:
    """Function k adds k."""
    result = []
    for number in range(count):
        formula = [lambda a, k=number: Binary(BinaryKind.ADD, a, Const(float(k), a.dtype, a.lanes))]
        result.append(elementwise([DType.FLOAT32], formula, [DType.FLOAT32], 8))
    return result


def compile_all(
    many: list[Function],
    cache: KernelCache | None = None,
    jobs: int = 2,
    progress: Progress = quietly,
) -> list[bytes]:
    with pool.Compilation(host_target(), cache, jobs, progress) as compilation:
        for function in many:
            compilation.add(function)
        return compilation.codes()


def check(many: list[Function], codes: list[bytes]) -> None:
    values = np.arange(13, dtype=np.float32)
    for number, (function, code) in enumerate(zip(many, codes, strict=True)):
        result = run(load(function, code), {"in0": values, "out0": values * 0, "n": 13})
        np.testing.assert_array_equal(result["out0"], values + number)


@pytest.fixture
def always_processes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pool, "WORTH_A_PROCESS", 1)


def test_small_work_stays_in_this_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pool, "_Worker", None)
    many = functions(3)
    check(many, compile_all(many))
    assert compile_all([]) == []


@pytest.mark.usefixtures("always_processes")
def test_processes_cache_and_progress(tmp_path: Path) -> None:
    many, cache = functions(5), KernelCache(tmp_path)
    heard: list[Stage] = []
    codes = compile_all(many, cache, jobs=2, progress=heard.append)
    check(many, codes)
    assert heard == [Stage("compiling kernels", done, 5, "kernel") for done in range(1, 6)]
    assert cache.usage().entries == 5
    heard.clear()
    again = compile_all([*many, *functions(7)[5:]], cache, 1, heard.append)
    assert again[:5] == codes
    assert [stage.step for stage in heard] == [6, 7]  # only what was not there is compiled


@pytest.mark.usefixtures("always_processes")
def test_functions_may_be_added_while_others_are_compiled() -> None:
    many = functions(6)
    with pool.Compilation(host_target(), jobs=2) as compilation:
        for function in many:
            compilation.add(function)
        first = compilation._futures[0].result(timeout=60)  # before anybody asks for it
        codes = compilation.codes()
    check(many, codes)
    assert first[1] in codes


@pytest.mark.usefixtures("always_processes")
def test_processes_end_with_their_context() -> None:
    with pool.Compilation(host_target(), jobs=2) as compilation:
        for function in functions(8):
            compilation.add(function)
        workers = [worker._process for worker in compilation._workers]
    assert len(workers) == 2
    assert all(worker.returncode is not None for worker in workers)


def test_processes_import_little() -> None:
    """They start in a third of the time without NumPy and the emitter."""
    code = "import sys, graft.llvm.worker; print('numpy' in sys.modules)"
    environment = os.environ | {"PYTHONPATH": str(ROOT / "src")}
    command = [sys.executable, "-c", code]
    outcome = subprocess.run(command, capture_output=True, text=True, check=True, env=environment)
    assert outcome.stdout == "False\n"


@pytest.mark.usefixtures("always_processes")
def test_an_error_in_a_process_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pool, "llvm_text", lambda function, target: "define nonsense")
    with pytest.raises(InternalError, match="'kernel' does not compile: LLVM refuses"):
        compile_all(functions(2))


@pytest.mark.usefixtures("always_processes")
def test_a_process_that_dies_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    def kill(text: str, target: object) -> bytes:
        return b"\xff" * 8  # a request longer than memory

    monkeypatch.setattr(pool, "request", kill)
    with pytest.raises(InternalError, match="the process that compiled 'kernel' ended with code"):
        compile_all(functions(2))


SCRIPT = """
import sys
sys.path[:0] = sys.argv[1:]
from tests.llvm.test_pool import compile_all, functions
from graft.llvm import pool
from graft.target.target import host_target
pool.WORTH_A_PROCESS = 1
print(len(compile_all(functions(2))))
"""


def test_a_plain_script_may_compile(tmp_path: Path) -> None:
    """Without the `__main__` guard that multiprocessing asks for; it runs once, not per process."""
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    command = [sys.executable, str(script), str(ROOT / "src"), str(ROOT)]
    outcome = subprocess.run(command, capture_output=True, text=True, check=True, env=os.environ)
    assert outcome.stdout == "2\n"


ENDLESS = """
import sys
sys.path[:0] = sys.argv[1:]
from tests.llvm.test_pool import compile_all, functions
from graft.llvm import pool
from graft.target.target import host_target
pool.WORTH_A_PROCESS = 1
while True:
    compile_all(functions(20), jobs=2, progress=lambda _: print(flush=True))
"""


def test_ctrl_c_ends_all_processes(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(ENDLESS)
    command = [sys.executable, str(script), str(ROOT / "src"), str(ROOT)]
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "\n"  # it has compiled something
    os.killpg(process.pid, signal.SIGINT)  # as a terminal does: to all of them
    _, complaint = process.communicate(timeout=60)
    assert "KeyboardInterrupt" in complaint
    with pytest.raises(ProcessLookupError):
        os.killpg(process.pid, 0)  # nobody is left

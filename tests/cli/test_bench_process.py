from __future__ import annotations

import argparse
import importlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.cli.fakes import SOURCES, fake, let_workers_import
from tests.cli.tiny import TWO_INPUTS, saved

from graft.cli.arrays import read_data, write_data
from graft.cli.bench import contenders as bench_contenders
from graft.cli.bench import torch as bench_torch
from graft.cli.bench.contenders import PEERS, Contender, Task
from graft.cli.bench.process import THREAD_VARIABLES, Worker
from graft.cli.bench.rounds import ContenderError

COMMAND = [sys.executable, "-m", "graft", "bench"]


@pytest.mark.parametrize(
    ("peer", "package", "reason", "hint"),
    [
        ("onnxruntime", "onnxruntime", "not installed", "pip install onnxruntime"),
        ("openvino", "openvino", "not installed", "pip install openvino"),
        ("torch", "torch", "not installed", "pip install torch"),
        ("torch", "onnx2torch", "no importer installed", "pip install --no-deps onnx2torch"),
        ("iree", "iree", "not installed", "pip install iree-base-compiler"),
        ("tvm", "tvm", "not installed", "pip install apache-tvm"),
    ],
)
def test_missing_packages_are_named(
    peer: str,
    package: str,
    reason: str,
    hint: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "torch", argparse.Namespace())
    monkeypatch.setitem(sys.modules, package, None)
    module, _, name = PEERS[peer].function.partition(":")
    ready = getattr(importlib.import_module(module), name)
    with pytest.raises(ContenderError) as caught:
        ready(Task(tmp_path / "model.onnx", {}, 1, tmp_path))
    assert caught.value.message == reason
    assert caught.value.hint.startswith(hint)


def test_importers_do_without_torchvision(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "onnx2torch.py").write_text(
        "import torchvision\nfrom torchvision.ops import roi_align\nnms = torchvision.ops.nms\n",
        encoding="utf-8",
    )
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "onnx2torch", raising=False)
    with bench_torch._perhaps_without_torchvision():
        importer = importlib.import_module("onnx2torch")
    monkeypatch.delitem(sys.modules, "onnx2torch")
    assert "torchvision" not in sys.modules
    for function, name in ((importer.roi_align, "roi_align"), (importer.nms, "nms")):
        with pytest.raises(ContenderError, match=f"torchvision.ops.{name} is not installed"):
            function(1, two=2)


def test_a_package_that_lacks_something_itself_is_not_called_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "half_there.py").write_text("import not_there_at_all\n", encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ModuleNotFoundError, match="not_there_at_all"):
        bench_contenders.package("half_there", "pip install half-there")


def state(pid: int) -> str:
    """The letter that Linux gives a process's state."""
    return Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()[0]


def waits_for(condition: Callable[[], bool]) -> bool:
    for _ in range(300):
        if condition():
            return True
        time.sleep(0.1)
    return False


def preparation(contender: Contender, folder: Path) -> dict[str, Any]:
    feeds = [("x", write_data(folder, "input-0", np.array([1.5, 2.5], np.float32)))]
    return {
        "do": "prepare",
        "function": contender.function,
        "model": str(folder / "model.onnx"),
        "folder": str(folder),
        "feeds": feeds,
        "threads": 3,
    }


def test_a_worker_answers_and_stands_still_in_between(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    let_workers_import(tmp_path, monkeypatch)
    with closing(Worker(tmp_path / "log.txt", 3)) as worker:
        answer = worker.ask(preparation(fake("steady"), tmp_path), 60)
        assert answer["version"] == "3 3"
        (output,) = (read_data(tmp_path, one) for one in answer["outputs"])
        assert output.tolist() == [3.0, 5.0]
        pid = worker._process.pid
        assert waits_for(lambda: state(pid) == "T")
        portion = {"least_runs": 7, "least_seconds": 0.0, "most_seconds": 60.0}
        answer = worker.ask({"do": "measure", **portion}, 60)
        assert len(answer["times"]) == 7
        assert all(0 < seconds < 1 for seconds in answer["times"])
        assert 0 <= answer["processor_seconds"] < 10
        portion = {"least_runs": 10**9, "least_seconds": 60.0, "most_seconds": 0.0}
        assert len(worker.ask({"do": "measure", **portion}, 60)["times"]) == 1
        with pytest.raises(ContenderError, match="no attribute 'nobody'"):
            worker.ask(preparation(fake("nobody"), tmp_path), 60)
    assert not Path(f"/proc/{pid}").exists()
    assert "a line that is no answer" in (tmp_path / "log.txt").read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("name", "seconds", "reason"),
    [
        ("dies", 60, "its process was killed by SIGKILL (out of memory?): no more"),
        ("aborts", 60, "its process was killed by a signal (Aborted)"),
        ("leaves", 60, "its process ended with code 7"),
        ("hangs", 0.2, "no answer within 0 s"),
        ("raises", 60, "ValueError: not mine"),
    ],
)
def test_what_can_happen_to_a_worker(
    name: str, seconds: float, reason: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    let_workers_import(tmp_path, monkeypatch)
    with closing(Worker(tmp_path / "log.txt", 1)) as worker:
        with pytest.raises(ContenderError) as caught:
            worker.ask(preparation(fake(name), tmp_path), seconds)
        assert caught.value.message == reason


def test_threads_are_set_for_every_library(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[Any] = []

    def refuse(_command: Any, **given: Any) -> None:
        seen.append(given["env"])
        raise OSError("no processes today")

    monkeypatch.setattr(subprocess, "Popen", refuse)
    with pytest.raises(OSError, match="no processes"):
        Worker(tmp_path / "log.txt", 5)
    assert {seen[0][name] for name in THREAD_VARIABLES} == {"5"}


def children(pid: int) -> list[int]:
    path = Path(f"/proc/{pid}/task/{pid}/children")
    return [int(word) for word in path.read_text(encoding="utf-8").split()]


@pytest.fixture
def endless(tmp_path: Path) -> Iterator[subprocess.Popen[str]]:
    """A run of the command in which a contender takes forever to be imported."""
    package = (
        f"import pathlib, time\npathlib.Path({str(tmp_path / 'mark')!r}).touch()\ntime.sleep(600)"
    )
    (tmp_path / "onnxruntime.py").write_text(package, encoding="utf-8")
    (tmp_path / "temporary").mkdir()
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join([str(SOURCES), str(tmp_path)]),
        "TMPDIR": str(tmp_path / "temporary"),
    }
    process = subprocess.Popen(
        [*COMMAND, saved(tmp_path, TWO_INPUTS), "--peers", "onnxruntime"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    )
    yield process
    process.kill()
    process.communicate()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_no_process_outlives_the_command(
    number: signal.Signals, endless: subprocess.Popen[str], tmp_path: Path
) -> None:
    assert waits_for((tmp_path / "mark").exists)
    workers = children(endless.pid)
    assert [state(pid) for pid in workers] == ["T", "S"]
    endless.send_signal(number)
    _, errors = endless.communicate(timeout=60)
    if number == signal.SIGINT:
        assert endless.returncode == 130
        assert errors.splitlines()[-1] == "graft: interrupted"  # behind progress, if it took long
        assert list((tmp_path / "temporary").iterdir()) == []
    assert waits_for(lambda: not any(Path(f"/proc/{pid}").exists() for pid in workers))

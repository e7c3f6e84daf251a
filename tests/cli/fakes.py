"""Contenders for the tests of `graft bench`, which only the processes of these tests know."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from graft.cli.bench.contenders import Contender

SOURCES = Path(__file__).resolve().parents[2] / "src"

FAKES = """
import os, signal, sys, time
from graft.cli.bench.contenders import Ready

def steady(task):
    print("a line that is no answer", flush=True)
    os.write(1, b"nor is this")
    threads = os.environ["OMP_NUM_THREADS"]
    return Ready(f"{task.threads} {threads}", lambda: [task.feeds["x"] * 2])

def wrong(task):
    x, y = task.feeds.values()
    return Ready("1", lambda: [x + y, None])

def dies(task):
    sys.stderr.write("no more\\n\\n")
    sys.stderr.flush()
    os.kill(os.getpid(), signal.SIGKILL)

def aborts(task):
    os.abort()

def leaves(task):
    os._exit(7)

def hangs(task):
    time.sleep(600)

def raises(task):
    raise ValueError("not\\n   mine")
"""


def let_workers_import(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Write the fakes into the folder, where workers find them beside Graft itself."""
    (folder / "fake_contenders.py").write_text(FAKES, encoding="utf-8")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(SOURCES), str(folder)]))


def fake(name: str) -> Contender:
    """The contender that the function of that name readies."""
    return Contender(name, name.title(), f"fake_contenders:{name}")

"""Files that a killed process did not come to finish are swept; all others are left alone."""

from __future__ import annotations

import fcntl
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

from tests.runtime.kernels import chain, environment

from graft.runtime.artifact import Origin, save
from graft.runtime.container import MAGIC

NAME = ".graft-0123456789abcdef.part"
KILLED = """
import os, signal, sys
from graft.runtime import container
os.fsync = lambda _: os.kill(os.getpid(), signal.SIGKILL)
container.write(container.Path(sys.argv[1]), {}, [])
"""


def leave(path: Path, content: bytes = MAGIC + b"and more", age: float = 3600.0) -> Path:
    path.write_bytes(content)
    then = time.time() - age
    os.utime(path, (then, then))
    return path


def names(folder: Path) -> list[str]:
    return sorted(file.name for file in folder.iterdir())


def save_into(folder: Path) -> None:
    save(chain(3), folder / "m.graft", Origin("0.1.0", {}))


def test_what_a_killed_save_leaves_is_swept_by_the_next(tmp_path: Path) -> None:
    script = [sys.executable, "-c", KILLED, str(tmp_path / "m.graft")]
    outcome = subprocess.run(script, env=environment(), timeout=60, check=False)
    assert outcome.returncode == -signal.SIGKILL
    (left,) = names(tmp_path)
    save_into(tmp_path)  # too early to be sure
    assert names(tmp_path) == [left, "m.graft"]
    leave(tmp_path / left, (tmp_path / left).read_bytes(), age=61)
    save_into(tmp_path)
    assert names(tmp_path) == ["m.graft"]


def test_empty_ones_are_swept(tmp_path: Path) -> None:
    leave(tmp_path / NAME, b"")
    save_into(tmp_path)
    assert names(tmp_path) == ["m.graft"]


def test_what_somebody_writes_is_left(tmp_path: Path) -> None:
    with open(leave(tmp_path / NAME), "rb") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        save_into(tmp_path)
        assert names(tmp_path) == [NAME, "m.graft"]
    save_into(tmp_path)
    assert names(tmp_path) == ["m.graft"]


def test_what_is_not_ours_is_left(tmp_path: Path) -> None:
    mine = tmp_path / "mine"
    leave(mine)
    (tmp_path / ".graft-fedcba9876543210.part").symlink_to(mine)
    (tmp_path / ".graft-00000000000000ff.part").mkdir()
    leave(tmp_path / NAME, b"something else")
    leave(tmp_path / ".m.graft.0123456789abcdef")
    leave(tmp_path / "graft-0123456789abcdef.part")
    before = names(tmp_path)
    save_into(tmp_path)
    assert names(tmp_path) == sorted([*before, "m.graft"])

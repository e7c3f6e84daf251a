"""Finds a program that runs AArch64 code here: nothing in, the path of `qemu-aarch64` out.

One on the PATH is taken. Otherwise Debian's package is fetched, without being installed and without
rights that it would take, and its one program unpacked into the environment that Python runs in,
where the next run finds it. Where that cannot be done, tests are skipped with the reason.
"""

from __future__ import annotations

import fcntl
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

FOLDER = Path(sys.prefix) / "qemu"
# Packages whose program needs no library, and what it is called there. Before Debian 13 that was
# the first, which is empty now.
PACKAGES = (
    ("qemu-user-static", "./usr/bin/qemu-aarch64-static"),
    ("qemu-user", "./usr/bin/qemu-aarch64"),
)


class UnavailableError(Exception):
    """There is no emulator, and why."""


def emulator() -> Path:
    """The program, or a skipped test."""
    found = _found()
    if isinstance(found, str):
        pytest.skip(found)
    return found


@cache
def _found() -> Path | str:
    """The program, or why there is none."""
    for name in ("qemu-aarch64", "qemu-aarch64-static"):
        path = shutil.which(name)
        if path is not None:
            return Path(path)
    program = FOLDER / "qemu-aarch64"
    try:
        FOLDER.mkdir(exist_ok=True)
        # Tests run in several processes at once; one of them fetches.
        with (FOLDER / "lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not _works(program):
                _fetch(program)
    except (UnavailableError, OSError, subprocess.TimeoutExpired) as error:
        return f"no qemu-aarch64 on the PATH, and Debian's cannot be fetched: {error}"
    return program


def _works(program: Path) -> bool:
    if not program.exists():
        return False
    return subprocess.run([program, "--version"], capture_output=True, check=False).returncode == 0


def _fetch(program: Path) -> None:
    if shutil.which("apt-get") is None or shutil.which("dpkg") is None:
        raise UnavailableError("this is no Debian")
    with tempfile.TemporaryDirectory(dir=FOLDER) as name:
        for package in _packages(Path(name)):
            archive = _output("dpkg", "--fsys-tarfile", str(package))
            for _, member in PACKAGES:
                unpack = ["tar", "--extract", "--to-stdout", member]
                content = subprocess.run(unpack, input=archive, capture_output=True, check=False)
                if content.returncode == 0 and content.stdout:
                    program.write_bytes(content.stdout)
                    program.chmod(0o755)
                    if _works(program):
                        return
    raise UnavailableError("its packages hold no program that runs here")


def _packages(folder: Path) -> Iterator[Path]:
    """The packages that can be had, downloaded one by one."""
    (folder / "lists" / "partial").mkdir(parents=True)
    own_lists = ["-o", f"Dir::State::Lists={folder / 'lists'}", "-o", f"Dir::Cache={folder}"]
    problem = ""
    for package, _ in PACKAGES:
        # The system's lists of packages may be empty or old; new ones go into a folder of ours.
        for options, update in (([], False), (own_lists, True)):
            try:
                if update:
                    _output("apt-get", *options, "update")
                _output("apt-get", *options, "download", package, folder=folder)
            except UnavailableError as error:
                problem = str(error)
                continue
            yield next(folder.glob(f"{package}_*.deb"))
            break
    if problem:
        raise UnavailableError(problem)


def _output(*command: str, folder: Path | None = None) -> bytes:
    done = subprocess.run(command, cwd=folder, capture_output=True, check=False, timeout=300)
    if done.returncode != 0:
        message = done.stderr.decode(errors="replace").strip().splitlines()
        raise UnavailableError(f"{' '.join(command)}: {message[-1] if message else 'failed'}")
    return done.stdout

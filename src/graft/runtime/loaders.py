"""Run times of backends: how their code is loaded, and which versions of it.

A loader is what the entry-point group `graft.runtimes` names: a function from a blob to a runner.
It says its version, and loads code of that version only, unless it says that it can do more; and
what it lacks here, if anything. One with a parameter `threads` is told how many threads the user
allows, None for one per core. The evaluator's alone takes something else (`evaluated.py`).
"""

from __future__ import annotations

import ctypes
import inspect
import sys
from collections.abc import Callable
from functools import cache
from importlib.util import find_spec
from typing import TYPE_CHECKING, TypeVar

from graft.base.errors import UserError
from graft.runtime.spaces import Runner

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

GROUP = "graft.runtimes"

Loader = Callable[[bytes], Runner]
L = TypeVar("L", bound=Callable[..., Runner])


def versioned(
    version: str | Callable[[], str],
    loads: Callable[[str], bool] | None = None,
    missing: Callable[[], str] | None = None,
) -> Callable[[L], L]:
    """Say of a loader which version of the backend it belongs to (or a function that finds out),
    which others made code that it loads, and what has to be installed for it to run any."""

    def declare(loader: L) -> L:
        loader.version = version  # type: ignore[attr-defined]
        loader.loads = loads  # type: ignore[attr-defined]
        loader.missing = missing  # type: ignore[attr-defined]
        return loader

    return declare


def installed_version(package: str) -> str:
    """The version of a package that a backend stands on."""
    # lazy: slow to import, and few files have anything to look for
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version(package)
    except PackageNotFoundError:
        return "not installed"


def lacking(package: str, extra: str, module: str = "") -> str:
    """What to install for the module of a package (by default of its name); empty: it is there."""
    hint = f"it needs the package '{package}': pip install 'graft-compiler[{extra}]'"
    return "" if find_spec(module or package) else hint


@cache
def load_quietly(path: str) -> None:
    """Load a vendor's library that prints while it is being loaded, on Linux without that.

    Only what C code prints to `stdout` is lost meanwhile: Python's own does not pass through that
    variable, and no file descriptor changes."""
    if sys.platform != "linux":
        ctypes.CDLL(path)
        return
    libc = ctypes.CDLL(None)
    libc.fopen.restype = ctypes.c_void_p
    stdout = ctypes.c_void_p.in_dll(libc, "stdout")
    printed_to, stdout.value = stdout.value, libc.fopen(b"/dev/null", b"w")
    try:
        ctypes.CDLL(path)
    finally:
        stdout.value = printed_to


def family_of(backend: str) -> str:
    """The announced name: `ort` for the backend `ort:CPUExecutionProvider`."""
    return backend.partition(":")[0]


def announced(backend: str) -> EntryPoint:
    """The entry point of a backend's run time, which all variants of the backend share."""
    # lazy: slow to import, and few files have anything to look for
    from importlib.metadata import entry_points

    for point in entry_points(group=GROUP):
        if point.name == family_of(backend):
            return point
    raise UserError(f"no installed package announces the run time of '{backend}'")


def load_for(load: Callable[..., Runner], blob: bytes, threads: int | None) -> Runner:
    """Code, loaded to run on so many threads, where its run time takes a number."""
    if "threads" in inspect.signature(load).parameters:
        return load(blob, threads=threads)
    return load(blob)


def check_loader(loader: Loader, made_by: str) -> None:
    """Refuse where the loader lacks something, and code of a version that it does not load."""
    missing: Callable[[], str] | None = getattr(loader, "missing", None)
    if missing is not None and (lacks := missing()):
        raise UserError(lacks)
    loads: Callable[[str], bool] | None = getattr(loader, "loads", None)
    if loads is not None and loads(made_by):
        return
    version = getattr(loader, "version", None)
    installed = version() if callable(version) else version
    if installed is None:
        raise UserError(
            "the installed run time does not say its version",
            hint="declare it with graft.runtime.loaders.versioned",
        )
    if installed != made_by:
        raise UserError(
            f"its code was made by version {made_by}, and version {installed} is installed",
            hint="compile the model again, or install that version",
        )

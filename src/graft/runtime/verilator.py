"""Hardware that is not there yet: SystemVerilog and a C++ harness in, a shared library out.

Verilator translates a design into C++, which is compiled together with the harness that calls it
cycle by cycle. The library is built once, and kept in the cache folder under the hash of all that
it is made from.
"""

from __future__ import annotations

import ctypes
import hashlib
import shutil
import tempfile
from collections.abc import Sequence
from pathlib import Path

from graft.base.cache_folder import default_folder, kept_bytes
from graft.base.errors import UserError
from graft.runtime.native import host_architecture
from graft.runtime.tools import open_library, run_tool

_TRANSLATE = ("--cc", "-O3", "--x-assign", "fast", "--x-initial", "fast")
_COMPILE = ("-std=c++17", "-O1", "-fPIC", "-shared", "-pthread")
_TOOLS = ("verilator", "g++")  # which are Debian's packages, too


def missing() -> str:
    """The Debian packages to install, or nothing."""
    lacking = [tool for tool in _TOOLS if shutil.which(tool) is None]
    install = f"apt-get install -y {' '.join(lacking)}"
    return f"it needs Verilator and a C++ compiler: {install}" if lacking else ""


def simulator(name: str, modules: Sequence[Path], harness: Path) -> ctypes.CDLL:
    """A design's simulator, built unless it is in the cache; the last module is the top one, and
    `name` the folder in the cache."""
    if missing():
        raise UserError(f"{name} cannot be simulated: {missing()}")
    facts = [_run("verilator", "--version"), host_architecture(), *_TRANSLATE, *_COMPILE]
    digest = hashlib.sha256("\0".join(facts).encode())
    for path in (*modules, harness):
        digest.update(path.read_bytes())
    kept = default_folder() / name / f"{digest.hexdigest()}.so"
    return open_library(
        kept_bytes(kept, lambda: build(modules, harness)), f"the simulator of {name}"
    )


def build(modules: Sequence[Path], harness: Path) -> bytes:
    """The library, by both tools."""
    root = Path(_run("verilator", "--getenv", "VERILATOR_ROOT").strip(), "include")
    with tempfile.TemporaryDirectory() as name:
        top = ("--top-module", modules[-1].stem)
        _run("verilator", *_TRANSLATE, *top, "-Mdir", name, *map(str, modules))
        run_time = [root / "verilated.cpp", root / "verilated_threads.cpp"]
        files = [*sorted(Path(name).glob("*.cpp")), harness, *run_time]
        library = Path(name) / "simulator.so"
        _run("g++", *_COMPILE, f"-I{name}", f"-I{root}", *map(str, files), "-o", str(library))
        return library.read_bytes()


def _run(*command: str) -> str:
    return run_tool(command, f"{command[0]} cannot build the simulator")

"""Regions as C source, compiled by the machine's C compiler."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from graft.base.dtypes import Array
from graft.base.errors import UserError
from graft.byoc.contract import Backend, Runner
from graft.ir.graph import Graph
from graft.runtime import c_source
from graft.runtime.native import host_architecture, host_features
from graft.runtime.tools import run_tool

COMPILERS = ("cc", "gcc", "clang")
FLAGS = ("-O3", "-march=native", "-ffp-contract=fast", "-std=c11", "-shared", "-fPIC")


@dataclass(frozen=True)
class Source:
    """C code that defines

        void graft_region(const void **inputs, void **outputs, const void **constants, void *work)

    with the constants that it wants pointers to, and the bytes of workspace that it needs.
    """

    text: str
    constants: Sequence[Array] = ()
    workspace: int = 0


class CSourceBackend(Backend):
    """A backend that writes C. Define `source`."""

    flags: Sequence[str] = FLAGS

    def missing(self) -> str:
        if compiler() is None:
            names = ", ".join(COMPILERS)
            return f"it needs a C compiler, and $CC, {names} are not there: install gcc or clang"
        return ""

    def source(self, region: Graph) -> Source:
        """The C source of a region."""
        raise NotImplementedError(f"{type(self).__name__} writes no C")

    def compile(self, region: Graph) -> bytes:
        source = self.source(region)
        code = compile_c(source.text, self.flags)
        needs = instruction_set(tuple(self.flags))
        return c_source.pack_code(code, source.text, source.constants, source.workspace, needs)

    def load(self, blob: bytes) -> Runner:
        return c_source.load(blob)


def compiler() -> str | None:
    """The C compiler of this machine: $CC, or the first that is found."""
    named = os.environ.get("CC")
    names = (named,) if named else COMPILERS
    return next((path for name in names if (path := shutil.which(name))), None)


@cache
def instruction_set(flags: tuple[str, ...]) -> c_source.InstructionSet:
    """The features that code compiled with these flags may use, by the macros that the compiler
    defines, such as __AVX2__."""
    command = [str(compiler()), *flags, "-dM", "-E", "-x", "c", os.devnull]
    process = subprocess.run(command, capture_output=True, text=True, check=False)
    macros = {_plain(line.split()[1]) for line in process.stdout.splitlines() if " " in line}
    features = sorted(name for name in host_features() if _plain(name) in macros)
    return c_source.InstructionSet(host_architecture(), tuple(features))


def _plain(name: str) -> str:
    """A name without punctuation and case: both 'sse4.2' and __SSE4_2__ become "sse42"."""
    return "".join(letter for letter in name.lower() if letter.isalnum())


def compile_c(text: str, flags: Sequence[str] = FLAGS) -> bytes:
    """Compile C source to a shared object."""
    program = compiler()
    if program is None:
        names = os.environ.get("CC") or ", ".join(COMPILERS)
        raise UserError(f"there is no C compiler ({names})", hint="install gcc or clang")
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "region.c").write_text(text, encoding="utf-8")
        command = [program, *flags, "region.c", "-o", "region.so", "-lm"]
        run_tool(command, "the C compiler refuses the code", Path(folder))
        return Path(folder, "region.so").read_bytes()

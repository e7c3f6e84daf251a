"""Object code in, callable addresses out: links the objects of an artifact into the process.

Nothing is compiled. Names that the objects do not define themselves are looked up in the C and
mathematical libraries. Whatever Graft's own linker does not know is left to LLVM's, which is loaded
then and only then.
"""

from __future__ import annotations

import ctypes
import platform
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from pathlib import Path

from graft.base.errors import UserError
from graft.program.program import Target
from graft.runtime.elf import ObjectFile, read_object
from graft.runtime.linker import Image, is_plain, link

_SYSTEM_LIBRARIES = ("libc.so.6", "libm.so.6")
_MADE_BY_LINKER = frozenset({"_GLOBAL_OFFSET_TABLE_"})
_ARCHITECTURES = {"amd64": "x86_64", "arm64": "aarch64"}
_PROCESSORS = Path("/proc/cpuinfo")
# Linux's name for a feature -> LLVM's, where they differ in more than underscores.
_FEATURES = {
    "abm": "lzcnt",
    "bmi1": "bmi",
    "lahf_lm": "sahf",
    "pni": "sse3",
    "sse4_1": "sse4.1",
    "sse4_2": "sse4.2",
    "fp": "fp-armv8",
    "asimd": "neon",
    "atomics": "lse",
}


def host_architecture() -> str:
    """This machine's architecture in the words of target triples."""
    name = platform.machine().lower()
    return _ARCHITECTURES.get(name, name)


@cache
def host_features() -> frozenset[str]:
    """What this processor can do, and the system lets it do, in LLVM's words."""
    try:
        lines = _PROCESSORS.read_text(encoding="utf-8").splitlines()
    except OSError:
        return frozenset()
    named = (line.partition(":") for line in lines)
    listed = next((text for name, _, text in named if name.strip() in ("flags", "Features")), "")
    return frozenset(_FEATURES.get(flag, flag.replace("_", "")) for flag in listed.split())


def why_not_here(target: Target) -> str:
    """Why code for a target cannot run on this machine; empty where it can."""
    if not target.triple:  # nothing in it is native
        return ""
    if target.architecture != host_architecture():
        return f"is for {target.architecture}, and this machine is {host_architecture()}"
    missing = [name for name in target.features if name not in host_features()]
    if missing:
        return f"needs a processor with {', '.join(missing)}, which this one lacks"
    return ""


class Library:
    """Linked objects. The code stays where it is as long as the library is referred to."""

    def __init__(self, objects: Sequence[bytes], symbols: Iterable[str]) -> None:
        """Link the objects and find the addresses of the symbols."""
        names = sorted(set(symbols))
        files = [read_object(code) for code in objects]
        imports = _imports(files, names)
        # Either holds the code in place.
        self._image: Image | JitImage = (
            link(files, imports) if is_plain(files) else JitImage(objects, imports, names)
        )
        self._addresses = {name: self._image.symbols[name] for name in names}

    def address(self, symbol: str) -> int:
        """Where a function is; 0 never."""
        return self._addresses[symbol]


class JitImage:
    """Code that LLVM has linked, in place as long as this is referred to, and the addresses of its
    symbols. LLVM is loaded when objects come that Graft's own linker does not know, and not with
    the run time: kernels for x86-64 run without it."""

    symbols: Mapping[str, int]

    def __init__(
        self, objects: Sequence[bytes], imports: Mapping[str, int], names: Sequence[str]
    ) -> None:
        import llvmlite.binding as llvm

        builder = llvm.JITLibraryBuilder()
        for name, address in imports.items():
            builder.import_symbol(name, address)
        for code in objects:
            builder.add_object_img(code)
        for name in names:
            builder.export_symbol(name)
        llvm.initialize_native_target()
        llvm.initialize_native_asmprinter()
        # Its own linker places all sections side by side, so that no relocation is out of reach.
        self._engine = llvm.create_lljit_compiler(use_jit_link=True, suppress_errors=True)
        try:
            self._code = builder.link(self._engine, "artifact")
        except RuntimeError as error:
            raise UserError(f"the object code cannot be linked: {error}") from error
        self.symbols = {name: int(self._code[name]) for name in names}

    def __del__(self) -> None:
        # The code has to go before the engine it lives in.
        if hasattr(self, "_code"):
            self._code.close()
        if hasattr(self, "_engine"):
            self._engine.close()


def _imports(objects: Sequence[ObjectFile], names: Sequence[str]) -> dict[str, int]:
    """Addresses of what the objects ask of the system; refuses what cannot be linked."""
    defined: set[str] = set()
    undefined: set[str] = set()
    for symbols in objects:
        if symbols.architecture != host_architecture():
            raise UserError(
                f"the object code is for {symbols.architecture}, and this machine is "
                f"{host_architecture()}",
                hint="compile the model for this machine",
            )
        twice = sorted(defined & symbols.defined)
        if twice:
            raise UserError(f"two objects define '{twice[0]}'")
        defined |= symbols.defined
        undefined |= symbols.undefined
    missing = [name for name in names if name not in defined]
    if missing:
        raise UserError(f"the object code does not define '{missing[0]}'")
    return {name: system_address(name) for name in undefined - defined - _MADE_BY_LINKER}


def system_address(name: str) -> int:
    """Where a function of the C or mathematical library is."""
    for library in _system_libraries():
        function = getattr(library, name, None)
        if function is not None:
            return ctypes.cast(function, ctypes.c_void_p).value or 0
    raise UserError(
        f"the object code needs '{name}', which neither it nor the system's libraries define"
    )


@cache
def _system_libraries() -> tuple[ctypes.CDLL, ...]:
    return tuple(ctypes.CDLL(name) for name in _SYSTEM_LIBRARIES)

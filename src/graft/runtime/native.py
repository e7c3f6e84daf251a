"""Object code in, callable addresses out: links the objects of an artifact into the process.

Nothing is compiled. Names that the objects do not define themselves are looked up in the C and
mathematical libraries.
"""

from __future__ import annotations

import ctypes
import platform
from collections.abc import Iterable, Sequence
from functools import cache

import llvmlite.binding as llvm

from graft.base.errors import UserError
from graft.runtime.elf import read_object

_SYSTEM_LIBRARIES = ("libc.so.6", "libm.so.6")
_MADE_BY_LINKER = frozenset({"_GLOBAL_OFFSET_TABLE_"})
_ARCHITECTURES = {"amd64": "x86_64", "arm64": "aarch64"}


def host_architecture() -> str:
    """This machine's architecture in the words of target triples."""
    name = platform.machine().lower()
    return _ARCHITECTURES.get(name, name)


@cache
def host_features() -> frozenset[str]:
    """What this processor can do, in LLVM's words."""
    features = llvm.get_host_cpu_features()
    return frozenset(name for name, present in features.items() if present)


class Library:
    """Linked objects. The code stays where it is as long as the library is referred to."""

    def __init__(self, objects: Sequence[bytes], symbols: Iterable[str]) -> None:
        """Link the objects and find the addresses of the symbols."""
        wanted = sorted(set(symbols))
        builder = llvm.JITLibraryBuilder()
        for name, address in _imports(objects, wanted).items():
            builder.import_symbol(name, address)
        for code in objects:
            builder.add_object_img(code)
        for name in wanted:
            builder.export_symbol(name)
        llvm.initialize_native_target()
        llvm.initialize_native_asmprinter()
        # Its own linker places all sections side by side, so that no relocation is out of reach.
        self._engine = llvm.create_lljit_compiler(use_jit_link=True, suppress_errors=True)
        try:
            self._code = builder.link(self._engine, "artifact")
        except RuntimeError as error:
            raise UserError(f"the object code cannot be linked: {error}") from error
        self._addresses = {name: int(self._code[name]) for name in wanted}

    def address(self, symbol: str) -> int:
        """Where a function is; 0 never."""
        return self._addresses[symbol]

    def __del__(self) -> None:
        # The code has to go before the engine it lives in.
        if hasattr(self, "_code"):
            self._code.close()
        if hasattr(self, "_engine"):
            self._engine.close()


def _imports(objects: Sequence[bytes], wanted: Sequence[str]) -> dict[str, int]:
    """Addresses of what the objects ask of the system; refuses what cannot be linked."""
    defined: set[str] = set()
    undefined: set[str] = set()
    for code in objects:
        symbols = read_object(code)
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
    missing = [name for name in wanted if name not in defined]
    if missing:
        raise UserError(f"the object code does not define '{missing[0]}'")
    return {name: _system_address(name) for name in undefined - defined - _MADE_BY_LINKER}


def _system_address(name: str) -> int:
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

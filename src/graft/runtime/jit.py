"""Objects in, code in memory out, by way of LLVM, for what Graft's own linker does not know.

LLVM is loaded when such objects come, and not with the run time: kernels for x86-64 run without it.
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping, Sequence

from graft.base.errors import UserError


class JitImage:
    """Linked code, in place as long as this is referred to, and the addresses of its symbols."""

    symbols: Mapping[str, int]

    def __init__(
        self, objects: Sequence[bytes], imports: Mapping[str, int], wanted: Sequence[str]
    ) -> None:
        llvm = importlib.import_module("llvmlite.binding")
        builder = llvm.JITLibraryBuilder()
        for name, address in imports.items():
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
        self.symbols = {name: int(self._code[name]) for name in wanted}

    def __del__(self) -> None:
        # The code has to go before the engine it lives in.
        if hasattr(self, "_code"):
            self._code.close()
        if hasattr(self, "_engine"):
            self._engine.close()

"""LLVM text -> optimised LLVM modules and object code.

In goes the text of a module and what LLVM knows of a processor; out come the bytes of an object
file. LLVM's own vectorisers stay off: loop IR says what is a vector. Only llvmlite is imported
besides errors: processes that compile (`worker.py`) start as fast as that loads.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import Any

import llvmlite.binding as llvm

from graft.base.errors import InternalError

OPTIMISATION = 3


@dataclass(frozen=True, slots=True)
class Processor:
    """What LLVM makes code for, in its own words."""

    triple: str
    cpu: str
    features: str


def compile_text(text: str, processor: Processor) -> bytes:
    """A module's text as an object file."""
    machine = target_machine(processor)
    return bytes(machine.emit_object(optimized_module(text, machine)))


def target_machine(processor: Processor) -> Any:
    """LLVM's code generator for a processor."""
    _initialize()
    kind = llvm.Target.from_triple(processor.triple)
    # Object code is loaded anywhere, next to its own constants.
    return kind.create_target_machine(
        processor.cpu, processor.features, OPTIMISATION, reloc="pic", codemodel="small"
    )


@cache
def _initialize() -> None:
    """Make LLVM's targets known to it, once."""
    # LLVM 22 miscompiles loops for Hexagon. Its pass `amode-opt` (processAddBases in
    # HexagonOptAddrMode.cpp, since LLVM 20) rewrites `b = add(p, n)` to `b = add(a, n - m)` where
    # `a = add(p, m)` stands further up in the loop, although `p` has moved on in between: uses that
    # a definition reaches around the loop count as uses of the same value. It takes an offset
    # beyond 16 bits, as rows of 32 KiB have. Without the pass, code takes as many packets.
    llvm.set_option("graft", "-disable-hexagon-amodeopt")
    llvm.initialize_all_targets()
    llvm.initialize_all_asmprinters()


def optimized_module(text: str, machine: Any) -> Any:
    """A module's text as a module of LLVM's, verified and optimised."""
    try:
        module = llvm.parse_assembly(text)
        module.verify()
    except RuntimeError as error:
        raise InternalError(f"LLVM refuses the code made for it: {error}") from None
    module.data_layout = str(machine.target_data)
    options = llvm.create_pipeline_tuning_options(speed_level=OPTIMISATION)
    options.loop_vectorization = False
    options.slp_vectorization = False
    builder = llvm.create_pass_builder(machine, options)
    builder.getModulePassManager().run(module, builder)
    return module

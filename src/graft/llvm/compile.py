"""LLVM text -> object code.

In goes the text of a module, or a `Function`, and a `Target`; out come the bytes of an object file,
or assembly or optimised LLVM text for people to read. LLVM's own vectorisers stay off: loop IR says
what is a vector.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import llvmlite.binding as llvm

from graft.base.errors import InternalError
from graft.llvm.emit import llvm_text
from graft.loop.ir import Function
from graft.target.target import Target

__all__ = ["assembly", "compile_text", "llvm_text", "object_code", "optimized_text"]

OPTIMISATION = 3


def object_code(function: Function, target: Target) -> bytes:
    """The function as an object file."""
    return compile_text(llvm_text(function, target), target)


def assembly(function: Function, target: Target) -> str:
    """The function as assembly."""
    machine = _machine(target)
    return str(machine.emit_assembly(_optimized(llvm_text(function, target), machine)))


def optimized_text(function: Function, target: Target) -> str:
    """The function as LLVM text after optimisation."""
    return str(_optimized(llvm_text(function, target), _machine(target)))


def compile_text(text: str, target: Target) -> bytes:
    """A module's text as an object file."""
    machine = _machine(target)
    return bytes(machine.emit_object(_optimized(text, machine)))


@cache
def _initialize() -> None:
    """Make LLVM's targets known to it, once."""
    llvm.initialize_all_targets()
    llvm.initialize_all_asmprinters()


def _machine(target: Target) -> Any:
    _initialize()
    kind = llvm.Target.from_triple(target.triple)
    # Object code is loaded anywhere, next to its own constants.
    return kind.create_target_machine(
        target.baseline, target.feature_text, OPTIMISATION, reloc="pic", codemodel="small"
    )


def _optimized(text: str, machine: Any) -> Any:
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

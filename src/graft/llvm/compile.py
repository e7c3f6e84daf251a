"""Functions of the loop IR -> object code, or assembly or optimised LLVM text for people."""

from __future__ import annotations

from graft.llvm.codegen import Processor, compile_text, optimized_module, target_machine
from graft.llvm.emit import llvm_text
from graft.loop.ir import Function
from graft.target.target import Target


def processor_of(target: Target) -> Processor:
    """A target for LLVM: code may rely on its features and on nothing else."""
    return Processor(target.triple, target.baseline, target.feature_text)


def object_code(function: Function, target: Target) -> bytes:
    """The function as an object file."""
    return compile_text(llvm_text(function, target), processor_of(target))


def assembly(function: Function, target: Target) -> str:
    """The function as assembly."""
    machine = target_machine(processor_of(target))
    return str(machine.emit_assembly(optimized_module(llvm_text(function, target), machine)))


def optimized_text(function: Function, target: Target) -> str:
    """The function as LLVM text after optimisation."""
    machine = target_machine(processor_of(target))
    return str(optimized_module(llvm_text(function, target), machine))

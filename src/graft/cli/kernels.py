"""What kernels look like: a fused graph and a stage in, the text of all its kernels out."""

from __future__ import annotations

import sys
from collections.abc import Callable

from graft.backends.host.assemble import Assembly, ReferenceStep, assemble
from graft.backends.host.stretches import why_not_native
from graft.base.errors import UnsupportedError
from graft.cli.report import counted
from graft.ir.graph import Graph
from graft.llvm.compile import assembly, llvm_text
from graft.llvm.target import Target, named_target
from graft.loop.ir import Function
from graft.loop.print import to_text


def _loops(function: Function, _target: Target) -> str:
    return to_text(function)


def _llvm(function: Function, target: Target) -> str:
    return _noted(";", function) + llvm_text(function, target)


def _asm(function: Function, target: Target) -> str:
    return _noted("#", function) + assembly(function, target)


KERNEL_STAGES: dict[str, Callable[[Function, Target], str]] = {
    "loops": _loops,
    "llvm": _llvm,
    "asm": _asm,
}


def kernel_text(graph: Graph, stage: str, machine: str) -> str:
    """A graph's kernels for a machine, each once; nodes without one are named on standard error."""
    reason = why_not_native(graph)
    if reason:
        raise UnsupportedError(f"this model has no native kernels: {reason}")
    target = named_target(machine)
    made = assemble(graph, target)
    _tell_of_reference(made)
    texts = [KERNEL_STAGES[stage](one, target) for one in made.functions.values()]
    return "\n".join(text.rstrip("\n") + "\n" for text in texts)


def _tell_of_reference(made: Assembly) -> None:
    left = [step for step in made.steps if isinstance(step, ReferenceStep)]
    if left:
        first = f"the first is %{left[0].node.output.name}: {left[0].reason}"
        message = f"{counted(len(left), 'step')} on the reference evaluator; {first}"
        print(f"graft: note: {message}", file=sys.stderr)


def _noted(comment: str, function: Function) -> str:
    return "".join(f"{comment} {note}\n" for note in function.notes)

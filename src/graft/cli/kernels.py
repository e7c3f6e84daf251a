"""What kernels look like: a graph and a stage in, the text of all its kernels out."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from graft.backends.host.assemble import ReferenceStep, assemble
from graft.backends.host.builder import build_program
from graft.backends.host.emit import Emitted
from graft.backends.host.options import Accuracy
from graft.backends.host.segments import SegmentCompiler
from graft.base.names import comment
from graft.base.progress import Progress, Stage
from graft.cli.report import counted
from graft.cli.terminal import print_note
from graft.ir.graph import Graph
from graft.llvm.compile import assembly
from graft.llvm.emit import llvm_text
from graft.loop.ir import Function
from graft.loop.print import to_text
from graft.program.print import to_text as print_program
from graft.target.target import Target, named_target


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


def kernel_text(graph: Graph, stage: str, machine: str, progress: Progress) -> str:
    """A fused graph's kernels for a machine, each once; nodes without one are named on standard
    error."""
    target = named_target(machine)
    made = assemble(graph, target)
    _tell_of_reference([step for step in made.steps if isinstance(step, ReferenceStep)])
    return _text(made.functions, stage, target, progress)


def flow_kernel_text(
    graph: Graph, stage: str, machine: str, accuracy: Accuracy, progress: Progress
) -> str:
    """The same for an optimised graph whose sizes or steps depend on its data: the kernels of all
    its segments."""
    target = named_target(machine)
    compiler = _Assembled(target, accuracy, {})
    built = build_program(graph, compiler)
    for value, reason in built.reasons.items():
        print_note("note", f"%{value} is on the reference evaluator: {reason}")
    return _text(compiler.functions, stage, target, progress)


def program_text(graph: Graph, machine: str, accuracy: Accuracy, progress: Progress) -> str:
    """The program of an optimised graph."""
    compiler = SegmentCompiler(named_target(machine), accuracy, {}, report=progress)
    return print_program(build_program(graph, compiler).program)


@dataclass(frozen=True)
class _Assembled(SegmentCompiler):
    """Stops at the kernels of each segment, and keeps them."""

    functions: dict[str, Function] = field(default_factory=dict)

    def compile(
        self, graph: Graph, *_numbers: Any, **_options: Any
    ) -> tuple[Emitted, tuple[bytes, ...]]:
        _, made, _ = self.assembled(graph, _numbers[3], {})
        self.functions.update(made.functions)
        return Emitted(), ()


def _text(functions: Mapping[str, Function], stage: str, target: Target, progress: Progress) -> str:
    texts = []
    for number, (name, function) in enumerate(functions.items()):
        progress(Stage("kernel", number + 1, len(functions), name))
        texts.append(KERNEL_STAGES[stage](function, target))
    return "\n".join(text.rstrip("\n") + "\n" for text in texts)


def _tell_of_reference(left: Sequence[ReferenceStep]) -> None:
    if left:
        first = f"the first is %{left[0].node.output.name}: {left[0].reason}"
        message = f"{counted(len(left), 'step')} on the reference evaluator; {first}"
        print_note("note", message)


def _noted(mark: str, function: Function) -> str:
    return "".join(f"{mark} {comment(note)}\n" for note in function.notes)

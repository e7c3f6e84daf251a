"""What kernels look like: a graph and a stage in, the text of all its kernels out."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from graft.backends.host.assemble import ReferenceStep, assemble
from graft.backends.host.flow import CompiledStretch, Made, build_flow
from graft.backends.host.kernel_memo import Kernels
from graft.backends.host.options import Accuracy
from graft.backends.host.stretches import Stretches
from graft.base.names import comment
from graft.base.progress import Progress, Stage
from graft.cli.report import counted
from graft.cli.terminal import print_note
from graft.ir.graph import Graph
from graft.llvm.compile import assembly, llvm_text
from graft.loop.ir import Function
from graft.loop.print import to_text
from graft.ops.index_ranges import IndexRanges
from graft.runtime import program as rt
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


def kernel_text(
    graph: Graph, stage: str, machine: str, accuracy: Accuracy, progress: Progress
) -> str:
    """A fused graph's kernels for a machine, each once; nodes without one are named on standard
    error."""
    target = named_target(machine)
    made = assemble(graph, target, kernels=Kernels(target, accuracy))
    _tell_of_reference([step for step in made.steps if isinstance(step, ReferenceStep)])
    return _text(made.functions, stage, target, progress)


def flow_kernel_text(
    graph: Graph, stage: str, machine: str, accuracy: Accuracy, progress: Progress
) -> str:
    """The same for an optimised graph whose sizes or steps depend on its data: the kernels of all
    its stretches."""
    target, made = named_target(machine), Made()
    stretches = _Assembled(target, accuracy, {})
    build_flow(graph, stretches, made)
    for value, reason in made.reasons.items():
        print_note("note", f"%{value} is on the reference evaluator: {reason}")
    return _text(stretches.functions, stage, target, progress)


@dataclass(frozen=True)
class _Assembled(Stretches):
    """Stops at the kernels of each stretch, and keeps them."""

    functions: dict[str, Function] = field(default_factory=dict)

    def compile(self, stretch: Graph, label: str, ranges: IndexRanges) -> CompiledStretch:
        _, made, _ = self.assembled(stretch, ranges, {})
        self.functions.update(made.functions)
        empty = rt.Program(rt.Target(self.target.triple, self.target.features), (), (), ())
        return CompiledStretch(empty, {}, {}, ())


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

"""Compile a graph, or a part of one, into native segments: which nodes have native code, that code,
and the checks of symbolic sizes that the segments rely on.

When a graph is typed, two symbols may be equal for all that is known, and kernels rely on it. So
the type rules are asked again, with both answers to every question that the symbols leave open, and
the outcomes become size checks of the program.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, partial

from graft.backends.host.kernel_memo import Kernels, RowKernels
from graft.backends.host.lowering.assemble import Assembly, assemble
from graft.backends.host.lowering.emit import EmittedProgram, emit
from graft.backends.host.lowering.values import Values
from graft.backends.host.passes.guards import insert_guards
from graft.backends.host.passes.pipeline import prepare
from graft.backends.host.passes.split_recurrent import split_recurrent
from graft.base.dim_questions import provably_different
from graft.base.dims import Unknown, product
from graft.base.dtypes import DType
from graft.base.errors import Location
from graft.base.progress import Progress, Stage, quietly
from graft.byoc.executable import Accuracy
from graft.ir.graph import Graph, Node, Value
from graft.ir.op import infer_types
from graft.ir.types import TensorType, Type
from graft.llvm.cache import default_cache
from graft.llvm.pool import Compilation
from graft.loop.ir import Function
from graft.ops.indexed import IndexRanges
from graft.ops.size_rules import explore
from graft.passes.simplify_movement import is_view
from graft.program.extents import Refused, SizeCheck, Test
from graft.program.guards import Guard
from graft.runtime.driver import driver_key, driver_object
from graft.runtime.spaces import Runner
from graft.target.target import Target

_CONTROL_FLOW = ("if", "loop", "scan", "demand")


@dataclass(frozen=True)
class SegmentCompiler:
    """Compiles for a machine. `regions` are the runners of other backends' regions, by label; those
    in `spaces` work in the memory of a device."""

    target: Target
    accuracy: Accuracy
    regions: Mapping[str, Runner]
    spaces: Mapping[str, str] = field(default_factory=dict)
    report: Progress = quietly

    @cached_property
    def _kernels(self) -> Kernels:
        """The kernels of all segments."""
        return Kernels(self.target, self.accuracy)

    @cached_property
    def _row_kernels(self) -> RowKernels:
        return RowKernels(self.target)

    def why_not(self, node: Node) -> str:
        """Why a node has no native code even when its sizes are known; empty where it has."""
        if node.op.name in _CONTROL_FLOW:
            return "it decides what runs"
        if node.op.name == "region":
            return "another backend runs it"
        values = (*node.args, *node.outputs)
        reason = next((reason for value in values if (reason := why_not_tensor(value))), "")
        if reason or is_view(node) or node.op.name == "constant":
            return reason
        refusal = self._row_kernels.refusal(node, {})
        return refusal.reason if refusal else ""

    def split(self, graph: Graph) -> Graph:
        """The graph with recurrent layers split into products and steps."""
        return split_recurrent(graph, self.target)

    def runner(self, node: Node) -> Runner | None:
        """The runner of a region; None for other nodes."""
        return self.regions.get(node.attrs.label) if node.op.name == "region" else None

    def assembled(
        self,
        graph: Graph,
        ranges: IndexRanges,
        spaces: Mapping[str, str],
        begin: Callable[[Function], None] | None = None,
    ) -> tuple[Graph, Assembly, tuple[Guard, ...]]:
        """A graph of fusion groups, their kernels, and its guards. `begin` is called with each
        kernel as soon as it is written."""
        self.report(Stage("lowering"))
        checked, guards = insert_guards(graph, ranges)
        fused = prepare(checked, self.target)
        return fused, assemble(fused, self.target, spaces, self._kernels, begin), guards

    def compile(
        self,
        graph: Graph,
        values: Values,
        inputs: Sequence[int],
        outputs: Sequence[int],
        ranges: IndexRanges,
        label: str,
    ) -> tuple[EmittedProgram, tuple[bytes, ...]]:
        """The instructions of a part of a graph all of whose sizes are known when it runs, on
        values with these numbers, and their code. `ranges` are those of the whole graph."""
        with self.compilation() as compilation:
            _, assembly, guards = self.assembled(graph, ranges, {}, compilation.add)
            codes = tuple(compilation.codes())
        checks = () if is_static(graph) else size_checks(graph.nodes)
        return emit(assembly, values, inputs, outputs, checks, guards, label), codes

    def compilation(self) -> Compilation:
        """What compiles kernels while others are being written."""
        return Compilation(self.target, default_cache(), progress=self.report)


def driver_code(target: Target, accuracy: Accuracy) -> bytes:
    """The object code of the driver."""
    facts = target.triple, accuracy is Accuracy.STRICT
    return default_cache().remembered(driver_key(*facts), lambda: driver_object(*facts))


def why_not_tensor(value: Value) -> str:
    """Why native code cannot have a value, whatever its size; empty where it can."""
    type_ = value.type
    if not isinstance(type_, TensorType) or type_.shape is None:
        return f"native programs want tensors of known rank, and %{value.name} is {type_}"
    if type_.dtype is DType.STRING:
        return f"native programs have no strings, and %{value.name} is {type_}"
    if any(isinstance(dim, Unknown) for dim in type_.shape):
        return f"%{value.name} is {type_}"
    if isinstance(product(type_.shape), Unknown):
        return f"the number of elements of %{value.name} is too long an expression"
    return ""


def is_static(graph: Graph) -> bool:
    """Whether all shapes are numbers."""
    return all(isinstance(v.type, TensorType) and v.type.is_static for v in graph.values)


def why_not_native(graph: Graph) -> str:
    """Why a whole graph is not one native program; empty where it is."""
    for value in graph.values:
        reason = why_not_tensor(value)
        if not reason and not value.tensor.is_static:
            reason = f"one native program wants static shapes, and %{value.name} is {value.type}"
        if reason:
            return reason
    control = (node.op.name for node in graph.nodes if node.op.name in _CONTROL_FLOW)
    return next((f"it has a {name}" for name in control), "")


def size_checks(nodes: Sequence[Node]) -> tuple[SizeCheck, ...]:
    """The conditions on the symbols' values, node by node."""
    checks: list[SizeCheck] = []
    for node in nodes:
        # A reshape of static data to symbolic extents has to be checked as well.
        if not all(map(_is_static, (*node.args, *node.outputs))):
            verdict = explore(partial(_result, node))
            if isinstance(verdict, Test):
                checks.append(SizeCheck(verdict, node.location or Location()))
    return tuple(checks)


def _is_static(value: object) -> bool:
    type_ = getattr(value, "type", None)
    return isinstance(type_, TensorType) and type_.is_static


def _result(node: Node) -> Refused | None:
    operands = tuple(None if value is None else value.type for value in node.inputs)
    results = infer_types(node.op, node.attrs, operands)
    for value, inferred in zip(node.outputs, results, strict=True):
        if not _agree(inferred, value.type):
            return Refused(f"%{value.name} is {inferred} where {value.type} is wanted")
    return None


def _agree(inferred: Type, declared: Type) -> bool:
    """Whether an inferred type does not contradict the declared one."""
    if not isinstance(inferred, TensorType) or not isinstance(declared, TensorType):
        return True
    pairs = zip(inferred.shape or (), declared.shape or (), strict=False)
    return not any(provably_different(one, other) for one, other in pairs)

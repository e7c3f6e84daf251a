"""Compiles stretches of a graph, or a whole one: what has native code, and that code."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property

from graft.backends.host.assemble import Assembly, assemble
from graft.backends.host.flow import CompiledStretch
from graft.backends.host.guards import guarded
from graft.backends.host.kernel_memo import Kernels, RowKernels
from graft.backends.host.options import Accuracy
from graft.backends.host.prepare import prepare
from graft.backends.host.program import HostProgram, build_program, made_by
from graft.backends.host.shaped import build_shaped
from graft.backends.host.sizes import size_checks
from graft.backends.host.split_recurrent import split_recurrent
from graft.base.dims import Unknown, product
from graft.base.dtypes import DType
from graft.base.progress import Progress, Stage, quietly
from graft.ir.graph import Graph, Node, Value
from graft.ir.types import TensorType
from graft.ops.index_ranges import IndexRanges
from graft.passes.plan_memory import is_view
from graft.runtime.guards import Guard
from graft.runtime.spaces import Runner
from graft.target.target import Target

_CONTROL_FLOW = ("if", "loop", "scan", "demand")


@dataclass(frozen=True)
class Stretches:
    """Compiles for a machine; `regions` run what is left to other backends, by label, those in
    `spaces` in the memory of a device."""

    target: Target
    accuracy: Accuracy
    regions: Mapping[str, Runner]
    spaces: Mapping[str, str] = field(default_factory=dict)
    report: Progress = quietly

    @cached_property
    def _kernels(self) -> Kernels:
        """The kernels of all stretches."""
        return Kernels(self.target, self.accuracy)

    @cached_property
    def _row_kernels(self) -> RowKernels:
        return RowKernels(self.target)

    def why_not(self, node: Node) -> str:
        """Why a node has no native code even when its sizes are known; empty where it has."""
        if node.op.name in _CONTROL_FLOW:
            return "it decides what runs"
        if node.op.name == "region" and not is_static_node(node):
            return "its sizes are known only when it runs"
        values = (*node.args, *node.outputs)
        reason = next((reason for value in values if (reason := why_not_tensor(value))), "")
        if reason or is_view(node) or node.op.name in ("constant", "region"):
            return reason
        refusal = self._row_kernels.refusal(node, {})
        return refusal.reason if refusal else ""

    def taken_apart(self, graph: Graph) -> Graph:
        """The graph with recurrent layers as products and steps."""
        return split_recurrent(graph, self.target)

    def runner(self, node: Node) -> Runner | None:
        """Who runs a node that is left to another backend; None for other nodes."""
        return self.regions.get(node.attrs.label) if node.op.name == "region" else None

    def static(
        self, graph: Graph, label: str = "", ranges: IndexRanges | None = None
    ) -> HostProgram:
        """The program of a graph with static shapes."""
        fused, made, guards = self.assembled(graph, ranges or IndexRanges(graph), self.spaces)
        built = build_program(fused, made, self.target, self.regions, label, self.report)
        return replace(built, program=replace(built.program, guards=guards))

    def assembled(
        self, graph: Graph, ranges: IndexRanges, spaces: Mapping[str, str]
    ) -> tuple[Graph, Assembly, tuple[Guard, ...]]:
        """A graph of fusion groups, their kernels, and what is watched over in it."""
        self.report(Stage("lowering"))
        watched, guards = guarded(graph, ranges)
        fused = prepare(watched, self.target)
        return fused, assemble(fused, self.target, spaces, self._kernels), guards

    def compile(self, stretch: Graph, label: str, ranges: IndexRanges) -> CompiledStretch:
        """A stretch as a program."""
        if is_static(stretch):
            built = self.static(stretch, label, ranges)
            return CompiledStretch(built.program, built.functions, built.reasons, built.makes)
        fused, made, guards = self.assembled(stretch, ranges, {})
        checks = size_checks(stretch.nodes)
        program = build_shaped(fused, made, self.target, checks, guards, self.report)
        return CompiledStretch(program, {}, {}, tuple(map(made_by, made.steps)))


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


def is_static_node(node: Node) -> bool:
    """Whether all that a node reads and makes are tensors of known sizes."""
    types = (value.type for value in (*node.args, *node.outputs))
    return all(isinstance(type_, TensorType) and type_.is_static for type_ in types)


def is_static(graph: Graph) -> bool:
    """Whether all shapes are numbers."""
    values = (*graph.inputs, *(value for node in graph.nodes for value in node.outputs))
    return all(isinstance(v.type, TensorType) and v.type.is_static for v in values)


def why_not_native(graph: Graph) -> str:
    """Why a whole graph is not one native program; empty where it is."""
    values = (*graph.inputs, *(value for node in graph.nodes for value in node.outputs))
    for value in values:
        reason = why_not_tensor(value)
        if not reason and not value.tensor.is_static:
            reason = f"one native program wants static shapes, and %{value.name} is {value.type}"
        if reason:
            return reason
    control = (node.op.name for node in graph.nodes if node.op.name in _CONTROL_FLOW)
    return next((f"it has a {name}" for name in control), "")

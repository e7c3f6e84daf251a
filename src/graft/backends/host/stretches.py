"""Compiles stretches of a graph, or a whole one: what has native code, and that code."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from graft.backends.host.assemble import assemble
from graft.backends.host.flow import CompiledStretch
from graft.backends.host.options import Accuracy
from graft.backends.host.prepare import prepare
from graft.backends.host.program import HostProgram, build_program
from graft.base.dtypes import DType
from graft.ir.graph import Graph, Node, Value
from graft.ir.types import TensorType
from graft.llvm.target import Target
from graft.runtime.regions import Runner

_CONTROL_FLOW = ("if", "loop", "scan")


@dataclass(frozen=True)
class Stretches:
    """Compiles for a machine; `regions` run what is left to other backends, by label."""

    target: Target
    accuracy: Accuracy
    regions: Mapping[str, Runner]

    def why_not(self, node: Node) -> str:
        """Why a node has no native code even when its sizes are known; empty where it has."""
        if node.op.name in _CONTROL_FLOW:
            return "it decides what runs"
        reasons = (why_not_held(value) for value in (*node.args, *node.outputs))
        return next((reason for reason in reasons if reason), "")

    def static(self, graph: Graph, label: str = "") -> HostProgram:
        """The program of a graph with static shapes."""
        fused = prepare(graph, self.target, self.accuracy)
        made = assemble(fused, self.target)
        return build_program(fused, made, self.target, self.regions, label)

    def compile(self, stretch: Graph, label: str) -> CompiledStretch:
        """A stretch as a program."""
        built = self.static(stretch, label)
        return CompiledStretch(built.program, built.functions, built.reasons)


def why_not_held(value: Value) -> str:
    """Why native code cannot have a value; empty where it can."""
    type_ = value.type
    if not isinstance(type_, TensorType) or not type_.is_static:
        return f"native programs want static shapes, and %{value.name} is {type_}"
    if type_.dtype is DType.STRING:
        return f"native programs have no strings, and %{value.name} is {type_}"
    return ""


def why_not_native(graph: Graph) -> str:
    """Why a whole graph is not one native program; empty where it is."""
    values = (*graph.inputs, *(value for node in graph.nodes for value in node.outputs))
    control = (node.op.name for node in graph.nodes if node.op.name in _CONTROL_FLOW)
    reasons = (reason for value in values if (reason := why_not_held(value)))
    return next(reasons, "") or next((f"it has a {name}" for name in control), "")

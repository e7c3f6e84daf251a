"""The host backend: a graph with static shapes in, machine code that runs it out."""

from __future__ import annotations

import os
from collections.abc import Sequence
from functools import cached_property
from importlib.metadata import version

from graft.backends.host.assemble import assemble
from graft.backends.host.program import HostProgram, build_program
from graft.backends.reference.backend import ReferenceProgram
from graft.base.dtypes import DType
from graft.base.errors import UnsupportedError
from graft.ir.evaluate import Data
from graft.ir.graph import Graph
from graft.ir.types import TensorType
from graft.llvm.target import host_target
from graft.passes.group_fusion import group_fusion
from graft.runtime.artifact import Origin, save
from graft.runtime.session import Session


class HostBackend:
    """Compiles graphs for the CPU of this machine."""

    name = "host"
    version = "1"

    def __init__(self, threads: int | None = None) -> None:
        self._threads = threads

    def compile(self, graph: Graph) -> HostExecutable | ReferenceProgram:
        """Machine code for a graph; one that native code does not reach runs on the evaluator."""
        reason = why_not_native(graph)
        if reason:
            return ReferenceProgram(graph, reason)
        fused = group_fusion(graph)
        target = host_target()
        built = build_program(fused, assemble(fused, target), target)
        return HostExecutable(built, self._threads)


def why_not_native(graph: Graph) -> str:
    """Why a whole graph has no native program yet; empty where it has one."""
    values = (*graph.inputs, *(value for node in graph.nodes for value in node.outputs))
    for value in values:
        type_ = value.type
        if not isinstance(type_, TensorType) or not type_.is_static:
            return f"native programs want static shapes, and %{value.name} is {type_}"
        if type_.dtype is DType.STRING:
            return f"native programs have no strings, and %{value.name} is {type_}"
    return ""


class HostExecutable:
    """A compiled graph."""

    def __init__(self, built: HostProgram, threads: int | None) -> None:
        self.built = built
        self._threads = threads

    @cached_property
    def session(self) -> Session:
        """The program, loaded into this process."""
        return Session(self.built.program, self._threads, self.built.functions)

    @property
    def reference_nodes(self) -> dict[str, str]:
        """Nodes that still run on the reference evaluator, with the reason."""
        return dict(self.built.reasons)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the program to a file, which holds native code only."""
        if self.built.reasons:
            name, reason = next(iter(self.built.reasons.items()))
            raise UnsupportedError(
                f"{len(self.built.reasons)} nodes run on the reference evaluator, which a file"
                f" cannot hold; the first is %{name}: {reason}"
            )
        origin = Origin(version("graft-compiler"), {HostBackend.name: HostBackend.version})
        save(self.built.program, path, origin)

    def __call__(self, inputs: Sequence[Data]) -> list[Data]:
        names = [spec.name for spec in self.built.program.inputs]
        return list(self.session.run(None, dict(zip(names, inputs, strict=True))))

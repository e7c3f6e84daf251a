"""The host backend: a graph with static shapes in, machine code that runs it out."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property

from graft.backends.host.assemble import assemble
from graft.backends.host.program import HostProgram, build_program
from graft.base.errors import UnsupportedError
from graft.ir.evaluate import Data
from graft.ir.graph import Graph
from graft.ir.types import TensorType
from graft.llvm.target import host_target
from graft.passes.group_fusion import group_fusion
from graft.runtime.session import Session


class HostBackend:
    """Compiles graphs for the CPU of this machine."""

    name = "host"
    version = "1"

    def __init__(self, threads: int | None = None) -> None:
        self._threads = threads

    def compile(self, graph: Graph) -> HostExecutable:
        """Machine code for a graph whose shapes are all known."""
        refuse_dynamic(graph)
        fused = group_fusion(graph)
        target = host_target()
        built = build_program(fused, assemble(fused, target), target)
        return HostExecutable(built, self._threads)


def refuse_dynamic(graph: Graph) -> None:
    """Refuse a graph that native code does not reach yet."""
    for node in graph.nodes:
        for value in node.outputs:
            if not isinstance(value.type, TensorType) or not value.type.is_static:
                raise UnsupportedError(
                    f"the host backend wants static shapes, and %{value.name} is {value.type}",
                    node.place,
                    'compile with target=["reference"]',
                )


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

    def __call__(self, inputs: Sequence[Data]) -> list[Data]:
        names = [spec.name for spec in self.built.program.inputs]
        return list(self.session.run(None, dict(zip(names, inputs, strict=True))))

"""A graph in, a callable out that evaluates it node by node with each operator's NumPy meaning."""

from __future__ import annotations

from collections.abc import Sequence

from graft.ir.evaluate import Data, evaluate
from graft.ir.graph import Graph


class ReferenceBackend:
    """Evaluates graphs with NumPy."""

    name = "reference"
    version = "1"

    def compile(self, graph: Graph) -> ReferenceProgram:
        """The graph, ready to run."""
        return ReferenceProgram(graph)


class ReferenceProgram:
    """A graph that runs on the reference evaluator; safe to call from several threads."""

    def __init__(self, graph: Graph) -> None:
        self._graph = graph

    @property
    def reference_nodes(self) -> dict[str, str]:
        """All nodes: this is the reference evaluator."""
        asked = "the reference backend was asked for"
        return {node.output.name: asked for node in self._graph.walk() if node.outputs}

    def __call__(self, inputs: Sequence[Data]) -> list[Data]:
        return evaluate(self._graph, inputs)

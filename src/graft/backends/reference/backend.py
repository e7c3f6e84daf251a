"""A graph in, a callable out that evaluates it node by node with each operator's NumPy meaning."""

from __future__ import annotations

import os
from collections.abc import Mapping
from importlib.metadata import version

import numpy as np

from graft.backends.reference.stored import MODEL, evaluated_model
from graft.base.errors import UnsupportedError
from graft.byoc.contract import Backend, Runner
from graft.ir.evaluate import evaluate
from graft.ir.graph import Graph
from graft.runtime.artifact import Origin, save
from graft.runtime.session import Session
from graft.runtime.supplied import Supplied


class ReferenceBackend(Backend):
    """Evaluates graphs with NumPy."""

    name = "reference"
    version = "1"

    def compile(self, region: Graph) -> bytes:
        raise UnsupportedError("the reference evaluator runs graphs as they are, without code")

    def runner(self, region: Graph) -> Runner:
        return lambda inputs, _outputs: [np.asarray(item) for item in evaluate(region, inputs)]

    def build(self, graph: Graph) -> ReferenceProgram:
        """The graph, ready to run."""
        return ReferenceProgram(graph)


class ReferenceProgram:
    """A graph that runs on the reference evaluator; safe to call from several threads."""

    def __init__(self, graph: Graph, reason: str = "the reference backend was asked for") -> None:
        self._graph = graph
        self._reason = reason

    @property
    def reference_nodes(self) -> dict[str, str]:
        """All nodes, with the reason why they are here."""
        return {node.output.name: self._reason for node in self._graph.walk() if node.outputs}

    def session(self) -> Session:
        """The graph, ready to run as a program of one instruction."""
        graph = self._graph
        run = {MODEL: lambda operands, _symbols: evaluate(graph, operands)}
        return Session(evaluated_model(graph), supplied=Supplied({}, run))

    def save(
        self, path: str | os.PathLike[str], blobs: Mapping[str, bytes] | None = None
    ) -> list[str]:
        """Write the graph to a file, which the evaluator runs on any machine."""
        origin = Origin(
            version("graft-compiler"), {ReferenceBackend.name: ReferenceBackend.version}
        )
        return save(evaluated_model(self._graph), path, origin, blobs)

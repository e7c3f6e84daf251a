"""A graph in, a callable out that evaluates it node by node with each operator's NumPy meaning."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from importlib.metadata import version

import numpy as np

from graft.backends.reference.stored import evaluated_model
from graft.base.dtypes import Array
from graft.base.errors import UnsupportedError
from graft.byoc.contract import Backend, Runner
from graft.ir.evaluate import Data, evaluate
from graft.ir.graph import Graph
from graft.runtime.artifact import Origin, save


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

    @property
    def kernels(self) -> dict[str, str]:
        """None: it has no steps of its own."""
        return {}

    @property
    def session(self) -> None:
        """Nothing of it is native."""
        return None

    def save(
        self, path: str | os.PathLike[str], blobs: Mapping[str, bytes] | None = None
    ) -> list[str]:
        """Write the graph to a file, which the evaluator runs on any machine."""
        origin = Origin(
            version("graft-compiler"), {ReferenceBackend.name: ReferenceBackend.version}
        )
        return save(evaluated_model(self._graph), path, origin, blobs)

    def __call__(
        self, inputs: Sequence[Data], homes: Mapping[str, Array] | None = None
    ) -> list[Data]:
        """Run; the caller copies results to where they are wanted."""
        return evaluate(self._graph, inputs)

"""A graph in, a callable out that evaluates it node by node with each operator's NumPy meaning."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from importlib.metadata import version

import numpy as np

from graft.backends.reference.stored import MODEL, evaluated_model
from graft.base.dtypes import Array
from graft.base.errors import UnsupportedError, UserError
from graft.byoc.contract import HOST_BACKEND, REFERENCE, Backend, Runner
from graft.byoc.executable import Executable, Settings
from graft.ir.evaluate import Data, evaluate
from graft.ir.graph import Graph
from graft.passes.pipeline import PassReport
from graft.runtime.artifact import Origin, save
from graft.runtime.evaluated import SuppliedFunctions
from graft.runtime.session import Session
from graft.target.target import HOST

_REASON = "the reference backend was asked for"
_HINT = f"compile for the backend '{HOST_BACKEND}'"


class ReferenceBackend(Backend):
    """Evaluates graphs with NumPy."""

    name = REFERENCE
    version = "1"

    def configured(self, settings: Settings) -> ReferenceBackend:
        if settings.machine != HOST:
            message = f"machine='{settings.machine}' is for native code"
            raise UserError(f"{message}, and the reference evaluator has none", hint=_HINT)
        return self

    def compile(self, region: Graph) -> bytes:
        raise UnsupportedError("the reference evaluator runs graphs as they are, without code")

    def runner(self, region: Graph) -> Runner:
        return lambda inputs, _outputs: [np.asarray(item) for item in evaluate(region, inputs)]

    def lower(self, graph: Graph, regions: Mapping[str, Runner] | None = None) -> ReferenceLowering:
        return ReferenceLowering(graph)

    def specialize(
        self,
        general: Executable,
        symbols: Sequence[str],
        variants: Mapping[tuple[int, ...], Executable],
    ) -> Executable:
        message = "shapes= is for native code, and the reference evaluator has none"
        raise UserError(message, hint=_HINT)


@dataclass(frozen=True, eq=False)
class ReferenceLowering:
    """A graph that is evaluated as it is."""

    graph: Graph
    passes: tuple[PassReport, ...] = ()

    @property
    def reference_nodes(self) -> dict[str, str]:
        """All nodes, with the reason why they are here."""
        return {node.output.name: _REASON for node in self.graph.walk() if node.outputs}

    def kernels(self, form: str) -> list[str]:
        """There are none."""
        return []

    def build(self) -> ReferenceProgram:
        """The graph, ready to run."""
        return ReferenceProgram(self.graph)


class ReferenceProgram:
    """A graph that runs on the reference evaluator; safe to call from several threads."""

    def __init__(self, graph: Graph) -> None:
        self._graph = graph

    @property
    def reference_nodes(self) -> dict[str, str]:
        """All nodes, with the reason why they are here."""
        return ReferenceLowering(self._graph).reference_nodes

    @property
    def python_nodes(self) -> dict[str, str]:
        """None beside these."""
        return {}

    @property
    def kernels(self) -> dict[str, str]:
        """None: it has no steps of its own."""
        return {}

    @cached_property
    def session(self) -> Session:
        """The graph, ready to run as a program of one instruction."""
        graph = self._graph
        run = {MODEL: lambda operands, _symbols: evaluate(graph, operands)}
        return Session(evaluated_model(graph), supplied=SuppliedFunctions({}, run))

    def without_session(self) -> ReferenceProgram:
        """The same graph."""
        return ReferenceProgram(self._graph)

    def __call__(
        self, inputs: Sequence[Data], outputs: Mapping[str, Array] | None = None
    ) -> list[Data]:
        """Run; the caller copies results to where they are wanted."""
        return evaluate(self._graph, inputs)

    def save(
        self,
        path: str | os.PathLike[str],
        blobs: Mapping[str, bytes] | None = None,
        backends: Mapping[str, str] | None = None,
    ) -> list[str]:
        """Write the graph to a file, which the evaluator runs on any machine."""
        versions = {REFERENCE: ReferenceBackend.version, **(backends or {})}
        origin = Origin(version("graft-compiler"), versions)
        return save(evaluated_model(self._graph), path, origin, blobs)

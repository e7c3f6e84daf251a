"""A graph that is not one native program, compiled: a flow, ready to run in this process."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from functools import cached_property

from graft.backends.host.flow import Made, StretchCompiler, build_flow
from graft.backends.host.options import HostOptions
from graft.base.dtypes import Array
from graft.base.errors import UnsupportedError
from graft.ir.evaluate import Data
from graft.ir.graph import Graph
from graft.runtime.cores import available_cores
from graft.runtime.engine import Engine
from graft.runtime.flow import Flow
from graft.runtime.flow_executor import FlowExecutor, Supplied
from graft.runtime.memory import give_back


class FlowExecutable:
    """A compiled flow."""

    def __init__(self, flow: Flow, made: Made, options: HostOptions) -> None:
        self.flow, self._made, self._options = flow, made, options

    @classmethod
    def of(cls, graph: Graph, compiler: StretchCompiler, options: HostOptions) -> FlowExecutable:
        """Compile a graph."""
        made = Made()
        return cls(build_flow(graph, compiler, made), made, options)

    @cached_property
    def executor(self) -> FlowExecutor:
        """The flow, linked into this process."""
        give_back()  # what the compiler worked on
        threads = self._options.threads or available_cores()
        engine = Engine(self._made.programs, threads) if self._made.programs else None
        made = self._made
        supplied = Supplied(made.functions, made.evaluators, made.checks)
        return FlowExecutor(self.flow, engine, supplied)

    @property
    def reference_nodes(self) -> dict[str, str]:
        """Nodes that run on the reference evaluator, with the reason."""
        return dict(self._made.reasons)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Refused as yet: a file holds one native program."""
        raise UnsupportedError(
            f"'{path}' is not written: a file holds one native program, and the sizes or steps of"
            " this model depend on its data"
        )

    def __call__(
        self, inputs: Sequence[Data], homes: Mapping[str, Array] | None = None
    ) -> list[Data]:
        """Run; the caller copies results to where they are wanted."""
        return self.executor(inputs, {})

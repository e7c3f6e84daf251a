"""A graph in, a callable out that evaluates it node by node with each operator's NumPy meaning.

Regions of other backends in it are run by these."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from graft.base.dtypes import Array
from graft.base.errors import UnsupportedError
from graft.byoc.contract import Backend, Runner
from graft.ir.attrs import Attrs
from graft.ir.evaluate import Data, evaluate, result_shapes, run_op
from graft.ir.graph import Graph, Node
from graft.ir.op import Op
from graft.ops.composite import RegionAttrs
from graft.runtime.regions import deliver


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
    """A graph that runs on the reference evaluator; safe to call from several threads.

    `regions` runs what is left to other backends, by label, on arrays in the host's memory."""

    def __init__(
        self,
        graph: Graph,
        reason: str = "the reference backend was asked for",
        regions: Mapping[str, Runner] | None = None,
    ) -> None:
        self._graph = graph
        self._reason = reason
        self._regions = regions or {}

    @property
    def reference_nodes(self) -> dict[str, str]:
        """All nodes that no other backend runs, with the reason why they are here."""
        own = [node for node in self._graph.nodes if not self._is_region(node)]
        nodes = replace(self._graph, nodes=tuple(own)).walk()
        return {node.output.name: self._reason for node in nodes if node.outputs}

    def _is_region(self, node: Node) -> bool:
        return node.op.name == "region" and node.attrs.label in self._regions

    def save(self, path: str | os.PathLike[str]) -> None:
        """Refused: a file holds native code."""
        raise UnsupportedError(
            f"'{path}' is not written: a file holds native code, and this model runs on the"
            f" reference evaluator ({self._reason})"
        )

    def __call__(
        self, inputs: Sequence[Data], homes: Mapping[str, Array] | None = None
    ) -> list[Data]:
        """Run; the caller copies results to where they are wanted."""
        return evaluate(self._graph, inputs, run=self._run)

    def _run(self, op: Op, attrs: Attrs, operands: Sequence[Data]) -> tuple[Data, ...]:
        if not isinstance(attrs, RegionAttrs) or attrs.label not in self._regions:
            return run_op(op, attrs, operands)
        shapes = result_shapes(attrs.body, operands)
        outputs = [
            np.empty(shape, value.dtype.numpy)
            for shape, value in zip(shapes, attrs.body.outputs, strict=True)
        ]
        region = self._regions[attrs.label]
        results = region([np.ascontiguousarray(array) for array in operands], outputs)
        deliver(results, outputs, attrs.label)
        return tuple(outputs)

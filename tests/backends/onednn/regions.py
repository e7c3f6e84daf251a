"""What the tests of oneDNN regions share: a graph built node by node, run and compared."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np

import graft.ops  # noqa: F401  (registers the operators)
from graft.backends.onednn.backend import OneDnn
from graft.base.dtypes import Array, dtype_of
from graft.byoc.candidates import find_candidates
from graft.byoc.contract import HOST_BACKEND
from graft.ir.builder import Builder
from graft.ir.evaluate import evaluate
from graft.ir.graph import Graph, Value
from graft.ir.types import TensorType
from graft.runtime.json_graph import JsonGraph, unpack


@dataclass
class Case:
    """A graph under construction, with data for its inputs."""

    builder: Builder = field(default_factory=Builder)
    data: list[Array] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.random = np.random.default_rng(1)

    def array(self, *shape: int, dtype: str = "float32") -> Array:
        return np.asarray(self.random.standard_normal(shape), dtype)

    def input(self, *shape: int, dtype: str = "float32") -> Value:
        self.data.append(self.array(*shape, dtype=dtype))
        type_ = TensorType(dtype_of(self.data[-1].dtype), shape)
        return self.builder.input(f"x{len(self.data)}", type_)

    def constant(self, *shape: int) -> Value:
        return self.builder.constant(self.array(*shape))

    def __call__(self, op: str, *operands: Value | None, **attrs: Any) -> Value:
        return self.builder(op, *operands, **attrs)


def refusals(graph: Graph) -> list[str]:
    """Why nodes of the graph are not oneDNN's by themselves or as part of something larger."""
    found = find_candidates(graph, [OneDnn()])
    taken = {node for c in found.candidates if c.backend != HOST_BACKEND for node in c.nodes}
    left = [node for node in found.nodes if node not in taken]
    return [refused.reason for node in left for refused in found.refusals.get(node, ())]


def run(graph: Graph, data: list[Array]) -> list[Array]:
    """The results of the graph as one region."""
    runner = OneDnn().runner(graph)
    shapes: list[Any] = [value.shape for value in graph.outputs]
    results = [np.full(shape, np.nan, np.float32) for shape in shapes]
    assert runner(data, results) is None
    return results


def check(case: Case, *outputs: Value, tolerance: float = 2e-5) -> JsonGraph:
    """Compare with what the graph means; gives the plan."""
    graph = case.builder.build(*outputs)
    assert refusals(graph) == []
    wanted = evaluate(graph, case.data)
    for found, right in zip(run(graph, case.data), wanted, strict=True):
        right = np.asarray(right)
        assert found.shape == right.shape
        scale = max(1.0, float(np.abs(right[np.isfinite(right)]).max(initial=0.0)))
        np.testing.assert_allclose(found, right, rtol=tolerance, atol=tolerance * scale)
    return unpack(OneDnn().compile(graph))


def operators(plan: JsonGraph) -> list[str]:
    """The primitives of a plan, views left out."""
    return [node.op for node in plan.nodes if not node.op.startswith("memory_desc")]

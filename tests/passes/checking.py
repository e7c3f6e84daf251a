"""What tests of passes share: run a pass, check the graph it gives, and that it means the same."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

import graft.ops  # noqa: F401  (registers the operators)
from graft.base.dtypes import Array, DType
from graft.ir.builder import Builder
from graft.ir.evaluate import evaluate
from graft.ir.graph import Graph, Node, Value
from graft.ir.types import TensorType
from graft.ir.verify import verify

Build = Callable[..., Any]


def graph_of(build: Build, *types: TensorType) -> Graph:
    """The graph that `build(builder, *inputs)` makes; it returns the output or a tuple of them."""
    g = Builder()
    inputs = [g.input(f"x{i}", type_) for i, type_ in enumerate(types)]
    outputs = build(g, *inputs)
    return verify(g.build(*(outputs if isinstance(outputs, tuple) else (outputs,))))


def operators(graph: Graph) -> list[str]:
    """The operators in order, constants left out."""
    return [node.op.name for node in graph.nodes if node.op.name != "constant"]


def node_of(graph: Graph, op: str) -> Node:
    """The only node of that operator."""
    (found,) = [node for node in graph.nodes if node.op.name == op]
    return found


def constant_of(graph: Graph, value: Value | None) -> Array:
    """The array that a value is."""
    assert value is not None
    node = graph.producers[value]
    assert node.op.name == "constant"
    return node.attrs.value.array  # type: ignore[attr-defined, no-any-return]


def data_for(graph: Graph, extents: dict[str, int] | None = None, seed: int = 0) -> list[Array]:
    """Arrays for the graph's inputs; `extents` says what symbols stand for."""
    noise = np.random.default_rng(seed)
    found = []
    for value in graph.inputs:
        shape = [d if isinstance(d, int) else (extents or {})[str(d)] for d in value.shape or ()]
        numbers = noise.standard_normal(shape) * 3
        if value.dtype is DType.BOOL:
            numbers = numbers > 0
        elif value.dtype.is_unsigned_integer:
            numbers = np.abs(numbers)
        found.append(np.asarray(numbers).astype(value.dtype.numpy))
    return found


def run_pass(
    transform: Callable[[Graph], Graph],
    graph: Graph,
    inputs: Sequence[Array] | None = None,
    tolerance: float = 0.0,
) -> Graph:
    """What the pass gives: a valid graph with the same inputs, outputs and results."""
    arrays = data_for(graph) if inputs is None else list(inputs)
    after = verify(transform(graph))
    assert [(v.name, v.type) for v in after.inputs] == [(v.name, v.type) for v in graph.inputs]
    assert after.output_names == graph.output_names
    pairs = zip(evaluate(graph, arrays), evaluate(after, arrays), strict=True)
    for expected, found in pairs:
        assert (found.dtype, found.shape) == (expected.dtype, expected.shape)
        if found.dtype == object:
            assert found.tolist() == expected.tolist()
        elif tolerance == 0.0:
            np.testing.assert_array_equal(_wide(found), _wide(expected))
            np.testing.assert_array_equal(_signs(found), _signs(expected))
        else:
            scale = np.max(np.abs(_wide(expected)), initial=1.0)
            np.testing.assert_allclose(_wide(found), _wide(expected), 0, tolerance * scale)
    return after


def _wide(array: Array) -> Array:
    return array.astype(np.float64) if array.dtype.kind in "fV" else array


def _signs(array: Array) -> Array:
    """The signs of numbers, zeros included; those of NaNs mean nothing."""
    if array.dtype.kind not in "fV":
        return np.zeros(0)
    wide = array.astype(np.float64)
    return np.where(np.isnan(wide), False, np.signbit(wide))

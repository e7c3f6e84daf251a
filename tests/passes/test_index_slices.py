"""Gathers and scatters by an index per slice, broadcast over the slice."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from tests.passes.checking import graph_of, operators, run_pass

from graft.base.dims import Dim, evaluate_dim, symbol
from graft.base.dtypes import Array
from graft.base.errors import EvaluationError
from graft.ir.builder import Builder
from graft.ir.evaluate import evaluate
from graft.ir.graph import Graph, Value
from graft.ir.types import tensor
from graft.passes.eliminate_dead_code import eliminate_dead_code
from graft.passes.index_slices import index_slices

Shape = Sequence[Dim]
ROWS, N, WIDTH = symbol("rows"), symbol("n"), symbol("width")
REDUCTIONS = ("none", "add", "mul", "max", "min")


def scatter(
    data: Shape, own: Shape, extents: Shape, axis: int = 0, dtype: str = "int64", **more: Any
) -> Graph:
    """A scatter into `data` whose indices have the shape `own` and are broadcast to `extents`."""
    options = {"updates": extents, "op": "broadcast_to", "reduction": "none", **more}

    def build(g: Builder, x: Value, indices: Value, updates: Value) -> Value:
        expanded = expand(g, options["op"], indices, extents)
        reduction = options["reduction"]
        return g("scatter_elements", x, expanded, updates, axis=axis, reduction=reduction)

    types = tensor("float32", *data), tensor(dtype, *own), tensor("float32", *options["updates"])
    return graph_of(build, *types)


def gather(data: Shape, own: Shape, extents: Shape, axis: int = 0) -> Graph:
    def build(g: Builder, x: Value, indices: Value) -> Value:
        return g("gather", x, expand(g, "broadcast_to", indices, extents), axis=axis)

    return graph_of(build, tensor("float32", *data), tensor("int64", *own))


def expand(g: Builder, op: str, indices: Value, extents: Shape) -> Value:
    if op == "broadcast_to":
        return g(op, indices, shape=extents)
    repeats = [1 if a == b else b for a, b in zip(indices.shape or (), extents, strict=True)]
    return g("tile", indices, reps=repeats)


def numbers(shape: Sequence[int], seed: int = 0) -> Array:
    return np.random.default_rng(seed).integers(-9, 10, shape).astype(np.float32)


def simplified(graph: Graph, inputs: Sequence[Array]) -> list[str]:
    return operators(eliminate_dead_code(run_pass(index_slices, graph, inputs)))


@pytest.mark.parametrize("reduction", REDUCTIONS)
@pytest.mark.parametrize("count", [0, 1, 3, 17])
def test_scatters_become_scatters_of_slices(count: int, reduction: str) -> None:
    """Also with indices from the end, and with several updates of a slice, which keep their
    order."""
    graph = scatter((ROWS, 2, 3), (N, 1, 1), (N, 2, 3), reduction=reduction)
    places = np.random.default_rng(count).integers(-5, 5, (count, 1, 1))
    inputs = numbers((5, 2, 3)), places, numbers((count, 2, 3), 1)
    assert simplified(graph, inputs) == ["reshape", "scatter_nd"]


def test_repeated_indices_are_as_good() -> None:
    graph = scatter((5, 2, 3), (4, 1, 1), (4, 2, 3), op="tile")
    inputs = numbers((5, 2, 3)), np.array([4, -1, 2, 2]).reshape(4, 1, 1), numbers((4, 2, 3), 1)
    assert simplified(graph, inputs) == ["reshape", "scatter_nd"]


def test_narrow_indices_are_converted() -> None:
    graph = scatter((5, 3), (2, 1), (2, 3), dtype="int32")
    inputs = numbers((5, 3)), np.array([[4], [-1]], np.int32), numbers((2, 3), 1)
    assert simplified(graph, inputs) == ["reshape", "cast", "scatter_nd"]


def test_axes_of_one_element_before_the_slices_are_left_out() -> None:
    graph = scatter((1, ROWS, 3), (N, 1), (1, N, 3), axis=1, reduction="add")
    inputs = numbers((1, 5, 3)), np.array([[4], [-1]]), numbers((1, 2, 3), 1)
    wanted = ["reshape", "squeeze", "squeeze", "scatter_nd", "expand_dims"]
    assert sorted(simplified(graph, inputs)) == sorted(wanted)


@pytest.mark.parametrize(
    ("data", "own", "extents", "axis"),
    [
        ((ROWS, 2, 3), (N, 1, 1), (N, 2, 3), 0),
        ((4, ROWS, 3), (N, 1), (4, N, 3), 1),
        ((4, 2, ROWS), (N,), (4, 2, N), -1),
        ((4, 2, ROWS), (1, 1, N), (4, 2, N), -1),
    ],
)
@pytest.mark.parametrize("count", [0, 1, 7])
def test_gathers_along_any_axis(
    data: Shape, own: Shape, extents: Shape, axis: int, count: int
) -> None:
    graph = gather(data, own, extents, axis)
    shape, places = (
        [evaluate_dim(dim, {"rows": 5, "n": count}) for dim in dims] for dims in (data, own)
    )
    inputs = numbers(shape), np.random.default_rng(0).integers(-5, 5, places)
    assert simplified(graph, inputs) == ["reshape", "take"]


@pytest.mark.parametrize(
    "graph",
    [
        pytest.param(scatter((5, 3), (1, 1), (4, 3)), id="one index for all slices"),
        pytest.param(scatter((5, 3), (1, 1), (N, 3)), id="one index for any number of slices"),
        pytest.param(scatter((5, 2, 3), (4, 2, 1), (4, 2, 3)), id="several indices for a slice"),
        pytest.param(scatter((5, 3), (4, N), (4, 3)), id="perhaps several indices for a slice"),
        pytest.param(scatter((5, 3), (4, 1), (4, 2)), id="parts of slices"),
        pytest.param(scatter((5, WIDTH), (4, 1), (4, 3)), id="perhaps parts of slices"),
        pytest.param(scatter((5, 3), (N, 1), (N, 3), updates=(ROWS, 3)), id="other updates"),
        pytest.param(scatter((5, WIDTH), (4, 1), (4, WIDTH)), id="perhaps empty slices"),
        pytest.param(scatter((5, 0), (4, 1), (4, 0)), id="empty slices"),
        pytest.param(scatter((4, 5), (3,), (4, 3), axis=1), id="slices with gaps"),
        pytest.param(gather((5, 3), (1, 1), (4, 3)), id="one index for all gathered slices"),
        pytest.param(gather((5, 3), (4, 1), (4, 2)), id="parts of gathered slices"),
        pytest.param(gather((5, WIDTH), (4, 1), (4, WIDTH)), id="perhaps nothing to gather"),
    ],
)
def test_others_stay(graph: Graph) -> None:
    assert index_slices(graph) is graph


def test_indices_that_are_not_repeated_stay() -> None:
    def build(g: Builder, x: Value, indices: Value) -> tuple[Value, Value]:
        return g("gather", x, indices), g("scatter_elements", x, indices, x)

    graph = graph_of(build, tensor("float32", 4, 3), tensor("int64", 4, 3))
    assert index_slices(graph) is graph


def test_indices_with_other_readers_stay_for_these() -> None:
    def build(g: Builder, x: Value, indices: Value, updates: Value) -> tuple[Value, Value]:
        expanded = g("broadcast_to", indices, shape=(2, 3))
        return g("scatter_elements", x, expanded, updates), expanded

    types = tensor("float32", 4, 3), tensor("int64", 2, 1), tensor("float32", 2, 3)
    inputs = numbers((4, 3)), np.array([[3], [-4]]), numbers((2, 3), 1)
    after = run_pass(index_slices, graph_of(build, *types), inputs)
    assert operators(after) == ["broadcast_to", "reshape", "scatter_nd"]


@pytest.mark.parametrize("place", [5, -6, 2**40])
@pytest.mark.parametrize("is_scatter", [True, False])
def test_indices_out_of_range_are_refused_as_before(place: int, is_scatter: bool) -> None:
    shapes: tuple[Shape, Shape, Shape] = (ROWS, 2), (N, 1), (N, 2)
    graph = scatter(*shapes) if is_scatter else gather(*shapes)
    inputs = [numbers((5, 2)), np.array([[0], [place], [1]]), numbers((3, 2))]
    messages = []
    for one in (graph, index_slices(graph)):
        with pytest.raises(EvaluationError) as caught:
            evaluate(one, inputs[: 3 if is_scatter else 2])
        messages.append(str(caught.value))
    assert messages[0] == messages[1]

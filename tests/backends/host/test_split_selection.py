"""Selections along one long row, in chunks that threads share: the same results, ties included."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from tests.backends.host.flows import check_flow

from graft.backends.host.passes.split_selection import split_selection
from graft.base.dtypes import Array
from graft.ir.builder import Builder
from graft.ir.evaluate import evaluate
from graft.ir.graph import Graph
from graft.ir.types import tensor
from graft.ir.verify import verify
from graft.target.target import Target, named_target

SPECIAL = (np.nan, np.inf, -np.inf, -0.0, 0.0, 1.0, -1.0)


def _target(cores: int = 4) -> Target:
    target = named_target("znver5")
    return replace(target, machine=replace(target.machine, cores=cores))


def _counts(graph: Graph) -> int:
    return sum(node.op.name == "topk" for node in graph.nodes)


def _data(shape: tuple[int, ...], dtype: str, kind: str) -> Array:
    random = np.random.default_rng(7)
    if kind == "ties":
        few = SPECIAL if dtype == "float32" else (-3, 0, 1, 2)
        return random.choice(few, shape).astype(dtype)
    if kind == "same":
        return np.full(shape, np.nan if dtype == "float32" else 5, dtype)
    numbers = np.sort(random.standard_normal(shape) * 1e6, axis=-1)
    return (numbers if kind == "ascending" else numbers[..., ::-1]).astype(dtype)


@pytest.mark.parametrize("kind", ["ties", "same", "ascending", "descending"])
@pytest.mark.parametrize("largest", [True, False])
@pytest.mark.parametrize("dtype", ["float32", "int64"])
@pytest.mark.parametrize("shape", [(1_000_000,), (2, 999_999), (1, 1_000_000, 1)])
def test_results_are_the_same(shape: tuple[int, ...], dtype: str, largest: bool, kind: str) -> None:
    axis = 1 if len(shape) == 3 else -1
    build = Builder()
    x = build.input("x", tensor(dtype, *shape))
    graph = build.build(*build.call("topk", x, k=13, largest=largest, axis=axis))
    split = split_selection(graph, _target())
    verify(split)
    assert _counts(split) == 2
    data = _data(shape, dtype, kind)
    for one, other in zip(evaluate(graph, [data]), evaluate(split, [data]), strict=True):
        np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize(
    ("shape", "k", "cores"),
    [
        ((1_000_000,), 10, 1),  # nobody to share with
        ((4, 1_000_000), 10, 4),  # rows are enough
        ((2000,), 10, 4),  # meeting takes longer
        ((1_000_000,), 500_000, 4),  # each chunk would sort as many
        ((1_000_003,), 10, 4),  # no number of chunks divides it
        ((1_000_000, 2), 10, 4),
    ],
)
def test_others_stay(shape: tuple[int, ...], k: int, cores: int) -> None:
    build = Builder()
    x = build.input("x", tensor("float32", *shape))
    graph = build.build(*build.call("topk", x, k=k, axis=1 if shape[0] == 4 else 0))
    assert _counts(split_selection(graph, _target(cores))) == 1


@pytest.mark.parametrize("largest", [True, False])
@pytest.mark.parametrize("kind", ["ties", "ascending"])
def test_native_code(kind: str, largest: bool) -> None:
    build = Builder()
    x = build.input("x", tensor("float32", 1, 1_200_000))
    graph = build.build(*build.call("topk", x, k=21, largest=largest))
    check_flow(graph, [_data((1, 1_200_000), "float32", kind)])

"""Operators that change nothing go; those that almost change nothing stay."""

from __future__ import annotations

import numpy as np
import pytest
from tests.passes.checking import data_for, graph_of, operators, run_pass

from graft.base.dims import symbol
from graft.base.dtypes import DType
from graft.ir.types import tensor
from graft.passes.eliminate_noops import eliminate_noops

X = tensor("float32", 2, 3)
ROW = tensor("float32", 1, 3)
N = symbol("n")

GONE = {
    "reshape": lambda g, x: g("reshape", x, shape=[2, 3]),
    "reshape by -1": lambda g, x: g("reshape", x, shape=[2, -1]),
    "reshape by 0": lambda g, x: g("reshape", x, shape=[0, 0]),
    "squeeze of nothing": lambda g, x: g("squeeze", x),
    "expand_dims by nothing": lambda g, x: g("expand_dims", x, axes=[]),
    "broadcast": lambda g, x: g("broadcast_to", x, shape=[2, 3]),
    "broadcast with ones": lambda g, x: g("broadcast_to", x, shape=[1, 3]),
    "whole slice": lambda g, x: g("strided_slice", x, begin=[0, 0], end=[2, 3]),
    "slice beyond": lambda g, x: g("strided_slice", x, begin=[-9], end=[2**31 - 1], axes=[1]),
    "tile by one": lambda g, x: g("tile", x, reps=[1, 1]),
    "pad by nothing": lambda g, x: g("nn.pad", x, pad_width=[0] * 4, mode="edge"),
    "transpose in order": lambda g, x: g("transpose", x, axes=[0, 1]),
    "cast": lambda g, x: g("cast", x, dtype="float32"),
    "concatenate of one": lambda g, x: g("concatenate", x, axis=1),
    "sum over no axes": lambda g, x: g("sum", x, axes=[]),
    "max over no axes": lambda g, x: g("max", x, axes=[], keepdims=True),
    "split into one": lambda g, x: g("split", x, axis=0, sections=1),
}
STAYS = {
    "reshape": lambda g, x: g("reshape", x, shape=[3, 2]),
    "transpose": lambda g, x: g("transpose", x),
    "reversed slice": lambda g, x: g("strided_slice", x, begin=[-1], end=[-9], strides=[-1]),
    "shift by padding": lambda g, x: g("nn.pad", x, pad_width=[0, 1, 0, -1]),
    "cast": lambda g, x: g("cast", x, dtype="float64"),
    "concatenate": lambda g, x: g("concatenate", x, x),
    "sum of all": lambda g, x: g("sum", x, axes=[], noop_with_empty_axes=False),
    "mean": lambda g, x: g("mean", x, keepdims=True),
    "split": lambda g, x: g.call("split", x, axis=0, sections=2)[0],
    "tile": lambda g, x: g("tile", x, reps=[1, 2]),
}


@pytest.mark.parametrize("name", GONE)
def test_gone(name: str) -> None:
    type_ = ROW if name == "broadcast with ones" else X
    graph = graph_of(lambda g, x: g("negative", GONE[name](g, x)), type_)
    after = run_pass(eliminate_noops, graph)
    assert operators(after) == ["negative"]
    assert after.nodes[-1].inputs == graph.inputs


@pytest.mark.parametrize("name", STAYS)
def test_stays(name: str) -> None:
    graph = graph_of(lambda g, x: STAYS[name](g, x), X)
    assert eliminate_noops(graph) is graph


def test_output_that_becomes_an_input_keeps_its_name() -> None:
    graph = graph_of(lambda g, x: g("reshape", x, shape=[2, 3], out="result"), X)
    after = run_pass(eliminate_noops, graph)
    assert (after.nodes, after.outputs, after.output_names) == ((), graph.inputs, ("result",))


@pytest.mark.parametrize("extent", [1, 3, 7])
def test_symbolic_extents(extent: int) -> None:
    """Shapes that are provably equal count, shapes that happen to be equal do not."""
    type_ = tensor("float32", N, 3)
    same = graph_of(lambda g, x: g("reshape", x, shape=[N, 3]), type_)
    assert operators(run_pass(eliminate_noops, same, data_for(same, {"n": extent}))) == []
    one, row = tensor("float32", N), tensor("float32", 1, 3)
    other = graph_of(lambda g, n, x: g("broadcast_to", x, shape=[N, 3]), one, row)
    assert eliminate_noops(other) is other
    mixed = graph_of(
        lambda g, x, y: (g("reshape", x, shape=[symbol("m"), 3]), y),
        type_,
        tensor("float32", symbol("m")),
    )
    assert eliminate_noops(mixed) is mixed


@pytest.mark.parametrize("dtype", [DType.STRING, DType.BOOL, DType.INT4, DType.FLOAT8E5M2])
def test_every_dtype(dtype: DType) -> None:
    graph = graph_of(lambda g, x: g("reshape", x, shape=[2]), tensor(dtype, 2))
    array = np.array(["a", ""], object) if dtype is DType.STRING else np.ones(2).astype(dtype.numpy)
    assert operators(run_pass(eliminate_noops, graph, [array])) == []


def test_rank_0_and_no_elements() -> None:
    scalar = graph_of(lambda g, x: g("reshape", x, shape=[]), tensor("int32"))
    assert operators(run_pass(eliminate_noops, scalar)) == []
    empty = graph_of(lambda g, x: g("strided_slice", x, begin=[0], end=[5]), tensor("int32", 0, 2))
    assert operators(run_pass(eliminate_noops, empty)) == []

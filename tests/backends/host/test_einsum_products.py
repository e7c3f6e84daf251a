"""Einstein sums as products of matrices."""

from __future__ import annotations

import numpy as np
import pytest
from tests.backends.host.flows import check_flow

from graft.backends.host.passes.einsum_products import einsum_products
from graft.base.dims import Dim, symbol
from graft.base.dtypes import Array
from graft.ir.builder import Builder
from graft.ir.graph import Graph
from graft.ir.types import tensor

EXTENTS = dict(zip("abcdijkl", (2, 3, 4, 5, 6, 7, 8, 9), strict=True))


def _sum(equation: str, first: Dim | None = None, dtype: str = "float32") -> Graph:
    """The sum of two inputs; `first` is the extent of the letter `a`."""
    g, extents = Builder(), dict[str, Dim](EXTENTS)
    extents["a"] = EXTENTS["a"] if first is None else first
    terms = equation.split("->")[0].split(",")
    inputs = [
        g.input(f"x{n}", tensor(dtype, *(extents[letter] for letter in term)))
        for n, term in enumerate(terms)
    ]
    return g.build(g("einsum", *inputs, equation=equation))


def _names(graph: Graph) -> list[str]:
    return [node.op.name for node in einsum_products(graph).nodes]


def _inputs(equation: str) -> list[Array]:
    random = np.random.default_rng(0)
    terms = equation.split("->")[0].split(",")
    return [random.standard_normal([EXTENTS[c] for c in t], np.float32) for t in terms]


@pytest.mark.parametrize(
    "equation",
    [
        "abik,abjk->abij",  # scores of attention
        "abik,abkj->abij",
        "abik,ajk->abij",  # keys that heads share
        "ij,kjl->kil",  # experts of one input
        "abijk,blk->abijl",  # positions relative along one axis
        "aki,akj->aji",
        "ik,jk->ij",
        "ikl,jkl->ij",
    ],
)
def test_products(equation: str) -> None:
    graph = _sum(equation)
    assert "nn.batch_matmul" in _names(graph)
    assert "einsum" not in _names(graph)
    check_flow(graph, _inputs(equation), tolerance=1e-5)


def test_any_batch() -> None:
    equation = "abik,ajk->abij"
    graph = _sum(equation, symbol("n"))
    assert "nn.batch_matmul" in _names(graph)
    check_flow(graph, _inputs(equation), tolerance=1e-5)


@pytest.mark.parametrize(
    ("equation", "dtype"),
    [
        ("aibk,ajbk->abij", "float32"),  # transposes would be needed
        ("ai,aj->aij", "float32"),  # nothing is summed
        ("aik,aj->aij", "float32"),  # an index is summed in one operand
        ("aii,aij->aj", "float32"),
        ("ik,k->i", "float32"),
        ("ik,kj->ij", "int32"),
        ("ik,kj,jl->il", "float32"),
    ],
)
def test_others_stay(equation: str, dtype: str) -> None:
    assert _names(_sum(equation, dtype=dtype)) == ["einsum"]

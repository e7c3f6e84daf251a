"""Which nodes compute each row by itself."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any

import numpy as np
import pytest

from graft.base.dims import dim_min, symbol
from graft.base.errors import GraftError
from graft.byoc.kit.draw import Draw
from graft.byoc.kit.recipes import RECIPES
from graft.byoc.kit.synthesize import UnbuildableError, synthesize, with_symbols
from graft.byoc.probe import Kind, probe, shape_at
from graft.byoc.region import region_graph
from graft.byoc.rows import Rows, block_of_rows, blocks_of, own_rows, row_extent, with_rows
from graft.ir.builder import Builder
from graft.ir.evaluate import evaluate
from graft.ir.graph import Graph, Node
from graft.ir.types import tensor
from graft.ir.verify import verify
from graft.rewrite.pattern import is_op
from graft.runtime.row_blocks import BlockRunner, Blocks

N = symbol("n")


def node_of(op: str, *shapes: Any, **attrs: Any) -> Node:
    """A node on operands of these shapes, or of these arrays as constants; `int64` operands are
    written as (dtype, shape)."""
    g = Builder()
    operands = []
    for index, shape in enumerate(shapes):
        if isinstance(shape, np.ndarray):
            operands.append(g.constant(shape))
        else:
            dtype, dims = shape if isinstance(shape[0], str) else ("float32", shape)
            operands.append(g.input(f"x{index}", tensor(dtype, *dims)))
    return g.build(g(op, *operands, **attrs)).nodes[-1]


def ones(*shape: int) -> np.ndarray:
    return np.ones(shape, np.float32)


BY_ROWS: dict[str, tuple[str, tuple[Any, ...], dict[str, Any]]] = {
    "pointwise": ("exp", ((N, 3),), {}),
    "two of the same rows": ("add", ((N, 3), (N, 3)), {}),
    "a row for all": ("add", ((N, 3), (3,)), {}),
    "a number per row": ("multiply", ((N, 3), (N, 1)), {}),
    "vectors": ("subtract", ((N,), (N,)), {}),
    "dense": ("nn.dense", ((N, 12), ones(4, 12)), {}),
    "dense by run-time weights": ("nn.dense", ((N, 12), (4, 12)), {}),
    "products": ("nn.batch_matmul", ((N, 5, 12), (N, 12, 4)), {}),
    "products by one matrix": ("nn.batch_matmul", ((N, 5, 12), (1, 12, 4)), {}),
    "conv": ("nn.conv2d", ((N, 3, 9, 7), ones(4, 3, 3, 3)), {"padding": (1, 1, 1, 1)}),
    "pool": ("nn.max_pool2d", ((N, 3, 9, 7),), {"pool_size": (2, 2), "strides": (2, 2)}),
    "mean of pixels": ("mean", ((N, 3, 9, 7),), {"axes": (2, 3), "keepdims": False}),
    "maximum of channels": ("max", ((N, 3, 9),), {"axes": (1,)}),
    "softmax": ("nn.softmax", ((N, 21),), {"axis": -1}),
    "layer norm": ("nn.layer_norm", ((N, 4, 8), ones(8), ones(8)), {}),
    "batch norm": ("nn.batch_norm", ((N, 4, 8), *(ones(4),) * 4), {}),
    "flatten": ("reshape", ((N, 4, 7, 7),), {"shape": (N, 196)}),
    "new axis": ("expand_dims", ((N, 4),), {"axes": (1,)}),
    "fewer axes": ("squeeze", ((N, 1),), {"axes": (1,)}),
    "transposed columns": ("transpose", ((N, 4, 7),), {"axes": (0, 2, 1)}),
    "joined columns": ("concatenate", ((N, 4), (N, 5)), {"axis": 1}),
    "sliced columns": ("strided_slice", ((N, 8),), {"begin": (2,), "end": (5,), "axes": (1,)}),
    "embedding": ("take", ((100, 8), ("int64", (N,))), {"axis": 0}),
    "columns": ("take", ((N, 8), np.array([1, 3])), {"axis": 1}),
    "boxes": ("vision.roi_align", ((1, 3, 9, 9), (N, 4), ("int64", (N,))), {"pooled_size": (2, 2)}),
    "totals along rows": ("cumsum", ((N, 5),), {"axis": 1}),
    "an expression as extent": ("exp", ((dim_min(N, 1000), 3),), {}),
}

NOT_BY_ROWS: dict[str, tuple[str, tuple[Any, ...], dict[str, Any]]] = {
    "static": ("exp", ((2, 3),), {}),
    "rows elsewhere": ("exp", ((2, N),), {}),
    "two unknown extents": ("exp", ((N, symbol("m")),), {}),
    "rows twice": ("exp", ((N, N),), {}),
    "sum of rows": ("sum", ((N, 3),), {"axes": (0,)}),
    "softmax of columns": ("nn.softmax", ((N, 3),), {"axis": 0}),
    "moved rows": ("transpose", ((3, N),), {"axes": (1, 0)}),
    "merged rows": ("reshape", ((N, 4, 7),), {"shape": (N * 4, 7)}),
    "split rows": ("reshape", ((N * 4, 7),), {"shape": (N, 28)}),
    "joined rows": ("concatenate", ((N, 4), (N, 4)), {"axis": 0}),
    "reversed rows": (
        "strided_slice",
        ((N, 8),),
        {"begin": (-1,), "end": (-(2**62),), "strides": (-1,), "axes": (0,)},
    ),
    "gathered rows": ("take", ((N, 8), ("int64", (N,))), {"axis": 0}),
    "a row of a table of rows": ("take", ((N, 8), ("int64", (5,))), {"axis": 0}),
    "totals across rows": ("cumsum", ((N, 5),), {"axis": 0}),
    "images as rows": (
        "vision.roi_align",
        ((N, 3, 9, 9), (N, 4), ("int64", (N,))),
        {"pooled_size": (2, 2)},
    ),
    "products by matrices as rows": ("nn.dense", ((N, 12), (N, 12)), {}),
    "triangle": ("trilu", ((N, 5),), {}),
    "no operand with rows": ("broadcast_to", ((3,),), {"shape": (N, 3)}),
}


@pytest.mark.parametrize("case", BY_ROWS)
def test_rows_are_independent(case: str) -> None:
    op, shapes, attrs = BY_ROWS[case]
    node = node_of(op, *shapes, **attrs)
    assert row_extent(node) == node.output.tensor.shape[0]


@pytest.mark.parametrize("case", NOT_BY_ROWS)
def test_rows_depend_on_each_other(case: str) -> None:
    op, shapes, attrs = NOT_BY_ROWS[case]
    assert row_extent(node_of(op, *shapes, **attrs)) is None


def head(extent: Any) -> Graph:
    g = Builder()
    x = g.input("x", tensor("float32", extent, 2, 3))
    flat = g("reshape", x, shape=(extent, 6))
    dense = g("nn.dense", flat, g.constant(np.arange(24, dtype=np.float32).reshape(4, 6)))
    return g.build(g("nn.softmax", g("nn.relu", dense), axis=-1))


@pytest.mark.parametrize("extent", [N, dim_min(N, 1000)])
def test_a_block_is_of_fixed_size(extent: Any) -> None:
    graph = head(extent)
    nodes = [node for node in graph.nodes if node.op.name != "constant"]
    assert [row_extent(node) for node in nodes] == [extent] * 4
    block, origin = block_of_rows(nodes, graph, Rows(extent, 8))
    assert all(value.tensor.is_static for value in verify(block).values)
    assert [origin[node] for node in block.nodes if node in origin] == nodes
    x = np.random.default_rng(0).standard_normal((8, 2, 3)).astype(np.float32)
    own = verify(own_rows(region_graph(nodes, graph), extent))
    assert own.input_symbols == {"rows"}
    np.testing.assert_array_equal(evaluate(block, [x])[0], evaluate(own, [x])[0])


def test_expected_calls() -> None:
    assert [Rows(N, block).calls for block in (1, 32, 100, 128)] == [100, 4, 1, 1]
    assert Rows(dim_min(N, 60), 32).calls == 2


def examples(op: str) -> Iterator[Graph]:
    """Random calls of an operator with a symbolic axis."""
    for number in range(12):
        draw = Draw(f"{op} {number}", number < 3, None)
        with contextlib.suppress(UnbuildableError):
            yield with_symbols(synthesize([is_op(op)], draw), draw)


@pytest.mark.parametrize("op", sorted(RECIPES))
def test_blocks_of_random_calls_compute_the_same(op: str) -> None:
    """Whatever counts as independent gives the same rows in blocks of two as at once."""
    for graph in examples(op):
        nodes = [node for node in graph.nodes if node.op.name != "constant"]
        extent = row_extent(nodes[-1]) if len(nodes) == 1 else None
        if extent is None:
            continue
        block = with_rows(graph, extent, 2)
        runner = BlockRunner(partial(run, block), blocks_of(graph, 2) or Blocks(2))
        for number, rows in enumerate((1, 5)):
            inputs = probe(graph, Kind.ORDINARY, {"n": rows}, number).inputs
            outputs = [np.empty(shape_at(v, {"n": rows}), v.dtype.numpy) for v in graph.outputs]
            with np.errstate(all="ignore"):
                try:
                    expected = evaluate(graph, inputs)
                except (GraftError, ValueError):
                    continue
                runner(inputs, outputs)
            for result, one in zip(outputs, expected, strict=True):
                np.testing.assert_allclose(
                    result.astype(np.float64), np.asarray(one).astype(np.float64), rtol=1e-3
                )


def run(graph: Graph, inputs: Sequence[Any], _outputs: Sequence[Any]) -> list[Any]:
    return [np.asarray(item) for item in evaluate(graph, inputs)]

"""The passes together: they are verified, reported and cost time in proportion to the graph."""

from __future__ import annotations

import logging

import numpy as np
import pytest
from tests.passes.checking import data_for, graph_of, operators, run_pass

from graft.base.dims import symbol
from graft.ir.builder import Builder
from graft.ir.graph import Graph, Value
from graft.ir.types import tensor
from graft.ir.verify import VerifyError
from graft.passes.eliminate_dead_code import eliminate_dead_code
from graft.passes.eliminate_noops import eliminate_noops
from graft.passes.pipeline import PASSES, PassReport, optimize, run_passes

X = tensor("float32", 2, 3)


def test_residual_block() -> None:
    def block(g: Builder, x: Value) -> Value:
        weight = np.random.default_rng(1).standard_normal((2, 2, 3, 3)).astype(np.float32)
        parameters = [g.constant(np.full(2, n, np.float32)) for n in (1.5, 0.5, 0.25, 2.0)]
        padded = g("nn.pad", x, pad_width=[0, 0, 1, 1, 0, 0, 1, 1])
        y = g("nn.batch_norm", g("nn.conv2d", padded, g.constant(weight)), *parameters)
        return g("clip", g("add", y, x), a_min=0)

    after = run_pass(optimize, graph_of(block, tensor("float32", 1, 2, 5, 3)), tolerance=1e-5)
    assert operators(after) == ["nn.conv2d", "nn.bias_add", "add", "nn.relu"]


def test_shape_arithmetic_melts_away() -> None:
    n = symbol("n")

    def build(g: Builder, x: Value) -> Value:
        shape = g("shape_of", x)
        rows = g("expand_dims", g("take", shape, g.constant(np.array(0))), axes=[0])
        wanted = g("concatenate", rows, g.constant(np.array([-1])))
        return g("reshape", x, wanted)

    graph = graph_of(build, tensor("float32", n, 2, 3))
    after = run_pass(optimize, graph, data_for(graph, {"n": 5}))
    assert operators(after) == ["reshape"]
    assert after.outputs[0].type == tensor("float32", n, 6)


def test_each_pass_is_reported(caplog: pytest.LogCaptureFixture) -> None:
    graph = graph_of(lambda g, x: g("negative", g("reshape", x, shape=[2, 3])), X)
    reports: list[tuple[PassReport, Graph]] = []
    with caplog.at_level(logging.INFO):
        optimize(graph, lambda report, after: reports.append((report, after)))
    assert [report.name for report, _ in reports] == [p.__name__ for p in PASSES]
    changed = [report for report, _ in reports if report.changed]
    assert [(r.name, r.nodes_before, r.nodes_after) for r in changed] == [("eliminate_noops", 2, 1)]
    assert caplog.messages == ["eliminate_noops: 2 -> 1 nodes"]


def test_a_graph_that_cannot_be_improved_is_the_same_object() -> None:
    graph = graph_of(lambda g, x: g("exp", x), X)
    assert optimize(graph) is graph


def test_what_a_pass_gives_is_verified() -> None:
    graph = graph_of(lambda g, x: g("abs", g("exp", x)), X)

    def broken(given: Graph) -> Graph:
        return Graph(given.name, given.inputs, given.nodes[1:], given.outputs)

    with pytest.raises(VerifyError, match="abs reads %exp before it is defined"):
        run_passes(graph, [broken])


def test_passes_run_in_the_order_given() -> None:
    graph = graph_of(lambda g, x: g("negative", g("reshape", x, shape=[2, 3])), X)
    names: list[str] = []
    run_passes(
        graph,
        [eliminate_noops, eliminate_dead_code],
        lambda report, _: names.append(report.name),
    )
    assert names == ["eliminate_noops", "eliminate_dead_code"]

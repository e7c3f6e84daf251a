"""Names of values differ throughout a graph, and nothing else changes."""

from __future__ import annotations

import numpy as np
from tests.byoc.body_models import BRANCH, LOOP, NESTED, model

from graft.ir.evaluate import evaluate
from graft.ir.graph import Graph
from graft.ir.verify import verify
from graft.passes.name_apart import name_apart
from graft.stages import import_graph, optimize


def values_of(graph: Graph) -> list[object]:
    own = list(graph.values)
    for node in graph.nodes:
        for _, nested in node.graphs():
            own += values_of(nested)  # type: ignore[arg-type]
    return own


def test_names_and_values_differ() -> None:
    text = BRANCH.replace("u = Exp (x)", "t = Exp (x)").replace("Softmax (u)", "Softmax (t)")
    before = optimize(import_graph(model(text))).graph
    after = verify(name_apart(before))
    names = [value.name for value in values_of(after)]  # type: ignore[attr-defined]
    assert len(set(names)) == len(names) == len(set(map(id, values_of(after))))
    x = np.linspace(-1, 1, 16, dtype=np.float32).reshape(2, 8)
    for data in (x, x + 1e6):
        np.testing.assert_array_equal(*(evaluate(one, [data])[0] for one in (before, after)))


def test_a_graph_that_occurs_twice_becomes_two() -> None:
    graph = optimize(import_graph(model(BRANCH))).graph
    (branch,) = (node for node in graph.nodes if node.op.name == "if")
    attrs = type(branch.attrs)(branch.attrs.then_branch, branch.attrs.then_branch)
    twice = Graph(
        graph.name,
        graph.inputs,
        tuple(
            type(node)(node.op, node.inputs, attrs, node.outputs) if node is branch else node
            for node in graph.nodes
        ),
        graph.outputs,
    )
    after = verify(name_apart(twice))
    assert len(set(map(id, values_of(after)))) == len(values_of(after))


def test_what_differs_is_left_alone() -> None:
    once = name_apart(optimize(import_graph(model(NESTED))).graph)
    assert name_apart(once) is once
    plain = optimize(import_graph(model(LOOP))).graph
    assert [v.name for v in plain.values] == [v.name for v in name_apart(plain).values]

"""Bodies as scopes: which there are, and how often they are executed in an inference."""

from __future__ import annotations

import numpy as np
import pytest
from tests.byoc.body_models import (
    ASKED,
    BRANCH,
    CHOSEN,
    DATA,
    LOOP,
    NESTED,
    NO_TRIPS,
    SCAN,
    SYMBOLIC,
    model,
)

from graft.backends.host.backend import HostBackend
from graft.byoc.probe import samples
from graft.byoc.scopes import SELDOM, Scope, Timings, all_nodes, nodes_in_order, scopes_of
from graft.ir.graph import Graph
from graft.passes.name_apart import name_apart
from graft.stages import import_graph, optimize


def graph_of(text: str) -> Graph:
    return name_apart(optimize(import_graph(model(text))).graph)


def timings_of(graph: Graph) -> Timings:
    return HostBackend().time_groups(graph, samples(graph))


def counts(text: str, timed: bool = False) -> list[tuple[str, float, str]]:
    graph = graph_of(text)
    scopes = scopes_of(graph, timings_of(graph) if timed else None)
    bodies = [scope for scope in scopes if scope.parent is not None]
    return [
        (one.name.rsplit("/", 1)[-1], one.executions.count, one.executions.source.value)
        for one in bodies
    ]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (LOOP, [("body", 4, "known")]),
        (NO_TRIPS, [("body", 0, "known")]),
        (SCAN.replace("float[n, ", "float[7, "), [("body", 7, "known")]),
        (SYMBOLIC, [("body", 3, "known")]),
        (SCAN, [("body", 100, "assumed")]),  # as a symbol counts everywhere
        (ASKED, [("body", 100, "assumed")]),
        (DATA, [("body", 50, "assumed")]),  # not more than its limit
        (BRANCH, [("then_branch", 0.5, "assumed"), ("else_branch", 0.5, "assumed")]),
        (
            NESTED,
            [
                ("body", 2, "known"),
                ("body", 6, "known"),
                ("then_branch", 3, "assumed"),
                ("else_branch", 3, "assumed"),
            ],
        ),
    ],
)
def test_without_a_run(text: str, expected: list[tuple[str, float, str]]) -> None:
    assert counts(text) == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (LOOP, [("body", 4, "known")]),
        (DATA, [("body", 3, "measured")]),
        (BRANCH, [("then_branch", 1, "measured"), ("else_branch", SELDOM, "measured")]),
        (
            NESTED,
            [
                ("body", 2, "known"),
                ("body", 6, "known"),
                ("then_branch", 6, "measured"),
                ("else_branch", 6 * SELDOM, "measured"),
            ],
        ),
        # what an input decides was decided by the draw
        (ASKED, [("body", 100, "assumed")]),
        (CHOSEN, [("then_branch", 0.5, "assumed"), ("else_branch", 0.5, "assumed")]),
    ],
)
def test_counted_in_a_run(text: str, expected: list[tuple[str, float, str]]) -> None:
    assert counts(text, timed=True) == expected


def test_a_branch_without_kernels_runs_when_the_other_does_not() -> None:
    text = BRANCH.replace("u = Exp (x)\n            b = Softmax (u)", "b = Identity (x)")
    assert counts(text, timed=True) == [
        ("then_branch", 1, "measured"),
        ("else_branch", SELDOM, "measured"),
    ]


def test_kernels_are_timed_per_execution() -> None:
    graph = graph_of(LOOP)
    timings = timings_of(graph)
    (body,) = (scope for scope in scopes_of(graph) if scope.parent is not None)
    made = {value.name for node in body.graph.nodes for value in node.outputs}
    assert {cost.executions for name, cost in timings.items() if name in made} == {4.0}


def test_nodes_come_after_what_they_wait_for() -> None:
    graph = graph_of(NESTED)
    scopes = tuple(scopes_of(graph))
    order = [node for node, _ in nodes_in_order(scopes)]
    assert order == list(all_nodes(graph))
    for scope in scopes:
        if scope.owner is not None:
            own = [order.index(n) for n in scope.graph.nodes if n in order]
            assert max(own, default=-1) < order.index(scope.owner)
    assert [node.op.name for node in order][-1] == "loop"


def test_names_lead_to_bodies() -> None:
    def chain(scope: Scope) -> list[str]:
        return [str(one) for one in scope.chain]

    *_, last = scopes_of(graph_of(NESTED))
    assert chain(last)[-1] == "net"
    assert len(chain(last)) == 4
    assert last.name.endswith("/else_branch")


def test_weights_are_constants_of_bodies() -> None:
    """What a body reads of the graph around it and is constant is a constant of its regions."""
    _, body = scopes_of(graph_of(SCAN))
    sizes = sorted(int(np.prod(literal.array.shape)) for literal in body.graph.constants.values())
    assert sizes == [8, 32, 64]

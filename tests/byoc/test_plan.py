"""Plans as text: saved, read, edited, replayed, refused."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from tests.byoc.fakes import Fake, chain, conv_relu, flat

from graft.base.errors import Location, ParseError, UserError
from graft.byoc.partition import PartitionOptions, partition
from graft.byoc.plan import (
    Plan,
    PlannedRegion,
    model_hash,
    node_names,
    parse_plan,
    plan_from,
    regions_of,
)
from graft.byoc.price import Pricing
from graft.ir.graph import Graph
from graft.module import Placement
from graft.rewrite.pattern import is_op

VERSIONS = {"fake": "1.2 beta"}


def planned(graph: Graph) -> Plan:
    names = [node for node in graph.nodes if node.op.name in ("exp", "tanh")]
    return replace(
        plan_from(graph, VERSIONS, [("fake", names, 0.25, "measured")]),
        predicted=0.5,
        bound=0.25,
        method="exact",
        alternatives={"host-only": 1.0, "greedy+prune": 0.75},
        measured={"exact": 0.625},
    )


GRAPH = chain("exp", "tanh", "nn.relu")


def test_round_trip() -> None:
    plan = planned(GRAPH)
    again = parse_plan(plan.to_text())
    assert again == plan
    assert again.to_text() == plan.to_text()
    assert again.gap == 0.5


def test_placements_tell_the_bound_of_plans_that_are_not_proven() -> None:
    """As those that the time limit ended."""
    plan = planned(GRAPH)
    placement = Placement({"host": 1, "fake": 2}, plan=plan)
    least = "within 50.00% of the best: no plan takes less than 250 ms"
    assert least in str(placement)
    assert json.loads(placement.to_json())["bound_seconds"] == 0.25
    for other in (replace(plan, bound=0.5), replace(plan, method="greedy", bound=0.0)):
        assert "the best" not in str(replace(placement, plan=other))
    assert not plan.proven
    assert replace(plan, bound=0.5).proven


def test_the_text() -> None:
    assert planned(GRAPH).to_text() == (
        "graft plan 1\n"
        f"model {model_hash(GRAPH)}\n"
        "backend fake '1.2 beta'\n"
        "predicted 0.5 bound 0.25 method exact\n"
        "alternative host-only 1\n"
        "alternative greedy+prune 0.75\n"
        "measured exact 0.625\n"
        "region fake 0.25 measured\n"
        "  %exp\n"
        "  %tanh\n"
        "rest host\n"
    )


def test_a_plan_of_the_optimiser_comes_back() -> None:
    backend = Fake(patterns=[("relu", is_op("nn.relu"))], price=flat(0.0))
    host = Fake("host")
    found = partition(conv_relu(), [backend], Pricing(host, {}), PartitionOptions())
    assert parse_plan(found.plan.to_text()).regions == found.plan.regions


def test_replay() -> None:
    ((backend, nodes),) = regions_of(parse_plan(planned(GRAPH).to_text()), GRAPH, VERSIONS)
    assert backend == "fake"
    assert [node.op.name for node in nodes] == ["exp", "tanh"]


def test_edited() -> None:
    """A node to another backend, and one back to the host: whatever no region names is its."""
    text = planned(GRAPH).to_text().replace("  %tanh\n", "region other 0 -\n  %relu\n")
    found = regions_of(parse_plan(text), GRAPH, VERSIONS)
    assert [(name, [node.op.name for node in nodes]) for name, nodes in found] == [
        ("fake", ["exp"]),
        ("other", ["nn.relu"]),
    ]


def test_a_region_without_nodes_is_none() -> None:
    text = planned(GRAPH).to_text().replace("  %exp\n", "").replace("  %tanh\n", "")
    assert regions_of(parse_plan(text), GRAPH, VERSIONS) == []


def test_nodes_are_run_in_the_graphs_order() -> None:
    plan = Plan(model_hash(GRAPH), {}, (PlannedRegion("fake", ("%tanh", "%exp")),))
    ((_, nodes),) = regions_of(plan, GRAPH, {})
    assert [node.op.name for node in nodes] == ["exp", "tanh"]


REFUSED = {
    "another model": ({"model": "0" * 32}, "made for another model"),
    "another version": ({"backends": {"fake": "1.1"}}, r"for version 1\.1 of 'fake'"),
    "two regions": (
        {"regions": (PlannedRegion("fake", ("%exp",)), PlannedRegion("host", ("%exp",)))},
        "has 'exp' in two regions",
    ),
    "unknown node": ({"regions": (PlannedRegion("fake", ("%sin",)),)}, "names '%sin'"),
}


@pytest.mark.parametrize("kind", REFUSED)
def test_refused(kind: str) -> None:
    changes, message = REFUSED[kind]
    plan = replace(planned(GRAPH), **changes)  # type: ignore[arg-type]
    with pytest.raises(UserError, match=message):
        regions_of(plan, GRAPH, VERSIONS)


def test_a_backend_that_is_not_here_is_not_this_ones_business() -> None:
    assert len(regions_of(planned(GRAPH), GRAPH, {})) == 1


DAMAGED = {
    "empty": "",
    "something else": "hello\n",
    "later version": "graft plan 2\nmodel x\n",
    "nodes before regions": "graft plan 1\n  conv1\n",
    "no number": "graft plan 1\nregion fake soon measured\n",
    "unknown line": "graft plan 1\nprefer fake\n",
    "open quote": "graft plan 1\nmodel 'x\n",
    "no version": "graft plan 1\nbackend fake\n",
}


@pytest.mark.parametrize("kind", DAMAGED)
def test_damaged(kind: str) -> None:
    with pytest.raises(ParseError, match=r"this is no plan|line 2 of the plan cannot be read"):
        parse_plan(DAMAGED[kind])


def test_nodes_go_by_their_onnx_names_where_these_are_unique() -> None:
    exp, tanh, relu = GRAPH.nodes
    places = (Location(node="act one"), Location(node="twice"), Location(node="twice"))
    nodes = [
        replace(node, location=location)
        for node, location in zip((exp, tanh, relu), places, strict=True)
    ]
    graph = replace(GRAPH, nodes=tuple(nodes))
    assert list(node_names(graph).values()) == ["act one", "%tanh", "%relu"]
    plan = plan_from(graph, VERSIONS, [("fake", nodes, 0.0, "")])
    assert parse_plan(plan.to_text()).regions == plan.regions


def test_models_differ_by_structure_not_by_weights() -> None:
    assert model_hash(chain("exp")) == model_hash(chain("exp"))
    assert model_hash(chain("exp")) != model_hash(chain("tanh"))

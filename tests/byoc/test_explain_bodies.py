"""What explains a placement knows of bodies: nodes, counts, and how they hang together."""

from __future__ import annotations

import json

import pytest
from tests.byoc.body_models import LOOP, NESTED, model

from graft.byoc.explain import Explanation, explain
from graft.byoc.explain_html import edges_of, to_html
from graft.byoc.explain_words import executions_text
from graft.byoc.problem import bill
from graft.compiler import compile_options
from graft.stages import import_graph, optimize, partition_graph, place


def explained(text: str, *pins: str) -> Explanation:
    options = compile_options(["simnpu", "host"], pins=pins)
    placed = place(optimize(import_graph(model(text))), options)
    return explain(placed.partition or partition_graph(placed.graph, options))


CONV = """net (float[1, 16, 8, 8] x) => (float[1, 16, 8, 8] y)
    <int64 trip = {5}, bool go = {1}, float[16, 16, 1, 1] w = {W}> {
    v0 = Relu (x)
    y = Loop (trip, go, v0) <body = one (int64 i, bool c, float[1, 16, 8, 8] s)
        => (bool c2, float[1, 16, 8, 8] s2) {
        c2 = Identity (c)
        v = Conv (s, w)
        s2 = Relu (v)
    }>
}""".replace("{W}", "{" + ", ".join(str(i % 3 * 0.01) for i in range(256)) + "}")


def test_times_and_macs_are_for_all_executions() -> None:
    found = explained(CONV, "v=simnpu", "s2=simnpu", "v0=simnpu")
    conv, relu = (next(n for n in found.nodes if name in n.outputs) for name in ("v", "s2"))
    assert (conv.body, conv.executions) == ("Loop_1/body", 5)
    assert conv.macs == 5 * 16 * 16 * 64
    assert found.macs == conv.macs
    inside = next(region for region in found.regions if region.body)
    outside = next(region for region in found.regions if not region.body)
    assert conv.region == relu.region == inside.label
    assert inside.launch == pytest.approx(5 * outside.launch)
    assert sum(backend.seconds for backend in found.backends) == pytest.approx(found.predicted)
    assert [backend.name for backend in found.backends] == ["simnpu", "host"]
    assert found.backends[0].regions == 2


def test_hints_are_about_all_launches_of_a_backend() -> None:
    found = explained(CONV)
    assert all(hint.backend == "simnpu" for hint in found.hints)
    assert len({(hint.backend, hint.quantity) for hint in found.hints}) == len(found.hints)


def test_bodies_with_their_counts() -> None:
    found = explained(NESTED)
    assert [executions_text(body) for body in found.bodies] == [
        "2 times (known)",
        "6 times (known)",
        "6 times (measured)",
        "0.06 times (measured)",
    ]
    assert sum(body.nodes for body in found.bodies) == sum(bool(node.body) for node in found.nodes)
    facts = json.loads(found.to_json())
    assert [body["source"] for body in facts["bodies"]] == ["known"] * 2 + ["measured"] * 2


def test_edges_lead_into_bodies_and_out() -> None:
    found = explained(LOOP)
    by_op = {node.op: number for number, node in enumerate(found.nodes)}
    assert set(edges_of(found)) == {
        (by_op["exp"], by_op["tanh"]),
        (by_op["tanh"], by_op["negative"]),
        (by_op["tanh"], by_op["loop"]),
        (by_op["negative"], by_op["loop"]),
    }
    nested = explained(NESTED)
    assert all(before < after for before, after in edges_of(nested))


def test_the_page_has_them() -> None:
    page = to_html(explained(NESTED))
    assert "6 times (measured)" in page
    assert '"body":' in page


def test_a_plan_without_bodies_says_nothing_of_them() -> None:
    found = explained("net (float[2, 8] x) => (float[2, 8] y) { y = Exp (x) }")
    assert found.bodies == ()
    assert [(node.body, node.executions) for node in found.nodes] == [("", 1.0)]


def test_bills_add_up() -> None:
    options = compile_options(["simnpu", "host"], pins=["v=simnpu"])
    placed = place(optimize(import_graph(model(CONV))), options)
    assert placed.partition is not None
    problem, choice = placed.partition.placement.problem, placed.partition.choice
    total = bill(problem, choice.options, choice.stages).total
    assert total == pytest.approx(placed.partition.plan.predicted)

"""Who could run what, and why not."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from tests.byoc.fakes import Fake, chain, conv_relu, named, offered, reasons

from graft.byoc.annotate import Pins, register_op_attr, unregister
from graft.byoc.candidates import find_candidates, placeable
from graft.byoc.contract import Match
from graft.byoc.units import units_of
from graft.ir.builder import Builder
from graft.ir.graph import Graph, Value
from graft.ir.types import tensor
from graft.passes.duplicate_dequantize import duplicate_dequantize
from graft.rewrite.pattern import Pattern, is_op, is_tuple_get_item, op, wildcard
from graft.rewrite.rule import Refusal

FULL = ["nn.conv2d", "nn.bias_add", "nn.relu"]


@pytest.fixture(autouse=True)
def forget() -> Iterator[None]:
    yield
    unregister("fake")


def fused() -> Pattern:
    conv = is_op("nn.conv2d")(wildcard(), wildcard())
    biased = conv.optional(lambda x: is_op("nn.bias_add")(x, wildcard()))
    return biased.optional(lambda x: is_op("nn.relu")(x))


def test_every_match_of_every_backend_is_kept() -> None:
    first = Fake("first", [("fused", fused), ("relu", is_op("nn.relu"))])
    second = Fake("second", [("conv", is_op("nn.conv2d"))])
    found = find_candidates(conv_relu(), [first, second])
    assert offered(found, "first") == [FULL[:1], FULL[:2], FULL, ["nn.relu"]]
    assert offered(found, "second") == [["nn.conv2d"]]
    relu = found.nodes[-1]
    assert {c.backend for c in found.of_node[relu]} == {"first", "host"}


def test_what_a_backend_says_of_a_match_comes_before_what_does_not_match() -> None:
    """Also for the nodes inside of the match, at which no pattern ends."""
    relu = is_op("nn.relu")
    gated = relu(is_op("sigmoid")(wildcard()))
    layer = relu(is_op("nn.bias_add")(is_op("nn.conv2d")(wildcard(), wildcard()), wildcard()))
    backend = Fake(
        patterns=[("gated", gated), ("layer", layer)], supports=lambda _: Refusal("three groups")
    )
    found = find_candidates(conv_relu(), [backend])
    conv, _, last = found.nodes
    assert reasons(found, last) == ["three groups", "%bias_add: is nn.bias_add, not sigmoid"]
    assert reasons(found, conv) == ["three groups", "no pattern of fake ends in nn.conv2d"]


def two_layers_added() -> Graph:
    g = Builder()
    x = g.input("x", tensor("float32", 1, 3, 9, 7))
    weight = g.constant(np.ones((4, 3, 3, 3), np.float32))
    other = g.constant(np.full((4, 3, 3, 3), 2, np.float32))
    return g.build(g("add", g("nn.conv2d", x, weight), g("nn.conv2d", x, other)))


def test_both_operands_of_a_commutative_operator_are_tried() -> None:
    graph = two_layers_added()
    pattern = op.add(op.nn.conv2d(wildcard(), wildcard()), wildcard())
    found = find_candidates(graph, [Fake(patterns=[("conv_add", pattern)])])
    first, second, add = found.nodes
    own = [candidate.nodes for candidate in found.candidates if candidate.backend == "fake"]
    assert own == [(first, add), (second, add)]
    assert found.limits_hit == ()


def test_optional_parts_are_there_or_not() -> None:
    """The parts above a match that it may hold or leave out, in all combinations."""
    g = Builder()
    x, y = (g.input(name, tensor("float32", 2, 3)) for name in "xy")
    graph = g.build(g("subtract", g("exp", x), g("tanh", y)))
    left, right = wildcard(), wildcard()
    pattern = op.subtract(op.exp(left) | left, right | op.tanh(right))
    found = find_candidates(graph, [Fake(patterns=[("p", pattern)])])
    assert sorted(offered(found, "fake"), key=len) == [
        ["subtract"],
        ["exp", "subtract"],
        ["tanh", "subtract"],
        ["exp", "tanh", "subtract"],
    ]


def test_what_lies_on_the_way_to_a_dominator_has_alternatives_too() -> None:
    g = Builder()
    x, y = (g.input(name, tensor("float32", 2, 3)) for name in "xy")
    between = g("multiply", g("exp", x), g("tanh", y))
    graph = g.build(g("nn.relu", between))
    path = op.multiply(wildcard(), op.tanh(wildcard()) | wildcard())
    pattern = is_op("nn.relu").dominates(op.exp(wildcard()), path)
    found = find_candidates(graph, [Fake(patterns=[("p", pattern)])])
    full = ["exp", "tanh", "multiply", "nn.relu"]
    assert offered(found, "fake") == [full, ["exp", "multiply", "nn.relu"]]


def test_a_limit_that_is_hit_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("graft.byoc.candidates.MOST_MATCHES", 1)
    pattern = op.add(op.nn.conv2d(wildcard(), wildcard()), wildcard())
    found = find_candidates(two_layers_added(), [Fake(patterns=[("conv_add", pattern)])])
    assert offered(found, "fake") == [["nn.conv2d", "add"]]
    assert found.limits_hit == ("'conv_add' of fake matches at %add in more than 1 ways",)


def test_what_two_accelerators_leave_of_a_group_is_one_part() -> None:
    graph = chain("exp", "tanh", "negative", "nn.relu")
    one, two = Fake("one", [("p", is_op("exp"))]), Fake("two", [("p", is_op("nn.relu"))])
    found = find_candidates(graph, [one, two])
    assert ["tanh", "negative"] in offered(found, "host")


def test_constants_are_nobodys() -> None:
    graph = conv_relu()
    assert [node.op.name for node in placeable(graph)] == FULL
    found = find_candidates(graph, [Fake(patterns=[("all", op.nn.conv2d(wildcard(), wildcard()))])])
    assert all(n.op.name != "constant" for c in found.candidates for n in c.nodes)


def test_the_same_nodes_by_two_patterns_are_one_candidate() -> None:
    backend = Fake(patterns=[("one", is_op("nn.relu")), ("two", is_op("nn.relu")(wildcard()))])
    found = find_candidates(chain("nn.relu"), [backend])
    assert [c.pattern for c in found.candidates if c.backend == "fake"] == ["one"]


def read_too(g: Builder, biased: Value, relu: Value) -> tuple[Value, ...]:
    return relu, g("exp", biased)


def returned_too(g: Builder, biased: Value, relu: Value) -> tuple[Value, ...]:
    return relu, biased


@pytest.mark.parametrize(
    ("extra", "who"), [(read_too, "%exp reads it, too"), (returned_too, "it is an output, too")]
)
def test_what_escapes_ends_a_match(extra: Any, who: str) -> None:
    graph = conv_relu(extra)
    backend = Fake(patterns=[("conv_relu", op.nn.relu(fused()))])
    found = find_candidates(graph, [backend])
    assert offered(found, "fake") == []
    (reason,) = reasons(found, named(graph, "relu"))
    assert reason == f"%bias_add inside the match is wanted outside: {who}"


def test_where_the_large_match_escapes_the_next_alternative_is_tried() -> None:
    g = Builder()
    x = g.input("x", tensor("float32", 2, 3))
    e = g("exp", x)
    graph = g.build(g("nn.relu", g("negative", e)), e)
    pattern = op.nn.relu(op.negative(op.exp(wildcard()) | wildcard()))
    found = find_candidates(graph, [Fake(patterns=[("p", pattern)])])
    assert offered(found, "fake") == [["negative", "nn.relu"]]


def test_what_would_wait_for_itself_is_no_candidate() -> None:
    """exp and add would be one piece, but what is between them is not in it."""
    g = Builder()
    x = g.input("x", tensor("float32", 2, 3))
    first = g("exp", x)
    graph = g.build(g("add", first, g("tanh", first)))
    pattern = op.add(op.exp(wildcard()), wildcard())
    found = find_candidates(graph, [Fake(patterns=[("p", pattern)])])
    assert offered(found, "fake") == []
    (reason,) = reasons(found, named(graph, "add"))
    assert reason == "%exp inside the match is wanted outside: %tanh reads it, too"


def test_one_of_several_results() -> None:
    g = Builder()
    x = g.input("x", tensor("float32", 2, 4))
    values, places = g.call("topk", x, k=2)
    graph = g.build(values, places)
    found = find_candidates(graph, [Fake(patterns=[("p", is_tuple_get_item(is_op("topk"), 1))])])
    assert offered(found, "fake") == [["topk"]]


def test_supports_sees_the_match() -> None:
    seen: list[Match] = []

    def supports(match: Match) -> Refusal | None:
        seen.append(match)
        return Refusal("not on a Sunday")

    graph = conv_relu()
    pattern = ("p", lambda data, weight: op.nn.conv2d(data, weight))
    found = find_candidates(graph, [Fake(patterns=[pattern], supports=supports)])
    assert reasons(found, named(graph, "conv2d")) == ["not on a Sunday"]
    (match,) = seen
    assert match.pattern == "p"
    assert [value.name for value in match.inputs] == ["x"]
    assert [value.name for value in match.outputs] == ["conv2d"]
    assert match.bound["data"].name == "x"
    ((weight, array),) = match.constants.items()
    assert weight is match.bound["weight"]
    assert array.shape == (4, 3, 3, 3)
    assert match.root is match.only("nn.conv2d")


def test_predicates_alone_offer_nodes() -> None:
    register_op_attr("nn.relu", "codegen.fake")(lambda node: True)
    register_op_attr("nn.conv2d", "codegen.fake")(lambda node: False)
    graph = conv_relu()
    found = find_candidates(graph, [Fake()])
    assert offered(found, "fake") == [["nn.relu"]]
    reason = "the predicate of fake for nn.conv2d says no"
    assert reasons(found, named(graph, "conv2d")) == [reason]
    expected = "no pattern of fake ends in nn.bias_add"
    assert reasons(found, named(graph, "bias_add")) == [expected]


def test_a_predicate_speaks_for_nodes_inside_of_patterns_too() -> None:
    register_op_attr("nn.conv2d", "codegen.fake")(lambda node: Refusal("odd sizes"))
    graph = conv_relu()
    found = find_candidates(graph, [Fake(patterns=[("p", op.nn.relu(fused()))])])
    assert offered(found, "fake") == []
    assert reasons(found, named(graph, "relu")) == ["odd sizes"]


def test_a_check_in_the_table() -> None:
    graph = chain("exp")
    table = [("p", is_op("exp"), lambda match: False)]
    found = find_candidates(graph, [Fake(patterns=table)])  # type: ignore[arg-type]
    assert reasons(found, graph.nodes[0]) == ["the check of 'p' for fake says no"]


def test_mismatches_say_where() -> None:
    graph = chain("exp", "nn.relu")
    found = find_candidates(graph, [Fake(patterns=[("p", op.nn.relu(op.log(wildcard())))])])
    assert reasons(found, graph.nodes[1]) == ["%exp: is exp, not log"]


def test_pins_keep_nodes_off_and_on() -> None:
    graph = conv_relu()
    backend = Fake(patterns=[("fused", fused)])
    off = find_candidates(graph, [backend], Pins.parse(["relu=host"]))
    assert offered(off, "fake") == [FULL[:1], FULL[:2]]
    assert "the pin 'relu=host' keeps it off fake" in reasons(off, named(graph, "relu"))
    on = find_candidates(graph, [backend], Pins.parse(["relu=fake"]))
    assert all("nn.relu" not in ops for ops in offered(on, "host"))


def test_the_host_offers_groups_parts_and_single_nodes() -> None:
    found = find_candidates(conv_relu(), [Fake(patterns=[("conv", is_op("nn.conv2d"))])])
    host = offered(found, "host")
    assert FULL in host
    assert FULL[1:] in host  # what the convolution leaves over
    assert all([name] in host for name in FULL)


# Quantised units


def quantized(
    g: Builder, x: Value, middle: tuple[str, ...] = ("nn.relu",), end: bool = True
) -> Value:
    scale, zero = g.constant(np.float32(0.5)), g.constant(np.int8(0))
    value = g("qnn.dequantize", x, scale, zero)
    for name in middle:
        value = g(name, value)
    return g("qnn.quantize", value, scale, zero, dtype="int8") if end else value


def quantized_graph(*middle: str, end: bool = True) -> Graph:
    g = Builder()
    return g.build(quantized(g, g.input("x", tensor("int8", 1, 3, 8, 8)), middle, end))


def test_units_stay_whole() -> None:
    graph = quantized_graph("nn.relu")
    data = op.qnn.dequantize(wildcard(), wildcard(), wildcard())
    whole = op.qnn.quantize(op.nn.relu(data), wildcard(), wildcard())
    table = [("whole", whole), *((n.op.name, is_op(n.op.name)) for n in placeable(graph))]
    found = find_candidates(graph, [Fake(patterns=table)])
    assert offered(found, "fake") == [["qnn.dequantize", "nn.relu", "qnn.quantize"]]
    (reason,) = reasons(found, named(graph, "relu"))
    assert reason == "%relu would be torn from its qnn.dequantize %dequantize"
    for name in ("dequantize", "quantize"):
        assert any("would be torn" in text for text in reasons(found, named(graph, name)))


def test_predicates_do_not_tear_units_either() -> None:
    register_op_attr("nn.relu", "codegen.fake")(lambda node: True)
    assert offered(find_candidates(quantized_graph("nn.relu"), [Fake()]), "fake") == []


def members(graph: Graph) -> set[frozenset[str]]:
    return {frozenset(node.op.name for node in unit) for unit in units_of(graph).values()}


def test_elementwise_work_on_the_way_belongs_to_the_unit() -> None:
    graph = quantized_graph("exp", "nn.relu")
    assert members(graph) == {frozenset(["qnn.dequantize", "exp", "nn.relu", "qnn.quantize"])}


def test_units_without_an_end() -> None:
    assert members(quantized_graph("nn.relu", end=False)) == {
        frozenset(["qnn.dequantize", "nn.relu"])
    }


def test_floats_are_in_no_unit() -> None:
    assert units_of(conv_relu()) == {}


def test_a_shared_dequantisation_is_doubled_so_that_units_are_whole() -> None:
    g = Builder()
    x = g.input("x", tensor("int8", 2, 3))
    scale, zero = g.constant(np.float32(0.5)), g.constant(np.int8(0))
    real = g("qnn.dequantize", x, scale, zero)
    graph = g.build(g("exp", real), g("nn.relu", real))
    data = op.qnn.dequantize(wildcard(), wildcard(), wildcard())
    table = [("exp", op.exp(data)), ("relu", op.nn.relu(data))]
    assert offered(find_candidates(graph, [Fake(patterns=table)]), "fake") == []
    found = find_candidates(duplicate_dequantize(graph), [Fake(patterns=table)])
    assert offered(found, "fake") == [["qnn.dequantize", "exp"], ["qnn.dequantize", "nn.relu"]]

"""Regions out of the graph, and back together with what runs them."""

from __future__ import annotations

import warnings

import numpy as np
import pytest
from tests.byoc.fakes import IMAGE, Fake, chain, conv_relu, named

from graft.base.errors import UserError
from graft.byoc.offload import offload
from graft.byoc.outline import outline
from graft.byoc.region import borders, region_graph, region_hash
from graft.ir.builder import Builder
from graft.ir.evaluate import evaluate
from graft.ir.graph import Graph, Node
from graft.ir.parser import from_text
from graft.ir.printer import to_text
from graft.ir.types import tensor
from graft.ir.verify import verify
from graft.runtime.regions import Policy, RegionWarning, incidents_of


def diamond() -> Graph:
    g = Builder()
    x = g.input("x", tensor("float32", 2, 3))
    top = g("exp", x)
    return g.build(g("add", g("tanh", top), g("nn.relu", top)))


def data(graph: Graph) -> list[np.ndarray]:
    draw = np.random.default_rng(0)
    return [draw.standard_normal(v.tensor.shape).astype(np.float32) for v in graph.inputs]


def same_meaning(before: Graph, after: Graph) -> None:
    inputs = data(before)
    for ours, theirs in zip(evaluate(after, inputs), evaluate(before, inputs), strict=True):
        np.testing.assert_array_equal(np.asarray(ours), np.asarray(theirs))


def test_borders() -> None:
    graph = conv_relu()
    conv, bias = named(graph, "conv2d"), named(graph, "bias_add")
    inputs, outputs = borders((conv, bias), graph)
    assert [value.name for value in inputs] == ["x"]
    assert [value.name for value in outputs] == ["bias_add"]


def test_a_result_that_is_read_inside_and_returned_goes_out() -> None:
    graph = conv_relu(lambda g, biased, relu: (relu, biased))
    nodes = [node for node in graph.nodes if node.op.name != "constant"]
    _, outputs = borders(nodes, graph)
    assert {value.name for value in outputs} == {"bias_add", "relu"}


def test_a_region_is_a_graph_of_its_own() -> None:
    graph = conv_relu()
    region = verify(region_graph([named(graph, "conv2d"), named(graph, "bias_add")], graph))
    assert [node.op.name for node in region.nodes].count("constant") == 2
    assert region.inputs[0] is not graph.inputs[0]  # an input of its own, with the name kept
    assert region.inputs[0].name == "x"


def test_hashes_know_meaning_not_names() -> None:
    graph = chain("exp", "tanh", "exp", "tanh", "nn.relu")
    first = region_graph(graph.nodes[0:2], graph)
    again = region_graph(graph.nodes[2:4], graph)
    other = region_graph(graph.nodes[3:5], graph)
    assert region_hash(first) == region_hash(again) != region_hash(other)


def test_hashes_know_constants_if_asked() -> None:
    def scaled(factor: float) -> Graph:
        g = Builder()
        x = g.input("x", IMAGE)
        return g.build(g("multiply", x, g.constant(np.full((3, 9, 7), factor, np.float32))))

    assert region_hash(scaled(2.0)) != region_hash(scaled(3.0))
    one, two = (region_hash(scaled(f), contents=False) for f in (2.0, 3.0))
    assert one == two


def test_outlined_means_the_same() -> None:
    graph = diamond()
    outlined = verify(outline(graph, [("fake", [graph.nodes[0], graph.nodes[2]])]))
    assert sorted(node.op.name for node in outlined.nodes) == ["add", "region", "tanh"]
    (region,) = [node for node in outlined.nodes if node.op.name == "region"]
    assert (region.attrs.backend, region.attrs.label) == ("fake", "fake_0")
    assert len(region.outputs) == 2
    same_meaning(graph, outlined)


def test_outlined_graphs_have_a_text() -> None:
    graph = conv_relu()
    outlined = outline(graph, [("fake", [named(graph, "conv2d"), named(graph, "bias_add")])])
    text = to_text(outlined)
    same_meaning(graph, from_text(text.text, text.constants))


def test_the_order_follows_the_regions() -> None:
    """Two independent chains, woven; the region of one has to come as a whole."""
    g = Builder()
    x = g.input("x", tensor("float32", 2, 3))
    a, b = g("exp", x), g("tanh", x)
    c, d = g("abs", a), g("negative", b)
    graph = g.build(g("add", c, d))
    outlined = verify(outline(graph, [("fake", [graph.producers[a], graph.producers[c]])]))
    same_meaning(graph, outlined)


def test_regions_that_wait_for_each_other() -> None:
    graph = diamond()
    exp, tanh, relu, add = graph.nodes
    with pytest.raises(UserError, match="the regions wait for each other"):
        outline(graph, [("fake", [exp, add]), ("other", [tanh, relu])])


class Wrong(Fake):
    """Compiles what it cannot."""

    def compile(self, region: Graph) -> bytes:
        if any(node.op.name == "tanh" for node in region.nodes):
            raise RuntimeError("tanh is too hard")
        return super().compile(region)


def planned(graph: Graph, *numbers: int) -> list[tuple[str, list[Node]]]:
    return [("fake", [graph.nodes[number]]) for number in numbers]


def test_linked() -> None:
    graph = chain("exp", "nn.relu", "exp", "tanh")
    backend = Fake()
    linked = offload(graph, planned(graph, 0, 2), {"fake": backend}, Fake("host"), Policy())
    assert [item.label for item in linked.compiled] == ["fake_0", "fake_1"]
    first, second = linked.compiled
    assert first.key == second.key  # equal regions share code
    assert first.runner is second.runner
    assert set(linked.regions) == {"fake_0", "fake_1"}
    assert linked.demotions == ()
    inputs = [np.ones((1, 3, 9, 7), np.float32)]
    outputs = [np.empty((1, 3, 9, 7), np.float32)]
    linked.regions["fake_0"](inputs, outputs)
    np.testing.assert_allclose(outputs[0], np.exp(inputs[0]), rtol=1e-6)
    assert incidents_of(linked.regions) == []


def test_what_fails_goes_back_and_the_rest_stays() -> None:
    graph = chain("exp", "tanh", "nn.relu")
    with pytest.warns(RegionWarning, match=r"fake_1 goes back to the host: .*tanh is too hard"):
        linked = offload(graph, planned(graph, 0, 1, 2), {"fake": Wrong()}, Fake("host"), Policy())
    (demotion,) = linked.demotions
    assert (demotion.backend, demotion.nodes) == ("fake", ("tanh",))
    assert [node.op.name for node in linked.graph.nodes] == ["region", "tanh", "region"]
    assert len(linked.compiled) == len(linked.regions) == 2
    same_meaning(graph, linked.graph)


def test_nothing_planned_is_the_graph_itself() -> None:
    graph = chain("exp")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        linked = offload(graph, [], {}, Fake("host"), Policy())
    assert linked.graph.nodes == graph.nodes
    assert linked.regions == {}

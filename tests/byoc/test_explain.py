from __future__ import annotations

import json
import math
from dataclasses import replace

import numpy as np
import pytest
from tests.byoc.explained import STRANGE, explained, partitioned
from tests.byoc.fakes import Fake

from graft.base.errors import UserError
from graft.base.names import printable
from graft.byoc.choose import choose
from graft.byoc.explain import explain
from graft.byoc.explain_flips import Flip, Hint
from graft.byoc.explain_html import to_html
from graft.byoc.explain_words import (
    by_parts_note,
    flip_price,
    flip_text,
    hint_text,
    obstacle_text,
    quality,
    summary,
    time_text,
)
from graft.byoc.partition import PartitionOptions, partition
from graft.byoc.price import Pricing
from graft.byoc.problem import Flow, Option, Problem, Site, accelerator_regions, transfers_by_stage
from graft.byoc.problem import bill as bill_of
from graft.byoc.trust import Demotion
from graft.cli.explain import named
from graft.ir.builder import Builder
from graft.ir.types import tensor
from graft.rewrite.pattern import is_op, wildcard


def test_the_parts_add_up_to_what_is_predicted() -> None:
    found = explained()
    assert sum(backend.seconds for backend in found.backends) == pytest.approx(found.predicted)
    partition = partitioned()
    choice = partition.choice
    bill = bill_of(partition.placement.problem, choice.options, choice.stages)
    assert sum(one.execution for one in found.backends) == pytest.approx(bill.execution)
    assert sum(one.transfers for one in found.regions) == pytest.approx(bill.transfers)
    assert sum(one.launch for one in found.regions) == pytest.approx(bill.launches)
    # the pin keeps the host from having it all to itself
    assert [total.scheme for total in found.totals] == ["exact", "greedy", "greedy+prune"]
    assert found.totals[0].predicted == found.predicted
    assert found.bound <= found.predicted
    assert 0 <= found.gap < 1e-6


def test_every_node_says_where_it_runs_and_why_not_elsewhere() -> None:
    found = explained()
    regions = {region.label: region for region in found.regions}
    assert regions
    for node in found.nodes:
        chosen = [option for option in node.alternatives if option.chosen]
        assert [option.backend for option in chosen] == [node.backend]
        assert (node.region == "") == (node.backend == "host")
        assert node.name in regions[node.region].nodes if node.region else True
        assert node.why
    (softmax,) = [node for node in found.nodes if node.op == "nn.softmax"]
    assert softmax.backend == "host"
    assert softmax.name == STRANGE
    assert softmax.refusals[0].reason == "no pattern of simnpu ends in nn.softmax"
    assert softmax.why.startswith("only the host can run it; simnpu: ")


def test_a_pinned_node_knows_the_pin_and_stays() -> None:
    conv = next(node for node in explained().nodes if node.op == "nn.conv2d")
    assert named(explained(), conv.outputs[0]) == conv
    assert named(explained(), f"%{conv.outputs[0]}") == conv
    with pytest.raises(UserError, match="no node 'nobody'"):
        named(explained(), "nobody")
    assert conv.backend == "simnpu"
    assert {option.backend for option in conv.alternatives} == {"simnpu"}


def test_declared_prices_name_the_tool_that_they_come_from(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert {region.source for region in explained().regions} == {"declared"}
    partition = partitioned()
    (npu,) = partition.placement.backends
    monkeypatch.setattr(npu, "priced_by", "a model at 1 GHz")
    found = explain(partition)
    assert {region.source for region in found.regions} == {"declared by a model at 1 GHz"}
    options = [one for node in found.nodes for one in node.alternatives if one.backend == npu.name]
    assert {one.source for one in options} == {"declared by a model at 1 GHz"}


def test_json_holds_it_all_and_no_weights() -> None:
    text = explained().to_json()
    facts = json.loads(text)
    assert facts["model"] == "small"
    assert len(facts["nodes"]) == len(explained().nodes)
    assert facts["nodes"][0]["alternatives"][0]["seconds"] > 0
    assert len(text) < 60_000  # the weights are 200 kB


def test_measured_times_and_demotions_are_told() -> None:
    demotion = Demotion("simnpu_0", "simnpu", "it differs")
    found = explain(partitioned(), {"exact": 0.25, "host-only": 0.5}, [demotion])
    assert found.model == "small"
    measured = {total.scheme: total.measured for total in found.totals}
    assert measured["exact"] == 0.25
    assert measured["greedy"] is None
    assert found.demotions == (demotion,)
    assert "measured 250 ms" in summary(found)
    assert quality(found) == "proven best at these prices"
    slower = explain(partitioned(), {"exact": 0.25, "greedy": 0.125})
    assert quality(slower).endswith("; but end to end greedy is the fastest, which is what runs")


def test_flips_are_exact_and_sorted() -> None:
    """Each costs what solving again with the nodes pinned there costs."""
    found, placed = explained(), partitioned()
    assert found.flips
    extras = [flip.extra_seconds for flip in found.flips]
    assert extras == sorted(extras)
    problem = placed.placement.problem
    names = {node.name: number for number, node in enumerate(found.nodes)}
    sites = {site.name: number for number, site in enumerate(problem.sites)}
    for flip in found.flips:
        moved = {names[name] for name in flip.nodes}
        assert {found.nodes[number].backend for number in moved} == {flip.origin}
        kept = tuple(
            option
            for option in problem.options
            if option.site == sites[flip.backend] or moved.isdisjoint(option.nodes)
        )
        best = choose(replace(problem, options=kept)).seconds
        assert flip.proven
        assert flip.extra_seconds == pytest.approx(best - found.predicted, abs=1e-12)


def toy() -> Problem:
    """Three nodes in a row; the middle one is the host's alone."""
    sites = (Site("host"), Site("npu", launch=2.0, form=1))
    options = (
        *(Option(0, (node,), 5.0) for node in range(3)),
        Option(1, (0,), 1.0),
        Option(1, (2,), 1.0),
    )
    flows = (
        Flow(None, (0,), (0.0, 0.25), (0.0, 0.25)),
        Flow(0, (1, 2), (0.0, 0.5), (0.0, 0.75)),
        Flow(1, (2,), (0.0, 0.125), (0.0, 0.125)),
        Flow(2, (), (0.0, 0.0), (0.0, 1.5), leaves=True),
    )
    return Problem(sites, 3, options, flows)


def test_transfers_are_charged_to_who_makes_and_who_first_reads() -> None:
    problem = toy()
    choice = choose(problem)
    stages = list(accelerator_regions(problem, choice))
    carried = transfers_by_stage(problem, choice)
    # the first region brings its input and sends its result home; the second already has that
    assert [carried[stage] for stage in stages] == [0.25 + 0.75, 0.125 + 1.5]
    assert sum(carried.values()) + 2 * 2.0 + 7.0 == pytest.approx(choice.seconds)


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0.0, "0 µs"),
        (8.67e-19, "0 µs"),
        (3e-9, "0.003 µs"),
        (1.234e-5, "12.3 µs"),
        (9.996e-4, "1 ms"),
        (0.0123, "12.3 ms"),
        (0.5, "500 ms"),
        (12.0, "12 s"),
        (1234.0, "1234 s"),
    ],
)
def test_times(seconds: float, text: str) -> None:
    assert time_text(seconds) == text
    assert time_text(seconds, simulated=True) == f"{text} (simulated)"


def test_sentences() -> None:
    found = explained()
    assert summary(found).startswith("simnpu (simulated): ")
    assert " of MACs, " in summary(found)
    assert quality(found) == "proven best at these prices"
    limited = replace(found, gap=0.015, bound=2e-3)
    least = "none takes less than 2 ms (simulated)"
    assert quality(limited) == f"within 1.50% of the best at these prices: {least}"
    flip = Flip(("a", "b", "c", "d", "e"), "", "host", "simnpu", 2e-6, False)
    assert flip_text(flip) == "host → simnpu: a + b + c + 2 more"
    assert flip_price(found, flip) == "at most +2 µs (simulated)"
    assert flip_text(replace(flip, region="npu_1")) == "host → simnpu: all of npu_1 (5 nodes)"
    assert by_parts_note(replace(found, flips=(flip,))) == ""
    gain = replace(flip, extra_seconds=-3e-3)
    assert flip_price(found, gain) == "-3 ms (simulated) by its parts"
    assert by_parts_note(replace(found, flips=(flip, gain))).startswith("minus: cheaper by")
    launch = Hint("simnpu", "launch", 7e-5, 2e-5, 3, 1e-3)
    assert hint_text(found, launch) == (
        "if a launch on simnpu took less than 20 µs (simulated) (now 70 µs (simulated)),"
        " a plan of 3 regions would be faster"
    )
    transfer = Hint("simnpu", "transfer", 1.0, 0.25, 1, 1e-3)
    expected = "less than 25% of their current time, a plan of 1 region would"
    assert expected in hint_text(found, transfer)
    assert all(one.op != "nn.conv2d" for one in found.obstacles if "pin" in one.reason)
    assert any(
        obstacle_text(one).startswith("simnpu refuses 1 × nn.softmax (") for one in found.obstacles
    )


def test_the_page_holds_names_as_text_only() -> None:
    text = to_html(explained())
    assert STRANGE not in text
    assert text.count("</script>") == 2  # those of the page itself
    start = text.index('type="application/json">') + len('type="application/json">')
    facts = json.loads(text[start : text.index("</script>", start)])
    shown = [printable(node.name) for node in explained().nodes]
    assert [node["name"] for node in facts["nodes"]] == shown
    assert any(node["name"] == printable(STRANGE) for node in facts["nodes"])
    assert all(math.isfinite(c) for point in facts["points"] for c in point)


def test_the_title_is_escaped() -> None:
    text = to_html(replace(explained(), model="<i>&</i>@DATA@"))
    assert "<title>&lt;i&gt;&amp;&lt;/i&gt;@DATA@ · Graft</title>" in text


def test_a_quantised_unit_is_refused_as_a_whole() -> None:
    g = Builder()
    scale, zero = g.constant(np.float32(0.1)), g.constant(np.int8(0))
    x = g("qnn.dequantize", g.input("x", tensor("int8", 1, 8)), scale, zero)
    relu = g("nn.relu", g("tanh", x))
    graph = g.build(g("qnn.quantize", relu, scale, zero, dtype="int8"))
    layer = is_op("qnn.quantize")(is_op("nn.dense"), wildcard(), wildcard())
    backend = Fake("acc", [("layer", layer)])
    found = explain(partition(graph, [backend], Pricing(Fake("host"), {}), PartitionOptions()))
    (obstacle,) = found.obstacles
    assert (obstacle.op, obstacle.nodes) == ("tanh+nn.relu", 1)
    assert "is nn.relu, not nn.dense" in obstacle.reason

"""Small graphs on which every decision is forced by its price."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from pathlib import Path

import pytest
from tests.byoc.fakes import Fake, chain, conv_relu, flat

from graft.base.dtypes import Array
from graft.base.errors import UserError
from graft.byoc.annotate import Pins
from graft.byoc.contract import Cost, Limits, Runner, Source
from graft.byoc.partition import (
    Partition,
    PartitionOptions,
    partition,
    plan_of,
    regions,
)
from graft.byoc.plan import Plan
from graft.byoc.price import Pricing
from graft.byoc.problem import repriced
from graft.byoc.store import PriceStore
from graft.ir.graph import Graph
from graft.rewrite.pattern import is_op, op, wildcard
from graft.rewrite.rule import Refusal
from graft.runtime.regions import RegionWarning

STEP = 2e-5  # seconds around each region, on the host
HOST = Fake("host", limits=Limits(launch_seconds=STEP))
SLOW = 1.0  # seconds that the host is said to take for each node


def host_prices(graph: Graph) -> dict[str, Cost]:
    return {
        node.output.name: Cost(SLOW, Source.MEASURED)
        for node in graph.nodes
        if node.op.name != "constant"
    }


def fake(name: str, *ops: str, seconds: float = 0.01, limits: Limits | None = None) -> Fake:
    table = [(op, is_op(op)) for op in ops]
    return Fake(name, table, price=flat(seconds), limits=limits, simulated=True)


def placed(graph: Graph, *backends: Fake, pins: tuple[str, ...] = ()) -> Partition:
    pricing = Pricing(HOST, host_prices(graph))
    return partition(graph, backends, pricing, PartitionOptions(Pins.parse(pins)))


def sites(found: Partition) -> list[tuple[str, list[str]]]:
    """Backends and operators of the chosen regions."""
    chosen = regions(found.placement, found.choice)
    return [(name, [node.op.name for node in nodes]) for name, nodes, _ in chosen]


def steps() -> Graph:
    """Operators that fuse with nothing, so that each has a price of its own on the host."""
    return chain("nn.softmax", "nn.log_softmax", "nn.softmax", "nn.log_softmax")


def test_what_pays_goes() -> None:
    found = placed(steps(), fake("acc", "nn.softmax", "nn.log_softmax"))
    assert sites(found) == [("acc", [node.op.name for node in steps().nodes])]
    assert found.plan.predicted == pytest.approx(4 * 0.01 + STEP, rel=0.01)
    assert found.plan.method == "exact"
    assert found.plan.gap == pytest.approx(0.0, abs=1e-6)
    assert not is_host_only(found.plan)


def is_host_only(plan: Plan) -> bool:
    """Whether nothing leaves the host."""
    return all(region.backend == "host" for region in plan.regions)


def test_what_does_not_pay_stays() -> None:
    found = placed(steps(), fake("acc", "nn.softmax", "nn.log_softmax", seconds=2.0))
    assert sites(found) == []
    assert is_host_only(found.plan)
    assert found.plan.predicted == pytest.approx(found.plan.alternatives["host-only"])
    assert found.plan.alternatives["greedy"] > found.plan.predicted


def test_launches_decide() -> None:
    """Alone, each softmax would be worth it but for the launch of its region."""
    cheap = fake("acc", "nn.softmax", limits=Limits(launch_seconds=0.9))
    dear = fake("acc", "nn.softmax", limits=Limits(launch_seconds=1.1))
    assert len(sites(placed(steps(), cheap))) == 2
    assert sites(placed(steps(), dear)) == []


def test_transfers_decide() -> None:
    near = fake("acc", "nn.softmax", limits=Limits(space="device", latency=0.4))
    far = fake("acc", "nn.softmax", limits=Limits(space="device", latency=0.6))
    assert len(sites(placed(steps(), near))) == 2
    assert sites(placed(steps(), far)) == []


def test_staying_on_a_device_saves_transfers() -> None:
    """log_softmax is dearer there than here, but going home and back is dearer still."""
    limits = Limits(space="device", latency=0.4)
    seconds = {"nn.softmax": 0.01, "nn.log_softmax": 1.3}
    dear = Fake(
        "acc",
        [(name, is_op(name)) for name in seconds],
        price=lambda region: Cost(sum(seconds[node.op.name] for node in region.nodes)),
        limits=limits,
        simulated=True,
    )
    found = placed(steps(), dear)
    # the last log_softmax stays at home, where its result is wanted
    assert sites(found) == [("acc", ["nn.softmax", "nn.log_softmax", "nn.softmax"])]


def test_two_accelerators_each_with_its_own() -> None:
    found = placed(steps(), fake("a", "nn.softmax"), fake("b", "nn.log_softmax"))
    assert [name for name, _ in sites(found)] == ["a", "b", "a", "b"]
    assert set(found.plan.backends) == {"a", "b"}


def test_of_two_that_can_the_cheaper_wins_whatever_its_priority() -> None:
    slow = fake("slow", "nn.softmax", "nn.log_softmax", seconds=0.1)
    fast = fake("fast", "nn.softmax", "nn.log_softmax", seconds=0.01)
    found = placed(steps(), slow, fast)
    assert {name for name, _ in sites(found)} == {"fast"}
    assert {r.backend for r in plan_of(found, "greedy").regions} == {"slow"}


def test_memory_splits_regions() -> None:
    size = 1 * 3 * 9 * 7 * 4
    limits = Limits(memory_bytes=3 * size)  # an input, an output and one value between
    found = placed(steps(), fake("acc", "nn.softmax", "nn.log_softmax", limits=limits))
    assert [len(ops) for _, ops in sites(found)] == [2, 2]


def test_pins() -> None:
    accelerator = fake("acc", "nn.softmax", "nn.log_softmax")
    graph = steps()
    second = graph.nodes[1].output.name
    found = placed(graph, accelerator, pins=(f"{second}=host",))
    assert [len(ops) for _, ops in sites(found)] == [1, 2]
    dear = fake("acc", "nn.softmax", "nn.log_softmax", seconds=9.0)
    forced = placed(graph, dear, pins=(f"{second}=acc",))
    assert sites(forced) == [("acc", ["nn.log_softmax"])]


def test_pins_that_cannot_be_met() -> None:
    graph = steps()
    with pytest.raises(UserError, match="fits no node"):
        placed(graph, fake("acc", "nn.softmax"), pins=("layer9/*=host",))
    with pytest.raises(UserError, match="names a backend that is no target"):
        placed(graph, fake("acc", "nn.softmax"), pins=("*=elsewhere",))
    pin = f"{graph.nodes[1].output.name}=acc"
    why = "no pattern of acc fits: no pattern of acc ends in nn.log_softmax"
    with pytest.raises(UserError, match=f"nothing can run %log_softmax .*{why}"):
        placed(graph, fake("acc", "nn.softmax"), pins=(pin,))
    with pytest.raises(UserError, match=f"the pins '{pin}' and '.*=host' leave it no backend"):
        placed(graph, fake("acc", "nn.softmax"), pins=(pin, pin.replace("acc", "host")))


def test_a_refused_pin_names_the_cause() -> None:
    """The refusal of the match that would hold the node, wherever that match ends."""
    table = [("conv_bias", op.nn.bias_add(op.nn.conv2d(wildcard(), wildcard()), wildcard()))]
    accelerator = Fake("acc", table, lambda match: Refusal("three channels are too few"))
    why = "the pin 'conv2d=acc' leaves it to acc; acc refuses it: three channels are too few"
    with pytest.raises(UserError, match=why):
        placed(conv_relu(), accelerator, pins=("conv2d=acc",))


def test_a_pin_that_fails_when_it_is_priced_names_the_cause(tmp_path: Path) -> None:
    class BrokenBackend(Fake):
        def compile(self, region: Graph) -> bytes:
            raise RuntimeError("no such register")

    graph, accelerator = chain("nn.softmax"), BrokenBackend("acc", [("p", is_op("nn.softmax"))])
    pricing = Pricing(HOST, host_prices(graph), PriceStore(tmp_path, "machine"))
    pins = Pins.parse(["softmax=acc"])
    why = "acc accepts nn.softmax and does not run it: acc.compile raised RuntimeError"
    with pytest.warns(RegionWarning), pytest.raises(UserError, match=why):
        partition(graph, [accelerator], pricing, PartitionOptions(pins))
    with pytest.warns(RegionWarning, match="the host has to run %softmax"):
        found = partition(graph, [accelerator], pricing, PartitionOptions(pins, releases=True))
    assert is_host_only(found.plan)


def test_alternatives_are_priced_beside() -> None:
    found = placed(conv_relu(), fake("acc", "nn.conv2d"))
    assert set(found.plan.alternatives) == {"host-only", "greedy", "greedy+prune"}
    assert all(found.plan.predicted <= s + 1e-9 for s in found.plan.alternatives.values())
    # the region has fewer multiply-accumulates than pruning asks for
    assert is_host_only(plan_of(found, "greedy+prune"))
    assert not is_host_only(plan_of(found, "greedy"))


def test_twice_the_same() -> None:
    texts = {placed(steps(), fake("a", "nn.softmax")).plan.to_text() for _ in range(3)}
    assert len(texts) == 1


class Sleepy(Fake):
    """Takes the same time for whatever region it is given."""

    def load(self, blob: bytes) -> Runner:
        run = super().load(blob)

        def later(inputs: Sequence[Array], outputs: Sequence[Array]) -> Sequence[Array] | None:
            time.sleep(0.01)
            return run(inputs, outputs)

        return later


class OneByOne(Fake):
    """Compiles single nodes, and nothing larger."""

    def compile(self, region: Graph) -> bytes:
        if len(region.nodes) > 1:
            raise RuntimeError("one at a time")
        return super().compile(region)


SOFTMAXES = [(op, is_op(op)) for op in ("nn.softmax", "nn.log_softmax")]


def measured(backend: Fake, folder: Path, host: float) -> Partition:
    graph = steps()
    costs = dict.fromkeys(host_prices(graph), Cost(host, Source.MEASURED))
    pricing = Pricing(HOST, costs, PriceStore(folder, "m"))
    return partition(graph, [backend], pricing, PartitionOptions())


def test_a_region_may_be_cheaper_than_its_parts_together(tmp_path: Path) -> None:
    """Node by node the host is faster; in one piece the accelerator is."""
    found = measured(Sleepy("acc", SOFTMAXES), tmp_path, host=0.006)
    assert [len(ops) for _, ops in sites(found)] == [4]
    assert found.plan.predicted < 0.02 < found.plan.alternatives["host-only"]
    assert found.plan.alternatives["greedy"] == pytest.approx(found.plan.predicted)
    assert repriced(found.placement.problem, found.choice).seconds == pytest.approx(
        found.plan.predicted
    )


def test_what_runs_only_in_parts_is_not_planned_whole(tmp_path: Path) -> None:
    found = measured(OneByOne("acc", SOFTMAXES), tmp_path, host=1.0)
    assert "greedy" not in found.plan.alternatives
    assert all(len(ops) == 1 for _, ops in sites(found))
    assert found.plan.predicted <= found.plan.alternatives["host-only"]


def test_regions_are_measured_whole_and_chosen_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing is declared: prices come from running, first of parts, then of regions."""
    monkeypatch.setattr("graft.byoc.measure._KEPT", math.inf)  # however busy the machine is
    graph = steps()
    backend = Fake("acc", [(op, is_op(op)) for op in ("nn.softmax", "nn.log_softmax")])
    store = PriceStore(tmp_path, "m")
    pricing = Pricing(HOST, host_prices(graph), store)
    found = partition(graph, [backend], pricing, PartitionOptions())
    (region,) = found.plan.regions
    assert region.source == "measured"
    whole = sum(1 for _ in tmp_path.iterdir())
    assert whole == 3  # softmax, log_softmax, and all four together
    assert repriced(found.placement.problem, found.choice).seconds == pytest.approx(
        found.plan.predicted
    )


def test_a_limited_search_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("graft.byoc.candidates.MOST_MATCHES", 0)
    with pytest.warns(RegionWarning, match="best of a limited number of candidates: 'nn.softmax'"):
        found = placed(chain("nn.softmax"), fake("acc", "nn.softmax"))
    assert found.plan.method == "limited"


def test_declared_prices_are_final(tmp_path: Path) -> None:
    """They are not measured, neither by part nor as a whole, where that would tell otherwise."""
    found = measured(Sleepy("acc", SOFTMAXES, price=flat(1e-6)), tmp_path, host=0.006)
    (region,) = found.plan.regions
    assert (region.source, region.seconds) == ("declared", pytest.approx(4e-6))
    assert list(tmp_path.iterdir()) == []


def test_a_declared_price_of_a_whole_region_counts(tmp_path: Path) -> None:
    """A vendor's tool may know that a region takes less than its parts: 4 ms each, 5 ms in one."""

    def price(region: Graph) -> Cost:
        count = len([node for node in region.nodes if node.op.name != "constant"])
        return Cost(0.004 if count == 1 else 0.005)

    npu = Sleepy("acc", SOFTMAXES, price=price)
    npu.prices_regions = True
    found = measured(npu, tmp_path, host=0.003)
    (region,) = found.plan.regions
    assert (region.source, region.seconds) == ("declared", pytest.approx(0.005))
    assert found.plan.predicted < found.plan.alternatives["host-only"]
    assert list(tmp_path.iterdir()) == []


def test_a_part_of_a_cheap_region_has_its_own_price() -> None:
    """Five together take 20 ms on one accelerator; that does not make one of them take 4."""
    npu = Fake("npu", SOFTMAXES, price=lambda one: Cost(0.5 if len(one.nodes) == 1 else 0.02))
    npu.prices_regions = True
    seconds = {"nn.softmax": 0.0045, "nn.log_softmax": 0.001}
    dsp = Fake("dsp", SOFTMAXES, price=lambda one: Cost(sum(seconds[n.op.name] for n in one.nodes)))
    ops = ["nn.softmax", *["nn.log_softmax"] * 4]
    found = placed(chain(*ops), npu, dsp)
    assert sites(found) == [("dsp", ops)]
    assert found.choice.proven

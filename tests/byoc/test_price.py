"""Prices: declared before measured before estimated; kept on disk, whatever happens to it."""

from __future__ import annotations

import itertools
import json
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import numpy as np
import pytest
from tests.byoc.fakes import Fake, chain, conv_relu, offered, reasons

from graft.base.cache_folder import CacheWarning
from graft.base.dims import symbol
from graft.base.dtypes import Array
from graft.base.errors import UnsupportedError
from graft.base.progress import Stage
from graft.byoc import measure
from graft.byoc.candidates import find_candidates
from graft.byoc.contract import Cost, Limits, Match, Runner, Source
from graft.byoc.formats.operands import not_compiled
from graft.byoc.measure import (
    UnrunnableError,
    interval,
    race,
    time_region,
    timed,
    timed_region_of,
)
from graft.byoc.price import Pricing, price, price_all, refined, roofline
from graft.byoc.probe import samples
from graft.byoc.region import region_graph, region_hash
from graft.byoc.store import PriceStore
from graft.ir.builder import Builder
from graft.ir.graph import Graph, Value
from graft.ir.types import tensor
from graft.rewrite.pattern import is_op
from graft.rewrite.rule import Refusal
from graft.runtime.regions import RegionWarning

HOST = Fake("host", limits=Limits(peak_flops=1e9, peak_bytes_per_second=1e9))


class Counting(Fake):
    """Counts how often it is asked to compile."""

    compiled = 0

    def compile(self, region: Graph) -> bytes:
        self.compiled += 1
        return super().compile(region)


class Failing(Fake):
    """Compiles nothing."""

    def compile(self, region: Graph) -> bytes:
        raise RuntimeError("out of registers")


@pytest.fixture
def store(tmp_path: Path) -> PriceStore:
    return PriceStore(tmp_path / "prices", "this machine, 2 threads")


def test_declared_wins(store: PriceStore) -> None:
    backend = Counting(price=lambda region: Cost(7.0))
    assert price(backend, chain("exp"), Pricing(HOST, {}, store)) == Cost(7.0, Source.DECLARED)
    assert backend.compiled == 0


def test_else_measured_and_only_once(store: PriceStore) -> None:
    backend = Counting()
    pricing = Pricing(HOST, {}, store)
    first = price(backend, chain("exp"), pricing)
    assert first.source is Source.MEASURED
    assert first.seconds > 0
    assert price(backend, chain("exp"), pricing) == first
    assert backend.compiled == 1


def test_without_a_store_it_is_the_roofline() -> None:
    backend = Counting(limits=Limits(peak_flops=1e9, peak_bytes_per_second=1e9))
    found = price(backend, conv_relu(), Pricing(HOST, {}, None))
    assert found.source is Source.ROOFLINE
    assert backend.compiled == 0


def test_simulated_devices_and_open_shapes_are_not_measured(store: PriceStore) -> None:
    assert timed_region_of(Fake(simulated=True), chain("exp"), store) is None
    g = Builder()
    graph = g.build(g("exp", g.input("x", tensor("float32", symbol("n")))))
    assert timed_region_of(Fake(), graph, store) is None


def test_the_roofline_is_the_longer_of_work_and_traffic() -> None:
    graph = conv_relu()
    busy = Fake(limits=Limits(peak_flops=1e3, peak_bytes_per_second=1e15))
    idle = Fake(limits=Limits(peak_flops=1e15, peak_bytes_per_second=1e3))
    macs = 4 * 7 * 5 * 27
    assert roofline(busy, graph).seconds >= 2 * macs / 1e3
    assert roofline(idle, graph).seconds >= 4 * (3 * 9 * 7 + 4 * 7 * 5) / 1e3
    assert roofline(Fake(), graph).seconds < roofline(idle, graph).seconds


def test_what_does_not_run_has_no_price(store: PriceStore) -> None:
    backend = Failing(patterns=[("relu", is_op("nn.relu"))])
    found = find_candidates(conv_relu(), [backend])
    said: list[Stage] = []
    with pytest.warns(RegionWarning, match="fake accepts nn.relu and does not run it: fake.compi"):
        prices = price_all(found, [backend], Pricing(HOST, {}, store, said.append)).costs
    assert {candidate.backend for candidate in prices} == {"host"}
    total = len(found.candidates)
    number = 1 + next(n for n, one in enumerate(found.candidates) if one.backend == "fake")
    assert said == [Stage("pricing candidates", number, total, "nn.relu")]
    with pytest.raises(UnrunnableError, match="out of registers"):
        timed_region_of(backend, chain("nn.relu"), store)


def test_who_does_not_answer_is_not_asked_again(store: PriceStore) -> None:
    asked = []

    class Hanging(Fake):
        def compile(self, region: Graph) -> bytes:
            asked.append(region)
            time.sleep(0.3)
            return super().compile(region)

    backend = Hanging(patterns=[("exp", is_op("exp")), ("tanh", is_op("tanh"))])
    found = find_candidates(chain("exp", "tanh"), [backend])
    pricing = Pricing(HOST, {}, store, deadline=0.05)
    with pytest.warns(RegionWarning, match="no answer within .*; it is not asked again"):
        prices = price_all(found, [backend], pricing).costs
    assert {candidate.backend for candidate in prices} == {"host"}
    assert len(asked) == 1


def test_who_does_not_tell_a_price_is_not_asked_again(store: PriceStore) -> None:
    def hang(_region: Graph) -> None:
        time.sleep(0.3)

    backend = Fake(patterns=[("exp", is_op("exp")), ("tanh", is_op("tanh"))], price=hang)
    found = find_candidates(chain("exp", "tanh"), [backend])
    with pytest.warns(RegionWarning, match="no answer within .*; it is not asked again"):
        prices = price_all(found, [backend], Pricing(HOST, {}, store, deadline=0.05)).costs
    assert {candidate.backend for candidate in prices} == {"host"}


def test_equal_regions_are_priced_once(store: PriceStore) -> None:
    asked: list[str] = []

    def priced(region: Graph) -> Cost:
        asked.append(region_hash(region, contents=False))
        return Cost(1.0)

    backend = Fake(patterns=[("exp", is_op("exp"))], price=priced)
    found = find_candidates(chain("exp", "exp", "nn.relu", "exp"), [backend])
    price_all(found, [backend], Pricing(HOST, {}, None))
    assert len(asked) == 1


def test_the_host_is_priced_by_the_groups_of_a_whole_run() -> None:
    graph = conv_relu()
    found = find_candidates(graph, [])
    pricing = Pricing(HOST, {"relu": Cost(5.0, Source.MEASURED)}, None)
    prices = price_all(found, [], pricing).costs
    by_label = {candidate.label: cost for candidate, cost in prices.items()}
    group = by_label["nn.conv2d+nn.bias_add+nn.relu"]
    assert group == Cost(5.0, Source.MEASURED)
    assert by_label["nn.conv2d"] == group  # what follows is done in passing
    assert by_label["nn.relu"].seconds < 1.0  # light, by itself
    assert by_label["nn.relu"].source is Source.ROOFLINE


def test_placements_that_share_prices_ask_once() -> None:
    asked: list[Graph] = []

    def priced(region: Graph) -> Cost:
        asked.append(region)
        return Cost(1.0)

    backend = Fake(patterns=[("exp", is_op("exp"))], price=priced)
    found = find_candidates(chain("exp", "nn.relu", "exp"), [backend])
    declared: dict[str, Cost | None] = {}
    for _ in range(2):
        price_all(found, [backend], Pricing(HOST, {}, declared=declared))
    assert len(asked) == 1
    assert list(declared.values()) == [Cost(1.0)]


def test_a_compiler_is_asked_once_about_a_match() -> None:
    class Picky(Counting):
        def supports(self, match: Match) -> Refusal | None:
            return not_compiled(self, match)

        def compile(self, region: Graph) -> bytes:
            blob = super().compile(region)
            if any(node.op.name == "tanh" for node in region.nodes):
                raise UnsupportedError("there is no table for it")
            return blob

    patterns = [("a", is_op("exp", "tanh")), ("b", is_op("exp", "tanh"))]
    backend = Picky(patterns=patterns)
    for _ in range(2):
        found = find_candidates(chain("exp", "tanh", "exp"), [backend])
        assert offered(found, "fake") == [["exp"], ["exp"]]
        assert reasons(found, found.nodes[1]) == ["there is no table for it"] * 2
    assert backend.compiled == 2  # once for each operator


def test_what_ran_as_one_kernel_is_a_candidate_at_its_price() -> None:
    g = Builder()
    x = g.input("x", tensor("float32", 1, 4, 9, 9))
    weights = [g.constant(np.ones((4, 4, 3, 3), np.float32)) for _ in range(2)]
    first = g("nn.relu", g("nn.conv2d", x, weights[0]))
    second = g("nn.conv2d", first, weights[1])
    graph = g.build(g("nn.softmax", second))
    timings = {second.name: Cost(6.0, Source.MEASURED)}
    found = find_candidates(graph, [], timings=timings)
    prices = price_all(found, [], Pricing(HOST, timings)).costs
    by_label = {one.label: cost.seconds for one, cost in prices.items()}
    assert by_label["nn.conv2d+nn.relu+nn.conv2d"] == 6.0
    # each layer by its share of the operations, 9 x 9 x 3 x 3 without padding: 49 and 25 pixels
    assert by_label["nn.conv2d+nn.relu"] == pytest.approx(6.0 * 49 / 74)
    assert by_label["nn.relu"] < 1.0  # light, by itself


def test_refined_prices_add_up_to_what_the_whole_takes() -> None:
    found = find_candidates(chain("exp", "tanh"), [])
    one, two = [c for c in found.candidates if len(c.nodes) == 1]
    better = refined({one: Cost(1.0), two: Cost(3.0)}, {(one, two): 2.0})
    assert (better[one].seconds, better[two].seconds) == (0.5, 1.5)
    nothing = refined({one: Cost(0.0), two: Cost(0.0)}, {(one, two): 2.0})
    assert (nothing[one].seconds, nothing[two].seconds) == (1.0, 1.0)


# The store


def test_a_price_comes_back(store: PriceStore) -> None:
    cost = Cost(0.125, Source.MEASURED, 0.5)
    store.put("key", cost)
    assert store.get("key") == cost
    assert store.get("other") is None


DAMAGE = {
    "empty": b"",
    "cut": b'{"seconds": 0.1',
    "binary": b"\xff\xfe\x00",
    "a list": b"[1, 2]",
    "no spread": b'{"seconds": 0.1}',
    "words": b'{"seconds": "soon", "spread": 0}',
    "nothing": b'{"seconds": null, "spread": 0}',
    "not a number": b'{"seconds": NaN, "spread": 0}',
    "infinite": b'{"seconds": Infinity, "spread": 0}',
    "negative": b'{"seconds": -1, "spread": 0}',
}


@pytest.mark.parametrize("kind", DAMAGE)
def test_damage_means_measuring_again(kind: str, tmp_path: Path) -> None:
    store = PriceStore(tmp_path, "m")
    store.put("key", Cost(1.0))
    (tmp_path / "key.json").write_bytes(DAMAGE[kind])
    assert store.get("key") is None
    store.put("key", Cost(2.0))
    assert store.get("key") == Cost(2.0, Source.MEASURED)


def test_a_folder_that_cannot_be_written_costs_only_time(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    store = PriceStore(tmp_path / "file" / "prices", "m")
    with pytest.warns(CacheWarning, match="nothing is kept for the next time"):
        store.put("key", Cost(1.0))
    assert store.get("key") is None


def test_entries_are_whole(tmp_path: Path) -> None:
    store = PriceStore(tmp_path, "m")
    store.put("key", Cost(1.0, Source.MEASURED, 0.25))
    (entry,) = tmp_path.iterdir()
    assert json.loads(entry.read_text()) == {"seconds": 1.0, "spread": 0.25}


def test_keys_tell_apart_all_that_a_price_depends_on(tmp_path: Path) -> None:
    store = PriceStore(tmp_path, "m")
    changed = Fake()
    changed.version = "2"
    device = Fake()
    device.device = "gpu"
    keys = [
        store.key("region", Fake()),
        store.key("other region", Fake()),
        store.key("region", Fake("another")),
        store.key("region", changed),
        store.key("region", device),
        PriceStore(tmp_path, "another machine").key("region", Fake()),
    ]
    assert len(set(keys)) == len(keys)
    assert store.key("region", Fake()) == keys[0]


# Measuring


def test_intervals() -> None:
    assert interval([3.0]) == (3.0, 0.0)
    median, spread = interval([1.0] * 50 + [100.0])
    assert (median, spread) == (1.0, 0.0)
    median, spread = interval(range(101))
    assert median == 50.0
    assert 9 <= spread <= 11


def test_measuring_ends() -> None:
    calls: list[int] = []
    cost = timed(lambda: calls.append(1), budget=0.0)
    assert cost.source is Source.MEASURED
    assert 6 <= len(calls) <= 20


def around(cost: Callable[[int], int]) -> Iterator[int]:
    """What is read before and after each of many calls of which each adds something."""
    total = 0
    for call in itertools.count():
        yield total
        total += cost(call)
        yield total


def test_calls_that_were_interrupted_do_not_count(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every second call is interrupted, and takes a hundred times as long."""
    clock = around(lambda call: 100 if call % 2 else 1)
    interruptions = around(lambda call: call % 2)
    monkeypatch.setattr(measure.time, "perf_counter", lambda: next(clock))
    monkeypatch.setattr(measure, "_interruptions", lambda: next(interruptions))
    cost = timed(lambda: None, budget=1e9)
    assert (cost.seconds, cost.spread) == (1.0, 0.0)


def test_what_calm_calls_give(monkeypatch: pytest.MonkeyPatch) -> None:
    interruptions = around(lambda call: call % 2)
    monkeypatch.setattr(measure, "_interruptions", lambda: next(interruptions))
    numbers = itertools.count()
    seconds = itertools.count()
    monkeypatch.setattr(measure.time, "perf_counter", lambda: next(seconds))
    assert measure.calm(lambda: next(numbers), 3, budget=6.0) == [1, 3, 5]  # 0 was for nothing
    never = around(lambda _call: 1)
    monkeypatch.setattr(measure, "_interruptions", lambda: next(never))
    assert measure.calm(lambda: next(numbers), 3, budget=0.0) == [8, 9, 10]


def test_unsteady_prices_are_not_kept(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    graph, backend = chain("exp"), Fake()
    store = PriceStore(tmp_path, "machine")
    costs = iter([Cost(1.0, Source.MEASURED, 0.5), Cost(0.5, Source.MEASURED, 0.01)])
    monkeypatch.setattr(measure, "time_region", lambda *_given: next(costs))
    found = [timed_region_of(backend, graph, store) for _ in range(3)]
    assert [cost.seconds for cost in found if cost] == [1.0, 0.5, 0.5]


def test_contenders_run_in_turns() -> None:
    order: list[str] = []
    runs = {name: lambda name=name: order.append(name) for name in ("a", "b")}
    times = race(runs, budget=0.0)
    assert set(times) == {"a", "b"}
    assert order[:12] == ["a", "a", "b", "b"] * 3  # once to warm up, once to be timed


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16", "int8", "uint8", "bool"])
def test_samples(dtype: str) -> None:
    x = Value("x", tensor(dtype, 3, symbol("n")))
    (data,) = samples(Graph("main", (x,), (), (x,)), 1)
    assert data.shape == (3, 100)
    assert str(data.dtype) == dtype
    (again,) = samples(Graph("main", (x,), (), (x,)), 1)
    assert (data == again).all()


def test_a_region_is_timed_with_memory_for_its_results() -> None:
    class Writing(Fake):
        def load(self, blob: bytes) -> Runner:
            def run(inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
                assert outputs[0].shape == inputs[0].shape
                outputs[0][...] = inputs[0]

            return run

    graph = chain("exp")
    region = region_graph(graph.nodes, graph)
    assert time_region(Writing(), region).source is Source.MEASURED

"""The chosen placement is the best one of all, from matching on: random graphs and pattern tables
against brute force with a matcher of its own."""

from __future__ import annotations

import os
import random

import pytest
from tests.byoc.brute_graphs import (
    HOST_BYTES,
    STEP,
    Device,
    candidates,
    cheapest,
    cheapest_with_body,
    pattern_of,
    random_devices,
    random_graph,
    random_nested,
)
from tests.byoc.fakes import Fake

from graft.byoc.candidates import find_candidates
from graft.byoc.contract import HOST_BACKEND, Cost, Limits, Match
from graft.byoc.partition import PartitionOptions, partition
from graft.byoc.price import Pricing
from graft.byoc.scopes import bodies_of
from graft.ir.graph import Graph
from graft.rewrite.rule import Refusal

COUNT = 1000 if os.environ.get("GRAFT_FULL") == "1" else 150
HOST_LIMITS = Limits(launch_seconds=STEP, peak_flops=1e300, peak_bytes_per_second=HOST_BYTES)
HOST = Fake("host", limits=HOST_LIMITS)


def backend_of(device: Device) -> Fake:
    def supports(match: Match) -> Refusal | None:
        refused = device.refuses([node.op.name for node in match.nodes])
        return Refusal("its number is a multiple of seven") if refused else None

    def price(region: Graph) -> Cost:
        names = [node.op.name for node in region.nodes if node.op.name != "constant"]
        return Cost(device.seconds(names))

    table = [(name, pattern_of(tree)) for name, tree in device.table.items()]
    limits = Limits(space=device.space, launch_seconds=device.launch, latency=device.latency)
    return Fake(device.name, table, supports, price, limits, simulated=True)


@pytest.mark.parametrize("chunk", range(5))
def test_equals_brute_force(chunk: int) -> None:
    for seed in range(chunk * COUNT // 5, (chunk + 1) * COUNT // 5):
        draw = random.Random(seed)
        graph = random_graph(draw)
        devices = random_devices(draw, graph)
        backends = [backend_of(device) for device in devices]
        offered = {
            (one.backend, frozenset(one.nodes))
            for one in find_candidates(graph, backends).candidates
            if one.backend != HOST_BACKEND
        }
        expected = candidates(graph, devices)
        assert offered == {(name, nodes) for name, nodes, _ in expected if name != HOST_BACKEND}, (
            seed
        )
        found = partition(graph, backends, Pricing(HOST, {}), PartitionOptions(time_limit=600.0))
        assert found.plan.predicted == pytest.approx(cheapest(graph, devices), rel=1e-6), seed
        assert found.choice.proven, seed


@pytest.mark.parametrize("chunk", range(5))
def test_bodies_equal_brute_force(chunk: int) -> None:
    """What a scan takes is what its body takes by itself, as often as there are slices; but what it
    captures is brought to a device once."""
    for seed in range(chunk * COUNT // 10, (chunk + 1) * COUNT // 10):
        draw = random.Random(seed)
        graph, count = random_nested(draw)
        (body,) = (inner for node in graph.nodes for _, inner in bodies_of(node))
        plain = sum(not bodies_of(node) for node in graph.nodes)
        devices = random_devices(draw, draw.choice([graph, body]) if plain else body)
        backends = [backend_of(device) for device in devices]
        found = partition(graph, backends, Pricing(HOST, {}), PartitionOptions(time_limit=600.0))
        expected = cheapest_with_body(graph, body, count, devices)
        assert found.plan.predicted == pytest.approx(expected, rel=1e-6), seed
        assert found.choice.proven, seed

"""Random graphs, cut up at random among backends with memories and wishes of their own: whoever
runs what, the results are the same, also when devices fail on the way."""

from __future__ import annotations

import random
import warnings
from collections.abc import Sequence

import numpy as np
import pytest
from tests.byoc.fakes import Fake
from tests.byoc.test_transfers import Counting, Far

from graft.backends.host.backend import HostBackend
from graft.backends.host.executable import HostExecutable
from graft.base.dtypes import Array
from graft.byoc.contract import Limits, Runner
from graft.byoc.executable import Settings
from graft.byoc.offload import OffloadedGraph, offload
from graft.ir.builder import Builder
from graft.ir.evaluate import evaluate
from graft.ir.graph import Graph, Node, Value
from graft.ir.types import tensor
from graft.ir.verify import verify
from graft.passes.eliminate_dead_code import eliminate_dead_code
from graft.program.instructions import Transfer
from graft.runtime.regions import Policy, incidents_of

SHAPE = (1, 16, 4, 6)
SEEDS = range(24)


class Anywhere(Fake):
    """Runs regions in its device's memory, or in the host's; some of its calls fail on request."""

    version = "1"

    def __init__(self, name: str, limits: Limits, device: Counting | None = None) -> None:
        super().__init__(name, limits=limits)
        self.card = device
        self.failing = random.Random(0)
        self.rate = 0.0

    def load(self, blob: bytes) -> Runner:
        right = super().load(blob)

        def run(inputs: Sequence[Far], outputs: Sequence[Far]) -> None:
            if self.failing.random() < self.rate:
                raise RuntimeError("bad luck")
            arrays = [one if isinstance(one, np.ndarray) else one.inside for one in inputs]
            homes = [one if isinstance(one, np.ndarray) else one.inside for one in outputs]
            for home, result in zip(homes, right(arrays, []) or (), strict=True):
                home[...] = result

        if self.card is not None:
            run.device = self.card  # type: ignore[attr-defined]
        return run


def backends() -> dict[str, Anywhere]:
    shared, own = Counting(), Counting()
    made = [
        Anywhere("near", Limits()),
        Anywhere("turned", Limits(layout="NHWC")),
        Anywhere("far", Limits(space="far"), shared),
        Anywhere("far_blocked", Limits(space="far", layout="NCHW16c"), shared),
        Anywhere("further", Limits(space="further", layout="NHWC"), own),
    ]
    return {one.name: one for one in made}


def random_graph(draw: random.Random) -> Graph:
    """Elementwise work, views, joins and cuts; some results are outputs, some are read again."""
    build = Builder()
    values = [build.input(name, tensor("float32", *SHAPE)) for name in ("x", "y")]
    for _ in range(draw.randint(3, 9)):
        values.append(_random_value(build, values, draw))
    made = values[2:]
    outputs = [made[-1], *draw.sample(made[:-1], draw.randint(0, min(2, len(made) - 1)))]
    if draw.random() < 0.2:
        outputs.append(values[0])  # an input that is an output
    return eliminate_dead_code(build.build(*outputs))


def _random_value(build: Builder, values: Sequence[Value], draw: random.Random) -> Value:
    one, other = draw.choice(values), draw.choice(values)
    match draw.choice(["unary", "unary", "add", "join", "cut", "view", "turn"]):
        case "add":
            return build("add", build("tanh", one), other)
        case "join":
            both = build("concatenate", one, build("sigmoid", other), axis=1)
            weight = build.constant(np.full((16, 32, 1, 1), 0.05, np.float32))
            return build("nn.conv2d", both, weight)
        case "cut":
            halves = build.call("split", one, axis=1, sections=2)
            return build("concatenate", halves[1], halves[0], axis=1)
        case "view":
            rows = build("nn.relu", build("reshape", one, shape=(16, 24)))
            return build("reshape", rows, shape=SHAPE)
        case "turn":
            turned = build("tanh", build("transpose", one, axes=(0, 1, 3, 2)))
            return build("transpose", turned, axes=(0, 1, 3, 2))
    return build(draw.choice(["nn.relu", "tanh", "sigmoid"]), one)


def random_plan(
    graph: Graph, names: Sequence[str], draw: random.Random
) -> list[tuple[str, list[Node]]]:
    """Some nodes to some backends, each a region of its own: that never makes a circle."""
    nodes = [node for node in graph.nodes if node.op.name != "constant"]
    return [(draw.choice(names), [node]) for node in nodes if draw.random() < 0.6]


def prepared(seed: int, made: dict[str, Anywhere], check: bool) -> tuple[Graph, OffloadedGraph]:
    draw = random.Random(seed)
    graph = random_graph(draw)
    host = HostBackend(Settings(threads=1))
    planned = random_plan(graph, list(made), draw)
    linked = offload(graph, planned, dict(made), host, Policy(), check)
    verify(linked.graph)
    return graph, linked


def built(linked: OffloadedGraph) -> HostExecutable:
    return HostBackend(Settings(threads=1)).build(linked.graph, linked.regions)


def inputs_of(seed: int) -> list[Array]:
    draw = np.random.default_rng(seed)
    return [draw.standard_normal(SHAPE, dtype=np.float32) for _ in range(2)]


def compare(graph: Graph, program: HostExecutable, seed: int) -> None:
    inputs = inputs_of(seed)
    for ours, theirs in zip(program(inputs), evaluate(graph, inputs), strict=True):
        np.testing.assert_allclose(np.asarray(ours), np.asarray(theirs), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("seed", SEEDS)
def test_whoever_runs_what(seed: int) -> None:
    made = backends()
    graph, linked = prepared(seed, made, check=True)
    assert linked.demotions == ()
    program = built(linked)
    for turn in range(3):
        compare(graph, program, turn)
    assert incidents_of(linked.regions) == []
    moves = [step for step in program.program.instructions if isinstance(step, Transfer)]
    ups = [step for step in moves if step.upload]
    devices = {id(one.card): one.card for one in made.values() if one.card is not None}
    for device in devices.values():
        device.log.clear()
    compare(graph, program, 9)
    done = [what for device in devices.values() for what in device.log]
    assert done.count("upload") == len(ups)
    assert done.count("download") == len(moves) - len(ups)
    assert "allocate" not in done


@pytest.mark.parametrize("seed", SEEDS)
def test_whatever_fails(seed: int) -> None:
    """Calls fail at random, then transfers, then whole devices."""
    made = backends()
    graph, linked = prepared(seed, made, check=False)
    program = built(linked)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for backend in made.values():
            backend.rate = 0.4
        for turn in range(3):
            compare(graph, program, turn)
        for name, what in (("far", "download"), ("further", "upload")):
            card = made[name].card
            assert card is not None
            card.broken.add(what)
            compare(graph, program, 5)
    for backend in made.values():
        backend.rate = 0.0
    compare(graph, program, 6)

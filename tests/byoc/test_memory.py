"""What devices hold at their fullest: counted as it is allocated, kept within limits, and told."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pytest
from tests.byoc.fakes import Fake, flat
from tests.byoc.test_transfers import Counting, Far, Remote

import graft
from graft.backends.host.backend import HostBackend
from graft.base.errors import UserError
from graft.byoc.annotate import Pins
from graft.byoc.choose import choose
from graft.byoc.contract import Limits
from graft.byoc.discover import register_backend, unregister_backend
from graft.byoc.explain import explain
from graft.byoc.memory import in_words, peaks
from graft.byoc.outline import outline
from graft.byoc.partition import Partition, PartitionOptions, partition
from graft.byoc.price import Pricing
from graft.byoc.problem import Flow, Option, Problem, Site
from graft.ir.builder import Builder
from graft.ir.graph import Graph
from graft.ir.types import tensor
from graft.rewrite.pattern import is_op

SIZE = 3 * 5 * 4  # bytes of a value
X = np.random.default_rng(0).standard_normal((3, 5), dtype=np.float32)


def line(*sizes: int, space: str = "", capacity: int | None = None) -> Problem:
    """Nodes in a row, each for the host or a device; the input is as large as the first result."""
    ends = len(sizes) - 1
    flows = [Flow(None, (0,), (0.0, 0.0), (0.0, 0.0), sizes=(sizes[0],) * 2, name="in")]
    for node, size in enumerate(sizes):
        readers = (node + 1,) if node < ends else ()
        both = (size, size)
        flows.append(Flow(node, readers, (0.0, 0.0), (0.0, 0.0), node == ends, both, f"v{node}"))
    options = [Option(site, (node,), 2.0 - site) for node in range(len(sizes)) for site in (0, 1)]
    sites = Site("host"), Site("acc", 0.1, 1, capacity, space)
    return Problem(sites, len(sizes), tuple(options), tuple(flows), (1,) * len(sizes))


def on_device(problem: Problem) -> list[int]:
    return [number for number, option in enumerate(problem.options) if option.site == 1]


def test_a_region_holds_its_borders_and_what_is_alive_inside() -> None:
    problem = line(4, 5, 6, 7)
    (peak,) = peaks(problem, on_device(problem), [1] * 4)
    # constants, input and output all the time; inside most at node 2, which reads 5 and makes 6
    assert peak.total == 4 + (4 + 7) + (5 + 6)
    assert in_words(problem, peak) == (
        "26 bytes of acc: 4 of constants, 7 of %v3, 6 of %v2, 5 of %v1, 4 of %in"
    )


def test_regions_in_the_hosts_memory_keep_constants_only() -> None:
    problem = line(4, 5, 6, 7)
    (peak,) = peaks(problem, on_device(problem), [1, 1, 3, 3])
    assert peak.total == 4 + (5 + 7 + 6)  # the second one: v1 in, v3 out, v2 between


def test_tensors_on_a_device_stay_until_they_are_read() -> None:
    problem = line(4, 5, 6, 7, space="card")
    (peak,) = peaks(problem, on_device(problem), [1, 1, 3, 3])
    assert peak.total == 4 + (5 + 7 + 6)  # as in the host's memory: v1 is all that is handed over
    flows = list(problem.flows)
    flows[1] = replace(flows[1], consumers=(1, 3))
    longer = replace(problem, flows=tuple(flows))
    (peak,) = peaks(longer, on_device(longer), [1, 3, 5, 7])
    # while node 2 runs, which has nothing to do with it, v0 waits for node 3
    assert peak.total == 4 + max(5 + 6 + 4, 6 + 7 + 4)


def test_workspace_counts_while_its_region_runs() -> None:
    problem = line(4, 5)
    options = tuple(replace(option, workspace=option.site * 9) for option in problem.options)
    (peak,) = peaks(replace(problem, options=options), on_device(problem), [1, 1])
    assert peak.total == 2 + (4 + 5) + 4 + 9


@pytest.mark.parametrize("space", ["", "card"])
def test_limits_are_kept_and_used(space: str) -> None:
    """More memory is never worse, and what is chosen fits."""
    seconds = []
    for capacity in (0, 8, 10, 12, 16, 20):
        problem = line(4, 4, 4, 4, space=space, capacity=capacity)
        found = choose(problem, time_limit=600.0)
        assert found.proven
        assert all(peak.fits for peak in peaks(problem, found.options, found.stages))
        seconds.append(found.seconds)
    assert seconds == sorted(seconds, reverse=True)
    assert len(set(seconds)) >= 4


def forked() -> Graph:
    """x -> exp -> tanh -> exp, twice over, whose results are added."""
    build = Builder()
    x = build.input("x", tensor("float32", 3, 5))
    ends = []
    for _ in range(2):
        value = x if not ends else build("negative", x)
        for op in ("exp", "sin", "tanh", "exp"):
            value = build(op, value)
        ends.append(value)
    return build.build(build("add", *ends))


@pytest.fixture
def remote() -> Iterator[Remote]:
    backend = Remote("remote", Counting(), "exp", "tanh")
    register_backend(backend)
    yield backend
    unregister_backend("remote")


def compiled(graph: Graph, **options: Any) -> Any:
    pins = [f"{n.output.name}=remote" for n in graph.nodes if n.op.name in ("exp", "tanh")]
    return graft.compile(graph, "remote", pins=pins, threads=1, verify="off", **options)


def partitioned(graph: Graph, *backends: Fake, pins: Sequence[str] = ()) -> Partition:
    options = PartitionOptions(Pins.parse(pins), time_limit=600.0)
    return partition(graph, backends, Pricing(HostBackend(), {}), options)


def test_the_peak_is_what_the_program_allocates(remote: Remote) -> None:
    graph = forked()
    module = compiled(graph)
    alive, most = 0, 0

    def allocate(shape: tuple[int, ...], dtype: np.dtype[Any]) -> Far:
        nonlocal alive, most
        made = Far(np.empty(shape, dtype))
        alive += made.inside.nbytes
        most = max(most, alive)
        weakref.finalize(made, free, made.inside.nbytes)
        return made

    def free(size: int) -> None:
        nonlocal alive
        alive -= size

    remote.card.allocate = allocate  # type: ignore[method-assign]
    module.run(None, {"x": X})
    pins = [f"{n.output.name}=remote" for n in graph.nodes if n.op.name in ("exp", "tanh")]
    found = partitioned(graph, remote, pins=pins)
    (peak,) = peaks(found.placement.problem, found.choice.options, found.choice.stages)
    assert most == sum(one.size for one in peak.values if not one.is_inside) > 0
    (told,) = explain(found).memory
    assert (told.peak, told.limit) == (peak.total, None)


def test_regions_run_in_the_order_of_the_plan() -> None:
    graph = forked()
    exps = [node for node in graph.nodes if node.op.name == "exp"]
    for order in ([0, 1, 2, 3], [2, 3, 0, 1], [2, 0, 3, 1], [0, 2, 3, 1]):
        outlined = outline(graph, [("acc", [exps[number]]) for number in order])
        ran = [node.output.name for node in outlined.nodes if node.op.name == "region"]
        assert ran == [exps[number].output.name for number in order]
    # what waits for a later one is put off
    outlined = outline(graph, [("acc", [exps[number]]) for number in (1, 0)])
    ran = [node.output.name for node in outlined.nodes if node.op.name == "region"]
    assert ran == [exps[number].output.name for number in (0, 1)]


def test_a_candidate_that_cannot_fit_is_refused_with_the_values() -> None:
    graph = forked()
    small = Fake("acc", [("exp", is_op("exp"))], price=flat(1e-9), limits=Limits(memory_bytes=100))
    found = partitioned(graph, small)
    assert found.plan.regions == ()
    exp = next(node for node in graph.nodes if node.op.name == "exp")
    (refused,) = found.candidates.refusals[exp]
    assert refused.reason == "it needs 120 of 100 bytes of memory: 60 of %x, 60 of %exp"
    with pytest.raises(UserError, match="acc accepts exp and does not run it: it needs 120 of 100"):
        partitioned(graph, small, pins=[f"{exp.output.name}=acc"])


class Greedy(Fake):
    """Wants workspace."""

    def workspace(self, region: Graph) -> int:
        return 1000


def test_workspace_is_asked_for() -> None:
    limits = Limits(memory_bytes=1000)
    backend = Greedy("acc", [("exp", is_op("exp"))], price=flat(1e-9), limits=limits)
    found = partitioned(forked(), backend)
    assert found.plan.regions == ()
    reasons = {one.reason for own in found.candidates.refusals.values() for one in own}
    assert any(reason.endswith("1,000 of workspace") for reason in reasons)


def test_a_plan_that_cannot_be_says_what_is_in_the_way() -> None:
    """Each node would fit alone, but the constants of both stay there."""
    build = Builder()
    value = build.input("x", tensor("float32", 3, 5))
    for number in range(2):
        value = build("add", value, build.constant(np.full((3, 5), number, np.float32)))
    limits = Limits(space="card", memory_bytes=200)
    adds = [("add", is_op("add"))]
    backend = Fake("acc", adds, price=flat(1e-9), limits=limits, simulated=True)
    (told,) = explain(partitioned(build.build(value), backend, pins=["add=acc"])).memory
    assert (told.peak, told.limit, told.constants) == (180, 200, 60)
    with pytest.raises(UserError, match="hold 300 of 200 bytes of card: 120 of constants, 60 of"):
        partitioned(build.build(value), backend, pins=["*=acc"])


@dataclass
class Narrow(Counting):
    """A device with room for so many tensors."""

    room: int = 100
    used: int = 0
    most: int = 0
    lock: threading.RLock = field(default_factory=threading.RLock)  # memory may be freed anywhere

    def allocate(self, shape: tuple[int, ...], dtype: np.dtype[Any]) -> Far:
        with self.lock:
            if self.used >= self.room:
                raise MemoryError("the device is full")
            self.used += 1
            self.most = max(self.most, self.used)
        made = super().allocate(shape, dtype)
        weakref.finalize(made, self.free)
        return made

    def free(self) -> None:
        with self.lock:
            self.used -= 1


@pytest.mark.parametrize("rooms", [1, 2])
def test_threads_wait_where_a_device_has_no_memory_for_both(rooms: int) -> None:
    """Side by side where it has, one after the other where it has not; never without it."""
    device = Narrow()
    backend = Remote("remote", device, "exp", "tanh")
    backend.naps = 0.02
    register_backend(backend)
    try:
        build = Builder()
        graph = build.build(build("exp", build.input("x", tensor("float32", 3, 5))))
        module = compiled(graph)
        device.room, device.most = 2 * rooms, 0
        with ThreadPoolExecutor(4) as pool:
            results = list(pool.map(lambda _: module.run(None, {"x": X})[0], range(12)))
    finally:
        unregister_backend("remote")
    for result in results:
        np.testing.assert_allclose(result, np.exp(X), rtol=1e-6)
    assert module.incidents == []
    assert device.most <= 2 * rooms


@pytest.mark.parametrize(("room", "allocations"), [(4, 0), (2, 4)])
def test_tensors_that_nobody_uses_make_room_for_others(room: int, allocations: int) -> None:
    """They are kept for the next run where the device has room for the tensors of both regions."""
    device = Narrow()
    register_backend(Remote("remote", device, "exp", "tanh"))
    try:
        build = Builder()
        value = build.input("x", tensor("float32", 3, 5))
        value = build("reshape", build("sin", build("exp", value)), shape=(5, 3))
        module = compiled(build.build(build("exp", value)))
    finally:
        unregister_backend("remote")
    device.used, device.room = 0, room
    for _ in range(3):
        device.log.clear()
        (result,) = module.run(None, {"x": X})
        expected = np.exp(np.sin(np.exp(X)).reshape(5, 3))
        np.testing.assert_allclose(result, expected, rtol=1e-5)
    assert device.log.count("allocate") == allocations
    assert module.incidents == []

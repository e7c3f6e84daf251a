"""Memory spaces: values go to a device and back when they have to, and only then."""

from __future__ import annotations

import math
import sys
import time
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.byoc.fakes import Fake, flat

import graft
from graft.backends.simnpu.runtime import Bus, Memory
from graft.base.dtypes import Array
from graft.base.errors import EvaluationError
from graft.byoc.contract import Limits, Runner
from graft.byoc.discover import register_backend, unregister_backend
from graft.ir.builder import Builder
from graft.ir.graph import Graph
from graft.ir.types import tensor
from graft.module import Module
from graft.program.instructions import RegionCall, Transfer
from graft.rewrite.pattern import is_op
from graft.runtime.regions import RegionWarning

X = np.random.default_rng(0).standard_normal((3, 5), dtype=np.float32)


@dataclass
class Far:
    """A tensor out of reach."""

    inside: Array


@dataclass
class Counting:
    """A device that counts, and that can be unplugged."""

    log: list[str] = field(default_factory=list)
    broken: set[str] = field(default_factory=set)

    def allocate(self, shape: tuple[int, ...], dtype: np.dtype[Any]) -> Far:
        self._do("allocate")
        return Far(np.full(shape, -1, dtype))

    def upload(self, array: Array, memory: Far) -> None:
        self._do("upload")
        memory.inside[...] = array

    def download(self, memory: Far, array: Array) -> None:
        self._do("download")
        array[...] = memory.inside

    def _do(self, what: str) -> None:
        if what in self.broken:
            raise OSError(f"cannot {what}: cable unplugged")
        self.log.append(what)


class Remote(Fake):
    """Runs what it knows in the memory of its device."""

    version = "1"

    def __init__(self, name: str, device: Counting, *ops: str) -> None:
        # a simulated device is not raced against the host, which would win
        super().__init__(
            name,
            [(op, is_op(op)) for op in ops],
            price=flat(1e-9),
            limits=Limits(space=device_space(device)),
            simulated=True,
        )
        self.card = device
        self.fault: Exception | None = None
        self.naps = 0.0
        self.calls = 0

    def load(self, blob: bytes) -> Runner:
        right = super().load(blob)

        def run(inputs: Sequence[Far], outputs: Sequence[Far]) -> None:
            self.calls += 1
            time.sleep(self.naps)
            if self.fault:
                raise self.fault
            results = right([one.inside for one in inputs], [])
            assert results is not None
            for one, result in zip(outputs, results, strict=True):
                one.inside[...] = result

        run.device = self.card  # type: ignore[attr-defined]
        return run


def device_space(device: Counting) -> str:
    return f"space {id(device)}"


@pytest.fixture
def remote() -> Iterator[Remote]:
    backend = Remote("remote", Counting(), "exp", "tanh")
    register_backend(backend)
    yield backend
    unregister_backend("remote")


def chain(*ops: str) -> Graph:
    build = Builder()
    value = build.input("x", tensor("float32", 3, 5))
    for op in ops:
        value = build(op, value)
    return build.build(value)


def compiled(graph: Graph, target: Sequence[str] = ("remote",), **options: Any) -> Module:
    known = {"exp": "remote", "tanh": "remote", "abs": "other"}
    pins = [
        f"{node.output.name}={known[node.op.name]}"
        for node in graph.nodes
        if known.get(node.op.name) in target
    ]
    options = {"verify": "off", **options}  # which would go there and back, too
    return graft.compile(graph, target, pins=pins, threads=1, **options)


def check(module: Module, graph: Graph, times: int = 1) -> None:
    (expected,) = graft.compile(graph).run(None, {"x": X})
    for _ in range(times):
        (result,) = module.run(None, {"x": X})
        np.testing.assert_allclose(result, expected, rtol=1e-5)


def steps(module: Module) -> list[str]:
    """Transfers by direction, regions by name."""
    return [
        ("up" if step.upload else "down") if isinstance(step, Transfer) else step.function
        for step in module.program.instructions
        if isinstance(step, Transfer | RegionCall)
    ]


def moved(device: Counting, module: Module) -> list[str]:
    """What the device does in one run after the first."""
    module.run(None, {"x": X})
    device.log.clear()
    module.run(None, {"x": X})
    return device.log


def test_there_and_back(remote: Remote) -> None:
    graph = chain("nn.relu", "exp", "sigmoid")
    module = compiled(graph)
    assert steps(module) == ["up", "remote_0", "down"]
    check(module, graph)
    assert moved(remote.card, module) == ["upload", "download"]


def test_downloads_go_where_the_device_is_fast_to(remote: Remote) -> None:
    made: list[Array] = []

    def host_array(shape: tuple[int, ...], dtype: np.dtype[Any]) -> Array:
        made.append(np.empty(shape, dtype))
        return made[-1]

    remote.card.host_array = host_array  # type: ignore[attr-defined]
    graph = chain("nn.relu", "exp", "sigmoid")
    check(compiled(graph), graph)
    np.testing.assert_allclose(made[-1], np.exp(np.maximum(X, 0)), rtol=1e-5)


def test_what_the_device_needs_again_stays_there(remote: Remote) -> None:
    """The host reads what the device needs as well."""
    build = Builder()
    x = build.input("x", tensor("float32", 3, 5))
    first = build("exp", x)
    graph = build.build(build("add", build("tanh", build("tanh", first)), build("sigmoid", first)))
    module = compiled(graph)
    check(module, graph)
    # x up once; exp and the last tanh down once each
    assert sorted(moved(remote.card, module)) == ["download", "download", "upload"]


def test_an_input_that_two_regions_read_goes_up_once(remote: Remote) -> None:
    build = Builder()
    x = build.input("x", tensor("float32", 3, 5))
    first = build("exp", x)
    graph = build.build(build("tanh", build("add", build("sigmoid", first), x)), build("tanh", x))
    module = compiled(graph)
    ways = steps(module)
    check_all(module, graph)
    assert ways.count("up") == 2  # x, and the sum
    there = [value for value in module.program.values if value.space]
    assert len(there) == 5  # x, three results, and the sum


def check_all(module: Module, graph: Graph) -> None:
    expected = graft.compile(graph).run(None, {"x": X})
    for result, wanted in zip(module.run(None, {"x": X}), expected, strict=True):
        np.testing.assert_allclose(result, wanted, rtol=1e-5)


def test_memory_of_the_device_is_used_again(remote: Remote) -> None:
    graph = chain(*("exp", "sigmoid") * 5)
    module = compiled(graph)
    assert len(module.placement.regions) == 5
    remote.card.log.clear()
    check(module, graph)
    # what goes in and what comes out are never needed by two regions at once
    assert remote.card.log.count("allocate") == 2
    assert "allocate" not in moved(remote.card, module)


def test_from_one_device_to_another_by_way_of_home(remote: Remote) -> None:
    other = Remote("other", Counting(), "abs")
    register_backend(other)
    try:
        graph = chain("exp", "abs", "tanh")
        module = compiled(graph, ("remote", "other"))
        assert steps(module) == [
            *("up", "remote_0", "down"),
            *("up", "other_1", "down"),
            *("up", "remote_2", "down"),
        ]
        check(module, graph)
    finally:
        unregister_backend("other")


def test_two_backends_of_one_space_need_no_transfer(remote: Remote) -> None:
    other = Remote("other", remote.card, "abs")
    register_backend(other)
    try:
        graph = chain("exp", "abs", "tanh")
        module = compiled(graph, ("remote", "other"))
        assert steps(module) == ["up", "remote_0", "other_1", "remote_2", "down"]
        check(module, graph)
    finally:
        unregister_backend("other")


def test_in_the_hosts_memory_nothing_is_copied() -> None:
    """A region between the model's input and output works on the user's own arrays, as often as it
    is asked to, and keeps none of them."""
    seen: list[tuple[bool, bool]] = []
    out = np.empty_like(X)

    def exp(inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
        seen.append((np.shares_memory(inputs[0], X), np.shares_memory(outputs[0], out)))
        np.exp(inputs[0], out=outputs[0])
        assert not inputs[0].flags.writeable

    backend = Fake("near", [("exp", is_op("exp"))], None, flat(1e-9), simulated=True)
    backend.load = lambda _blob: exp  # type: ignore[method-assign,assignment]
    register_backend(backend)
    # Where there is a deadline, what comes too late must not be written into the user's arrays.
    options: dict[str, Any] = {"threads": 1, "deadline": math.inf, "verify": "off"}
    try:
        module = graft.compile(chain("exp"), "near", pins=["exp=near"], check=False, **options)
    finally:
        unregister_backend("near")
    before = sys.getrefcount(out)
    for _ in range(3):
        module.run(None, {"x": X}, {"exp": out})
        np.testing.assert_allclose(out, np.exp(X), rtol=1e-6)
    assert seen == [(True, True)] * 3
    assert sys.getrefcount(out) == before


GRAPH = ("sigmoid", "exp", "sigmoid", "tanh")


def test_a_region_that_fails_is_computed_at_home_and_the_device_goes_on(remote: Remote) -> None:
    graph = chain(*GRAPH)
    module = compiled(graph)
    remote.fault = RuntimeError("tilt")
    with pytest.warns(RegionWarning, match="RuntimeError: tilt"):
        check(module, graph)
    remote.fault = None
    remote.calls = 0
    check(module, graph)
    assert remote.calls == 2
    assert len(module.incidents) == 2


@pytest.mark.parametrize("what", ["upload", "download", "allocate"])
def test_a_device_that_is_lost(remote: Remote, what: str) -> None:
    graph = chain(*GRAPH)
    module = compiled(graph)
    if what != "allocate":
        check(module, graph)
    remote.card.broken.add(what)
    with pytest.warns(RegionWarning, match=f"OSError: cannot {what}: cable unplugged"):
        check(module, graph)
    assert len(module.incidents) == 1
    remote.card.log.clear()
    with warnings.catch_warnings():
        warnings.simplefilter("error", RegionWarning)
        check(module, graph, times=3)
    assert remote.card.log == []  # nobody goes there any more


@pytest.mark.parametrize("verify", ["sample", "always", "off"])
def test_a_device_that_comes_back(remote: Remote, verify: str) -> None:
    graph = chain(*GRAPH)
    module = compiled(graph, verify=verify)
    remote.card.broken.add("upload")
    for region in module.regions.values():
        region.device_breaker._cooldown = region.guard.breaker._cooldown = 0.2
    with pytest.warns(RegionWarning, match="cable unplugged"):
        check(module, graph)
    remote.card.broken.clear()
    remote.card.log.clear()
    time.sleep(0.3)
    check(module, graph, times=2)
    assert "upload" in remote.card.log
    assert not any(region.open for region in module.regions.values())
    assert len(module.incidents) == 1


def test_wrong_numbers_in_the_memory_of_a_device(remote: Remote) -> None:
    graph = chain(*GRAPH)
    module = compiled(graph, verify="sample")
    check(module, graph)
    module.regions["remote_0"].guard.start_over()
    region = module.regions["remote_0"]
    inner = region.runner
    assert inner is not None

    def wrong(inputs: Sequence[Far], outputs: Sequence[Far]) -> None:
        inner(inputs, outputs)
        outputs[0].inside[0, 0] += 5

    region.runner = wrong
    with pytest.warns(RegionWarning, match="differs from the host's by 5"):
        check(module, graph)
    assert module.incidents[0].difference == pytest.approx(5)


def test_a_device_that_is_lost_after_a_region_failed(remote: Remote) -> None:
    graph = chain(*GRAPH)
    module = compiled(graph)
    check(module, graph)
    remote.fault = RuntimeError("tilt")
    remote.card.broken.add("download")
    with pytest.warns(RegionWarning, match="cannot download"):
        check(module, graph)
    assert [incident.reason.partition(", at ")[0] for incident in module.incidents] == [
        "RuntimeError: tilt",
        "OSError: cannot download: cable unplugged",
    ]


def test_a_device_that_does_not_answer_is_given_up(remote: Remote) -> None:
    """What answers late writes into memory that nobody reads any more."""
    graph = chain(*GRAPH)
    module = compiled(graph, deadline=0.1)
    check(module, graph)
    remote.naps = 0.4
    with pytest.warns(RegionWarning, match="OverdueError"):
        check(module, graph)
    remote.naps = 0.0
    time.sleep(0.5)
    check(module, graph, times=2)
    assert all(region.open for region in module.regions.values())


def test_fallback_error_names_the_transfer(remote: Remote) -> None:
    module = compiled(chain(*GRAPH), fallback="error")
    module.run(None, {"x": X})
    remote.card.broken.add("upload")
    with pytest.raises(EvaluationError, match="'remote_0' failed on remote: OSError: cannot up"):
        module.run(None, {"x": X})


def test_a_device_keeps_what_it_is_not_to_return(remote: Remote) -> None:
    """A runner with a device that returns arrays is refused when it is checked."""
    original = remote.load

    def load(blob: bytes) -> Runner:
        inner = original(blob)

        def run(inputs: Sequence[Far], outputs: Sequence[Far]) -> list[Array]:
            inner(inputs, outputs)
            return [one.inside for one in outputs]

        run.device = remote.card  # type: ignore[attr-defined]
        return run

    remote.load = load  # type: ignore[method-assign]
    with pytest.warns(RegionWarning, match="has to write its outputs there"):
        module = compiled(chain("exp"), fallback="host")
    assert module.placement.regions == ()


def test_files_know_transfers(tmp_path: Path) -> None:
    graph = chain("nn.relu", "sigmoid", "nn.relu")
    pins = [f"{n.output.name}=simnpu" for n in graph.nodes if n.op.name == "nn.relu"]
    module = graft.compile(graph, "simnpu", pins=pins, deadline=30.0)
    assert steps(module) == ["up", "simnpu_0", "down", "up", "simnpu_1", "down"]
    path = tmp_path / "model.graft"
    module.save(path)
    session = graft.load(path)
    assert session.program.body == module.program.body
    assert session.program.values == module.program.values
    (expected,) = graft.compile(graph).run(None, {"x": X})
    np.testing.assert_allclose(session.run(None, {"x": X})[0], expected, rtol=1e-5)


def test_simulated_times() -> None:
    graph = chain("nn.relu", "sigmoid")
    module = graft.compile(graph, "simnpu", pins=["relu=simnpu"])
    profile = module.profile({"x": X})
    up, region, down = (one.spent for one in profile.moments if one.spent is not None)
    assert all(spent.simulated for spent in (up, region, down))
    assert up.transfer == down.transfer == pytest.approx(1e-5 + 60 / 2e9)
    assert region.launch == 5e-5
    assert region.execution > 0 == region.transfer


def test_the_memory_of_the_simulated_device_is_apart() -> None:
    bus = Bus(1e-5, 2e9)
    array = np.arange(6, dtype=np.int64).reshape(2, 3)
    memory = bus.allocate((2, 3), array.dtype)
    assert isinstance(memory, Memory)
    bus.upload(array, memory)
    array[...] = 0
    back = np.empty((2, 3), np.int64)
    bus.download(memory, back)
    np.testing.assert_array_equal(back, [[0, 1, 2], [3, 4, 5]])

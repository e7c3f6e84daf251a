"""Accelerators that fail: results stay right, and whoever compiles or runs the model is told."""

from __future__ import annotations

import re
import threading
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
from tests.byoc.fakes import Fake, flat

import graft
from graft.base.dtypes import Array
from graft.base.errors import EvaluationError
from graft.byoc.contract import PatternTable, Runner
from graft.byoc.discover import register_backend, unregister_backend
from graft.ir.builder import Builder
from graft.ir.graph import Graph
from graft.ir.types import tensor
from graft.module import Module
from graft.rewrite.pattern import is_op, wildcard
from graft.runtime.regions import RegionWarning

Fault = Callable[[list[Array]], list[Array]]  # right results in, what the device makes of them out
SHAPE = (1, 4, 9, 7)
KNOWN = ("nn.conv2d", "nn.relu", "tanh")
X = np.random.default_rng(0).standard_normal(SHAPE, dtype=np.float32)


def _conv_relu() -> PatternTable:
    conv = is_op("nn.conv2d")(wildcard(), wildcard())
    return [("conv_relu", is_op("nn.relu")(conv)), ("tanh", is_op("tanh"))]


class Faulty(Fake):
    """Right until `fault` is set; `calls` counts what its runners have been asked for."""

    version = "1"

    def __init__(self) -> None:
        # A simulated device is not raced against the host, which would win.
        super().__init__("faulty", _conv_relu(), price=flat(1e-9), simulated=True)
        self.fault: Fault | None = None
        self.calls = 0

    def load(self, blob: bytes) -> Runner:
        right = super().load(blob)

        def run(inputs: Sequence[Array], outputs: Sequence[Array]) -> Sequence[Array] | None:
            self.calls += 1
            results = right(inputs, outputs)
            assert results is not None
            return self.fault(list(results)) if self.fault else results

        return run


@pytest.fixture
def faulty() -> Iterator[Faulty]:
    backend = Faulty()
    register_backend(backend)
    yield backend
    unregister_backend("faulty")


def network(*between: str) -> Graph:
    """Two convolutions with a ReLU, and operators between and behind them."""
    build = Builder()
    draw = np.random.default_rng(1)
    value = build.input("x", tensor("float32", *SHAPE))
    for _ in range(2):
        weight = build.constant(draw.standard_normal((4, 4, 3, 3), dtype=np.float32))
        value = build("nn.relu", build("nn.conv2d", value, weight, padding=(1, 1, 1, 1)))
        for name in between:
            value = build(name, value)
    return build.build(value)


def compiled(graph: Graph | None = None, threads: int = 1, **options: Any) -> Module:
    graph = graph or network("sigmoid")
    pins = [f"{node.output.name}=faulty" for node in graph.nodes if node.op.name in KNOWN]
    options = {"fallback": "host", **options}
    return graft.compile(graph, "faulty", threads=threads, pins=pins, **options)


def expected(graph: Graph | None = None, x: Array = X) -> Array:
    (result,) = graft.compile(graph or network("sigmoid"), threads=1).run(None, {"x": x})
    return np.asarray(result)


def check(module: Module, graph: Graph | None = None, times: int = 1) -> None:
    for _ in range(times):
        (result,) = module.run(None, {"x": X})
        np.testing.assert_allclose(result, expected(graph), rtol=1e-4, atol=1e-5)


def raises(_results: list[Array]) -> list[Array]:
    raise RuntimeError("the device is on fire")


def wrong_shape(results: list[Array]) -> list[Array]:
    return [result[:, :-1] for result in results]


def wrong_dtype(results: list[Array]) -> list[Array]:
    return [result.astype(np.float64) for result in results]


def too_few(_results: list[Array]) -> list[Array]:
    return []


def wrong_numbers(results: list[Array]) -> list[Array]:
    return [result + (result == result.max()) for result in results]


def not_numbers(results: list[Array]) -> list[Array]:
    for result in results:
        result.reshape(-1)[-1] = np.nan
    return results


def hangs(results: list[Array]) -> list[Array]:
    time.sleep(1.0)
    return results


def exits(_results: list[Array]) -> list[Array]:
    raise SystemExit(3)


VISIBLE = [
    (raises, "RuntimeError: the device is on fire"),
    (wrong_shape, r"float32\[1, 3, 9, 7\] instead of float32\[1, 4, 9, 7\]"),
    (wrong_dtype, r"float64\[1, 4, 9, 7\] instead of float32\[1, 4, 9, 7\]"),
    (too_few, "0 results instead of 1"),
    (exits, "SystemExit: 3"),
]


def test_without_faults_nobody_is_warned(faulty: Faulty) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error", RegionWarning)
        module = compiled()
        faulty.calls = 0
        check(module)
    assert [region.backend for region in module.placement.regions] == ["faulty"] * 2
    assert faulty.calls == 2
    assert module.incidents == []
    assert module.placement.demotions == ()


# At run time: the check has been passed.


@pytest.mark.parametrize(("fault", "reason"), VISIBLE)
def test_the_host_stands_in_for_every_region(faulty: Faulty, fault: Fault, reason: str) -> None:
    module = compiled()
    faulty.fault = fault
    with pytest.warns(RegionWarning, match=reason):
        check(module)
    assert [incident.region for incident in module.incidents] == ["faulty_0", "faulty_1"]
    assert {incident.backend for incident in module.incidents} == {"faulty"}


def test_the_breakers_open_and_the_device_is_left_alone(faulty: Faulty) -> None:
    module = compiled()
    faulty.fault, faulty.calls = raises, 0
    with pytest.warns(RegionWarning, match="is left to the host for 5 s"):
        check(module, times=5)
    assert faulty.calls == 6  # two regions, three times each
    assert len(module.incidents) == 6
    assert all(region.open for region in module.regions.values())
    faulty.fault = None
    with warnings.catch_warnings():
        warnings.simplefilter("error", RegionWarning)
        check(module)
    assert faulty.calls == 6


def test_every_second_call_fails(faulty: Faulty) -> None:
    module = compiled()

    def flaky(results: list[Array]) -> list[Array]:
        return raises(results) if faulty.calls % 4 in (1, 2) else results

    faulty.fault, faulty.calls = flaky, 0
    with pytest.warns(RegionWarning):
        check(module, times=8)
    assert faulty.calls == 16
    assert len(module.incidents) == 8
    assert not any(region.open for region in module.regions.values())


def test_a_deadline_is_kept(faulty: Faulty) -> None:
    module = compiled(deadline=0.1)
    check(module)  # in time
    assert module.incidents == []
    faulty.fault = hangs
    began = time.monotonic()
    with pytest.warns(RegionWarning, match=r"left to the host for 5 s: OverdueError: no answer"):
        (result,) = module.run(None, {"x": X})
    assert time.monotonic() - began < 0.9
    assert all(region.open for region in module.regions.values())
    time.sleep(1.1)  # what answers too late must not be written over the results
    np.testing.assert_allclose(result, expected(), rtol=1e-4, atol=1e-5)


def test_fallback_error(faulty: Faulty) -> None:
    module = compiled(fallback="error")
    check(module)
    faulty.fault = raises
    with pytest.raises(EvaluationError, match="region 'faulty_0' failed on faulty: RuntimeError"):
        module.run(None, {"x": X})
    faulty.fault = None
    check(module)  # an error is not the end


@pytest.mark.parametrize("threads", [1, 2])
def test_failures_of_some_threads_do_not_disturb_the_others(faulty: Faulty, threads: int) -> None:
    module = compiled(threads=threads)
    inputs = [X * scale for scale in (0.5, 1.0, 2.0, 3.0)]
    wanted = [expected(x=x) for x in inputs]
    lock, turn = threading.Lock(), iter(range(10**6))

    def flaky(results: list[Array]) -> list[Array]:
        with lock:
            number = next(turn)
        return raises(results) if number % 2 else results

    def work(number: int) -> Array:
        (result,) = module.run(None, {"x": inputs[number % 4]})
        return np.asarray(result)

    faulty.fault = flaky
    with pytest.warns(RegionWarning), ThreadPoolExecutor(4) as pool:
        results = list(pool.map(work, range(64)))
    for number, result in enumerate(results):
        np.testing.assert_allclose(result, wanted[number % 4], rtol=1e-4, atol=1e-5)
    assert module.incidents


# At compile time: nothing that fails its check is run later.


@pytest.mark.parametrize(
    ("fault", "reason"),
    [
        *VISIBLE,
        (wrong_numbers, r"its result %relu.* differs from the host's by 1"),
        (not_numbers, r"its result %relu.* is NaN where the host's is not"),
    ],
)
def test_demoted_with_the_reason(faulty: Faulty, fault: Fault, reason: str) -> None:
    faulty.fault = fault
    with pytest.warns(RegionWarning, match=f"faulty_. goes back to the host: .*{reason}"):
        module = compiled()
    assert len(module.placement.demotions) == 2
    for demotion in module.placement.demotions:
        assert re.search(reason, demotion.reason)
        assert demotion.nodes[0].startswith("conv2d")
    assert module.placement.regions == ()
    check(module)
    assert module.incidents == []


def test_what_hangs_is_demoted(faulty: Faulty) -> None:
    faulty.fault, faulty.calls = hangs, 0
    with pytest.warns(RegionWarning, match="it did not run in time: no answer within"):
        module = compiled(deadline=0.1)
    assert faulty.calls == 1  # nobody waits for it a second time
    assert module.placement.regions == ()
    check(module)


def test_a_runner_that_forgets_to_write(faulty: Faulty, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Faulty, "load", lambda _self, _blob: lambda _inputs, _outputs: None)
    with pytest.warns(RegionWarning, match="is NaN where the host's is not"):
        check(compiled())


def test_a_runner_that_is_right_only_once(faulty: Faulty) -> None:
    kept: list[Array] = []

    def stale(results: list[Array]) -> list[Array]:
        kept.extend(results)
        return [kept[0]]

    faulty.fault = stale
    with pytest.warns(RegionWarning, match="differs from the host's"):
        module = compiled()
    assert len(module.placement.demotions) == 2
    check(module)


def test_a_runner_that_writes_over_its_inputs(
    faulty: Faulty, monkeypatch: pytest.MonkeyPatch
) -> None:
    right = Faulty.load

    def load(self: Faulty, blob: bytes) -> Runner:
        inner = right(self, blob)

        def run(inputs: Sequence[Array], outputs: Sequence[Array]) -> Sequence[Array] | None:
            results = inner(inputs, outputs)
            inputs[0][...] = 0
            return results

        return run

    monkeypatch.setattr(Faulty, "load", load)
    with pytest.warns(RegionWarning, match="it writes over its inputs"):
        check(compiled())


class Picky(Faulty):
    """Cannot compile some regions."""

    def __init__(self, refuses: Callable[[list[str]], bool]) -> None:
        super().__init__()
        self.refuses = refuses

    def compile(self, region: Graph) -> bytes:
        names = [node.op.name for node in region.nodes if node.op.name != "constant"]
        if self.refuses(names):
            raise NotImplementedError(f"not {len(names)} nodes like these")
        return super().compile(region)


def picky(refuses: Callable[[list[str]], bool]) -> Module:
    """A network of four candidates that is one region, until it does not compile."""
    backend = Picky(refuses)
    register_backend(backend)
    try:
        module = compiled(network("tanh"))
    finally:
        unregister_backend("faulty")
    check(module, network("tanh"))
    return module


def test_one_bad_candidate_does_not_spoil_the_region() -> None:
    with pytest.warns(RegionWarning, match="is tried again in two parts"):
        module = picky(lambda names: "tanh" in names)
    regions = [region.nodes for region in module.placement.regions]
    assert [len(nodes) for nodes in regions] == [2, 2]
    assert [demotion.nodes for demotion in module.placement.demotions] == [("tanh",), ("tanh_1",)]


def test_a_region_that_is_too_large_runs_in_parts() -> None:
    with pytest.warns(RegionWarning, match="NotImplementedError: not 6 nodes like these"):
        module = picky(lambda names: len(names) > 3)
    assert [len(region.nodes) for region in module.placement.regions] == [3, 3]
    assert module.placement.demotions == ()

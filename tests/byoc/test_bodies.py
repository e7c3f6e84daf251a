"""Regions inside of branches, loops and scans: chosen, priced, checked, run, saved."""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.byoc.body_models import (
    ASKED,
    BRANCH,
    DATA,
    LOOP,
    NESTED,
    NO_TRIPS,
    SCAN,
    SYMBOLIC,
    model,
)
from tests.byoc.fakes import Fake, flat
from tests.byoc.test_transfers import Counting, Remote

import graft
from graft.base.dtypes import Array, DType
from graft.base.errors import EvaluationError, UserError
from graft.byoc.contract import Limits, Runner
from graft.byoc.discover import register_backend, unregister_backend
from graft.byoc.partition import Partition, PartitionOptions, partition
from graft.byoc.plan import parse_plan
from graft.byoc.price import Pricing
from graft.byoc.problem import Flow
from graft.module import Module
from graft.passes.name_apart import name_apart
from graft.program.instructions import RegionCall, Transfer, walk
from graft.rewrite.pattern import is_op
from graft.runtime.regions import RegionWarning
from graft.stages import import_graph, optimize

OPS = ("exp", "tanh", "nn.softmax", "nn.dense")
DRAW = np.random.default_rng(0)
X = DRAW.standard_normal((2, 8)).astype(np.float32)
FEEDS: dict[str, dict[str, Array]] = {
    LOOP: {"x": X},
    ASKED: {"x": X, "trip": np.array(3)},
    DATA: {"x": np.ones((2, 8), np.float32)},
    BRANCH: {"x": X},
    SCAN: {
        "x": DRAW.standard_normal((5, 1, 4)).astype(np.float32),
        "h": np.zeros((1, 8), np.float32),
    },
    NESTED: {"x": DRAW.standard_normal((3, 8)).astype(np.float32)},
    SYMBOLIC: {"x": X},
}


class Inner(Fake):
    """Takes some operators; `fault` changes what its runners give, `calls` counts them."""

    version = "1"

    def __init__(self, *ops: str, **options: Any) -> None:
        # a simulated device is not raced against the host, which would win
        table = [(op, is_op(op)) for op in ops]
        super().__init__("inner", table, price=flat(1e-9), simulated=True, **options)
        self.fault: Callable[[list[Array]], list[Array]] | None = None
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
def inner() -> Iterator[Inner]:
    backend = Inner(*OPS)
    register_backend(backend)
    yield backend
    unregister_backend("inner")


def on_inner(text: str, ops: Sequence[str] = OPS) -> list[str]:
    """Pins of all nodes that the backend takes, in bodies and outside."""
    graph = name_apart(optimize(import_graph(model(text))).graph)
    return [f"{node.output.name}=inner" for node in graph.walk() if node.op.name in ops]


def compiled(text: str, **options: Any) -> Module:
    options = {"pins": on_inner(text), "threads": 1, **options}
    return graft.compile(model(text), "inner", **options)


def check(module: Any, text: str, feeds: dict[str, Array] | None = None) -> None:
    feeds = feeds or FEEDS[text]
    expected = graft.compile(model(text), threads=1).run(None, feeds)
    for ours, theirs in zip(module.run(None, feeds), expected, strict=True):
        assert ours.shape == theirs.shape
        np.testing.assert_allclose(ours, theirs, rtol=1e-4, atol=1e-5)


STEP = 2e-5  # seconds around each region, on the host


def placed(text: str, backend: Fake) -> Partition:
    graph = name_apart(optimize(import_graph(model(text))).graph)
    rates = {"peak_flops": 1e9, "peak_bytes_per_second": 1e6}
    host = Fake("host", limits=Limits(launch_seconds=STEP, **rates))
    return partition(graph, [backend], Pricing(host, {}), PartitionOptions())


# --- running -------------------------------------------------------------------------------------


@pytest.mark.parametrize("text", FEEDS)
def test_results_are_the_hosts(text: str, inner: Inner) -> None:
    module = compiled(text)
    assert module.placement.regions
    assert all(region.body for region in module.placement.regions)
    check(module, text)
    assert not module.incidents


@pytest.mark.parametrize(
    ("text", "feeds", "calls"),
    [
        (LOOP, FEEDS[LOOP], 4),
        (DATA, FEEDS[DATA], 3),
        (ASKED, {"x": X, "trip": np.array(7)}, 7),
        (ASKED, {"x": X, "trip": np.array(0)}, 0),
        (SYMBOLIC, {"x": DRAW.standard_normal((5, 8)).astype(np.float32)}, 3),
    ],
)
def test_a_region_runs_once_per_iteration(
    text: str, feeds: dict[str, Array], calls: int, inner: Inner
) -> None:
    module = compiled(text, verify="off")
    before = inner.calls
    check(module, text, feeds)
    assert inner.calls - before == calls


def test_the_branch_that_is_taken(inner: Inner) -> None:
    module = compiled(BRANCH, verify="off")
    for feeds in ({"x": X}, {"x": X + 1e6}):
        before = inner.calls
        check(module, BRANCH, feeds)
        assert inner.calls - before == 1
    assert {one.body.rsplit("/", 1)[-1] for one in module.placement.regions} == {
        "then_branch",
        "else_branch",
    }


def test_files(inner: Inner, tmp_path: Path) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # loading has to use what is registered here
        for text in (LOOP, NESTED):
            module = compiled(text)
            module.save(tmp_path / "model.graft")
            again = graft.load(tmp_path / "model.graft", threads=1)
            check(again, text)
            assert [r.body for r in again.placement.regions] == [
                r.body for r in module.placement.regions
            ]


def test_a_convolution_in_a_loop(tmp_path: Path) -> None:
    """A convolution with its ReLU, on libraries whose artifacts can be loaded anywhere."""
    text = """net (float[1, 4, 6, 6] x) => (float[1, 4, 6, 6] y)
        <int64 trip = {3}, bool go = {1}, float[4, 4, 1, 1] w = {W}> {
        y = Loop (trip, go, x) <body = one (int64 i, bool c, float[1, 4, 6, 6] s)
            => (bool c2, float[1, 4, 6, 6] s2) {
            c2 = Identity (c)
            v = Conv (s, w)
            s2 = Relu (v)
        }>
    }""".replace("{W}", "{" + ", ".join(str(i % 3 * 0.3) for i in range(16)) + "}")
    feeds = {"x": DRAW.standard_normal((1, 4, 6, 6)).astype(np.float32)}
    for name in ("onednn", "simnpu"):
        pins = [f"{value}={name}" for value in ("v", "s2")]
        module = graft.compile(model(text), name, pins=pins, threads=1)
        (region,) = module.placement.regions
        assert (region.backend, region.nodes, region.executions) == (name, ("v", "s2"), 3)
        check(module, text, feeds)
        module.save(tmp_path / "model.graft")
        check(graft.load(tmp_path / "model.graft", threads=1), text, feeds)


# --- memory of devices ---------------------------------------------------------------------------


def test_transfers_are_instructions_of_the_body() -> None:
    """What two regions of a body read is brought once per iteration, results are fetched."""
    text = """net (float[3, 5] x) => (float[3, 5] y) <int64 trip = {4}, bool go = {1}> {
        y = Loop (trip, go, x) <body = step (int64 i, bool c, float[3, 5] s)
            => (bool c2, float[3, 5] s2) {
            c2 = Identity (c)
            e = Exp (s)
            n = Neg (e)
            a = Add (n, s)
            p = Softmax (a)
            t = Mul (p, e)
            s2 = Tanh (t)
        }>
    }"""
    card = Counting()
    backend = Remote("remote", card, "exp", "tanh", "multiply")
    register_backend(backend)
    try:
        options: dict[str, Any] = {"threads": 1, "verify": "off"}
        pins = ["e=remote", "t=remote", "s2=remote"]
        module = graft.compile(model(text), "remote", pins=pins, **options)
        steps = list(walk(module.program.body))
        assert sum(isinstance(step, RegionCall) for step in steps) == 2
        assert sum(isinstance(step, Transfer) and step.upload for step in steps) == 2  # s, p
        assert sum(isinstance(step, Transfer) and not step.upload for step in steps) == 2  # e, s2
        card.log.clear()
        feeds = {"x": DRAW.standard_normal((3, 5)).astype(np.float32)}
        check(module, text, feeds)
        assert card.log.count("upload") == card.log.count("download") == 4 * 2
        assert not module.incidents
    finally:
        unregister_backend("remote")


CAPTURING = """net (float[3, 5] x, float[3, 5] k) => (float[3, 5] y)
    <int64 trip = {4}, bool go = {1}> {
    b = Exp (k)
    y = Loop (trip, go, x) <body = step (int64 i, bool c, float[3, 5] s)
        => (bool c2, float[3, 5] s2) {
        c2 = Identity (c)
        m = Mul (s, b)
        s2 = Tanh (m)
    }>
}"""


@pytest.mark.parametrize(("made_there", "uploads"), [(False, 1), (True, 1)])
def test_captures_are_brought_once(made_there: bool, uploads: int) -> None:
    """To a device where nothing has brought them yet: `b` itself, or `k`, of which it is made."""
    card = Counting()
    register_backend(Remote("remote", card, "exp", "tanh", "multiply"))
    try:
        pins = ["m=remote", "s2=remote", f"b={'remote' if made_there else 'host'}"]
        options: dict[str, Any] = {"threads": 1, "verify": "off", "pins": pins}
        module = graft.compile(model(CAPTURING), "remote", **options)
        card.log.clear()
        feeds = {name: DRAW.standard_normal((3, 5)).astype(np.float32) for name in ("x", "k")}
        check(module, CAPTURING, feeds)
        assert card.log.count("upload") == 4 + uploads
        assert card.log.count("download") == 4 + made_there
        card.log.clear()
        check(module, CAPTURING, feeds)
        assert "allocate" not in card.log  # tensors are used again
    finally:
        unregister_backend("remote")


def test_captures_are_priced_once() -> None:
    limits = Limits(space="card", latency=1e-5, bytes_per_second=1e6)
    backend = Inner("multiply", "tanh", limits=limits)
    flows = {flow.name: flow for flow in placed(CAPTURING, backend).placement.problem.flows}
    size = 3 * 5 * 4
    assert flows["b"].bring[1] == pytest.approx(1e-5 + size / 1e6)
    assert flows["s"].bring[1] == pytest.approx(4 * (1e-5 + size / 1e6))
    assert len(flows["b"].consumers) == 2  # the loop, and the product in it
    # what has to be converted in the body is brought in every iteration
    converted = Inner("multiply", limits=Limits(space="card", latency=1e-5, dtype=DType.FLOAT16))
    names = [flow.name for flow in placed(CAPTURING, converted).placement.problem.flows]
    assert names.count("b") + names.count("b_1") == 2


def test_a_device_that_is_lost_in_a_loop() -> None:
    card = Counting()
    backend = Remote("remote", card, "exp")
    register_backend(backend)
    try:
        module = graft.compile(model(LOOP), "remote", pins=["e=remote"], threads=1, verify="off")
        card.broken = {"upload"}
        with pytest.warns(RegionWarning):
            check(module, LOOP)
        assert module.incidents
    finally:
        unregister_backend("remote")


def test_constants_of_bodies_share_a_devices_memory() -> None:
    """Of two dense layers, one in a loop, only one fits: the one that runs more often."""
    row = ", ".join(["0.5"] * 64)
    weights = f"float[8, 8] v = {{{row}}}, float[8, 8] w = {{{row}}}"
    text = f"""net (float[1, 8] x) => (float[1, 8] y)
        <int64 trip = {{9}}, bool go = {{1}}, {weights}> {{
        first = MatMul (x, v)
        y = Loop (trip, go, first) <body = step (int64 i, bool c, float[1, 8] s)
            => (bool c2, float[1, 8] s2) {{
            c2 = Identity (c)
            s2 = MatMul (s, w)
        }}>
    }}"""
    first, inside = "MatMul_0", "Loop_1/body/MatMul_1"
    for room, expected in ((2000, {first, inside}), (400, {inside}), (200, set())):
        for space in ("card", "host"):
            limits = Limits(space=space, memory_bytes=room, bytes_per_second=1e12)
            found = placed(text, Inner("nn.dense", limits=limits))
            nodes = {name for one in found.plan.regions for name in one.nodes}
            assert nodes == expected, (room, space)
            assert found.choice.proven


# --- prices --------------------------------------------------------------------------------------


def test_prices_are_those_of_all_executions() -> None:
    limits = Limits(space="card", launch_seconds=1e-4, latency=1e-5, bytes_per_second=1e6)
    found = placed(LOOP, Inner("exp", "tanh", limits=limits))
    problem, size = found.placement.problem, 2 * 8 * 4
    outer, body = problem.sites[1:]
    assert (outer.name, body.name) == ("inner", "inner")
    assert outer.launch == pytest.approx(1e-4 + STEP)
    assert body.launch == pytest.approx(4 * (1e-4 + STEP))
    (away,) = {option.seconds for option in problem.options if option.site == 2}
    assert away == pytest.approx(4e-9)

    def carried(name: str) -> Flow:
        return next(flow for flow in problem.flows if flow.name == name)

    assert carried("s").bring[1] == pytest.approx(4 * (1e-5 + size / 1e6))
    assert carried("s2").fetch[1] == pytest.approx(4 * (1e-5 + size / 1e6))
    assert carried("x").bring[1] == pytest.approx(1e-5 + size / 1e6)
    assert found.plan.predicted == pytest.approx(found.plan.bound)


def test_more_iterations_are_worth_a_region() -> None:
    """A launch costs the same in a loop and outside; the plan weighs it against the same work."""

    def backend(launch: float) -> Inner:
        return Inner("exp", "tanh", limits=Limits(launch_seconds=launch))

    assert placed(LOOP, backend(0.0)).plan.regions
    assert not placed(LOOP, backend(1.0)).plan.regions


def test_regions_do_not_cross_borders_of_bodies() -> None:
    text = """net (float[2, 8] x) => (float[2, 8] y) <int64 trip = {4}, bool go = {1}> {
        before = Exp (x)
        z = Loop (trip, go, before) <body = step (int64 i, bool c, float[2, 8] s)
            => (bool c2, float[2, 8] s2) {
            c2 = Identity (c)
            s2 = Exp (s)
        }>
        y = Exp (z)
    }"""
    found = placed(text, Inner("exp"))
    assert [len(one.nodes) for one in found.plan.regions] == [1, 1, 1]
    assert {name for one in found.plan.regions for name in one.nodes} == {
        "Exp_0",
        "Loop_1/body/Exp_1",
        "Exp_2",
    }


def test_a_body_that_is_never_executed_stays_with_the_host(inner: Inner) -> None:
    with pytest.raises(UserError, match="is never executed"):
        compiled(NO_TRIPS)
    module = graft.compile(model(NO_TRIPS), "inner", threads=1)
    assert not module.placement.regions
    check(module, NO_TRIPS, {"x": X})


def test_a_backend_that_takes_loops_gets_them_whole() -> None:
    backend = Inner("loop", "exp")
    found = placed(LOOP, backend)
    assert [node.op.name for node in found.candidates.nodes] == ["loop"]
    assert [one.nodes for one in found.plan.regions if one.backend == "inner"]


# --- trust ---------------------------------------------------------------------------------------


def test_a_region_that_computes_wrongly_goes_back_to_the_host(inner: Inner) -> None:
    def wrong(results: list[Array]) -> list[Array]:
        return [result + 1 for result in results]

    inner.fault = wrong
    with pytest.warns(RegionWarning, match="goes back to the host"):
        module = compiled(LOOP, fallback="host")
    assert not module.placement.regions
    assert module.placement.demotions
    check(module, LOOP)


def test_a_bad_node_does_not_spoil_the_region_of_a_body() -> None:
    class Picky(Inner):
        def compile(self, region: Any) -> bytes:
            if any(node.op.name == "tanh" for node in region.nodes):
                raise NotImplementedError("no tanh here")
            return super().compile(region)

    register_backend(Picky("exp", "tanh"))
    try:
        with pytest.warns(RegionWarning, match="tried again in two parts"):
            module = compiled(LOOP, fallback="host", pins=["e=inner", "s2=inner"])
        (region,) = module.placement.regions
        assert region.nodes == ("e",)
        check(module, LOOP)
    finally:
        unregister_backend("inner")


def burns(_results: list[Array]) -> list[Array]:
    raise RuntimeError("the device is on fire")


def test_the_host_stands_in_within_the_same_inference(inner: Inner) -> None:
    module = compiled(LOOP)
    inner.fault = burns
    with pytest.warns(RegionWarning, match="the device is on fire"):
        check(module, LOOP)
    assert module.incidents[0].region == "inner_0"
    before = inner.calls
    check(module, LOOP)
    assert inner.calls == before  # the breaker is open: not one more iteration tries


def test_no_fallback(inner: Inner) -> None:
    module = compiled(LOOP, fallback="error")
    inner.fault = burns
    with pytest.raises(EvaluationError, match="the device is on fire"):
        module.run(None, FEEDS[LOOP])


def test_deadlines(inner: Inner) -> None:
    module = compiled(LOOP, deadline=0.2)

    def hangs(results: list[Array]) -> list[Array]:
        time.sleep(1.0)
        return results

    inner.fault = hangs
    with pytest.warns(RegionWarning):
        check(module, LOOP)
    assert module.incidents


# --- plans ---------------------------------------------------------------------------------------


def test_plans_say_how_often_bodies_run(inner: Inner) -> None:
    plan = compiled(NESTED).placement.plan
    assert plan is not None
    again = parse_plan(plan.to_text())
    assert again.bodies == plan.bodies
    assert [one.source.value for one in plan.bodies.values()] == [
        "known",
        "known",
        "measured",
        "measured",
    ]
    module = graft.compile(model(NESTED), "inner", plan=again, threads=1)
    assert module.placement.regions == compiled(NESTED).placement.regions
    check(module, NESTED)


def test_plans_with_impossible_regions(inner: Inner) -> None:
    plan = compiled(NESTED).placement.plan
    assert plan is not None
    lines = plan.to_text().splitlines()
    merged = [line for line in lines if not line.startswith("region")]
    first = next(i for i, line in enumerate(merged) if line.startswith("  "))
    merged.insert(first, "region inner 1 measured")
    with pytest.raises(UserError, match="a region in two bodies"):
        graft.compile(model(NESTED), "inner", plan=parse_plan("\n".join(merged)))


def test_a_plan_with_a_region_within_another(inner: Inner) -> None:
    plan = compiled(LOOP).placement.plan
    assert plan is not None
    text = plan.to_text().replace("rest host", "region inner 1 measured\n  Loop_0\nrest host")
    with pytest.raises(UserError, match="in a region within another one"):
        graft.compile(model(LOOP), "inner", plan=parse_plan(text))


def test_the_line_names_bodies(inner: Inner) -> None:
    module = compiled(LOOP)
    assert "Loop_0/body × 4 (known)" in str(module.placement)
    assert module.placement.stored().facts["bodies"] == {
        "Loop_0/body": {"executions": 4.0, "source": "known"}
    }

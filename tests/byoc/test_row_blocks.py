"""Regions of backends that compile fixed shapes only, on any number of rows."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from onnx import parser
from tests.byoc.fakes import Fake
from tests.byoc.test_transfers import Counting, Far

import graft
from graft.base.dims import symbol
from graft.base.dtypes import Array
from graft.base.errors import GraftError, UserError
from graft.byoc.contract import Cost, Limits, Match, Runner
from graft.byoc.discover import register_backend, unregister_backend
from graft.byoc.plan import Plan, PlannedRegion, model_hash
from graft.byoc.sizes import node_work
from graft.ir.builder import Builder
from graft.ir.evaluate import evaluate
from graft.ir.graph import Graph
from graft.ir.types import tensor
from graft.rewrite.pattern import is_op
from graft.rewrite.rule import Refusal
from graft.runtime.artifact import load as load_artifact
from graft.runtime.grafted import stored_regions
from graft.runtime.regions import RegionWarning
from graft.runtime.row_blocks import BlockRunner, Blocks

N = symbol("n")
OPS = (
    *("nn.dense", "nn.bias_add", "nn.relu", "reshape", "nn.softmax", "nn.conv2d", "mean", "add"),
    *("vision.roi_align", "exp", "sum", "nn.max_pool2d"),
)
PER_ROW, PER_CALL = 1e-9, 1e-8


class Fixed(Fake):
    """Runs operators on fixed shapes; a call takes some time, and each row."""

    version = "1"

    def __init__(self, name: str = "fixed", limits: Limits | None = None) -> None:
        patterns = [(op, is_op(op)) for op in OPS]
        super().__init__(name, patterns, self._fixed, self._time, limits, simulated=True)
        self.seen: list[tuple[int, ...]] = []
        self.broken: set[str] = set()

    @staticmethod
    def _fixed(match: Match) -> Refusal | None:
        values = (*match.inputs, *match.outputs)
        return None if all(v.tensor.is_static for v in values) else Refusal("it wants numbers")

    @staticmethod
    def _time(region: Graph) -> Cost:
        rows = region.outputs[0].tensor.shape or (1,)
        return Cost(PER_CALL + PER_ROW * float(rows[0]))  # type: ignore[arg-type]

    def compile(self, region: Graph) -> bytes:
        for node in region.nodes:
            if node.op.name in self.broken:
                raise NotImplementedError(f"no {node.op.name} here")
        return super().compile(region)

    def load(self, blob: bytes) -> Runner:
        right = super().load(blob)

        def run(inputs: Sequence[Array], outputs: Sequence[Array]) -> Sequence[Array] | None:
            self.seen.append(inputs[0].shape)
            if "calls" in self.broken:
                raise RuntimeError("worn out")
            return right(inputs, outputs)

        return run


@pytest.fixture
def backend() -> Iterator[Fixed]:
    made = Fixed()
    register_backend(made)
    yield made
    unregister_backend(made.name)


def weights(*shape: int) -> Array:
    draw = np.random.default_rng(sum(shape))
    return (draw.standard_normal(shape) / np.sqrt(shape[-1])).astype(np.float32)


def head() -> Graph:
    """The head of a detector: boxes, of which the data tell the number, to class scores."""
    g = Builder()
    features = g.input("features", tensor("float32", 1, 8, 12, 10))
    boxes = g.input("boxes", tensor("float32", N, 4))
    images = g.input("images", tensor("int64", N))
    pooled = g("vision.roi_align", features, boxes, images, pooled_size=(3, 3))
    flat = g("reshape", pooled, shape=(N, 72))
    hidden = g("nn.dense", flat, g.constant(weights(20, 72)))
    hidden = g("nn.relu", g("nn.bias_add", hidden, g.constant(weights(20))))
    scores = g("nn.dense", hidden, g.constant(weights(7, 20)))
    return g.build(g("nn.softmax", scores, axis=-1), scores)


def head_inputs(n: int) -> list[Array]:
    draw = np.random.default_rng(n)
    corners = draw.uniform(0, 6, (n, 2))
    boxes = np.concatenate([corners, corners + draw.uniform(1, 4, (n, 2))], axis=1)
    features = draw.standard_normal((1, 8, 12, 10))
    return [features.astype(np.float32), boxes.astype(np.float32), np.zeros(n, np.int64)]


def network() -> Graph:
    """A convolution network with a dynamic batch."""
    g = Builder()
    x = g.input("x", tensor("float32", N, 3, 9, 7))
    conv = g("nn.conv2d", x, g.constant(weights(8, 3, 3, 3)), padding=(1, 1, 1, 1))
    conv = g("nn.relu", g("nn.bias_add", conv, g.constant(weights(8))))
    pooled = g("nn.max_pool2d", conv, pool_size=(2, 2), strides=(2, 2))
    mean = g("mean", g("add", pooled, pooled), axes=(2, 3), keepdims=False)
    return g.build(g("nn.dense", mean, g.constant(weights(5, 8))))


def network_inputs(n: int) -> list[Array]:
    return [np.random.default_rng(n).standard_normal((n, 3, 9, 7)).astype(np.float32)]


def check(module: Any, graph: Graph, inputs: Sequence[Array]) -> None:
    feeds = {value.name: array for value, array in zip(graph.inputs, inputs, strict=True)}
    for result, expected in zip(module.run(None, feeds), evaluate(graph, inputs), strict=True):
        assert result.shape == np.asarray(expected).shape
        np.testing.assert_allclose(result, expected, rtol=2e-5, atol=1e-6)


def block_of(module: Any) -> int:
    (region,) = module.placement.regions
    return int(region.rows)


MODELS = {"head": (head, head_inputs), "network": (network, network_inputs)}


@pytest.mark.parametrize("model", MODELS)
def test_any_number_of_rows(backend: Fixed, model: str) -> None:
    build, inputs = MODELS[model]
    graph = build()
    module = graft.compile(graph, "fixed", pins=["*=fixed"])
    assert module.placement.nodes == {"fixed": len(placed(graph))}
    rows = block_of(module)
    for n in (0, 1, rows - 1, rows, rows + 1, 2 * rows + 3):
        backend.seen.clear()
        check(module, graph, inputs(n))
        assert len(backend.seen) == -(-n // rows)
    assert not module.incidents


def placed(graph: Graph) -> list[Any]:
    return [node for node in graph.nodes if node.op.name != "constant"]


@pytest.mark.parametrize("model", MODELS)
def test_a_file(backend: Fixed, model: str, tmp_path: Path) -> None:
    build, inputs = MODELS[model]
    graph = build()
    path = tmp_path / "model.graft"
    graft.compile(graph, "fixed", pins=["*=fixed"]).save(path)
    with pytest.warns(RegionWarning, match="no installed package announces"):
        session = graft.load(path)  # whose host part takes any number of rows
    for n in (0, 5):
        feeds = {v.name: array for v, array in zip(graph.inputs, inputs(n), strict=True)}
        results = session.run(None, feeds)
        for result, expected in zip(results, evaluate(graph, inputs(n)), strict=True):
            np.testing.assert_allclose(result, expected, rtol=2e-5, atol=1e-6)


def test_a_loaded_file_runs_in_blocks(tmp_path: Path) -> None:
    graph, path = plain_network(), tmp_path / "model.graft"
    module = graft.compile(graph, "simnpu", pins=["*=simnpu"])
    module.save(path)
    (stored,) = stored_regions(load_artifact(path).blobs)[""][1]
    assert stored.blocks == Blocks(block_of(module))
    session = graft.load(path)
    for n in (0, 1, stored.rows + 1):
        check(session, graph, network_inputs(n))
    assert not session.incidents


def plain_network() -> Graph:
    g = Builder()
    x = g.input("x", tensor("float32", N, 3, 9, 7))
    conv = g("nn.conv2d", x, g.constant(weights(8, 3, 3, 3)), padding=(1, 1, 1, 1))
    return g.build(g("nn.relu", g("nn.bias_add", conv, g.constant(weights(8)))))


def test_a_process_of_its_own(tmp_path: Path) -> None:
    graph = plain_network()
    options = {"pins": ["*=simnpu"], "isolation": "process"}
    module = graft.compile(graph, "simnpu", **options)  # type: ignore[arg-type]
    path = tmp_path / "model.graft"
    module.save(path)
    for session in (module, graft.load(path)):
        for n in (0, 1, block_of(module) + 1):
            check(session, graph, network_inputs(n))
        assert not session.incidents


def test_threads_share_a_module(backend: Fixed) -> None:
    graph = network()
    module = graft.compile(graph, "fixed", pins=["*=fixed"])
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda n: check(module, graph, network_inputs(n)), (3, 40, 0, 7, 1, 130)))


def test_the_host_stands_in(backend: Fixed) -> None:
    graph = network()
    module = graft.compile(graph, "fixed", pins=["*=fixed"])
    backend.broken.add("calls")
    with pytest.warns(RegionWarning, match="RuntimeError: worn out"):
        check(module, graph, network_inputs(2 * block_of(module) + 1))
    assert len(module.incidents) == 1
    strict = graft.compile(graph, "fixed", pins=["*=fixed"], check=False, fallback="error")
    with pytest.raises(GraftError, match="worn out"):
        strict.run(None, {"x": network_inputs(3)[0]})


def test_a_part_that_does_not_compile_is_cut_off(backend: Fixed) -> None:
    graph = network()
    backend.broken.add("mean")
    with pytest.warns(RegionWarning, match="no mean here"):
        module = graft.compile(graph, "fixed", pins=["*=fixed"], fallback="host")
    assert module.placement.nodes == {"host": 1, "fixed": len(placed(graph)) - 1}
    for n in (0, 1, 70):
        check(module, graph, network_inputs(n))


def test_a_plan_is_replayed(backend: Fixed, tmp_path: Path) -> None:
    graph = network()
    module = graft.compile(graph, "fixed", pins=["*=fixed"])
    path = tmp_path / "plan"
    text = module.placement.plan.to_text()
    rows = block_of(module)
    assert f"declared rows {rows}" in text
    path.write_text(text.replace(f"rows {rows}", "rows 4"))
    again = graft.compile(graph, "fixed", plan=path)
    backend.seen.clear()
    check(again, graph, network_inputs(9))
    assert backend.seen == [(4, 3, 9, 7)] * 3


BODIES = """<ir_version: 10, opset_import: ["": 21]>
net (bool go, float[n, 3] x, int64 trip) => (float[n, 3] y, float[n, 3] z) {
    e = Relu (x)
    y = If (go) <
        then_branch = one () => (float[n, 3] t) { t0 = Exp (e)  t = Softmax <axis = -1> (t0) },
        else_branch = other () => (float[n, 3] f) { f = Relu (e) }>
    cond = Constant <value = bool {1}> ()
    z = Loop (trip, cond, x) <body = step (int64 i, bool c, float[m, 3] s)
        => (bool c2, float[m, 3] s2) {
        c2 = Identity (c)
        s1 = Exp (s)
        s2 = Softmax <axis = -1> (s1)
    }>
}"""


def test_bodies(backend: Fixed) -> None:
    model = parser.parse_model(BODIES)
    module = graft.compile(model, "fixed", pins=["t=fixed", "s1=fixed", "s2=fixed"])
    assert sorted(r.body for r in module.placement.regions if r.rows) == [
        "If_1/then_branch",
        "Loop_3/body",
    ]
    host = graft.compile(model)
    for n in (0, 1, 200):
        x = network_inputs(n)[0][:, :, 0, 0]
        for go in (True, False):
            feeds = {"go": np.array(go), "x": x, "trip": np.array(3)}
            for result, expected in zip(
                module.run(None, feeds), host.run(None, feeds), strict=True
            ):
                np.testing.assert_allclose(result, expected, rtol=2e-5)


def test_rows_that_depend_on_each_other_stay_on_the_host(backend: Fixed) -> None:
    g = Builder()
    x = g.input("x", tensor("float32", N, 3))
    total = g("sum", g("exp", x), axes=(0,))
    graph = g.build(g("nn.softmax", x, axis=0), total)
    module = graft.compile(graph, "fixed", pins=["exp=fixed"])
    assert module.placement.nodes == {"host": 2, "fixed": 1}
    for n in (0, 1, 40):
        check(module, graph, [np.ones((n, 3), np.float32)])


def test_a_device_gets_what_has_no_rows_once() -> None:
    device = Counting()

    def add(inputs: Sequence[Far], outputs: Sequence[Far]) -> None:
        outputs[0].inside[...] = inputs[0].inside + inputs[1].inside

    add.device = device  # type: ignore[attr-defined]
    runner = BlockRunner(add, Blocks(4, whole=(1,)))
    table = np.arange(3, dtype=np.float32)
    for n, calls in ((0, 0), (1, 1), (4, 1), (9, 3)):
        device.log.clear()
        x = np.random.default_rng(n).standard_normal((n, 3)).astype(np.float32)
        result = np.full_like(x, np.nan)
        runner([x, table], [result])
        np.testing.assert_array_equal(result, x + table)
        assert device.log.count("upload") == (calls + 1 if calls else 0)
        assert device.log.count("download") == calls
        assert device.log.count("allocate") == (3 if n == 1 else 0)  # later blocks use it again


def test_a_failed_block_leaves_no_memory_to_be_used_again() -> None:
    device = Counting()

    def fail(inputs: Sequence[Far], outputs: Sequence[Far]) -> None:
        if not np.isfinite(inputs[0].inside).all():
            raise OSError("lost")
        outputs[0].inside[...] = inputs[0].inside

    fail.device = device  # type: ignore[attr-defined]
    runner, x = BlockRunner(fail, Blocks(2)), np.ones((2, 3), np.float32)
    for data, allocations in ((x, 2), (x, 0), (x * np.nan, 0), (x, 2)):
        device.log.clear()
        with suppress(OSError):
            runner([data], [np.empty_like(x)])
        assert device.log.count("allocate") == allocations


def test_a_plan_with_blocks_of_dependent_rows_is_refused(backend: Fixed) -> None:
    g = Builder()
    graph = g.build(g("nn.softmax", g.input("x", tensor("float32", N, 3)), axis=0))
    region = PlannedRegion("fixed", ("%softmax",), rows=4)
    plan = Plan(model_hash(graph), {}, (region,))
    with pytest.raises(UserError, match="%softmax cannot run in blocks of rows"):
        graft.compile(graph, "fixed", plan=plan)


def test_rows_of_a_block_suit_a_single_row_and_the_expected_number(backend: Fixed) -> None:
    """Where blocks of any size cost the same per row, a large one is wasted on a single row."""
    backend._price = lambda region: Cost(1e-9 * node_work(region.nodes[-1]).flops)
    assert block_of(graft.compile(network(), "fixed", pins=["*=fixed"])) == 1
    backend._price = lambda region: Cost(1e-9 * (2000 + node_work(region.nodes[-1]).flops))
    assert block_of(graft.compile(network(), "fixed", pins=["*=fixed"])) == 8
    backend._price = lambda _region: Cost(1e-6)
    assert block_of(graft.compile(network(), "fixed", pins=["*=fixed"])) == 128

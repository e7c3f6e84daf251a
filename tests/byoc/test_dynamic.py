"""Regions in graphs that have no native program: shapes are known at run time only."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import pytest
from tests.byoc.fakes import Fake, flat
from tests.byoc.test_transfers import Counting, Remote

import graft
from graft.base.dims import symbol
from graft.base.dtypes import Array, DType
from graft.byoc.contract import Limits, Runner
from graft.byoc.discover import register_backend, unregister_backend
from graft.ir.builder import Builder
from graft.ir.evaluate import run_graph
from graft.ir.graph import Graph
from graft.ir.types import TensorType
from graft.rewrite.pattern import is_op
from graft.runtime.regions import RegionWarning


class Elastic(Fake):
    """Runs some operators at any size, until it fails."""

    version = "1"

    def __init__(self) -> None:
        ops = ("exp", "concatenate", "nonzero")
        patterns = [(op, is_op(op)) for op in ops]
        super().__init__("any", patterns, None, flat(1e-9), Limits(), simulated=True)
        self.seen: list[tuple[int, ...]] = []
        self.broken = False

    def load(self, blob: bytes) -> Runner:
        right = super().load(blob)

        def run(inputs: Sequence[Array], outputs: Sequence[Array]) -> Sequence[Array] | None:
            self.seen.append(inputs[0].shape)
            if self.broken:
                raise RuntimeError("worn out")
            return right(inputs, outputs)

        return run


@pytest.fixture
def backend() -> Iterator[Elastic]:
    made = Elastic()
    register_backend(made)
    yield made
    unregister_backend("any")


def doubled() -> Graph:
    """[n, 3] -> [2 n, 3]: the region's result has an extent of its own."""
    build = Builder()
    x = build.input("x", TensorType(DType.FLOAT32, (symbol("n"), 3)))
    twice = build("concatenate", build("exp", x), x, axis=0)
    return build.build(build("sigmoid", twice))


def meaning(x: Array) -> Array:
    return np.asarray(1 / (1 + np.exp(-np.concatenate([np.exp(x), x]))), np.float32)


PINS = ["exp=any", "concat*=any"]


def test_an_accelerator_runs_its_region_at_any_size(backend: Elastic) -> None:
    module = graft.compile(doubled(), "any", pins=PINS)
    assert module.placement.nodes == {"host": 1, "any": 2}
    backend.seen.clear()
    for n in (4, 0, 1):
        x = np.random.default_rng(n).standard_normal((n, 3), dtype=np.float32)
        np.testing.assert_allclose(module.run(None, {"x": x})[0], meaning(x), rtol=1e-5)
    assert backend.seen == [(4, 3), (0, 3), (1, 3)]
    assert module.placement.reasons == {}


def test_the_host_stands_in(backend: Elastic) -> None:
    module = graft.compile(doubled(), "any", pins=PINS)
    backend.broken = True
    x = np.ones((5, 3), np.float32)
    with pytest.warns(RegionWarning, match="RuntimeError: worn out"):
        np.testing.assert_allclose(module.run(None, {"x": x})[0], meaning(x), rtol=1e-5)
    assert len(module.incidents) == 1


def test_shapes_that_the_data_decide_go_back_to_the_host(backend: Elastic) -> None:
    build = Builder()
    x = build.input("x", TensorType(DType.FLOAT32, (symbol("n"), 3)))
    graph = build.build(build("nonzero", x))
    with pytest.warns(RegionWarning, match="the shape of its result %nonzero depends on the data"):
        module = graft.compile(graph, "any", pins=["nonzero=any"], fallback="host")
    assert module.placement.regions == ()
    data = np.eye(2, 3, dtype=np.float32)
    np.testing.assert_array_equal(module.run(None, {"x": data})[0], np.nonzero(data))


def test_a_device_with_memory_of_its_own() -> None:
    device = Counting()
    register_backend(Remote("remote", device, "exp"))
    try:
        build = Builder()
        x = build.input("x", TensorType(DType.FLOAT32, (symbol("n"), 3)))
        module = graft.compile(build.build(build("exp", x)), "remote", pins=["exp=remote"])
    finally:
        unregister_backend("remote")
    device.log.clear()
    data = np.ones((2, 3), np.float32)
    np.testing.assert_allclose(module.run(None, {"x": data})[0], np.exp(data), rtol=1e-6)
    assert [what for what in device.log if what != "allocate"] == ["upload", "download"]


def test_a_region_of_static_shape_among_symbolic_ones(backend: Elastic) -> None:
    """Detectors have such regions: static features, between kernels on as many rows as there are
    boxes."""
    build = Builder()
    x = build.input("x", TensorType(DType.FLOAT32, (symbol("n"), 3)))
    rows = build("nn.softmax", x, axis=-1)
    columns = build("nn.softmax", rows, axis=0)
    total = build("exp", build("sum", columns, axes=(0,)))
    scaled = build("multiply", build("nn.softmax", columns, axis=-1), total)
    graph = build.build(build("nn.softmax", build("add", scaled, rows), axis=0))
    module = graft.compile(graph, "any", pins=["exp=any"])
    assert module.placement.nodes["any"] == 1
    for n in (4, 1, 7):
        data = np.random.default_rng(n).standard_normal((n, 3), dtype=np.float32)
        (expected,) = run_graph(graph, [data])
        np.testing.assert_allclose(module.run(None, {"x": data})[0], expected, rtol=1e-5)
    assert not module.incidents

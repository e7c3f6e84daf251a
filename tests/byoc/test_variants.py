"""Variants with regions: each is placed on its own, and a file holds the regions of all."""

from __future__ import annotations

import math
from dataclasses import replace
from importlib import metadata
from pathlib import Path

import numpy as np
import pytest
from tests.byoc.fakes import Fake, flat

import graft
from graft.backends.csource.backend import CSource
from graft.backends.simnpu.backend import SimNpu
from graft.base.dims import symbol
from graft.base.dtypes import Array
from graft.base.errors import UserError
from graft.byoc.contract import Backend, Cost, Limits, Runner
from graft.byoc.discover import register_backend, unregister_backend
from graft.ir.builder import Builder
from graft.ir.graph import Graph
from graft.ir.types import tensor
from graft.module import Module
from graft.rewrite.pattern import is_op
from graft.runtime.artifact import load as load_artifact
from graft.runtime.regions import RegionWarning

BACKENDS: dict[str, type[Backend]] = {"simnpu": SimNpu, "csource": CSource}


def network() -> Graph:
    """Two convolutions."""
    build = Builder()
    draw = np.random.default_rng(1)
    weight = build.constant(draw.standard_normal((32, 32, 3, 3), dtype=np.float32) / 17)
    x = build.input("x", tensor("float32", symbol("batch"), 32, 32, 32))
    y = build("nn.relu", build("nn.conv2d", x, weight, padding=(1, 1, 1, 1)))
    y = build("nn.conv2d", y, weight, padding=(1, 1, 1, 1))
    return build.build(build("nn.relu", y))


def images(batch: int) -> dict[str, Array]:
    draw = np.random.default_rng(batch)
    return {"x": draw.standard_normal((batch, 32, 32, 32), dtype=np.float32)}


@pytest.fixture(scope="module", params=BACKENDS)
def module(request: pytest.FixtureRequest) -> Module:
    """With a backend that is so cheap that it gets all that it can run."""
    backend = BACKENDS[request.param]
    begin = backend.__init__

    def begin_without_costs(self: Backend) -> None:
        begin(self)
        free = {"launch_seconds": 0.0, "latency": 0.0, "bytes_per_second": math.inf}
        self.limits = replace(self.limits, **free)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(backend, "__init__", begin_without_costs)
        patch.setattr(backend, "price", lambda _self, _region: Cost(1e-12))
        patch.setattr(backend, "simulated", True)  # not to be raced against the host
        return graft.compile(network(), target=request.param, shapes={"batch": [1, 3]})


@pytest.fixture(scope="module")
def wanted() -> Module:
    return graft.compile(network())


def test_variants_are_placed_on_their_own(module: Module, wanted: Module) -> None:
    """Both backends want static shapes, which only the variants have; any other batch runs in
    blocks."""
    assert all(region.rows for region in module.placement.regions)
    assert sum(len(region.nodes) for region in module.placement.regions) == 4
    for name in ("batch=1", "batch=3"):
        regions = module.placement.variants[name].regions
        assert sum(len(region.nodes) for region in regions) == 4
        assert name in str(module.placement)
    one, three = module.placement.variants.values()
    assert 3 * one.macs == three.macs
    for batch in (1, 2, 3, 5):
        (found,) = module.run(None, images(batch))
        np.testing.assert_allclose(found, wanted.run(None, images(batch))[0], rtol=1e-3, atol=1e-4)


def test_a_file_holds_the_regions_of_all(module: Module, tmp_path: Path) -> None:
    path = tmp_path / "model.graft"
    module.save(path)
    blobs = load_artifact(path).blobs
    assert {name for name in blobs if name.startswith("regions")} == {
        "regions",
        "regions batch=1",
        "regions batch=3",
    }
    session = graft.load(path)
    for batch in (1, 2, 3):
        found, again = module.run(None, images(batch)), session.run(None, images(batch))
        np.testing.assert_array_equal(found[0], again[0])


def test_the_host_stands_in_for_regions_of_variants(
    module: Module, wanted: Module, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "model.graft"
    module.save(path)
    monkeypatch.setattr(metadata, "entry_points", lambda group: ())
    with pytest.warns(RegionWarning, match="cannot run here"):
        session = graft.load(path)
    assert session.incidents
    (found,) = session.run(None, images(3))
    np.testing.assert_allclose(found, wanted.run(None, images(3))[0], rtol=1e-3, atol=1e-4)


class Fussy(Fake):
    """Takes batches of one alone, and fails on demand."""

    version = "1"

    def __init__(self) -> None:
        super().__init__("fussy", [("exp", is_op("exp"))], None, flat(1e-9), Limits(), True)
        self.broken = False

    def load(self, blob: bytes) -> Runner:
        right = super().load(blob)

        def run(inputs: object, outputs: object) -> object:
            if self.broken:
                raise RuntimeError("worn out")
            return right(inputs, outputs)  # type: ignore[arg-type]

        return run  # type: ignore[return-value]


def test_incidents_of_variants_are_the_modules() -> None:
    backend = Fussy()
    register_backend(backend)
    try:
        build = Builder()
        x = build.input("x", tensor("float32", symbol("n"), 3))
        graph = build.build(build("sigmoid", build("exp", x)))
        module = graft.compile(graph, target="fussy", pins=["exp=fussy"], shapes={"n": [1, 2]})
        assert sorted(module.regions) == ["fussy_0", "n=1 fussy_0", "n=2 fussy_0"]
        backend.broken = True
        x_array = np.ones((2, 3), np.float32)
        with pytest.warns(RegionWarning, match="worn out"):
            (found,) = module.run(None, {"x": x_array})
        np.testing.assert_allclose(found, 1 / (1 + np.exp(-np.exp(x_array))), rtol=1e-5)
        assert len(module.incidents) == 1
        assert len(module.regions["n=2 fussy_0"].incidents) == 1
    finally:
        unregister_backend("fussy")


def test_one_plan_is_not_for_several_graphs(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="plan= is for one graph"):
        graft.compile(network(), target="simnpu", plan=tmp_path / "p", shapes={"batch": [1]})

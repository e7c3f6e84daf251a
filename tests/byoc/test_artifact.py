"""Modules with regions as files: what they hold, and what happens where a backend is missing."""

from __future__ import annotations

import json
import warnings
from importlib import metadata
from importlib.metadata import EntryPoint
from pathlib import Path

import numpy as np
import pytest

import graft
from graft.backends.simnpu.runtime import load as load_simulated
from graft.base.errors import UserError
from graft.ir.builder import Builder
from graft.ir.graph import Graph
from graft.ir.types import tensor
from graft.runtime.artifact import load as load_artifact
from graft.runtime.breaker import Breaker
from graft.runtime.incidents import Fault, RegionWarning
from graft.runtime.loaders import GROUP, versioned
from graft.runtime.spaces import Runner

X = np.random.default_rng(0).standard_normal((1, 8, 12, 12), dtype=np.float32)


def network() -> Graph:
    """Two convolutions with something between them that the device does not know."""
    build = Builder()
    draw = np.random.default_rng(1)
    weight = build.constant(draw.standard_normal((8, 8, 3, 3), dtype=np.float32))
    x = build.input("x", tensor("float32", 1, 8, 12, 12))
    y = build("nn.relu", build("nn.conv2d", x, weight, padding=(1, 1, 1, 1)))
    y = build("nn.conv2d", build("sigmoid", y), weight, padding=(1, 1, 1, 1))
    return build.build(build("nn.relu", y))


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    module = graft.compile(network(), target="simnpu", pins=["conv2d*=simnpu", "relu*=simnpu"])
    assert len(module.placement.regions) == 2
    path = tmp_path / "model.graft"
    module.save(path)
    return path


def test_a_file_holds_code_of_the_regions_and_of_the_host(saved: Path) -> None:
    artifact = load_artifact(saved)
    assert artifact.origin.backends["simnpu"] == "1"
    names = [name for name in artifact.blobs if name.startswith("region ")]
    # the two regions differ in nothing but their names, so there is one code
    assert sorted(names) == ["region 0", "region 0 on the host"]


def test_it_computes_the_same(saved: Path) -> None:
    expected = graft.compile(network()).run(None, {"x": X})[0]
    result = graft.load(saved).run(None, {"x": X})[0]
    np.testing.assert_allclose(result, expected, rtol=1e-3, atol=1e-4)


def test_the_host_stands_in_for_a_missing_backend(
    saved: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(metadata, "entry_points", lambda group: ())
    with pytest.warns(RegionWarning, match="simnpu 1 cannot run here"):
        session = graft.load(saved)
    assert [incident.fault for incident in session.incidents] == [Fault.NOT_LOADED] * 2
    expected = graft.compile(network()).run(None, {"x": X})[0]
    with warnings.catch_warnings():
        warnings.simplefilter("error", RegionWarning)
        result = session.run(None, {"x": X})[0]
    np.testing.assert_allclose(result, expected, rtol=1e-3, atol=1e-4)


def test_a_missing_package_is_named(saved: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def load(_point: metadata.EntryPoint) -> None:
        raise ModuleNotFoundError("No module named 'npu.driver'", name="npu.driver")

    monkeypatch.setattr(metadata.EntryPoint, "load", load)
    wanted = "'simnpu_0' runs on the host: simnpu 1 .*: the Python package 'npu' is not installed"
    with pytest.warns(RegionWarning, match=wanted) as caught:
        session = graft.load(saved)
    assert caught[0].filename == __file__
    for region in session.regions.values():  # half open: it is loaded again, and still missing
        region.guard.breaker = Breaker(cooldown=0.0)
        region.guard.breaker.fail(at_once=True)
    with pytest.warns(RegionWarning, match=wanted):
        session.run(None, {"x": X})
    assert {incident.fault for incident in session.incidents} == {Fault.NOT_LOADED}


def test_a_backend_that_comes_back_is_loaded(saved: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(metadata, "entry_points", lambda group: ())
        with pytest.warns(RegionWarning, match="simnpu 1 cannot run here"):
            session = graft.load(saved)
    assert all(region.open for region in session.regions.values())
    for region in session.regions.values():
        region.guard.breaker = Breaker(cooldown=0.0)
        region.guard.breaker.fail(at_once=True)
    expected = graft.compile(network()).run(None, {"x": X})[0]
    result = session.run(None, {"x": X})[0]
    np.testing.assert_allclose(result, expected, rtol=1e-3, atol=1e-4)
    assert not any(region.open for region in session.regions.values())
    assert len(session.incidents) == 2


def test_a_file_tells_the_placement(saved: Path, tmp_path: Path) -> None:
    session = graft.load(saved)
    assert [region.backend for region in session.placement.regions] == ["simnpu"] * 2
    assert session.placement.nodes == {"host": 1, "simnpu": 4}
    assert str(session.placement).startswith("host: 1 node; simnpu (simulated): 4 of 5 nodes")
    assert json.loads(session.placement.to_json())["nodes"] == {"host": 1, "simnpu": 4}
    assert session.incidents == []
    path = tmp_path / "host.graft"
    graft.compile(network()).save(path)
    assert graft.load(path).placement.nodes == {"host": 6}  # a constant among them


def test_a_file_is_verified_as_it_was_compiled_or_as_asked(saved: Path, tmp_path: Path) -> None:
    policies = [region.policy for region in graft.load(saved).regions.values()]
    assert {(policy.verify, policy.deadline) for policy in policies} == {("sample", None)}
    asked = graft.load(saved, verify="always", deadline=3.0).regions.values()
    assert {(one.policy.verify, one.policy.deadline) for one in asked} == {("always", 3.0)}
    path = tmp_path / "model.graft"
    options = {"pins": ["conv2d*=simnpu"], "fallback": "error", "verify": "off"}
    graft.compile(network(), target="simnpu", **options).save(path)  # type: ignore[arg-type]
    with pytest.raises(UserError, match="verify='sample' wants the host's code"):
        graft.load(path, verify="sample")


def test_fallback_error_wants_the_backend(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "model.graft"
    pins = ["conv2d*=simnpu"]
    graft.compile(network(), target="simnpu", pins=pins, fallback="error").save(path)
    monkeypatch.setattr(metadata, "entry_points", lambda group: ())
    with pytest.raises(UserError, match="cannot be loaded: simnpu 1 cannot run here"):
        graft.load(path)


@versioned("2")
def newer(_blob: bytes) -> Runner:
    raise AssertionError("it is not asked to load code of version 1")


@versioned("2", loads=lambda version: version == "1")
def willing(blob: bytes) -> Runner:
    return load_simulated(blob)


@versioned("2", missing=lambda: "it needs a crystal")
def lacking(_blob: bytes) -> Runner:
    raise AssertionError("it is not asked to load anything")


def silent(_blob: bytes) -> Runner:
    raise AssertionError("it is not asked to load anything")


def announce(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    point = EntryPoint("simnpu", f"{__name__}:{name}", GROUP)
    monkeypatch.setattr(metadata, "entry_points", lambda group: (point,))


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("newer", "its code was made by version 1, and version 2 is installed"),
        ("silent", "the installed run time does not say its version"),
        ("lacking", "simnpu 1 cannot run here: it needs a crystal"),
    ],
)
def test_code_that_the_run_time_does_not_take_is_not_loaded(
    saved: Path, monkeypatch: pytest.MonkeyPatch, name: str, reason: str
) -> None:
    announce(monkeypatch, name)
    with pytest.warns(RegionWarning, match=reason):
        session = graft.load(saved)
    expected = graft.compile(network()).run(None, {"x": X})[0]
    result = session.run(None, {"x": X})[0]
    assert all(reason in incident.reason for incident in session.incidents)
    assert session.incidents
    np.testing.assert_allclose(result, expected, rtol=1e-3, atol=1e-4)


def test_a_run_time_may_load_code_of_other_versions(
    saved: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    announce(monkeypatch, "willing")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        graft.load(saved).run(None, {"x": X})

"""The accelerator's RTL, simulated by Verilator: results to the byte, cycles to the cycle.

It is a Debian package, so that all but the lint is of `make test-full`."""

from __future__ import annotations

import subprocess
from pathlib import Path

import numpy as np
import pytest
from tests.backends.ethosu.test_ethosu import network
from tests.backends.fpga.units import UNITS, unit_named

import graft
from graft.backends.fpga import runtime
from graft.backends.fpga.backend import Fpga
from graft.base.dtypes import Array
from graft.byoc.boundary import wished
from graft.byoc.explain import explain
from graft.byoc.kit import conformance
from graft.compiler import compile_options
from graft.ir.graph import Graph
from graft.stages import import_graph, optimize, place

LACKING = runtime.missing()
needs_verilator = pytest.mark.skipif(bool(LACKING), reason=LACKING or "nothing is missing")
# Sums of two tensors are made with factors of 22 bits, so that they may round another way where
# they lie within 2**-13 steps of a half.
ROUNDED = ("add", "subtract", "residual", "activation")


def run(graph: Graph, inputs: list[Array], wanted: Array, stall: int = 0) -> tuple[Array, int, int]:
    """The result as NCHW, the cycles that it took, and those of the model."""
    region = Fpga().load(Fpga().code(wished(graph, Fpga.limits)))
    (value,) = wished(graph, Fpga.limits).outputs
    found = np.empty([int(str(n)) for n in value.tensor.shape or ()], wanted.dtype)
    region([_formed(array) for array in inputs], [found], stall)
    if found.ndim == 5:
        found = found.transpose(0, 1, 4, 2, 3).reshape(wanted.shape)
    return found, region.took, region.cycles


def _formed(array: Array) -> Array:
    """As `limits.layout` has it."""
    if array.ndim != 4 or array.shape[1] % 16:
        return array
    images, channels, height, width = array.shape
    blocks = array.reshape(images, channels // 16, 16, height, width).transpose(0, 1, 3, 4, 2)
    return np.ascontiguousarray(blocks)


@needs_verilator
def test_lint() -> None:
    sources = [str(runtime.FOLDER / name) for name in runtime.SOURCES]
    command = ["verilator", "--lint-only", "-Wall", "-y", str(runtime.FOLDER), *sources]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


@needs_verilator
@pytest.mark.full
@pytest.mark.parametrize("dtype", ["int8", "uint8"])
@pytest.mark.parametrize("name", UNITS)
def test_units_are_exact(name: str, dtype: str) -> None:
    unit, graph, wanted = unit_named(name, dtype)
    assert len(np.unique(wanted)) > 3  # neither all saturated nor all zero
    found, took, predicted = run(graph, list(unit.inputs.values()), wanted)
    assert took == predicted
    if name.startswith(ROUNDED):
        apart = np.abs(found.astype(int) - wanted.astype(int))
        assert apart.max() <= 1
        assert (apart > 0).mean() < 0.001
    else:
        np.testing.assert_array_equal(found, wanted)


@needs_verilator
@pytest.mark.full
@pytest.mark.parametrize("stall", [2, 3, 7])
def test_a_memory_that_stalls_changes_times_only(stall: int) -> None:
    for name in ("row tiles", "channel chunks", "add"):
        unit, graph, wanted = unit_named(name)
        inputs = list(unit.inputs.values())
        at_once, fast, _ = run(graph, inputs, wanted)
        found, slow, _ = run(graph, inputs, wanted, stall)
        np.testing.assert_array_equal(found, at_once)
        assert slow > fast


@needs_verilator
@pytest.mark.full
def test_a_model_is_placed_explained_saved_and_loaded(tmp_path: Path) -> None:
    pins = ["rectified=fpga", "result=fpga"]
    placed = place(optimize(import_graph(network())), compile_options(["fpga", "host"], pins=pins))
    assert placed.partition is not None
    (region,) = explain(placed.partition).regions
    assert region.source == "declared by its cycle model at 200 MHz"
    module = graft.compile(network(), target=["fpga", "host"], pins=pins)
    assert "fpga (simulated)" in str(module.placement)
    image = np.random.default_rng(1).standard_normal((1, 3, 16, 16), dtype=np.float32)
    (scores,) = module.run(None, {"image": image})
    (on_host,) = graft.compile(network()).run(None, {"image": image})
    assert np.abs(scores - on_host).max() <= 0.05 * 1.01  # one step
    module.save(tmp_path / "net.graft")
    (again,) = graft.load(tmp_path / "net.graft").run(None, {"image": image})
    np.testing.assert_array_equal(again, scores)
    assert not module.incidents


@needs_verilator
@pytest.mark.full
def test_conformance() -> None:
    conformance(Fpga()).assert_ok()


@needs_verilator
@pytest.mark.full
def test_the_simulator_is_built_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    build = runtime.simulator.__wrapped__
    monkeypatch.setenv("GRAFT_CACHE_DIR", str(tmp_path / "cache"))
    assert build().simulate
    (kept,) = (tmp_path / "cache" / "fpga").glob("*.so")
    monkeypatch.setattr(runtime, "build", None)  # would be called if it were not there
    assert build().simulate
    assert kept.exists()

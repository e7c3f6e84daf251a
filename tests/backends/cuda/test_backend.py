"""The CUDA backend: what it takes and refuses, its blobs, and machines without a GPU."""

from __future__ import annotations

import tomllib
from pathlib import Path

import numpy as np
import pytest

import graft
from graft.backends.cuda import driver, runtime
from graft.backends.cuda.backend import Cuda
from graft.backends.cuda.problem import PANEL, ROW
from graft.backends.cudnn.backend import Cudnn
from graft.base.dtypes import DType
from graft.byoc.candidates import find_candidates
from graft.byoc.contract import Source
from graft.byoc.executable import Accuracy, Settings
from graft.byoc.region import for_backend
from graft.ir.builder import Builder
from graft.ir.graph import Graph
from graft.ir.types import TensorType
from graft.runtime.json_graph import unpack

NO_GPU = driver.missing()


def test_it_is_announced() -> None:
    project = tomllib.loads((Path(graft.__file__).parents[2] / "pyproject.toml").read_text())
    points = project["project"]["entry-points"]
    assert points["graft.backends"]["cuda"] == f"{Cuda.__module__}:{Cuda.__name__}"
    assert points["graft.runtimes"]["cuda"] == f"{runtime.__name__}:{runtime.load.__name__}"


@pytest.mark.skipif(not NO_GPU, reason="there is a GPU")
def test_a_machine_without_a_gpu_says_so() -> None:
    assert "NVIDIA GPU" in Cuda().missing()
    with pytest.raises(driver.CudaError, match=r"libcuda|9\.0|fails"):
        driver.device()


def test_accuracy_rules_tensor_cores_out() -> None:
    strict = Cuda().configured(Settings(accuracy=Accuracy.STRICT))
    assert strict.limits.rounding is DType.FLOAT32
    assert Cuda().limits.rounding is DType.FLOAT16
    assert strict.options != Cuda().options


def test_refusals_have_reasons() -> None:
    builder = Builder("region")
    x = builder.input("x", TensorType(DType.FLOAT64, (2, 3)))
    graph = builder.build(builder("nn.relu", x))
    found = find_candidates(graph, [Cuda()])
    reasons = [refusal.reason for refusals in found.refusals.values() for refusal in refusals]
    assert any("float64" in reason for reason in reasons)


def test_prices_are_declared_for_all_but_calls_of_libraries() -> None:
    def region(size: int) -> Graph:
        builder = Builder("region")
        x = builder.input("x", TensorType(DType.FLOAT32, (size, size)))
        weight = builder.constant(np.ones((size, size), np.float32))
        return for_backend(builder.build(builder("nn.softmax", builder("nn.dense", x, weight))))

    small, large = Cuda().price(region(64)), Cuda().price(region(2048))
    assert small is not None
    assert large is not None
    assert small.source is large.source is Source.DECLARED
    assert 1e-6 < small.seconds < 20e-6 < large.seconds < 1e-3
    assert Cudnn().price(region(64)) is None


def test_blobs_hold_code_constants_and_launches() -> None:
    builder = Builder("region")
    x = builder.input("x", TensorType(DType.FLOAT32, (4, 32)))
    weight = builder.constant(np.ones((16, 32), np.float32))
    made = builder("nn.softmax", builder("nn.dense", x, weight))
    blob = Cuda("float16").code(for_backend(builder.build(made)))
    described = unpack(blob)
    code = [name for name in described.constants if name.startswith(runtime.CODE)]
    assert [node.attrs["label"] for node in described.nodes] == ["copy", "nn.dense", "nn.softmax"]
    assert len(code) == 3
    assert bytes(described.constants[code[0]]).startswith(b"//")
    weights = [a for a in described.constants.values() if a.dtype == np.float16]
    (panels,) = (array.reshape(PANEL, -1) for array in weights)  # one, of one stage
    assert panels.shape[1] * panels.itemsize == ROW
    assert (panels == np.pad(np.ones((16, 32)), [(0, PANEL - 16), (0, 32)])).all()

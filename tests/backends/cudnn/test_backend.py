"""The cuDNN backend: its blobs, and machines without a GPU or the library."""

from __future__ import annotations

import tomllib
from pathlib import Path

import numpy as np
import pytest

import graft
from graft.backends.cuda import driver
from graft.backends.cuda.runtime import CODE
from graft.backends.cudnn import library, runtime
from graft.backends.cudnn.backend import Cudnn
from graft.base.dtypes import DType
from graft.byoc.region import for_backend
from graft.ir.builder import Builder
from graft.ir.types import TensorType
from graft.runtime.json_graph import unpack

MISSING = Cudnn().missing()


def test_it_is_announced() -> None:
    project = tomllib.loads((Path(graft.__file__).parents[2] / "pyproject.toml").read_text())
    points = project["project"]["entry-points"]
    assert points["graft.backends"]["cudnn"] == f"{Cudnn.__module__}:{Cudnn.__name__}"
    assert points["graft.runtimes"]["cudnn"] == f"{runtime.__name__}:{runtime.load.__name__}"


@pytest.mark.skipif(not driver.missing(), reason="there is a GPU")
def test_a_machine_without_a_gpu_says_so() -> None:
    assert "NVIDIA GPU" in MISSING
    with pytest.raises((driver.CudaError, library.CudnnError)):
        library.library()


def test_blobs_hold_calls_and_the_kernels_between_them() -> None:
    builder = Builder("region")
    x = builder.input("x", TensorType(DType.FLOAT32, (4, 32)))
    weight = builder.constant(np.ones((16, 32), np.float32))
    made = builder("nn.softmax", builder("nn.relu", builder("nn.dense", x, weight)))
    described = unpack(Cudnn("float16").code(for_backend(builder.build(made))))
    labels = [node.attrs["label"] for node in described.nodes]
    assert labels == ["copy", "nn.dense+nn.relu", "nn.softmax"]
    assert [node.op == "cudnn" for node in described.nodes] == [False, True, False]
    assert sum(name.startswith(CODE) for name in described.constants) == 2
    operations = described.nodes[1].attrs["call"]["operations"]
    assert [one["kind"] for one in operations] == ["product", "pointwise"]

"""OpenVINO as a backend: what it is handed computes, and what it gets wrong it is not handed."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from graft.backends.host.backend import HostBackend
from graft.backends.openvino import runtime
from graft.backends.openvino.backend import OpenVino
from graft.base.dims import symbol
from graft.base.dtypes import DType
from graft.base.errors import UserError
from graft.byoc.candidates import find_candidates
from graft.byoc.contract import HOST_BACKEND
from graft.byoc.probe import samples
from graft.byoc.tolerance import difference
from graft.frontends.onnx.importer import import_model
from graft.ir.builder import Builder
from graft.ir.graph import Graph
from graft.ir.types import TensorType, tensor
from graft.passes.pipeline import optimize
from graft.runtime import loaders


def refusals(graph: Graph) -> list[str]:
    found = find_candidates(graph, [OpenVino()])
    taken = {node for c in found.candidates if c.backend != HOST_BACKEND for node in c.nodes}
    left = [node for node in found.nodes if node not in taken]
    return [refused.reason for node in left for refused in found.refusals.get(node, ())]


@pytest.mark.parametrize("name", ["resnet18", "mobilenet_v2"])
def test_networks_as_one_region_agree_with_the_host(name: str, models_dir: Path) -> None:
    graph = optimize(import_model(models_dir / f"{name}.onnx"))
    assert refusals(graph) == []
    data = samples(graph, 1)
    found, wanted = ([np.empty((1, 1000), np.float32)] for _ in range(2))
    OpenVino().runner(graph)(data, found)
    HostBackend().runner(graph)(data, wanted)
    assert difference(graph, found, wanted) == ""


@pytest.mark.parametrize("channels", [1, 2])
def test_a_column_of_one_channel(channels: int) -> None:
    """OpenVINO 2026.4 reads the wrong pixels here; with more channels it does not."""
    build = Builder()
    x = build.input("x", tensor("float32", 1, channels, 9, 3))
    weight = build.input("w", tensor("float32", 2, channels, 3, 3))
    graph = build.build(build("nn.conv2d", x, weight, strides=(1, 2)))
    wrong = ["OpenVINO strides wrongly over one channel to one column"]
    assert refusals(graph) == (wrong if channels == 1 else [])


@pytest.mark.parametrize(("kernel", "padding"), [(1, 1), (1, 0), (3, 1)])
def test_strides_over_padded_single_pixels(kernel: int, padding: int) -> None:
    """OpenVINO 2026.4 gives results of bytes another shape; only with both."""
    build = Builder()
    x = build.input("x", tensor("float32", 1, 2, 5, 5))
    weight = build.input("w", tensor("float32", 3, 2, kernel, kernel))
    graph = build.build(build("nn.conv2d", x, weight, strides=(2, 2), padding=(padding,) * 4))
    wrong = ["OpenVINO drops strides over padded images of single pixels"]
    assert refusals(graph) == (wrong if (kernel, padding) == (1, 1) else [])


@pytest.mark.parametrize(("batch", "count"), [("n", 2), ("n", 1), (2, 2)])
def test_a_symbolic_batch_of_constant_matrices(batch: int | str, count: int) -> None:
    """OpenVINO 2026.4 fails at n = 1, where the data is broadcast."""
    build = Builder()
    extent = symbol(batch) if isinstance(batch, str) else batch
    x = build.input("x", TensorType(DType.FLOAT32, (extent, 3, 4)))
    matrices = build.constant(np.ones((count, 4, 2), np.float32))
    graph = build.build(build("nn.batch_matmul", x, matrices))
    wrong = ["OpenVINO's batch is that of the constant matrices, not broadcast"]
    assert refusals(graph) == (wrong if (batch, count) == ("n", 2) else [])


@pytest.mark.parametrize("bound", [7e4, 6e4])
def test_bounds_beyond_the_dtype(bound: float) -> None:
    """70,000 is infinite in float16; OpenVINO 2026.4 gives 65,504."""
    build = Builder()
    x = build.input("x", tensor("float16", 3))
    graph = build.build(build("clip", x, a_min=bound))
    wrong = ["OpenVINO takes the largest finite number for an infinite bound"]
    assert refusals(graph) == (wrong if bound > 65504 else [])


@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
def test_constant_keys_of_attention(dtype: str) -> None:
    """OpenVINO 2026.4 gives NaN for some of bfloat16, and numbers that are off by a half."""
    build = Builder()
    x = build.input("x", tensor(dtype, 2, 1, 1, 3))
    keys = build.constant(np.ones((2, 1, 2, 3), DType(dtype).numpy))
    graph = build.build(build("nn.attention", x, keys, keys))
    wrong = ["OpenVINO misreads constant keys of bfloat16"]
    assert refusals(graph) == (wrong if dtype == "bfloat16" else [])


def test_without_the_library(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loaders, "find_spec", lambda _name: None)
    runtime.core.cache_clear()
    assert "pip install 'graft-compiler[openvino]'" in OpenVino().missing()
    with pytest.raises(UserError, match="OpenVINO cannot run here: it needs the package"):
        OpenVino().load(b"")
    with pytest.raises(UserError, match="it needs the package 'openvino'"):
        loaders.check_loader(runtime.load, "2026.4.1")

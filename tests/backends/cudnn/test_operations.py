"""Operation graphs of cuDNN mean what their nodes mean: descriptions are computed with NumPy."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
from tests.backends.cuda.cases import Case, Cases
from tests.backends.cuda.simulated import run_simulated

from graft.backends.cuda.operands import shape_of
from graft.backends.cuda.plan import Launch, Options, plan_region
from graft.backends.cudnn.operations import CudnnProducts
from graft.base.dtypes import Array, DType
from graft.byoc.region import for_backend
from graft.ir.builder import Builder
from graft.ir.evaluate import run_graph
from graft.ir.graph import Graph
from graft.ir.types import TensorType

OPTIONS = {"float32": Options(), "float16": Options(DType.FLOAT16)}
TOLERANCE = 5e-3
BINARY = {0: np.add, 1: np.multiply, 2: np.minimum, 3: np.maximum, 6: np.divide, 9: np.subtract}


def _view(tensor: Mapping[str, Any], buffer: Array) -> Array:
    """A tensor of a description in the bytes of its buffer."""
    data = buffer.view(DType(tensor["dtype"]).numpy)
    steps = [step * data.itemsize for step in tensor["strides"]]
    last = sum((e - 1) * s for e, s in zip(tensor["extents"], tensor["strides"], strict=True))
    assert last < data.size, "a tensor ends beyond its buffer"
    return np.lib.stride_tricks.as_strided(data, tensor["extents"], steps)


def _convolution(one: Mapping[str, Any], data: Array, weights: Array) -> Array:
    before, after, strides = one["before"], one["after"], one["strides"]
    padded = np.pad(data, [(0, 0), (0, 0), *zip(before, after, strict=True)])
    groups = data.shape[1] // weights.shape[1]
    spans = [
        gap * (size - 1) + 1 for gap, size in zip(one["dilation"], weights.shape[2:], strict=True)
    ]
    windows = np.lib.stride_tricks.sliding_window_view(padded, spans, (2, 3))
    rows, columns = one["dilation"]
    windows = windows[:, :, :: strides[0], :: strides[1], ::rows, ::columns]
    parts = zip(np.split(windows, groups, 1), np.split(weights, groups, 0), strict=True)
    return np.concatenate([np.einsum("nchwrs,kcrs->nkhw", x, w) for x, w in parts], 1)


def _pointwise(one: Mapping[str, Any], *operands: Array) -> Array:
    (x, *rest), mode = operands, one["mode"]
    if mode in BINARY:
        result: Array = BINARY[mode](x, *rest)
        return result
    if mode == 100:
        low, high = one.get("lower", 0.0), one.get("upper", np.inf)
        return np.minimum(np.where(x > low, x, low + one.get("slope", 0.0) * (x - low)), high)
    if mode == 104:
        from math import erf

        return 0.5 * x * (1 + np.vectorize(erf)(x / np.sqrt(2)))
    return {101: np.tanh, 102: lambda v: 1 / (1 + np.exp(-v))}[mode](x)


def run_call(launch: Launch, memory: dict[str, Array]) -> None:
    """Compute a description as cuDNN's documentation says."""
    assert launch.call is not None
    tensors, values = launch.call["tensors"], dict[int, Array]()
    for number, tensor in enumerate(tensors):
        if tensor["buffer"] is not None:
            values[number] = _view(tensor, memory[launch.buffers[tensor["buffer"]]])
    for one in launch.call["operations"]:
        operands = [values[number].astype(np.float32) for number in one["operands"]]
        kinds = {"convolution": _convolution, "pointwise": _pointwise}
        product = lambda _, left, right: left @ right  # noqa: E731
        result = kinds.get(one["kind"], product)(one, *operands)
        target = tensors[one["result"]]
        assert list(result.shape) == target["extents"]
        if target["buffer"] is None:
            values[one["result"]] = result
        else:
            values[one["result"]][...] = result


def _computed(graph: Graph, precision: str) -> None:
    random = np.random.default_rng(1)
    shapes = [shape_of(value) for value in graph.inputs]
    inputs = [random.standard_normal(shape).astype(np.float32) for shape in shapes]
    (expected,) = (np.asarray(one) for one in run_graph(graph, inputs))
    (result,) = run_simulated(graph, inputs, OPTIONS[precision], CudnnProducts(), run_call)
    assert np.isfinite(result).all()
    assert np.abs(result - expected).max() <= TOLERANCE * np.abs(expected).max()


PRODUCTS = [
    case
    for case in Cases(small=True).all()
    if any(
        launch.call
        for launch in plan_region(for_backend(case[1]), Options(), library=CudnnProducts()).launches
    )
]


@pytest.mark.each_value
@pytest.mark.parametrize("precision", OPTIONS)
@pytest.mark.parametrize("case", PRODUCTS, ids=lambda case: case[0])
def test_products(case: Case, precision: str) -> None:
    _computed(case[1], precision)


ACTIVATIONS: dict[str, dict[str, Any]] = {
    "nn.relu": {},
    "nn.leaky_relu": {"alpha": 0.2},
    "clip": {"a_min": 0.0, "a_max": 6.0},
    "tanh": {},
    "sigmoid": {},
    "nn.gelu": {},
}


@pytest.mark.parametrize("name", ACTIVATIONS)
@pytest.mark.parametrize("is_image", [True, False])
def test_epilogues(name: str, is_image: bool) -> None:
    """A bias, a residual, a factor and an activation behind a product are one call."""
    random, builder = np.random.default_rng(0), Builder("case")
    shape = (1, 16, 5, 4) if is_image else (6, 16)
    x = builder.input("x", TensorType(DType.FLOAT32, shape))
    weights = random.standard_normal((16, 16, *(1, 1)[: 2 * is_image])).astype(np.float32) / 4
    made = builder("nn.conv2d" if is_image else "nn.dense", x, builder.constant(weights))
    bias = builder.constant(random.standard_normal(16).astype(np.float32))
    made = builder("add", builder("nn.bias_add", made, bias, axis=1), x)
    made = builder("multiply", builder.constant(np.float32(0.5)), made)
    graph = builder.build(builder(name, made, **ACTIVATIONS[name]))
    plan = plan_region(for_backend(graph), Options(), library=CudnnProducts())
    calls = [launch for launch in plan.launches if launch.call is not None]
    assert [len(one.call["operations"]) for one in calls if one.call is not None] == [5]
    _computed(graph, "float32")


def test_what_cudnn_lacks_is_a_kernel_of_its_own() -> None:
    builder = Builder("case")
    x = builder.input("x", TensorType(DType.FLOAT32, (6, 16)))
    made = builder("nn.dense", x, builder.constant(np.ones((16, 16), np.float32)))
    graph = builder.build(builder("sin", made))
    plan = plan_region(for_backend(graph), Options(), library=CudnnProducts())
    assert [(one.label, one.call is None) for one in plan.launches][-2:] == [
        ("nn.dense", False),
        ("sin", True),
    ]

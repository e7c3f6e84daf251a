"""OpenVINO on symbolic shapes, on floats of 16 bits and on quantised units."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest
from tests.backends.openvino.test_openvino import refusals

import graft
from graft.backends.openvino import runtime
from graft.backends.openvino.backend import OpenVino
from graft.base.dims import symbol
from graft.base.dtypes import Array, DType
from graft.byoc.tolerance import difference
from graft.ir.builder import Builder
from graft.ir.evaluate import evaluate
from graft.ir.graph import Graph, Value
from graft.ir.types import TensorType, tensor

DRAW = np.random.default_rng(0)


def normal(*shape: int, dtype: Any = np.float32) -> Array:
    return DRAW.standard_normal(shape, dtype=np.float32).astype(dtype)


def compared(graph: Graph, run: Any, *data: Array) -> None:
    expected = [np.asarray(item) for item in evaluate(graph, list(data))]
    results = [np.empty_like(item) for item in expected]
    assert run(list(data), results) is None
    assert difference(graph, results, expected) == ""


def network(dtype: str, *shape: Any) -> Graph:
    kind = getattr(ml_dtypes, dtype, None) or np.dtype(dtype)
    build = Builder()
    x = build.input("x", TensorType(DType(dtype), shape))
    y = build("nn.conv2d", x, build.constant(normal(8, 5, 3, 3, dtype=kind)), padding=(1, 1, 1, 1))
    y = build("nn.relu", build("nn.bias_add", y, build.constant(normal(8, dtype=kind))))
    y = build("nn.max_pool2d", y, pool_size=(3, 3), strides=(2, 2), padding=(1, 1, 1, 1))
    y = build("reshape", build("mean", y, axes=(2, 3), keepdims=True), shape=(shape[0], 8))
    return build.build(build("nn.dense", y, build.constant(normal(7, 8, dtype=kind))))


def test_images_of_any_number_and_size() -> None:
    graph = network("float32", symbol("n"), 5, symbol("h"), symbol("w"))
    assert refusals(graph) == []
    run = OpenVino().runner(graph)
    for shape in ((2, 5, 9, 7), (1, 5, 12, 6), (3, 5, 9, 7)):
        compared(graph, run, normal(*shape))
    empty = np.empty((0, 7), np.float32)
    run([normal(0, 5, 9, 7)], [empty])


def test_a_model_with_a_symbolic_batch() -> None:
    graph = network("float32", symbol("n"), 5, 9, 7)
    module = graft.compile(graph, "openvino", pins=["*=openvino"])
    assert len(module.placement.regions) == 1
    for count in (1, 4, 3):
        data = normal(count, 5, 9, 7)
        (expected,) = evaluate(graph, [data])
        assert difference(graph, module.run(None, {"x": data}), [np.asarray(expected)]) == ""
    assert not module.incidents


def test_extents_that_no_operand_tells_are_refused() -> None:
    build = Builder()
    x = build.input("x", TensorType(DType.FLOAT32, (symbol("n") * 2, 4)))
    found = refusals(build.build(build("exp", x)))
    assert "%exp is float32[2*n, 4], whose extents no operand tells" in found


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_models_of_16_bits(dtype: str) -> None:
    graph = network(dtype, 2, 5, 9, 7)
    assert refusals(graph) == []
    kind = getattr(ml_dtypes, dtype, None) or np.dtype(dtype)
    compared(graph, OpenVino().runner(graph), normal(2, 5, 9, 7, dtype=kind))


def unit(build: Builder, x: Value, kernel: Array, dtype: str, scale: float, **attrs: Any) -> Value:
    """A quantised layer with a scale per channel, a bias and an activation."""
    channels = len(kernel)
    codes = build.constant(DRAW.integers(-128, 128, kernel.shape).astype(np.int8))
    scales = build.constant((0.002 + 0.003 * DRAW.random(channels)).astype(np.float32))
    zero = build.constant(np.array(11, dtype))
    data = build("qnn.dequantize", x, build.constant(np.float32(0.05)), zero)
    weight = build("qnn.dequantize", codes, scales, axis=0)
    bias = build.constant(DRAW.integers(-900, 900, channels).astype(np.int32))
    offset = build("qnn.dequantize", bias, build.constant(np.float32(1e-3)))
    op, axis = ("nn.conv2d", 1) if kernel.ndim == 4 else ("nn.dense", -1)
    y = build("nn.bias_add", build(op, data, weight, **attrs), offset, axis=axis)
    result = build("nn.relu", y), build.constant(np.float32(scale)), zero
    return build("qnn.quantize", *result, dtype=dtype)


@pytest.mark.parametrize("dtype", ["uint8", "int8"])
def test_quantised_layers(dtype: str) -> None:
    """Within one step of what they mean, by the tolerance of one quantisation."""
    build, bounds = Builder(), np.iinfo(dtype)
    image, rows = (
        build.input("x", tensor(dtype, 2, 8, 9, 7)),
        build.input("r", tensor(dtype, 5, 24)),
    )
    convolution = unit(build, image, np.empty((6, 8, 3, 3)), dtype, 0.2, padding=(1, 1, 1, 1))
    graph = build.build(convolution, unit(build, rows, np.empty((10, 24)), dtype, 0.1))
    assert refusals(graph) == []
    shapes = (2, 8, 9, 7), (5, 24)
    data = [DRAW.integers(bounds.min, bounds.max + 1, s).astype(dtype) for s in shapes]
    backend = OpenVino()
    region = backend.load(backend.code(graph))
    compared(graph, region, *data)
    assert region.rounding is DType.INT8
    nodes = region._model.get_runtime_model().get_ops()
    facts = [node.get_rt_info() for node in nodes]
    kinds = {one["layerType"].astype(str): one["runtimePrecision"].astype(str) for one in facts}
    assert kinds["Convolution"] in ("u8", "i8")
    assert kinds["FullyConnected"] in ("u8", "i8")


def test_integers_alone_are_refused() -> None:
    build = Builder()
    x = build.input("x", tensor("int8", 3))
    assert any(
        "is int8, not float32" in reason for reason in refusals(build.build(build("add", x, x)))
    )


def test_a_lower_precision_is_told_to_the_guard() -> None:
    if DType.BFLOAT16 not in runtime.computes_in():
        pytest.skip("the processor has no bfloat16")
    graph, backend = network("float32", 1, 5, 9, 7), OpenVino(DType.BFLOAT16)
    assert backend.load(backend.code(graph)).rounding is DType.BFLOAT16

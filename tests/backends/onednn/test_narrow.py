"""Layers in bfloat16 and on integers: what is computed how, and how near to what it means."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from tests.backends.onednn.regions import Case, operators, refusals

import graft
from graft.backends.onednn import runtime
from graft.backends.onednn.backend import OneDnn
from graft.base.dims import symbol
from graft.base.dtypes import Array, DType
from graft.byoc.executable import Settings
from graft.byoc.tolerance import difference
from graft.ir.evaluate import evaluate
from graft.ir.graph import Graph, Value
from graft.ir.types import TensorType
from graft.runtime.json_graph import unpack

needs_bfloat16 = pytest.mark.skipif(
    not runtime.multiplies(DType.BFLOAT16), reason="the processor has no products of bfloat16"
)
needs_bytes = pytest.mark.skipif(
    not runtime.multiplies(DType.INT8), reason="the processor has no products of bytes (VNNI)"
)
CONVOLUTION, PRODUCT = "convolution_forward", "matmul"


def compared(graph: Graph, data: list[Array], backend: OneDnn | None = None) -> list[str]:
    """Compare with what the graph means; gives the primitives."""
    backend = backend or OneDnn()
    shapes = [np.asarray(item) for item in evaluate(graph, data)]
    results = [np.empty_like(item) for item in shapes]
    backend.runner(graph)(data, results)
    assert difference(graph, results, shapes, rounding=backend.limits.rounding) == ""
    return operators(unpack(backend.compile(graph)))


def block(case: Case, dtype: str) -> Value:
    def constant(*shape: int) -> Value:
        return case.builder.constant(case.array(*shape, dtype=dtype))

    x = case.input(2, 16, 9, 7, dtype=dtype)
    y = case("nn.conv2d", x, constant(16, 16, 3, 3), padding=(1, 1, 1, 1))
    y = case("nn.relu", case("add", case("nn.bias_add", y, constant(16)), x))
    y = case("nn.avg_pool2d", y, pool_size=(3, 3), strides=(2, 2))
    y = case("nn.softmax", case("reshape", y, shape=(2, 192)))
    return case("nn.gelu", case("nn.dense", y, constant(5, 192)))


@needs_bfloat16
def test_a_network_of_bfloat16() -> None:
    case = Case()
    graph = case.builder.build(block(case, "bfloat16"))
    assert refusals(graph) == []
    found = compared(graph, case.data)
    assert found == [CONVOLUTION, "pooling_forward", "softmax_forward", PRODUCT]


@needs_bfloat16
def test_float32_in_bfloat16_where_asked_for() -> None:
    case = Case()
    graph = case.builder.build(block(case, "float32"))
    assert DType.BFLOAT16 in OneDnn().limits.computes_in
    narrow = OneDnn().configured(Settings(precision=DType.BFLOAT16))
    compared(graph, case.data, narrow)
    assert narrow.limits.rounding is DType.BFLOAT16 is narrow.load(narrow.code(graph)).rounding
    assert narrow.options != OneDnn().options
    plain, rounded = (np.empty((2, 5), np.float32) for _ in range(2))
    OneDnn().runner(graph)(case.data, [plain])
    narrow.runner(graph)(case.data, [rounded])
    assert 1e-5 < np.abs(plain - rounded).max() / np.abs(plain).max() < 1e-1


@pytest.mark.skipif(runtime.multiplies(DType.FLOAT16), reason="the processor has float16")
def test_float16_is_refused_where_the_processor_has_none() -> None:
    case = Case()
    graph = case.builder.build(block(case, "float16"))
    found = "\n".join(refusals(graph))
    assert "oneDNN has no convolution_forward of these dtypes on this processor" in found
    assert DType.FLOAT16 not in OneDnn().limits.computes_in


def quantized(case: Case, value: Value, scale: float, zero: int, dtype: str = "uint8") -> Value:
    parameters = (
        case.builder.constant(np.float32(scale)),
        case.builder.constant(np.array(zero, dtype)),
    )
    return case("qnn.quantize", value, *parameters, dtype=dtype)


def dequantized(
    case: Case, codes: Value, scale: Any, zero: Any, axis: int = 1, dtype: str = "uint8"
) -> Value:
    parameters = np.asarray(scale, np.float32), np.asarray(zero, dtype)
    return case("qnn.dequantize", codes, *map(case.builder.constant, parameters), axis=axis)


def integers(case: Case, *shape: Any, dtype: str = "uint8") -> Value:
    type_ = TensorType(DType(dtype), shape)
    size = tuple(3 if not isinstance(dim, int) else dim for dim in shape)
    info = np.iinfo(dtype)
    case.data.append(case.random.integers(info.min, info.max + 1, size).astype(dtype))
    return case.builder.input(f"q{len(case.data)}", type_)


def weights(case: Case, *shape: int, per_channel: bool = True, dtype: str = "int8") -> Value:
    info = np.iinfo(dtype)
    codes = case.random.integers(info.min, info.max + 1, shape).astype(dtype)
    scale: Any = 0.02
    if per_channel:
        scale = (0.01 + 0.02 * case.random.random(shape[0])).astype(np.float32)
    zero = np.full(np.shape(scale), 128 if dtype == "uint8" else 0, dtype)
    return dequantized(case, case.builder.constant(codes), scale, zero, axis=0, dtype=dtype)


def bias(case: Case, count: int) -> Value:
    codes = case.random.integers(-4000, 4000, count).astype(np.int32)
    parameters = np.float32(1e-3), np.int32(0)
    return case(
        "qnn.dequantize", case.builder.constant(codes), *map(case.builder.constant, parameters)
    )


@needs_bytes
@pytest.mark.parametrize("dtype", ["uint8", "int8"])
@pytest.mark.parametrize(
    ("shape", "kernel", "attrs"),
    [
        ((2, 16, 9, 7), (24, 16, 3, 3), {"padding": (1, 1, 1, 1)}),
        ((1, 5, 8, 8), (7, 5, 1, 1), {"strides": (2, 2)}),
        ((1, 32, 6, 5), (32, 1, 3, 3), {"groups": 32, "padding": (1, 1, 1, 1)}),
        ((2, 6, 7, 7), (9, 2, 3, 3), {"groups": 3}),
    ],
)
def test_a_quantised_convolution(
    shape: tuple[int, ...], kernel: tuple[int, ...], attrs: dict[str, Any], dtype: str
) -> None:
    case = Case()
    x = dequantized(case, integers(case, *shape, dtype=dtype), 0.05, 7, dtype=dtype)
    y = case("nn.conv2d", x, weights(case, *kernel), **attrs)
    y = case("nn.relu", case("nn.bias_add", y, bias(case, kernel[0])))
    graph = case.builder.build(quantized(case, y, 0.3, 3, dtype))
    assert refusals(graph) == []
    assert compared(graph, case.data) == [CONVOLUTION]


@needs_bytes
@pytest.mark.parametrize("per_channel", [True, False])
@pytest.mark.parametrize("dtype", ["int8", "uint8"])
def test_a_quantised_dense_layer(per_channel: bool, dtype: str) -> None:
    """Unsigned weights around 128 are signed ones around 0."""
    case = Case()
    x = dequantized(case, integers(case, symbol("n"), 6, 33), 0.05, 131)
    kernel = weights(case, 17, 33, per_channel=per_channel, dtype=dtype)
    y = case("nn.bias_add", case("nn.dense", x, kernel), bias(case, 17), axis=2)
    graph = case.builder.build(quantized(case, y, 0.5, 100))
    assert refusals(graph) == []
    assert compared(graph, case.data) == [PRODUCT]


@needs_bytes
def test_a_sum_is_part_of_the_layer() -> None:
    case = Case()
    x = integers(case, 1, 16, 9, 9)
    y = case("nn.conv2d", dequantized(case, x, 0.05, 3), weights(case, 16, 16, 1, 1))
    y = case("nn.bias_add", y, bias(case, 16))
    y = case("nn.relu", case("add", y, dequantized(case, x, 0.05, 3)))
    graph = case.builder.build(quantized(case, y, 0.3, 0))
    assert refusals(graph) == []
    assert compared(graph, case.data) == ["reorder", CONVOLUTION]


@needs_bytes
def test_units_without_layers() -> None:
    case = Case()
    x, z = integers(case, 2, 8, 7, 7), integers(case, 2, 8, 7, 7, dtype="int8")
    first, second = dequantized(case, x, 0.05, 3), dequantized(case, z, 0.1, -4, dtype="int8")
    total = quantized(case, case("nn.relu", case("add", first, second)), 0.08, 2)
    pooled = case("nn.max_pool2d", dequantized(case, total, 0.08, 2), pool_size=(3, 3))
    graph = case.builder.build(quantized(case, pooled, 0.08, 2))
    assert refusals(graph) == []
    compared(graph, case.data)


@needs_bytes
def test_refusals() -> None:
    case = Case()
    x = integers(case, 1, 4, 5, 5)
    by_channel = dequantized(case, x, np.full(4, 0.1), np.zeros(4))
    wide = case.builder.constant(case.random.integers(0, 256, (4, 4, 1, 1)).astype(np.uint8))
    y = case("nn.conv2d", dequantized(case, x, 0.1, 0), dequantized(case, wide, 0.1, 3, axis=0))
    graph = case.builder.build(
        quantized(case, case("nn.relu", by_channel), 0.1, 0), quantized(case, y, 0.1, 0)
    )
    found = "\n".join(refusals(graph))
    assert "its data has a scale or zero point per channel" in found
    assert "its weights do not fit int8 once their zero point is taken away" in found


def test_processors_without_products_of_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runtime.library(), "dnnl_get_effective_cpu_isa", lambda: 0x27)
    case = Case()
    x = dequantized(case, integers(case, 2, 9), 0.1, 0)
    y = quantized(case, case("nn.dense", x, weights(case, 5, 9)), 0.1, 0)
    assert "would add products of bytes in 16 bits" in "\n".join(refusals(case.builder.build(y)))


@needs_bytes
def test_a_quantised_model_runs_on_integers_for_any_batch() -> None:
    case = Case()
    x = case.builder.input("x", TensorType(DType.FLOAT32, (symbol("n"), 8, 12, 12)))
    codes = quantized(case, x, 0.03, 120)
    for _ in range(3):
        y = case("nn.conv2d", dequantized(case, codes, 0.03, 120), weights(case, 8, 8, 3, 3))
        codes = quantized(case, case("nn.bias_add", y, bias(case, 8)), 0.03, 120)
    y = case("mean", dequantized(case, codes, 0.03, 120), axes=(2, 3))
    y = dequantized(case, quantized(case, y, 0.01, 128), 0.01, 128)
    graph = case.builder.build(case("nn.dense", y, weights(case, 5, 8)))
    module = graft.compile(graph, "onednn", pins=["*=onednn"])
    assert len(module.placement.regions) == 1
    for count in (1, 4):
        data = case.array(count, 8, 12, 12)
        (expected,) = evaluate(graph, [data])
        assert difference(graph, module.run(None, {"x": data}), [np.asarray(expected)]) == ""
    assert not module.incidents

"""Ethos-U: what Arm's reference model computes is exact, and what Vela refuses is refused."""

from __future__ import annotations

import io
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import parser

import graft
from graft.backends.ethosu import runtime
from graft.backends.ethosu.backend import EthosU
from graft.base.dtypes import Array
from graft.base.errors import UserError
from graft.byoc.boundary import wished
from graft.byoc.candidates import find_candidates
from graft.byoc.discover import Discovery, backend_named
from graft.byoc.explain import explain
from graft.compiler import compile_options
from graft.ir.builder import Builder
from graft.ir.evaluate import evaluate
from graft.ir.graph import Graph, Value
from graft.ir.types import tensor
from graft.runtime.loaders import check_loader
from graft.stages import import_graph, optimize, place

FAMILY = Discovery({"ethosu": EthosU()}, {"ethosu": "a test"})
LACKING = runtime.missing()
needs_tools = pytest.mark.skipif(bool(LACKING), reason=LACKING or "nothing is missing")
SCALES = {"x": 0.0213, "y": 0.0371, "out": 0.0457}  # of operands and results
ZEROS = {"x": 131, "y": 118, "out": 125}  # of bytes without a sign

NETWORK = """
    <ir_version: 10, opset_import: ["": 20]>
    net (float[1, 3, 16, 16] image) => (float[1, 4, 1, 1] scores)
      <float s = {{0.03}}, uint8 z = {{128}}, float t = {{0.02}}, int8 v = {{0}},
       float a = {{0.05}}, float r = {{0.0006}}, int32 u = {{0}}, int32[4] b = {{10, -20, 30, 40}},
       int8[4, 3, 3, 3] w = {{{weights}}}> {{
      codes = QuantizeLinear (image, s, z)
      data = DequantizeLinear (codes, s, z)
      weight = DequantizeLinear (w, t, v)
      bias = DequantizeLinear (b, r, u)
      conv = Conv <strides = [2, 2], pads = [1, 1, 1, 1]> (data, weight, bias)
      relu = Relu (conv)
      rectified = QuantizeLinear (relu, a, z)
      features = DequantizeLinear (rectified, a, z)
      mean = GlobalAveragePool (features)
      result = QuantizeLinear (mean, a, z)
      scores = DequantizeLinear (result, a, z)
    }}
"""


def network() -> onnx.ModelProto:
    """A quantised convolution and a mean behind it."""
    weights = np.random.default_rng(3).integers(-90, 91, 4 * 3 * 3 * 3)
    return parser.parse_model(NETWORK.format(weights=", ".join(map(str, weights))))


class Unit:
    """A quantised unit: the same operators on bytes, and on float64 without any rounding."""

    def __init__(self, dtype: str) -> None:
        self.bytes, self.exact = Builder(), Builder()
        self.dtype, self.inputs, self.draw = dtype, dict[str, Array](), np.random.default_rng(7)

    def zero(self, name: str) -> int:
        return ZEROS[name] - (128 if self.dtype == "int8" else 0)

    def data(self, name: str, *shape: int) -> tuple[Value, Value]:
        info = np.iinfo(self.dtype)
        codes = self.draw.integers(info.min, info.max + 1, shape).astype(self.dtype)
        self.inputs[name] = codes
        scale, zero = self.parameters(name)
        held = self.bytes.input(name, tensor(self.dtype, *shape))
        return (
            self.bytes("qnn.dequantize", held, scale, zero),
            self.exact.input(name, tensor("float64", *shape)),
        )

    def parameters(self, name: str) -> tuple[Value, Value]:
        scale = self.bytes.constant(np.float32(SCALES[name]))
        return scale, self.bytes.constant(np.array(self.zero(name), self.dtype))

    def weights(self, *shape: int, axis: int = 0) -> tuple[Value, Value]:
        """With a scale for each channel of the result."""
        codes = self.draw.integers(-127, 128, shape).astype(np.int8)
        scales = (0.001 + 0.01 * self.draw.random(shape[axis])).astype(np.float32)
        held = [self.bytes.constant(one) for one in (codes, scales, np.zeros_like(scales, np.int8))]
        spread = scales.astype(np.float64).reshape(
            [-1 if a == axis else 1 for a in range(len(shape))]
        )
        exact = self.exact.constant(codes * spread)
        return self.bytes("qnn.dequantize", *held, axis=axis), exact

    def check(self, results: tuple[Value, Value], device: str) -> None:
        """Run both, and compare every byte."""
        scale, zero = self.parameters("out")
        graph = self.bytes.build(
            self.bytes("qnn.quantize", results[0], scale, zero, dtype=self.dtype, axis=1)
        )
        backend = EthosU(device)
        region = wished(graph, backend.limits)
        (value,) = region.outputs
        found = np.empty([int(str(n)) for n in value.tensor.shape or ()], self.dtype)
        inputs = [_nhwc(self.inputs[v.name]) for v in graph.inputs]
        backend.runner(region)(inputs, [found])
        floats = [
            (codes.astype(np.float64) - self.zero(name)) * np.float64(np.float32(SCALES[name]))
            for name, codes in self.inputs.items()
        ]
        (exact,) = evaluate(self.exact.build(results[1]), floats)
        steps = np.floor(np.asarray(exact) / np.float64(np.float32(SCALES["out"])) + 0.5)
        info = np.iinfo(self.dtype)
        wanted = np.clip(steps + self.zero("out"), info.min, info.max).astype(self.dtype)
        np.testing.assert_array_equal(found, _nhwc(wanted))


def _nhwc(array: Array) -> Array:
    return np.ascontiguousarray(array.transpose(0, 2, 3, 1)) if array.ndim == 4 else array


def _on(name: str, *shapes: tuple[int, ...], **attrs: Any) -> Callable[[Unit], tuple[Value, Value]]:
    """A unit of one operator on data alone."""

    def make(unit: Unit) -> tuple[Value, Value]:
        operands = [unit.data(n, *shape) for n, shape in zip("xy", shapes, strict=False)]
        return (
            unit.bytes(name, *(one[0] for one in operands), **attrs),
            unit.exact(name, *(one[1] for one in operands), **attrs),
        )

    return make


def _layer(
    name: str, data: tuple[int, ...], weight: tuple[int, ...], axis: int = 0, **attrs: Any
) -> Callable[[Unit], tuple[Value, Value]]:
    def make(unit: Unit) -> tuple[Value, Value]:
        x, w = unit.data("x", *data), unit.weights(*weight, axis=axis)
        return unit.bytes(name, x[0], w[0], **attrs), unit.exact(name, x[1], w[1], **attrs)

    return make


def _and_sum(
    layer: Callable[[Unit], tuple[Value, Value]], *shape: int
) -> Callable[[Unit], tuple[Value, Value]]:
    """A layer, and a tensor of another scale added to what it makes."""

    def make(unit: Unit) -> tuple[Value, Value]:
        sums, other = layer(unit), unit.data("y", *shape)
        return unit.bytes("add", sums[0], other[0]), unit.exact("add", sums[1], other[1])

    return make


IMAGE = (1, 5, 9, 8)
UNITS = {
    "convolution": _layer("nn.conv2d", IMAGE, (6, 5, 3, 3), padding=(1, 1, 1, 1)),
    "strides": _layer("nn.conv2d", IMAGE, (6, 5, 3, 2), strides=(2, 3), padding=(0, 1, 1, 0)),
    "rest": _layer("nn.conv2d", (1, 5, 10, 10), (6, 5, 3, 3), strides=(2, 2)),
    "dilation": _layer("nn.conv2d", IMAGE, (6, 5, 3, 3), dilation=(2, 1), padding=(2, 1, 2, 1)),
    "depthwise": _layer("nn.conv2d", IMAGE, (10, 1, 3, 3), groups=5, padding=(1, 1, 1, 1)),
    "transposed": _layer(
        "nn.conv2d_transpose", IMAGE, (5, 4, 3, 3), 1, strides=(2, 2), padding=(1, 1, 1, 1)
    ),
    "dense": _layer("nn.dense", (3, 17), (4, 17)),
    "convolution and sum": _and_sum(
        _layer("nn.conv2d", IMAGE, (6, 5, 3, 3), padding=(1, 1, 1, 1)), 1, 6, 9, 8
    ),
    "dense and sum": _and_sum(_layer("nn.dense", (5, 17), (30, 17)), 5, 30),
    "add": _on("add", IMAGE, IMAGE),
    "subtract": _on("subtract", (4, 7), (4, 7)),
    "multiply": _on("multiply", IMAGE, (1, 5, 1, 8)),
    "max": _on("nn.max_pool2d", IMAGE, pool_size=(3, 2), strides=(2, 2), padding=(1, 0, 1, 0)),
    "average": _on("nn.avg_pool2d", IMAGE, pool_size=(2, 3), strides=(2, 2)),
    "mean": _on("mean", IMAGE, axes=(2, 3), keepdims=True),
    "concatenate": _on("concatenate", IMAGE, (1, 3, 9, 8), axis=1),
    "reshape": _on("reshape", IMAGE, shape=(1, 360)),
    "transpose": _on("transpose", IMAGE, axes=(0, 2, 1, 3)),
    "pad": _on("nn.pad", IMAGE, pad_width=(0, 0, 1, 2, 0, 0, 3, 0)),
    "slice": _on("strided_slice", IMAGE, begin=(1, 2), end=(4, 9), axes=(1, 2)),
    "relu": _on("nn.relu", IMAGE),
    "clip": _on("clip", IMAGE, a_min=-0.5, a_max=1.0),
    "sigmoid": _on("sigmoid", IMAGE),
    "tanh": _on("tanh", (3, 11)),
    "nearest": _on("resize", IMAGE, scales=(2.0, 2.0), axes=(2, 3)),
}


@needs_tools
@pytest.mark.parametrize("dtype", ["int8", "uint8"])
@pytest.mark.parametrize("name", UNITS)
def test_units_are_exact_to_the_byte(name: str, dtype: str) -> None:
    unit = Unit(dtype)
    unit.check(UNITS[name](unit), "u85-256" if name == "nearest" else "u55-128")


@needs_tools
def test_linear_resizing_is_within_a_step() -> None:
    """TOSA rounds the mean of four pixels before it is quantised anew."""
    unit = Unit("int8")
    held, _ = _on("resize", IMAGE, scales=(2.0, 2.0), axes=(2, 3), method="linear")(unit)
    scale, zero = unit.parameters("out")
    graph = unit.bytes.build(unit.bytes("qnn.quantize", held, scale, zero, dtype="int8", axis=1))
    (exact,) = evaluate(graph, [unit.inputs["x"]])
    backend = EthosU("u85-256")
    found = np.empty((1, 18, 16, 5), np.int8)
    backend.runner(wished(graph, backend.limits))([_nhwc(unit.inputs["x"])], [found])
    assert np.abs(found.astype(int) - _nhwc(np.asarray(exact))).max() <= 1


@needs_tools
def test_dense_layers_along_rows_of_images_keep_their_bias() -> None:
    """Images are NHWC, and the units of the layer are then not their last axis."""
    unit, draw = Unit("int8"), np.random.default_rng(2)
    data, _ = unit.data("x", 1, 2, 3, 8)
    weights, _ = unit.weights(5, 8)
    codes = unit.bytes.constant(draw.integers(-9000, 9000, 5).astype(np.int32))
    bias = unit.bytes("qnn.dequantize", codes, unit.bytes.constant(np.float32(0.0002)))
    sums = unit.bytes("nn.bias_add", unit.bytes("nn.dense", data, weights), bias, axis=-1)
    scale, zero = unit.parameters("out")
    graph = unit.bytes.build(unit.bytes("qnn.quantize", sums, scale, zero, dtype="int8", axis=1))
    (exact,) = evaluate(graph, [unit.inputs["x"]])
    found, backend = np.empty((1, 3, 5, 2), np.int8), EthosU("u55-128")
    backend.runner(wished(graph, backend.limits))([_nhwc(unit.inputs["x"])], [found])
    assert np.abs(found.astype(int) - _nhwc(np.asarray(exact))).max() <= 1


@needs_tools
@pytest.mark.parametrize("name", ["log", "sqrt"])
def test_tables_hold_what_the_graph_says_of_not_a_number(name: str) -> None:
    unit = Unit("uint8")
    held, _ = _on(name, (4, 64))(unit)
    scale, zero = unit.parameters("out")
    graph = unit.bytes.build(unit.bytes("qnn.quantize", held, scale, zero, dtype="uint8", axis=1))
    (exact,) = evaluate(graph, [unit.inputs["x"]])
    found, backend = np.empty((4, 64), np.uint8), EthosU("u55-128")
    backend.runner(wished(graph, backend.limits))([unit.inputs["x"]], [found])
    np.testing.assert_array_equal(found, exact)


def refusals(graph: Graph, device: str) -> set[str]:
    found = find_candidates(graph, [EthosU(device)])
    last = [node for node in graph.nodes if node.op.name == "qnn.quantize"]
    return {one.reason for node in last for one in found.refused_matches.get(node, ())}


def _overflowing(unit: Unit) -> tuple[Value, Value]:
    """A layer whose bias is all that 32 bits hold."""
    x, exact = unit.data("x", *IMAGE)
    w = unit.bytes.constant(np.full((3, 5, 1, 1), 20, np.int8))
    weight = unit.bytes("qnn.dequantize", w, unit.bytes.constant(np.float32(0.01)))
    codes = unit.bytes.constant(np.full(3, 2**31 - 1, np.int32))
    steps = unit.bytes.constant(np.float32(SCALES["x"]) * np.float32(0.01))
    layer = unit.bytes("nn.conv2d", x, weight)
    return unit.bytes("nn.bias_add", layer, unit.bytes("qnn.dequantize", codes, steps)), exact


@needs_tools
def test_refusals_carry_the_reason() -> None:
    def reasons(make: Callable[[Unit], tuple[Value, Value]], device: str = "u55-128") -> set[str]:
        unit = Unit("uint8")
        held, _ = make(unit)
        scale, zero = unit.parameters("out")
        made = unit.bytes("qnn.quantize", held, scale, zero, dtype="uint8", axis=1)
        return refusals(unit.bytes.build(made), device)

    strides = _layer("nn.conv2d_transpose", IMAGE, (5, 4, 3, 3), 1, strides=(3, 3))
    assert reasons(strides) == {
        "Vela refuses it: Non-passthrough operation (TransposeConv2D) could not run on NPU"
    }
    assert not reasons(strides, "u85-256")
    groups = _layer("nn.conv2d", (1, 6, 5, 5), (4, 3, 3, 3), groups=2)
    assert reasons(groups) == {"TOSA has no convolution in 2 groups of 6 channels"}
    (sums,) = reasons(_overflowing)
    assert sums.startswith("sums of up to 2,147,49")
    assert sums.endswith(" overflow 32 bits")
    (large,) = reasons(_on("nn.relu", (1, 64, 300, 300)))
    assert large.startswith("Vela's schedule needs ")
    assert large.endswith(" bytes of SRAM, and the device has 4,194,304")


@needs_tools
def test_a_model_is_placed_explained_saved_and_loaded(tmp_path: Path) -> None:
    name = "ethosu:u55-128"
    pins = [f"rectified={name}", f"result={name}"]
    options = compile_options([name, "host"], pins=pins)
    placed = place(optimize(import_graph(network())), options)
    assert placed.partition is not None
    (region,) = explain(placed.partition).regions
    assert region.source == f"declared by Vela {runtime.version()} at 500 MHz"
    assert region.macs > 0
    module = graft.compile(network(), target=[name, "host"], pins=pins)
    assert "ethosu:u55-128 (simulated)" in str(module.placement)
    image = np.random.default_rng(1).standard_normal((1, 3, 16, 16), dtype=np.float32)
    (scores,) = module.run(None, {"image": image})
    (on_host,) = graft.compile(network()).run(None, {"image": image})
    assert np.abs(scores - on_host).max() <= 0.05 * 1.01  # one step
    module.save(tmp_path / "net.graft")
    (again,) = graft.load(tmp_path / "net.graft").run(None, {"image": image})
    np.testing.assert_array_equal(again, scores)
    assert not module.incidents


@needs_tools
def test_code_is_what_a_driver_takes() -> None:
    unit = Unit("int8")
    held, _ = UNITS["convolution"](unit)
    scale, zero = unit.parameters("out")
    graph = unit.bytes.build(unit.bytes("qnn.quantize", held, scale, zero, dtype="int8", axis=1))
    backend = EthosU("u55-128")
    with np.load(io.BytesIO(backend.code(wished(graph, backend.limits)))) as parts:
        assert parts["command_stream"].tobytes()[:4] == b"COP1"
        assert parts["weights"].size > 0
        assert parts["tensors"].shape == (2, 2)
        assert 0 < float(parts["seconds"]) < 1e-3
        assert parts["tosa"].tobytes()[4:8] == b"TOSA"


def test_names_of_accelerators() -> None:
    with pytest.raises(UserError, match=r"'ethosu' cannot run here: name an accelerator: .*u85-"):
        backend_named("ethosu", FAMILY)
    with pytest.raises(UserError, match="there is no 'ethosu:u99': there are ethosu:u55-32, "):
        backend_named("ethosu:u99", FAMILY)


def test_without_the_tools(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("graft.runtime.loaders.find_spec", lambda _name: None)
    lacking = EthosU("u55-128").missing()
    assert lacking.startswith("it needs the package 'ethos-u-vela': pip install")
    assert EthosU().missing() == lacking  # as `graft backends` shows it
    with pytest.raises(UserError, match="it needs the package 'tosa-tools': pip install"):
        check_loader(runtime.load, "5.2.0")


@needs_tools
@pytest.mark.full
def test_mobilenet_goes_as_a_whole() -> None:
    """Vela makes one command stream of all but the quantisation before and behind it."""
    from benchmarks.quantized import quantized

    options = compile_options(["ethosu:u85-2048", "host"])
    placed = place(optimize(import_graph(quantized("mobilenet_v2"))), options)
    assert placed.partition is not None
    told = explain(placed.partition)
    greedy = next(total for total in told.totals if total.scheme == "greedy")
    assert (greedy.regions, greedy.nodes) == (1, len(told.nodes) - 2)
    assert greedy.macs == told.macs

"""Hexagon: code for its vectors, and what QEMU makes of it, to the byte."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import llvmlite.binding as llvm
import numpy as np
import pytest

import graft
from graft.backends.hexagon import runtime
from graft.backends.hexagon.backend import Hexagon
from graft.backends.hexagon.code import Step, buffers_of, llvm_module, target
from graft.backends.hexagon.hvx import (
    Codes,
    Window,
    border_kernel,
    product_kernel,
    window_kernel,
)
from graft.backends.hexagon.plan import Planner
from graft.base.dims import symbol
from graft.base.dtypes import Array, DType
from graft.base.errors import UserError
from graft.byoc.boundary import wished
from graft.byoc.candidates import find_candidates
from graft.byoc.explain import explain
from graft.byoc.kit import conformance
from graft.compiler import compile_options
from graft.ir.builder import Builder
from graft.ir.evaluate import evaluate
from graft.ir.graph import Graph, Value
from graft.ir.types import tensor
from graft.llvm.codegen import optimized_module, target_machine
from graft.llvm.compile import processor_of
from graft.loop.interpret import interpret
from graft.loop.ir import Const, Function
from graft.runtime.loaders import check_loader
from graft.stages import import_graph, optimize, place

LACKING = runtime.missing()
needs_tools = pytest.mark.skipif(bool(LACKING), reason=LACKING or "nothing is missing")
SCALES = {"x": 0.0213, "y": 0.0371, "out": 0.0457}  # of operands and results
ZEROS = {"x": 131, "y": 118, "out": 125}  # of bytes without a sign
PLAIN = Codes(DType.UINT8, left=8, right=10, zero=3, low=5, high=250)


def assembly(*functions: Function) -> str:
    steps = [Step(one, tuple(range(0, 128 * len(buffers_of(one)), 128))) for one in functions]
    machine = target_machine(processor_of(target()))
    return str(machine.emit_assembly(optimized_module(llvm_module(steps, 4096), machine)))


def run(function: Function, **arrays: Array) -> Array:
    """What loop IR means, on buffers with the slack behind them."""
    given: dict[str, Array] = {}
    for buffer in buffers_of(function):
        (extent,) = buffer.extents
        assert isinstance(extent, Const)
        given[buffer.name] = np.zeros(int(extent.value), buffer.dtype.numpy)
        if buffer.name in arrays:
            flat = arrays[buffer.name].ravel()
            given[buffer.name][: flat.size] = flat
    interpret(function, given)
    return given["result"]


def codes_of(sums: Array, multiplier: Array, codes: Codes) -> Array:
    scaled = (sums.astype(np.int64) << codes.left) * multiplier / 2.0 ** (32 + codes.right)
    result: Array = np.clip(np.floor(scaled + 0.5) + codes.zero, codes.low, codes.high)
    return result


def test_products_use_vectors_of_128_bytes() -> None:
    window = Window((1, 1, 12), (0, 0, 16), (1, 1), (0, 0))
    text = assembly(product_kernel(window, 16, 160, PLAIN))
    assert "vrmpy(" in text  # four products of bytes in each of 32 words
    assert "vmpyo(" in text  # one multiplication makes codes of sums
    assert "loop0(" in text  # loops are the hardware's
    assert "vmemu(" in text
    assert "call " not in text


FOLLOW = """
define void @follow(ptr %first, i32 %count, ptr %sum) {
entry:
  br label %loop
loop:
  %here = phi ptr [ %first, %entry ], [ %next, %loop ]
  %number = phi i32 [ 0, %entry ], [ %following, %loop ]
  %a = getelementptr i8, ptr %here, i32 33024
  %x = load volatile <32 x i32>, ptr %a, align 128
  store volatile <32 x i32> %x, ptr %sum, align 128
  %next = load volatile ptr, ptr %here
  %b = getelementptr i8, ptr %next, i32 33152
  %y = load volatile <32 x i32>, ptr %b, align 128
  store volatile <32 x i32> %y, ptr %a, align 128
  %c = getelementptr i8, ptr %next, i32 4096
  %z = load volatile <32 x i32>, ptr %c, align 128
  store volatile <32 x i32> %z, ptr %sum, align 128
  %following = add i32 %number, 1
  %is_last = icmp eq i32 %following, %count
  br i1 %is_last, label %done, label %loop
done:
  ret void
}
"""


def test_addresses_follow_the_pointer_that_they_are_of() -> None:
    """LLVM's pass `amode-opt` takes %next + 33152 for %here + 33024 + 128 in this loop."""
    machine = target_machine(processor_of(target()))
    text = str(machine.emit_assembly(llvm.parse_assembly(FOLLOW)))
    assert "##33024)" in text
    assert "##33152)" in text


def test_products_in_loop_ir() -> None:
    """40 outputs: one block that runs over into the next pixel, and rows of three pixels."""
    draw = np.random.default_rng(1)
    data = draw.integers(0, 256, (2, 3, 8)).astype(np.uint8)
    weights = draw.integers(-127, 128, (40, 8)).astype(np.int8)
    padded = np.zeros((64, 2, 4), np.int8)
    padded[:40] = weights.reshape(40, 2, 4)
    multiplier = draw.integers(1 << 20, 1 << 22, 64).astype(np.int32)
    bias = draw.integers(-999, 999, 64).astype(np.int32)
    window = Window((1, 2, 3), (0, 6, 2), (1, 1), (0, 0))
    found = run(
        product_kernel(window, 2, 40, PLAIN),
        data=data.reshape(-1, 4).view(np.int32),
        weights=np.ascontiguousarray(padded.transpose(1, 0, 2)).view(np.int32),
        bias=bias,
        multiplier=multiplier,
    )
    sums = data.reshape(6, 8).astype(np.int64) @ weights.T.astype(np.int64) + bias[:40]
    np.testing.assert_array_equal(
        found[: 6 * 40].reshape(6, 40), codes_of(sums, multiplier[:40], PLAIN)
    )


def test_windows_and_borders_in_loop_ir() -> None:
    draw = np.random.default_rng(2)
    image = draw.integers(-128, 128, (1, 4, 3, 130)).astype(np.int8)
    wanted = np.full((1, 5, 5, 130), 7, np.uint8)
    framed = run(border_kernel(image.shape, wanted.shape, (1, 1), DType.INT8, 7), data=image)
    wanted[:, 1:, 1:4] = (image.astype(int) + 128).astype(np.uint8)
    framed = framed[: wanted.size]
    np.testing.assert_array_equal(framed, wanted.ravel())
    weights = draw.integers(-127, 128, (2, 2, 130)).astype(np.int8)
    line = 5 * 130
    window = Window((1, 4, 4), (0, line, 130), (2, 2), (line, 130))
    bias, multiplier = np.zeros(256, np.int32), np.full(256, 1 << 21, np.int32)
    kernel = window_kernel(window, 130, PLAIN, is_weighted=True)
    found = run(kernel, data=framed, weights=weights, bias=bias, multiplier=multiplier)
    taps = [(y, x) for y in (0, 1) for x in (0, 1)]
    sums = sum(wanted[0, y : y + 4, x : x + 4].astype(int) * weights[y, x] for y, x in taps)
    exact = codes_of(np.asarray(sums), multiplier[:130], PLAIN)
    np.testing.assert_array_equal(found[: 16 * 130].reshape(4, 4, 130), exact)


class Unit:
    """A quantised unit: the same operators on bytes, and on float64 without any rounding."""

    def __init__(self, dtype: str) -> None:
        self.bytes, self.exact = Builder(), Builder()
        self.dtype, self.inputs, self.draw = dtype, dict[str, Array](), np.random.default_rng(7)

    def zero(self, name: str) -> int:
        return ZEROS[name] - (128 if self.dtype == "int8" else 0)

    def data(self, name: str, *shape: int) -> tuple[Value, Value]:
        info = np.iinfo(self.dtype)
        self.inputs[name] = self.draw.integers(info.min, info.max + 1, shape).astype(self.dtype)
        held = self.bytes.input(name, tensor(self.dtype, *shape))
        dequantized = self.bytes("qnn.dequantize", held, *self.parameters(name))
        return dequantized, self.exact.input(name, tensor("float64", *shape))

    def parameters(self, name: str) -> tuple[Value, Value]:
        scale = self.bytes.constant(np.float32(SCALES[name]))
        return scale, self.bytes.constant(np.array(self.zero(name), self.dtype))

    def weights(self, *shape: int) -> tuple[Value, Value]:
        """With a scale for each channel of the result."""
        codes = self.draw.integers(-127, 128, shape).astype(np.int8)
        scales = (0.001 + 0.01 * self.draw.random(shape[0])).astype(np.float32)
        held = [self.bytes.constant(one) for one in (codes, scales, np.zeros_like(scales, np.int8))]
        spread = scales.astype(np.float64).reshape(-1, *[1] * (len(shape) - 1))
        exact = self.exact.constant(codes * spread)
        return self.bytes("qnn.dequantize", *held, axis=0), exact

    def graph(self, result: Value) -> Graph:
        scale, zero = self.parameters("out")
        made = self.bytes("qnn.quantize", result, scale, zero, dtype=self.dtype, axis=1)
        return self.bytes.build(made)

    def wanted(self, exact: Value) -> Array:
        """The codes of exact results, halves rounded upwards."""
        floats = [
            (codes.astype(np.float64) - self.zero(name)) * np.float64(np.float32(SCALES[name]))
            for name, codes in self.inputs.items()
        ]
        (result,) = evaluate(self.exact.build(exact), floats)
        steps = np.floor(np.asarray(result) / np.float64(np.float32(SCALES["out"])) + 0.5)
        info = np.iinfo(self.dtype)
        codes: Array = np.clip(steps + self.zero("out"), info.min, info.max).astype(self.dtype)
        return codes


def nhwc(array: Array) -> Array:
    return np.ascontiguousarray(array.transpose(0, 2, 3, 1)) if array.ndim == 4 else array


def computed(graph: Graph, inputs: list[Array]) -> Array:
    backend = Hexagon()
    region = wished(graph, backend.limits)
    (value,) = region.outputs
    found = np.empty([int(str(n)) for n in value.tensor.shape or ()], value.dtype.numpy)
    backend.runner(region)([nhwc(one) for one in inputs], [found])
    return found


Make = Callable[[Unit], tuple[Value, Value]]


def _on(name: str, *shapes: tuple[int, ...], **attrs: Any) -> Make:
    def make(unit: Unit) -> tuple[Value, Value]:
        operands = [unit.data(n, *shape) for n, shape in zip("xy", shapes, strict=False)]
        return (
            unit.bytes(name, *(one[0] for one in operands), **attrs),
            unit.exact(name, *(one[1] for one in operands), **attrs),
        )

    return make


def _layer(name: str, data: tuple[int, ...], weight: tuple[int, ...], **attrs: Any) -> Make:
    def make(unit: Unit) -> tuple[Value, Value]:
        x, w = unit.data("x", *data), unit.weights(*weight)
        return unit.bytes(name, x[0], w[0], **attrs), unit.exact(name, x[1], w[1], **attrs)

    return make


def _and_sum(layer: Make, *shape: int) -> Make:
    """A layer, and a tensor of another scale added to what it makes."""

    def make(unit: Unit) -> tuple[Value, Value]:
        sums, other = layer(unit), unit.data("y", *shape)
        return unit.bytes("add", sums[0], other[0]), unit.exact("add", sums[1], other[1])

    return make


IMAGE = (1, 5, 9, 8)
ROUND = {"padding": (1, 1, 1, 1)}
# Units that vectors compute: the kernels of each, in order.
VECTORS: dict[str, tuple[Make, list[str]]] = {
    "conv": (_layer("nn.conv2d", IMAGE, (6, 5, 3, 3), **ROUND), ["border", "product"]),
    "wide": (
        _layer("nn.conv2d", (2, 64, 9, 9), (200, 64, 3, 3), strides=(2, 2), **ROUND),
        ["border", "product"],
    ),
    "strides": (
        _layer("nn.conv2d", IMAGE, (6, 5, 3, 2), strides=(2, 3), padding=(0, 1, 1, 0)),
        ["border", "product"],
    ),
    "dilation": (
        _layer("nn.conv2d", IMAGE, (6, 5, 3, 3), dilation=(2, 2), padding=(2, 2, 2, 2)),
        ["border", "product"],
    ),
    "depthwise": (
        _layer("nn.conv2d", (1, 200, 9, 9), (200, 1, 3, 3), groups=200, **ROUND),
        ["border", "window"],
    ),
    # Rows of windows that 16 bits cannot tell the distance of.
    "far rows": (
        _layer("nn.conv2d", (1, 64, 8, 256), (64, 1, 3, 3), groups=64, strides=(2, 2), **ROUND),
        ["border", "window"],
    ),
    "dense": (_layer("nn.dense", (5, 17), (300, 17)), ["border", "product"]),
    "conv and sum": (
        _and_sum(_layer("nn.conv2d", IMAGE, (200, 5, 3, 3), **ROUND), 1, 200, 9, 8),
        ["border", "product"],
    ),
    "depthwise and sum": (
        _and_sum(_layer("nn.conv2d", IMAGE, (5, 1, 3, 3), groups=5, **ROUND), *IMAGE),
        ["border", "window"],
    ),
    "dense and sum": (
        _and_sum(_layer("nn.dense", (5, 17), (30, 17)), 5, 30),
        ["border", "product"],
    ),
    "add": (_on("add", IMAGE, IMAGE), ["pointwise"]),
    "subtract": (_on("subtract", (4, 7), (4, 7)), ["pointwise"]),
    "multiply": (_on("multiply", IMAGE, IMAGE), ["pointwise"]),
    "average": (
        _on("nn.avg_pool2d", IMAGE, pool_size=(2, 3), strides=(2, 2)),
        ["border", "window"],
    ),
    "mean": (_on("mean", IMAGE, axes=(2, 3), keepdims=True), ["border", "window"]),
    "max": (
        _on("nn.max_pool2d", IMAGE, pool_size=(3, 2), strides=(2, 2), padding=(1, 0, 1, 0)),
        ["border", "window"],
    ),
    "concatenate": (
        _on("concatenate", IMAGE, (1, 3, 9, 8), axis=1),
        ["pointwise", "pointwise", "join"],
    ),
    "relu": (_on("nn.relu", IMAGE), ["pointwise"]),
    "clip": (_on("clip", IMAGE, a_min=-0.5, a_max=1.0), ["pointwise"]),
}
OTHERS: dict[str, Make] = {
    "groups": _layer("nn.conv2d", IMAGE, (10, 1, 3, 3), groups=5, **ROUND),
    "mean of several": _on("mean", (2, 5, 9, 8), axes=(2, 3)),
    "dilated max": _on(
        "nn.max_pool2d", IMAGE, pool_size=(2, 2), dilation=(2, 2), padding=(1, 1, 1, 1)
    ),
    "broadcast": _on("multiply", IMAGE, (1, 5, 1, 8)),
    "rows": _on("concatenate", IMAGE, (1, 5, 2, 8), axis=2),
    "reshape": _on("reshape", IMAGE, shape=(1, 360)),
    "transpose": _on("transpose", IMAGE, axes=(0, 2, 1, 3)),
    "slice": _on("strided_slice", IMAGE, begin=(1, 2), end=(4, 9), axes=(1, 2)),
    "sigmoid": _on("sigmoid", IMAGE),
    "gelu": _on("nn.gelu", (3, 11)),
}


@pytest.mark.parametrize("name", VECTORS)
def test_units_become_vector_kernels(name: str) -> None:
    make, kernels = VECTORS[name]
    unit = Unit("int8")
    region = wished(unit.graph(make(unit)[0]), Hexagon.limits)
    plan = Planner(region).run()
    assert [step.function.name for step in plan.steps] == kernels
    assert plan.scalar_work == 0


def test_units_without_a_form_in_integers_are_computed_in_floats() -> None:
    """A bias that is not one of channels, which is found out before any operator is asked."""
    unit = Unit("int8")
    x, w = unit.data("x", *IMAGE)[0], unit.weights(6, 5, 3, 3)[0]
    codes = unit.bytes.constant(np.array([2], np.int32))
    bias = unit.bytes("qnn.dequantize", codes, unit.bytes.constant(np.float32(0.06)))
    biased = unit.bytes("nn.bias_add", unit.bytes("nn.conv2d", x, w), bias, axis=-4)
    plan = Planner(wished(unit.graph(biased), Hexagon.limits)).run()
    assert [step.function.name for step in plan.steps] == ["kernel"]
    assert plan.scalar_work > 0


def test_a_function_of_wider_codes_has_no_table() -> None:
    """Of int32 it would have 2**32 entries."""
    unit = Unit("int8")
    sums = unit.bytes.input("sums", tensor("int32", 1, 6, 4, 5))
    data = unit.bytes("qnn.dequantize", sums, unit.bytes.constant(np.float32(0.02)))
    plan = Planner(unit.graph(unit.bytes("abs", data))).run()
    assert plan.scalar_work > 0
    assert len(plan.constants) < 1000


@needs_tools
@pytest.mark.full
@pytest.mark.parametrize("dtype", ["int8", "uint8"])
@pytest.mark.parametrize("name", [*VECTORS, *OTHERS])
def test_units_are_exact_to_the_byte(name: str, dtype: str) -> None:
    make = VECTORS[name][0] if name in VECTORS else OTHERS[name]
    unit = Unit(dtype)
    held, exact = make(unit)
    found = computed(unit.graph(held), list(unit.inputs.values()))
    np.testing.assert_array_equal(found, nhwc(unit.wanted(exact)))


@needs_tools
@pytest.mark.full
@pytest.mark.parametrize("name", ["exp", "sqrt", "erf", "nn.softmax", "sigmoid", "divide"])
def test_floats_on_the_scalar_unit(name: str) -> None:
    builder = Builder()
    x = builder.input("x", tensor("float32", 2, 3, 4, 5))
    shape = (2, 3, 4, 5)
    data = np.random.default_rng(4).random(shape, dtype=np.float32) * 4 + 0.1
    graph = builder.build(builder(name, x, x) if name == "divide" else builder(name, x))
    (wanted,) = evaluate(graph, [data])
    np.testing.assert_allclose(computed(graph, [data]), nhwc(np.asarray(wanted)), rtol=2e-6)


def network() -> Graph:
    """A quantised convolution, a rectifier and a mean."""
    unit = Unit("uint8")
    image = unit.bytes.input("image", tensor("float32", 1, 5, 9, 8))
    scale, zero = unit.parameters("x")
    codes = unit.bytes("qnn.quantize", image, scale, zero, dtype="uint8", axis=1)
    data = unit.bytes("qnn.dequantize", codes, scale, zero)
    conv = unit.bytes("nn.conv2d", data, unit.weights(6, 5, 3, 3)[0], padding=(1, 1, 1, 1))
    made = unit.bytes("nn.relu", conv)
    steps = unit.parameters("out")
    rectified = unit.bytes("qnn.quantize", made, *steps, dtype="uint8", axis=1, out="rectified")
    features = unit.bytes("qnn.dequantize", rectified, *steps)
    mean = unit.bytes("mean", features, axes=(2, 3), keepdims=True)
    result = unit.bytes("qnn.quantize", mean, *steps, dtype="uint8", axis=1, out="result")
    return unit.bytes.build(unit.bytes("qnn.dequantize", result, *steps))


@needs_tools
@pytest.mark.full
def test_a_model_is_placed_explained_saved_and_loaded(tmp_path: Path) -> None:
    pins = ["rectified=hexagon", "result=hexagon"]
    options = compile_options(["hexagon", "host"], pins=pins)
    placed = place(optimize(import_graph(network())), options)
    assert placed.partition is not None
    (region,) = explain(placed.partition).regions
    version = runtime.emulator_version()
    assert region.source == f"declared by QEMU {version}'s packets at 1000 MHz"
    module = graft.compile(network(), target=["hexagon", "host"], pins=pins)
    image = np.random.default_rng(1).standard_normal((1, 5, 9, 8), dtype=np.float32)
    (scores,) = module.run(None, {"image": image})
    (on_host,) = graft.compile(network()).run(None, {"image": image})
    assert np.abs(scores - on_host).max() <= SCALES["out"] * 1.01  # one step
    module.save(tmp_path / "net.graft")
    (again,) = graft.load(tmp_path / "net.graft").run(None, {"image": image})
    np.testing.assert_array_equal(again, scores)
    assert not module.incidents


@needs_tools
@pytest.mark.full
def test_a_region_keeps_its_process_and_counts_packets() -> None:
    unit = Unit("uint8")
    graph = unit.graph(VECTORS["wide"][0](unit)[0])
    backend = Hexagon()
    region = backend.load(backend.code(wished(graph, backend.limits)))
    inputs = [nhwc(one) for one in unit.inputs.values()]
    first, second = (np.empty((2, 5, 5, 200), np.uint8) for _ in range(2))
    region(inputs, [first])
    packets = region.packets
    region(inputs, [second])
    np.testing.assert_array_equal(first, second)
    assert region.packets == packets
    assert region.seconds == sum(packets) / 1e9
    price = backend.price(wished(graph, backend.limits))
    assert price is not None
    assert price.seconds == pytest.approx(region.seconds, rel=0.01)
    macs = 2 * 5 * 5 * 200 * 64 * 9
    assert macs / sum(packets) > 16  # far beyond one product in a packet
    region._process.kill()
    with pytest.raises(RuntimeError, match="QEMU ended with status -9"):
        region(inputs, [second])
    second[:] = 0
    region(inputs, [second])  # in another process
    np.testing.assert_array_equal(first, second)


@needs_tools
@pytest.mark.full
def test_the_authors_kit() -> None:
    conformance(Hexagon(), 1, seed=11).assert_ok()


def test_refusals_carry_the_reason() -> None:
    builder = Builder()
    x = builder.input("x", tensor("float64", 3))
    y = builder.input("y", tensor("float32", symbol("n")))
    graph = builder.build(builder("exp", x), builder("exp", y))
    refused = find_candidates(graph, [Hexagon()]).refused_matches
    reasons = [one.reason for node in graph.nodes for one in refused.get(node, ())]
    assert [reason.partition(", not")[0] for reason in reasons] == [
        "%x is float64",
        "%y is float32[n]",
    ]


def test_integers_are_resized_where_that_only_moves_them() -> None:
    builder = Builder()
    x = builder.input("x", tensor("uint8", 1, 2, 3, 4))
    resized = [
        builder("resize", x, sizes=(6, 8), axes=(2, 3), method=method)
        for method in ("nearest_neighbor", "linear")
    ]
    graph = builder.build(*resized)
    refused = find_candidates(graph, [Hexagon()]).refused_matches
    nearest, linear = ([one.reason for one in refused.get(n, ())] for n in graph.nodes)
    assert not nearest
    assert linear == ["means of integers are rounded as the last bit of a float has it"]


def test_without_the_tools(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runtime, "lacking", lambda *_: "")
    monkeypatch.setattr(runtime, "emulator", lambda: "")
    needed = (
        "it needs qemu-hexagon-static or qemu-hexagon on the PATH: apt install qemu-user-static"
    )
    assert Hexagon().missing() == needed
    with pytest.raises(UserError, match=needed):
        check_loader(runtime.load, runtime.version())
    monkeypatch.undo()
    monkeypatch.setattr("graft.runtime.loaders.find_spec", lambda _name: None)
    needed = "it needs the package 'ziglang': pip install 'graft-compiler[hexagon]'"
    assert Hexagon().missing() == needed

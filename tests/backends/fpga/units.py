"""Quantised units as graphs, beside the same operators in float64 without any rounding."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from graft.base.dtypes import Array
from graft.ir.builder import Builder
from graft.ir.evaluate import evaluate
from graft.ir.graph import Graph, Value
from graft.ir.types import tensor

SCALES = {"x": 0.0213, "y": 0.0371}  # of operands
ZEROS = {"x": 131, "y": 118, "out": 125}  # of bytes without a sign

Operands = tuple[Value, Value]  # as bytes that stand for floats, and exactly


class Unit:
    """A quantised unit of an operator on data `x` and `y`."""

    def __init__(self, dtype: str = "int8", out_scale: float = 0.0457) -> None:
        self.bytes, self.exact = Builder(), Builder()
        self.dtype, self.inputs, self.draw = dtype, dict[str, Array](), np.random.default_rng(7)
        self.scales = {name: np.float32(scale) for name, scale in SCALES.items()}
        self.scales["out"] = np.float32(out_scale)
        self.steps = np.ones(1)  # of the sums of the last layer

    def zero(self, name: str) -> int:
        return ZEROS[name] - (128 if self.dtype == "int8" else 0)

    def parameters(self, name: str) -> tuple[Value, Value]:
        zero = self.bytes.constant(np.array(self.zero(name), self.dtype))
        return self.bytes.constant(self.scales[name]), zero

    def data(self, name: str, *shape: int) -> Operands:
        info = np.iinfo(self.dtype)
        codes = self.draw.integers(info.min, info.max + 1, shape).astype(self.dtype)
        self.inputs[name] = codes
        held = self.bytes.input(name, tensor(self.dtype, *shape))
        exact = self.exact.input(name, tensor("float64", *shape))
        return self.bytes("qnn.dequantize", held, *self.parameters(name)), exact

    def weights(self, *shape: int) -> Operands:
        """With a scale for each channel of the result."""
        codes = self.draw.integers(-127, 128, shape).astype(np.int8)
        scales = (0.001 + 0.01 * self.draw.random(shape[0])).astype(np.float32)
        held = [self.bytes.constant(one) for one in (codes, scales, np.zeros(len(codes), np.int8))]
        self.steps = scales.astype(np.float64) * self.scales["x"]
        spread = scales.astype(np.float64).reshape(-1, *(1,) * (len(shape) - 1))
        return self.bytes("qnn.dequantize", *held, axis=0), self.exact.constant(codes * spread)

    def bias(self, sums: Operands) -> Operands:
        """In the steps of a layer's sums, as ONNX has it."""
        codes = self.draw.integers(-3000, 3000, len(self.steps)).astype(np.int32)
        scales = self.steps.astype(np.float32)
        held = self.bytes("qnn.dequantize", *map(self.bytes.constant, (codes, scales)), axis=0)
        axis = 1 if len(sums[0].shape or ()) == 4 else -1
        exact = self.exact.constant(codes * self.steps)
        return (
            self.bytes("nn.bias_add", sums[0], held, axis=axis),
            self.exact("nn.bias_add", sums[1], exact, axis=axis),
        )

    def call(self, name: str, *operands: Operands, **attrs: Any) -> Operands:
        held, exact = zip(*operands, strict=True)
        return self.bytes(name, *held, **attrs), self.exact(name, *exact, **attrs)

    def finish(self, results: Operands) -> tuple[Graph, Array]:
        """The graph, and the bytes that its inputs give: one rounding, halves to even."""
        out = self.bytes(
            "qnn.quantize", results[0], *self.parameters("out"), dtype=self.dtype, axis=1
        )
        floats = [
            (codes.astype(np.float64) - self.zero(name)) * np.float64(self.scales[name])
            for name, codes in self.inputs.items()
        ]
        (exact,) = evaluate(self.exact.build(results[1]), floats)
        steps = np.rint(np.asarray(exact) / np.float64(self.scales["out"]))
        info = np.iinfo(self.dtype)
        wanted = np.clip(steps + self.zero("out"), info.min, info.max).astype(self.dtype)
        return self.bytes.build(out), wanted


def layer(
    name: str, data: tuple[int, ...], weight: tuple[int, ...], **attrs: Any
) -> Callable[[Unit], Operands]:
    def make(unit: Unit) -> Operands:
        sums = unit.call(name, unit.data("x", *data), unit.weights(*weight), **attrs)
        return unit.call("nn.relu", unit.bias(sums))

    return make


def on(name: str, *shapes: tuple[int, ...], **attrs: Any) -> Callable[[Unit], Operands]:
    def make(unit: Unit) -> Operands:
        data = (unit.data(n, *shape) for n, shape in zip("xy", shapes, strict=False))
        return unit.call(name, *data, **attrs)

    return make


def residual(unit: Unit) -> Operands:
    """A convolution, and a tensor added to it before it is quantised."""
    weights = unit.weights(20, 5, 3, 3)
    sums = unit.call("nn.conv2d", unit.data("x", 1, 5, 9, 8), weights, padding=(1, 1, 1, 1))
    whole = unit.call("add", unit.bias(sums), unit.data("y", 1, 20, 9, 8))
    return unit.call("nn.relu", whole)


IMAGE = (1, 5, 9, 8)
UNITS: dict[str, Callable[[Unit], Operands]] = {
    "convolution": layer("nn.conv2d", IMAGE, (6, 5, 3, 3), padding=(1, 1, 1, 1)),
    "strides": layer("nn.conv2d", IMAGE, (6, 5, 3, 2), strides=(2, 3), padding=(0, 1, 1, 0)),
    "pointwise": layer("nn.conv2d", (2, 33, 7, 6), (40, 33, 1, 1)),
    "pointwise strides": layer("nn.conv2d", (1, 32, 9, 8), (16, 32, 1, 1), strides=(2, 2)),
    "dilation": layer("nn.conv2d", IMAGE, (6, 5, 3, 3), dilation=(2, 1), padding=(2, 1, 2, 1)),
    "mostly padding": layer("nn.conv2d", (1, 3, 1, 2), (4, 3, 3, 3), padding=(3, 3, 3, 3)),
    "groups": layer("nn.conv2d", (1, 40, 6, 5), (20, 10, 3, 3), groups=4),
    "depthwise": layer("nn.conv2d", (2, 20, 6, 5), (40, 1, 3, 3), groups=20, padding=(1, 1, 1, 1)),
    "row tiles": layer("nn.conv2d", (1, 3, 40, 60), (17, 3, 3, 3), padding=(1, 1, 1, 1)),
    "channel chunks": layer("nn.conv2d", (1, 320, 9, 80), (16, 320, 3, 3), padding=(1, 1, 1, 1)),
    "dense": layer("nn.dense", (3, 70), (40, 70)),
    "dense of one row": layer("nn.dense", (1, 600), (20, 600)),
    "residual": residual,
    "add": on("add", (2, 20, 9, 8), (2, 20, 9, 8)),
    "subtract": on("subtract", (4, 33), (4, 33)),
    "mean": on("mean", (2, 20, 7, 7), axes=(2, 3), keepdims=True),
}


def large(name: str) -> bool:
    """Whether sums are so large that the result needs wide steps to be of any interest."""
    return name in ("dense of one row", "channel chunks", "pointwise")


def unit_named(name: str, dtype: str = "int8") -> tuple[Unit, Graph, Array]:
    unit = Unit(dtype, 0.25 if large(name) else 0.0457)
    return unit, *unit.finish(UNITS[name](unit))

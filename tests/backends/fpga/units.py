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

    def weights(self, *shape: int, zero: int = 0) -> Operands:
        """With a scale for each channel of the result; bytes without a sign have a zero point."""
        first, dtype = (0, np.uint8) if zero else (-127, np.int8)
        codes = self.draw.integers(first, first + 255, shape).astype(dtype)
        scales = (0.001 + 0.01 * self.draw.random(shape[0])).astype(np.float32)
        zeros = np.full(len(codes), zero, dtype)
        held = [self.bytes.constant(one) for one in (codes, scales, zeros)]
        self.steps = scales.astype(np.float64) * self.scales["x"]
        spread = scales.astype(np.float64).reshape(-1, *(1,) * (len(shape) - 1))
        exact = self.exact.constant((codes.astype(np.float64) - zero) * spread)
        return self.bytes("qnn.dequantize", *held, axis=0), exact

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
    name: str, data: tuple[int, ...], weight: tuple[int, ...], zero: int = 0, **attrs: Any
) -> Callable[[Unit], Operands]:
    def make(unit: Unit) -> Operands:
        weights = unit.weights(*weight, zero=zero)
        sums = unit.call(name, unit.data("x", *data), weights, **attrs)
        return unit.call("nn.relu", unit.bias(sums))

    return make


def on(name: str, *shapes: tuple[int, ...], **attrs: Any) -> Callable[[Unit], Operands]:
    def make(unit: Unit) -> Operands:
        data = (unit.data(n, *shape) for n, shape in zip("xy", shapes, strict=False))
        return unit.call(name, *data, **attrs)

    return make


def residual(*shape: int, zero: int = 0) -> Callable[[Unit], Operands]:
    """A convolution, and a tensor of some shape added to it before it is quantised."""

    def make(unit: Unit) -> Operands:
        data, weights = unit.data("x", 2, 5, 9, 8), unit.weights(20, 5, 3, 3, zero=zero)
        sums = unit.call("nn.conv2d", data, weights, padding=(1, 1, 1, 1))
        return unit.call("nn.relu", unit.call("add", unit.bias(sums), unit.data("y", *shape)))

    return make


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
    "residual": residual(2, 20, 9, 8),
    "residual of pixels": residual(1, 1, 9, 8),
    "residual of channels": residual(2, 20, 1, 1),
    "residual of wide weights": residual(2, 20, 9, 1, zero=101),
    "wide weights": layer("nn.conv2d", IMAGE, (6, 5, 3, 3), zero=3, padding=(1, 1, 1, 1)),
    "dense of wide weights": layer("nn.dense", (2, 3, 70), (40, 70), zero=200),
    "add": on("add", (2, 20, 9, 8), (2, 20, 9, 8)),
    "add to a row": on("add", (2, 20, 1, 8), (1, 1, 9, 8)),
    "add of a row": on("add", (2, 3, 33), (1, 33)),
    "subtract": on("subtract", (4, 33), (4, 33)),
    "subtract a number": on("subtract", (4, 33), ()),
    "activation": on("nn.relu", (2, 20, 9, 8)),
    "clip": on("clip", (3, 40), a_min=-0.3, a_max=1.0),
    "mean": on("mean", (2, 20, 7, 7), axes=(2, 3), keepdims=True),
    "average pool": on("nn.avg_pool2d", IMAGE, pool_size=(3, 2), strides=(2, 1)),
    "padded average pool": on(
        "nn.avg_pool2d", IMAGE, pool_size=(3, 3), padding=(1, 1, 1, 1), count_include_pad=True
    ),
}


def large(name: str) -> bool:
    """Whether sums are so large that the result needs wide steps to be of any interest."""
    return name in ("dense of one row", "channel chunks", "pointwise")


def unit_named(name: str, dtype: str = "int8") -> tuple[Unit, Graph, Array]:
    unit = Unit(dtype, 0.25 if large(name) else 0.0457)
    return unit, *unit.finish(UNITS[name](unit))

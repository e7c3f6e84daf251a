"""Quantises two networks that are trained here, in minutes, to real accuracy.

Random weights say little of what 8 bits cost: the outputs of deep random networks depend on their
input so strongly that rounding it alone changes them. A convolutional network is trained by plain
NumPy on scikit-learn's digits, and a deeper one on drawn shapes, colours and noise; both are then
quantised on some of the training images and compared with themselves in float on unseen ones.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx
from numpy.lib.stride_tricks import sliding_window_view
from onnx import TensorProto, helper, numpy_helper

from benchmarks.harness import Benchmark, Json, Record, Section
from benchmarks.pages import DOCUMENT, paragraph, table
from graft.compiler import compile, compile_options
from graft.precision import quantize
from graft.quantize.confidence import OutputError
from graft.quantize.report import AUTO, INTEGER
from graft.stages import import_graph, optimize

Array = Any
SAMPLES = 128  # images of the training set that are calibrated on
_BATCH, _RATE = 64, 2e-3
_SHAPES, _COLOURS, _SIDE = 4, 2, 20  # of the drawn task


@dataclass
class Convolution:
    """3x3 with padding and a stride, then a ReLU, with the gradients that training needs."""

    weight: Array
    bias: Array
    stride: int
    _seen: tuple[Array, ...] = ()

    def forward(self, x: Array) -> Array:
        padded = np.pad(x, ((0, 0), (0, 0), (1, 1), (1, 1)))
        step = self.stride
        windows = sliding_window_view(padded, (3, 3), (2, 3))[:, :, ::step, ::step]
        batch, channels, rows, columns = windows.shape[:4]
        flat = windows.transpose(0, 2, 3, 1, 4, 5).reshape(-1, channels * 9)
        sums = flat @ self.weight.reshape(len(self.weight), -1).T + self.bias
        self._seen = (flat, sums, np.array(x.shape))
        shape = (batch, rows, columns, len(self.weight))
        return np.maximum(sums, 0).reshape(shape).transpose(0, 3, 1, 2)

    def backward(self, gradient: Array) -> tuple[Array, list[Array]]:
        """The gradient of the data, and those of weight and bias."""
        flat, sums, extents = self._seen
        outputs = len(self.weight)
        own = gradient.transpose(0, 2, 3, 1).reshape(-1, outputs) * (sums > 0)
        weight = (own.T @ flat).reshape(self.weight.shape)
        spread = (own @ self.weight.reshape(outputs, -1)).astype(np.float32)
        batch, channels, height, width = map(int, extents)
        rows, columns = gradient.shape[2:]
        spread = spread.reshape(batch, rows, columns, channels, 3, 3)
        data = np.zeros((batch, channels, height + 2, width + 2), np.float32)
        step = self.stride
        for y in range(3):
            for x in range(3):
                part = data[:, :, y : y + step * rows : step, x : x + step * columns : step]
                part += spread[..., y, x].transpose(0, 3, 1, 2)
        return data[:, :, 1:-1, 1:-1], [weight, own.sum(axis=0)]


@dataclass
class Network:
    """Convolutions, the mean over pixels and a dense layer."""

    layers: list[Convolution]
    weight: Array
    bias: Array
    _moments: list[Array] = field(default_factory=list)

    @staticmethod
    def drawn(channels: Sequence[int], strides: Sequence[int], classes: int, seed: int) -> Network:
        draw = np.random.default_rng(seed)

        def weights(*shape: int) -> Array:
            scale = (2 / np.prod(shape[1:])) ** 0.5
            return draw.normal(size=shape, scale=scale).astype(np.float32)

        layers = [
            Convolution(weights(b, a, 3, 3), np.zeros(b, np.float32), stride)
            for a, b, stride in zip(channels, channels[1:], strides, strict=False)
        ]
        return Network(layers, weights(classes, channels[-1]), np.zeros(classes, np.float32))

    def train(self, images: Array, labels: Array, epochs: int, seed: int = 0) -> None:
        """Adam on the cross entropy, with a rate that falls to nothing."""
        draw, steps = np.random.default_rng(seed), 0
        total = epochs * (len(images) // _BATCH)
        for _ in range(epochs):
            order = draw.permutation(len(images))
            for start in range(0, len(images) - _BATCH + 1, _BATCH):
                chosen = order[start : start + _BATCH]
                steps += 1
                rate = _RATE * 0.5 * (1 + np.cos(np.pi * steps / total))
                self._step(images[chosen], labels[chosen], rate, steps)

    def _step(self, images: Array, labels: Array, rate: float, number: int) -> None:
        x = images
        for layer in self.layers:
            x = layer.forward(x)
        pooled = x.mean(axis=(2, 3))
        scores = pooled @ self.weight.T + self.bias
        shares = np.exp(scores - scores.max(axis=1, keepdims=True))
        shares /= shares.sum(axis=1, keepdims=True)
        shares[np.arange(len(labels)), labels] -= 1
        shares /= len(labels)
        gradients = [shares.T @ pooled, shares.sum(axis=0)]
        spread = (shares @ self.weight)[:, :, None, None] / np.prod(x.shape[2:])
        gradient = np.broadcast_to(spread, x.shape)
        for layer in reversed(self.layers):
            gradient, own = layer.backward(gradient)
            gradients = own + gradients
        self._adam(gradients, rate, number)

    def _adam(self, gradients: Sequence[Array], rate: float, number: int) -> None:
        parameters = [p for layer in self.layers for p in (layer.weight, layer.bias)]
        parameters += [self.weight, self.bias]
        self._moments = self._moments or [np.zeros((2, *p.shape), np.float32) for p in parameters]
        for parameter, gradient, moments in zip(parameters, gradients, self._moments, strict=True):
            moments[0] += 0.1 * (gradient - moments[0])
            moments[1] += 0.001 * (gradient**2 - moments[1])
            mean, square = moments[0] / (1 - 0.9**number), moments[1] / (1 - 0.999**number)
            parameter -= (rate * mean / (np.sqrt(square) + 1e-8)).astype(np.float32)

    def to_onnx(self, shape: Sequence[int]) -> onnx.ModelProto:
        """The network on one image at a time."""
        nodes, value = [], "image"
        tensors: list[onnx.TensorProto] = []
        for number, layer in enumerate(self.layers):
            names = [f"weight{number}", f"bias{number}"]
            tensors += map(numpy_helper.from_array, (layer.weight, layer.bias), names)
            step: dict[str, Any] = {"strides": [layer.stride] * 2, "pads": [1] * 4}
            nodes.append(helper.make_node("Conv", [value, *names], [f"conv{number}"], **step))
            value = f"relu{number}"
            nodes.append(helper.make_node("Relu", [f"conv{number}"], [value]))
        nodes.append(helper.make_node("GlobalAveragePool", [value], ["pooled"]))
        nodes.append(helper.make_node("Flatten", ["pooled"], ["flat"]))
        tensors += map(numpy_helper.from_array, (self.weight, self.bias), ("weight", "bias"))
        nodes.append(helper.make_node("Gemm", ["flat", "weight", "bias"], ["scores"], transB=1))
        given = helper.make_tensor_value_info("image", TensorProto.FLOAT, [1, *shape])
        made = helper.make_tensor_value_info("scores", TensorProto.FLOAT, [1, len(self.bias)])
        graph = helper.make_graph(nodes, "trained", [given], [made], tensors)
        opset = [helper.make_opsetid("", 17)]
        return helper.make_model(graph, opset_imports=opset, ir_version=8)


def digits() -> tuple[Array, Array]:
    """scikit-learn's handwritten digits, 8x8."""
    from sklearn.datasets import load_digits  # type: ignore[import-not-found]

    found = load_digits()
    return (found.images[:, None] / 16).astype(np.float32), found.target


def shapes(count: int, seed: int = 3) -> tuple[Array, Array]:
    """Discs, squares, crosses and rings, larger or smaller, in colour on a noisy ground: which
    shape it is, and whether red or blue is the stronger."""
    draw = np.random.default_rng(seed)
    y, x = np.mgrid[:_SIDE, :_SIDE].astype(np.float32)
    images = draw.normal(size=(count, 3, _SIDE, _SIDE), scale=0.15).astype(np.float32)
    labels = draw.integers(0, _SHAPES * _COLOURS, count)
    for image, label in zip(images, labels, strict=True):
        size, (top, left) = draw.uniform(4, 6.5), draw.uniform(7, 13, 2)
        far, wide, high = np.hypot(y - top, x - left), np.abs(x - left), np.abs(y - top)
        mask = (
            far < size,
            (wide < 0.85 * size) & (high < 0.85 * size),
            ((wide < 0.3 * size) | (high < 0.3 * size)) & (wide < size) & (high < size),
            (far < size) & (far > 0.6 * size),
        )[label % _SHAPES]
        strong, weak = draw.uniform(0.7, 1.0), draw.uniform(0.1, 0.45)
        colour = (strong, draw.random(), weak) if label < _SHAPES else (weak, draw.random(), strong)
        image += draw.uniform(0, 0.3) + mask * np.array(colour, np.float32)[:, None, None]
    return images, labels


def measure(options: argparse.Namespace) -> Json:
    epochs = 2 if options.quick else 12
    images, labels = digits()
    plain = Network.drawn((1, 16, 32, 32, 64), (1, 2, 1, 2), 10, seed=1)
    rows = [_row("scikit-learn's digits", plain, images, labels, 1300, 4 * epochs, options)]
    images, labels = shapes(1200 if options.quick else 4000)
    deep = Network.drawn((3, 16, 24, 24, 32, 32, 48), (2, 1, 1, 2, 1, 1), 8, seed=2)
    rows.append(_row("drawn shapes", deep, images, labels, len(images) * 3 // 4, epochs, options))
    return rows


def _row(
    name: str,
    network: Network,
    images: Array,
    labels: Array,
    trained: int,
    epochs: int,
    options: argparse.Namespace,
) -> Json:
    network.train(images[:trained], labels[:trained], epochs)
    model = network.to_onnx(images.shape[1:]).SerializeToString()
    optimized = optimize(import_graph(model))
    exact = compile(model, threads=options.threads)
    unseen, truth = images[trained:], labels[trained:]
    scores = [exact.run(None, {"image": image[None]})[0] for image in unseen]
    best = np.array([int(score.argmax()) for score in scores])
    row: Json = {"network": name, "layers": len(network.layers) + 1, "images": len(unseen)}
    row["float"] = float((best == truth).mean())
    data = [{"image": image[None]} for image in images[:SAMPLES]]
    for precision in (INTEGER, AUTO):
        found = quantize(optimized, data, compile_options(), precision)
        narrow, error = compile(found.optimized, threads=options.threads), OutputError()
        results = [narrow.run(None, {"image": image[None]})[0] for image in unseen]
        for one, two in zip(scores, results, strict=True):
            error.add([one], [two])
        theirs = np.array([int(result.argmax()) for result in results])
        row[precision] = {
            "error": error.relative,
            "agreement": float((theirs == best).mean()),
            "accuracy": float((theirs == truth).mean()),
            "narrow": found.report.narrow_units,
            "speedup": found.report.float_seconds / found.report.seconds,
        }
    print("\n".join(_table([row])), flush=True)
    return row


def sections(record: Record) -> Iterator[Section]:
    intro = f"Calibrated on {SAMPLES} training images, compared on images that nothing has seen."
    made = paragraph(str(record.made))
    yield Section(DOCUMENT, "trained", [*paragraph(intro), "", *_table(record.data), "", *made])


def _table(rows: list[Json]) -> list[str]:
    header = [
        *("network", "layers", "unseen images", "right in float", "all int8: error"),
        *("top-1 as in float", "right", "auto: error", "top-1 as in float", "units not in float"),
    ]
    cells = [
        [
            *(row["network"], str(row["layers"]), str(row["images"]), f"{row['float']:.1%}"),
            *(f"{row[INTEGER][key]:.2%}" for key in ("error", "agreement", "accuracy")),
            *(f"{row[AUTO][key]:.2%}" for key in ("error", "agreement")),
            str(row[AUTO]["narrow"]),
        ]
        for row in rows
    ]
    return table(header, cells)


BENCHMARKS = (Benchmark("trained", measure, sections, packages={"scikit-learn": "scikit-learn"}),)

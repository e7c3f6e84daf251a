"""Layers and pools as HVX kernels, in the table of `plan.py` once this is imported."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from graft.backends.hexagon import hvx
from graft.backends.hexagon.hvx import VECTOR, WORDS, Codes, Operand8, Window
from graft.backends.hexagon.plan import LOWER, Planner
from graft.backends.hexagon.units import scaled_sums
from graft.base.dtypes import Array, DType
from graft.base.errors import UnsupportedError
from graft.byoc.formats.buffers import row_major
from graft.byoc.formats.integer_units import (
    LayerSums,
    Unit,
    counts_alike,
    extents,
    layer_sums,
    window_sums,
)
from graft.byoc.formats.storage import CHANNELS_LAST, Storage
from graft.ir.evaluate import run_op
from graft.ir.graph import Value
from graft.loop.ir import Function
from graft.ops.window import WindowAttrs, fixed_counts, padding_behind

_WORD = 4  # bytes
_STEP = WindowAttrs(strides=(1, 1), padding=(0, 0, 0, 0), dilation=(1, 1))  # pixel by pixel


@LOWER.entry("nn.conv2d")
def _convolution(planner: Planner, unit: Unit) -> None:
    attrs, sums = unit.operator.attrs, layer_sums(unit)
    outputs, inputs, *kernel = sums.weights.shape
    layer = _Layer(planner, unit, sums, attrs, kernel)
    if attrs.groups == 1:
        _multiply(layer, sums.weights.transpose(CHANNELS_LAST))
    elif attrs.groups == outputs and inputs == 1:
        _slide(layer)
    else:
        raise UnsupportedError("groups of several channels")


@LOWER.entry("nn.dense")
def _dense(planner: Planner, unit: Unit) -> None:
    """Rows are pixels of one image."""
    sums = layer_sums(unit)
    _multiply(_Layer(planner, unit, sums, _STEP, (1, 1)), sums.weights[:, None, None])


@LOWER.entry("mean")
def _mean(planner: Planner, unit: Unit) -> None:
    sums = layer_sums(unit)
    _slide(_Layer(planner, unit, sums, _STEP, sums.weights.shape[2:]))


@LOWER.entry("nn.avg_pool2d")
def _average(planner: Planner, unit: Unit) -> None:
    attrs = unit.operator.attrs
    if not counts_alike(unit.operator):
        raise UnsupportedError("means that do not count padding")
    _slide(_Layer(planner, unit, window_sums(unit, attrs.pool_size), attrs, attrs.pool_size))


@LOWER.entry("nn.max_pool2d")
def _maximum(planner: Planner, unit: Unit) -> None:
    node, attrs = unit.operator, unit.operator.attrs
    zeros = np.zeros((1, 1, *extents(node.args[0])[2:]), np.float32)
    if np.isneginf(run_op(node.op, attrs, [zeros])[0]).any():
        raise UnsupportedError("a window lies on nothing but padding")
    codes = window_sums(unit, (1, 1))
    _slide(_Layer(planner, unit, codes, attrs, attrs.pool_size), is_max=True)


@dataclass(frozen=True, slots=True)
class _Layer:
    """A layer while it is lowered: its sums, and how windows of a size move over its data."""

    planner: Planner
    unit: Unit
    sums: LayerSums
    attrs: Any  # of windows
    kernel: Sequence[int]

    def _storage(self, value: Value) -> Storage:
        is_dense = self.unit.operator.op.name == "nn.dense"
        return row_major(value) if is_dense else self.planner.storage_for(value)

    def _required(self, value: Value) -> str:
        return self.planner.require(value, self._storage(value))

    @property
    def _pixels(self) -> tuple[int, ...]:
        """Images, rows, columns and channels of the data."""
        storage = self._storage(self.sums.data.value)
        if storage.order == CHANNELS_LAST:
            return storage.extents
        return 1, 1, math.prod(storage.extents[:-1]), storage.extents[-1]

    def windows(self, channels: int, size: int = 1, fill: int | None = None) -> tuple[str, Window]:
        """The buffer of unsigned images with all that windows reach, so many channels each and the
        zero point or `fill` around; and the windows there, in elements of so many bytes."""
        attrs, (images, *image, _) = self.attrs, self._pixels
        rows, columns = fixed_counts(attrs, image, self.kernel, getattr(attrs, "ceil_mode", False))
        below, right = padding_behind(attrs, image, self.kernel, (rows, columns))
        height = attrs.padding[0] + image[0] + max(below, 0)
        width = attrs.padding[1] + image[1] + max(right, 0)
        name = self._framed((images, height, width, channels), fill)
        pixel, line = channels // size, width * channels // size
        steps = (height * line, attrs.strides[0] * line, attrs.strides[1] * pixel)
        if (*self.kernel, *steps) == (1, 1, rows * line, columns * pixel, pixel):  # in one row
            return name, Window((1, 1, images * rows * columns), (0, 0, pixel), (1, 1), (0, 0))
        # Words of columns that are neighbours are read in one run.
        taps = (self.kernel[0], 1 if size > 1 and attrs.dilation[1] == 1 else self.kernel[1])
        reach = (attrs.dilation[0] * line, attrs.dilation[1] * pixel)
        return name, Window((images, rows, columns), steps, taps, reach)

    def _framed(self, shape: tuple[int, ...], fill: int | None) -> str:
        """The buffer of the data as unsigned bytes in images of a larger shape."""
        coded, dtype = self.sums.data, self.sums.data.value.dtype
        name = self._required(coded.value)
        if dtype is DType.UINT8 and shape == self._pixels:
            return name
        fill, framed = coded.offset if fill is None else fill, self.planner.own(math.prod(shape))
        kernel = hvx.border_kernel(self._pixels, shape, self.attrs.padding[:2], dtype, fill)
        self.planner.step(kernel, (name, framed))
        return framed

    def numbers(self, multiple: int) -> tuple[list[Array], Codes, Operand8 | None]:
        """Bias, in which the zero point of the data is, and multipliers of channels, up to a
        multiple of these; then how sums become codes, and what is added before."""
        sums = self.sums
        steps = sums.steps / self.unit.target.step
        codes, multiplier, added = scaled_sums(self.unit, steps, sums.largest)
        # Sums of unsigned codes may wrap around on their way: what they come to does not.
        each = sums.weights.reshape(len(sums.weights), -1).sum(1)
        bias = (sums.bias - each * sums.data.offset).astype(np.int32)
        filled = [np.pad(one, (0, -len(one) % multiple)) for one in (bias, multiplier)]
        return filled, codes, added

    def step(self, function: Function, data: str, constants: Sequence[Array]) -> None:
        """The step of a kernel, which reads data, constants and what is added."""
        names, result = [self.planner.constant(one) for one in constants], self.unit.result
        if self.unit.added is not None:
            names.append(self._required(self.unit.added.value))
        target = self.planner.make(result, self._storage(result))
        self.planner.step(function, (data, *names, target))


def _multiply(layer: _Layer, weights: Array) -> None:
    """The step of a product, whose weights are OHWI."""
    outputs, _, _, inputs = weights.shape
    filled = np.pad(weights, ((0, -outputs % WORDS), (0, 0), (0, 0), (0, -inputs % _WORD)))
    words = filled.astype(np.int8).reshape(len(filled), -1, _WORD)
    blocks = [words[start : start + VECTOR] for start in range(0, len(words), VECTOR)]
    packed = np.concatenate([block.transpose(1, 0, 2).ravel() for block in blocks])
    numbers, codes, added = layer.numbers(WORDS)
    data, window = layer.windows(filled.shape[-1], _WORD)
    run = words.shape[1] // math.prod(window.taps)
    kernel = hvx.product_kernel(window, run, outputs, codes, added)
    layer.step(kernel, data, (packed, *numbers))


def _slide(layer: _Layer, is_max: bool = False) -> None:
    """The step of windows of single channels: of their weighted sums, or of the largest codes."""
    weights, channels = layer.sums.weights, len(layer.sums.weights)
    numbers, codes, added = layer.numbers(VECTOR)
    data, window = layer.windows(channels, fill=0 if is_max else None)
    by_tap = weights.reshape(channels, -1).T.astype(np.int8)
    is_weighted = bool((by_tap != 1).any())
    made = hvx.window_kernel(window, channels, codes, is_weighted, is_max, added)
    layer.step(made, data, (by_tap, *numbers) if is_weighted else numbers)

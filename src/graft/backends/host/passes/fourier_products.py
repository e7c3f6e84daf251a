"""Fourier transforms of known length become matrix products, for which there are fast kernels.

A graph enters and leaves. A transform is a dense layer on the numbers of all samples, whose weights
are cosines and sines: as many multiply-adds as numbers enter times leave, fast ones. Where that
takes fewer cycles, it is cut into two by Cooley and Tukey's step: with n = first · second, a
transform of length `first` along strided samples, then one of length `second` per frequency of the
first, whose weights hold the factors between the two.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from graft.backends.host.storage import shape_of
from graft.base.dims import UNKNOWN, AnyDim, product
from graft.base.dtypes import Array, DType
from graft.ir.graph import Graph, Node, Value
from graft.ops.signal import fourier_factors
from graft.rewrite.driver import Site, apply_rules
from graft.rewrite.pattern import is_op
from graft.rewrite.rule import Refusal, Replacement, RuleSet
from graft.target.target import Target

# Cycles that a number takes where two products rearrange it: 2 to 3.6 on a Zen 5, for 64 signals of
# 128 to 1,024 samples.
_MOVING_CYCLES = 2.5
# How many numbers the weights of a product may have, 32 MB.
_MOST_WEIGHTS = 2**23


def fourier_products(graph: Graph, target: Target) -> Graph:
    """All transforms of a graph that can be products."""
    rules = RuleSet("fourier_products")

    @rules.rule(is_op("dft"))
    def transform_by_products(site: Site) -> Replacement:
        return _by_products(site, target)

    rules.rule(is_op("stft"))(frames_by_convolution)
    return apply_rules(graph, rules)


def frames_by_convolution(site: Site) -> Replacement:
    """Frames of known length: a filter for each frequency and part, in steps along the signal."""
    node, attrs = site.node, site.node.attrs
    data, result = node.args[0], site.root
    operands = (*node.inputs, None, None, None)[1:4]
    shapes = (data.shape, result.shape)
    if operands[0] or operands[2] or any(shape is None or UNKNOWN in shape for shape in shapes):
        return Refusal("the step, the length or a shape is data")
    batch, samples, parts = shape_of(data)
    _, frames, bins, _ = shape_of(result)
    length = attrs.frame_length
    if length is None:
        length = samples if operands[1] is None else shape_of(operands[1])[0]
    if not isinstance(length, int) or not isinstance(bins, int) or parts != 1 or samples == 0:
        return Refusal("it is not known how long frames are, or signals are complex or empty")
    if length * bins * 2 > _MOST_WEIGHTS or data.dtype not in (DType.FLOAT32, DType.FLOAT64):
        return Refusal("there are too many factors, or they are too narrow")
    factors = fourier_factors(length, bins, length, False)[:, :, 0]
    filters = np.ascontiguousarray(factors.reshape(length, 2 * bins).T[:, None])
    kernel = _window_filters(site, filters, operands[1], data.dtype)
    signals = _reshaped(site, data, (batch, 1, samples))
    spectra = site.emit("nn.conv1d", signals, kernel, strides=(attrs.frame_step,))
    rows = site.emit("transpose", spectra, axes=(0, 2, 1))
    return _reshaped(site, rows, (batch, frames, bins, 2))


def _window_filters(site: Site, filters: Array, window: Value | None, dtype: DType) -> Value:
    array = None if window is None else site.array(window)
    if array is not None:
        filters = filters * array
    values = site.constant(filters.astype(dtype.numpy))
    return values if window is None or array is not None else site.emit("multiply", values, window)


@dataclass(frozen=True, slots=True)
class _Transform:
    """What one is in numbers."""

    length: int
    samples: int  # that count; the others are zero
    frequencies: int
    parts: int  # of a sample: real, or real and imaginary
    result_parts: int
    inverse: bool

    @property
    def weights(self) -> int:
        """How many numbers the matrix of a single product has, each a multiply-add."""
        return self.samples * self.parts * self.frequencies * self.result_parts


def _by_products(site: Site, target: Target) -> Replacement:
    attrs, data = site.node.attrs, site.node.args[0]
    shapes = (data.shape, site.root.shape)
    if len(site.node.args) > 1 or any(shape is None or UNKNOWN in shape for shape in shapes):
        return Refusal("the axis, the length or a shape is data")
    if data.dtype not in (DType.FLOAT32, DType.FLOAT64):
        return Refusal("narrow numbers are transformed in wider ones")
    rank = len(shape_of(data))
    axis = (-2 if attrs.axis is None else attrs.axis) % rank
    transform = _in_numbers(site.node, axis)
    if transform is None:
        return Refusal("it is not known how long signals are, or they are empty")
    order = [*(at for at in range(rank - 1) if at != axis), axis, rank - 1]
    signals = _cut(site, _moved(site, data, order), transform.samples)
    if attrs.inverse and attrs.onesided:
        # A frequency stands for its mirror image, too, unless it is that itself.
        alone = [at == 0 or at * 2 == transform.length for at in range(transform.samples)]
        counts = np.where(alone, 1, 2).astype(data.dtype.numpy)[:, None]
        signals = site.emit("multiply", signals, site.constant(counts))
    spectra = _transformed(site, signals, transform, target)
    if isinstance(spectra, Refusal):
        return spectra
    return _moved(site, spectra, [order.index(at) for at in range(rank)])


def _in_numbers(node: Node, axis: int) -> _Transform | None:
    """None where numbers are not known or zero."""
    attrs, shape, result = node.attrs, shape_of(node.args[0]), shape_of(node.output)
    is_half = attrs.onesided and not attrs.inverse
    usual = shape[axis] if is_half else result[axis]
    length = usual if attrs.dft_length is None else attrs.dft_length
    constants = [
        extent
        for extent in (length, shape[axis], result[axis], shape[-1], result[-1])
        if isinstance(extent, int) and extent > 0
    ]
    if len(constants) < 5:
        return None
    whole, have, frequencies, parts, result_parts = constants
    most = whole // 2 + 1 if attrs.inverse and attrs.onesided else whole
    return _Transform(whole, min(have, most), frequencies, parts, result_parts, attrs.inverse)


def _cut(site: Site, signals: Value, count: int) -> Value:
    """The first samples or frequencies."""
    axis = len(shape_of(signals)) - 2
    if shape_of(signals)[axis] == count:
        return signals
    return site.emit("strided_slice", signals, begin=(0,), end=(count,), axes=(axis,))


def _moved(site: Site, value: Value, order: Sequence[int]) -> Value:
    if list(order) == sorted(order):
        return value
    return site.emit("transpose", value, axes=tuple(order))


def _reshaped(site: Site, value: Value, shape: Sequence[AnyDim]) -> Value:
    return site.emit("reshape", value, shape=tuple(shape), allowzero=0 in shape)


def _transformed(
    site: Site, signals: Value, transform: _Transform, target: Target
) -> Value | Refusal:
    """The spectra of signals [..., samples, parts], the way that takes the fewest cycles."""
    length, speed = transform.length, target.machine.vector_fmas * target.lanes(signals.dtype)
    firsts = [first for first in range(2, length) if length % first == 0]
    costs = [(_two_cycles(transform, first, speed), first) for first in firsts]
    if transform.weights <= _MOST_WEIGHTS:
        costs.append((transform.weights / speed, length))
    cycles, first = min(costs, default=(math.inf, 0))
    if cycles == math.inf:
        return Refusal(f"{length} has no factors that make it two short transforms")
    if first == length:
        return _product(site, signals, transform)
    return _two_products(site, signals, transform, first)


def _two_cycles(transform: _Transform, first: int, speed: float) -> float:
    """Cycles of a signal's two products, of which the first has that length, and of moving its
    numbers before, between and behind them; infinite where the weights are too many."""
    length, parts, result_parts = transform.length, transform.parts, transform.result_parts
    second = -(-transform.frequencies // first)
    outer = length * 2 * second * result_parts
    if max(first * parts * first * 2, outer) > _MOST_WEIGHTS:
        return math.inf
    moved = length * (parts + 2) + transform.frequencies * result_parts
    return (length * parts * first * 2 + outer) / speed + moved * _MOVING_CYCLES


def _matrix(factors: Array, parts: int, result_parts: int) -> Array:
    """Factors [..., samples, frequencies, 2, 2] as a matrix of the parts that there are."""
    parts_used = factors[..., :parts, :result_parts].swapaxes(-3, -2)
    *batch, samples, _, frequencies, _ = parts_used.shape
    return parts_used.reshape(*batch, samples * parts, frequencies * result_parts)


def _product(site: Site, signals: Value, transform: _Transform) -> Value:
    leading = shape_of(signals)[:-2]
    extents = (transform.samples, transform.frequencies, transform.length)
    factors = fourier_factors(*extents, transform.inverse)
    if transform.inverse:
        factors = factors / transform.length
    matrix = _matrix(factors, transform.parts, transform.result_parts)
    weights = site.constant(np.ascontiguousarray(matrix.T).astype(signals.dtype.numpy))
    rows = _reshaped(site, signals, (*leading, transform.samples * transform.parts))
    result = site.emit("nn.dense", rows, weights)
    return _reshaped(site, result, (*leading, transform.frequencies, transform.result_parts))


def _two_products(site: Site, signals: Value, transform: _Transform, first: int) -> Value:
    """Sample second·a + b and frequency c + first·d, by products over a and then over b."""
    length, second, parts = transform.length, transform.length // first, transform.parts
    leading, rank = shape_of(signals)[:-2], len(shape_of(signals))
    if transform.samples < length:
        behind = (*(0,) * (rank - 2), length - transform.samples, 0)
        signals = site.emit("nn.pad", signals, pad_width=(*(0,) * rank, *behind))
    grid = _reshaped(site, signals, (*leading, first, second, parts))
    axes = tuple(range(rank - 2))
    columns = site.emit("transpose", grid, axes=(*axes, rank - 1, rank - 2, rank))
    inner = _product(site, columns, _Transform(first, first, first, parts, 2, transform.inverse))
    by_frequency = site.emit("transpose", inner, axes=(rank - 1, *axes, rank - 2, rank))
    needed = -(-transform.frequencies // first)
    matrix = _matrix(_second_factors(transform, first, needed), 2, transform.result_parts)
    weights = site.constant(matrix.astype(signals.dtype.numpy))
    rows = _reshaped(site, by_frequency, (first, product(leading), second * 2))
    outer = site.emit("nn.batch_matmul", rows, weights)
    spread = _reshaped(site, outer, (first, *leading, needed, transform.result_parts))
    mixed = site.emit("transpose", spread, axes=(*range(1, rank), 0, rank))
    result = _reshaped(site, mixed, (*leading, needed * first, transform.result_parts))
    return _cut(site, result, transform.frequencies)


def _second_factors(transform: _Transform, first: int, needed: int) -> Array:
    """[c, b, d, 2, 2]: the transforms over b, each times the factors for frequency c."""
    length = transform.length
    second = length // first
    cycles = np.arange(second)[None, :, None] * (
        np.arange(first)[:, None, None] + first * np.arange(needed)[None, None, :]
    )
    angles = (cycles % length) * (2 * np.pi / length)
    cosine, sine = np.cos(angles), np.sin(angles) * (1 if transform.inverse else -1)
    # The first product has divided by its own length.
    scale = 1 / second if transform.inverse else 1
    rows = [np.stack([cosine, sine], -1), np.stack([-sine, cosine], -1)]
    return np.stack(rows, -2) * scale

"""Second moments of a layer's data: samples in, mean and covariance of its inputs out.

The error of a layer with rounded weights is a quadratic form of the weights' errors in these
moments. Positions of an image are sampled, and inputs are cut into blocks, so that neither time nor
memory grows with the samples or with the square of a wide layer.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from graft.base.dtypes import Array
from graft.ir.graph import Node
from graft.ops.window import fixed_counts, pad_pairs, padded

_ROWS = 128  # positions of a sample
_MOST_ROWS = 1 << 13  # of all samples: many times the inputs of a block
_MOST_INPUTS = 576  # of a block: 64 channels of 3x3


@dataclass(frozen=True, slots=True)
class Blocks:
    """The weights [outputs, inputs, ...] of a layer as matrices [rows, columns] whose columns are
    correlated inputs: groups, and parts of them."""

    groups: int
    parts: int  # of a group's inputs
    rows: int  # outputs of a group
    columns: int

    @staticmethod
    def of(weight: Array, groups: int) -> Blocks:
        """The widest blocks of whole channels within the limit."""
        channels, taps = weight.shape[1], math.prod(weight.shape[2:])
        parts = next(
            n
            for n in range(1, channels + 1)
            if channels % n == 0 and (channels // n * taps <= _MOST_INPUTS or n == channels)
        )
        return Blocks(groups, parts, len(weight) // groups, channels // parts * taps)

    def split(self, weight: Array) -> Array:
        """[outputs, inputs, ...] as [blocks, rows, columns]."""
        cut = weight.reshape(self.groups, self.rows, self.parts, self.columns)
        return np.ascontiguousarray(cut.swapaxes(1, 2)).reshape(-1, self.rows, self.columns)

    def joined(self, matrices: Array, shape: tuple[int, ...]) -> Array:
        """The inverse of `split`."""
        cut = matrices.reshape(self.groups, self.parts, self.rows, self.columns)
        return np.ascontiguousarray(cut.swapaxes(1, 2)).reshape(shape)


class Moments:
    """Sums over sampled rows, by block; `add` for each sample.

    Products are in squares of `unit`, a power of two about as large as the data, so that they stay
    within the range of float32."""

    def __init__(self, anchor: Node, weight: Array) -> None:
        self.anchor = anchor
        self.kernel = weight.shape[2:]
        self.blocks = Blocks.of(weight, getattr(anchor.attrs, "groups", 1))
        count, columns = self.blocks.groups * self.blocks.parts, self.blocks.columns
        self.rows = 0
        self.unit = np.float32(1)
        self._origin = np.zeros((count, 1, columns), np.float32)  # numbers are summed less this
        self._totals = np.zeros((count, columns), np.float64)
        self._squares = np.zeros((count, columns, columns), np.float32)
        self._draw = np.random.default_rng(0)

    def add(self, data: Array) -> None:
        """Add some rows of the layer's data for one sample."""
        if self.rows >= _MOST_ROWS or not data.size:
            return
        rows = self._flat_rows(data) if not self.kernel else self._windows(data)
        count = len(rows)
        cut = rows.reshape(count, -1, self.blocks.columns).transpose(1, 0, 2)
        if not self.rows:
            _, exponent = np.frexp(np.abs(cut).max())
            self.unit = np.ldexp(np.float32(1), np.clip(exponent, -100, 100))
        cut = cut / self.unit
        if not self.rows:
            self._origin = cut.mean(axis=1, keepdims=True)
        cut = cut - self._origin
        self.rows += count
        self._totals += cut.sum(axis=1)
        self._squares += cut.transpose(0, 2, 1) @ cut

    def _flat_rows(self, data: Array) -> Array:
        rows = data.reshape(-1, data.shape[-1])
        return rows if len(rows) <= _ROWS else rows[self._chosen(len(rows))]

    def _windows(self, data: Array) -> Array:
        """Windows [positions, channels * taps], padding included."""
        attrs = self.anchor.attrs
        counts = fixed_counts(attrs, data.shape[2:], self.kernel)
        data = padded(data, pad_pairs(attrs.padding))
        extents = data.shape[2:]
        images = data.reshape(*data.shape[:2], -1)
        total = len(data) * math.prod(counts)
        chosen = np.arange(total) if total <= _ROWS else self._chosen(total)
        image, *first = np.unravel_index(chosen, (len(data), *counts))
        taps = np.indices(self.kernel).reshape(len(self.kernel), -1)
        index = np.zeros((len(chosen), taps.shape[1]), np.int64)
        for axis, extent in enumerate(extents):
            start = first[axis] * attrs.strides[axis]
            index = index * extent + start[:, None] + taps[axis] * attrs.dilation[axis]
        windows = images[image[:, None, None], np.arange(data.shape[1])[:, None], index[:, None]]
        return np.asarray(windows.reshape(len(chosen), -1))

    def _chosen(self, total: int) -> Array:
        return self._draw.choice(total, _ROWS, replace=False, shuffle=False)

    @property
    def mean(self) -> Array:
        """[blocks, columns]"""
        return np.asarray(self._scaled_mean * np.float64(self.unit))

    @property
    def _scaled_mean(self) -> Array:
        return np.asarray(self._origin[:, 0] + self._totals / max(self.rows, 1))

    @property
    def covariance(self) -> Array:
        """[blocks, columns, columns], in squares of `unit`"""
        offset = self._totals / max(self.rows, 1)
        squares = self._squares.astype(np.float64) / max(self.rows, 1)
        return np.asarray(squares - offset[:, :, None] * offset[:, None, :])

    @property
    def second(self) -> Array:
        """The mean products [blocks, columns, columns], in squares of `unit`."""
        mean = self._scaled_mean
        return np.asarray(self.covariance + mean[:, :, None] * mean[:, None, :])

    def shrunk(self, products: Array) -> Array:
        """Moments with smaller off-diagonals the fewer rows there were: correlations in few rows
        are chance, which weights must not be fitted to."""
        columns = self.blocks.columns
        kept = self.rows / (self.rows + columns)
        diagonal = np.diagonal(products, axis1=1, axis2=2)[:, :, None] * np.eye(columns)
        return np.asarray(kept * products + (1 - kept) * diagonal)

"""Weights of 8 bits: symmetric around zero, with a scale per output channel."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from graft.base.dtypes import Array

_MOST = 127  # on either side


@dataclass(frozen=True, slots=True)
class QuantizedWeight:
    """Integers [outputs, ...] and a scale per output."""

    integers: Array
    scale: Array

    @property
    def values(self) -> Array:
        """What the integers stand for."""
        return np.asarray(self.integers * _along_outputs(self.scale, self.integers.ndim))


def quantize_weight(weight: Array) -> QuantizedWeight:
    """Round to the nearest of 255 levels, the outermost being the largest weight of the channel."""
    peak = np.abs(weight).reshape(len(weight), -1).max(axis=1)
    scale = (peak / _MOST).astype(np.float32)
    scale[scale < np.finfo(np.float32).tiny] = 1.0  # nothing but zeros, or next to it
    ratio = np.rint(weight / _along_outputs(scale, weight.ndim))
    return QuantizedWeight(np.clip(ratio, -_MOST, _MOST).astype(np.int8), scale)


def mean_shift(weight: Array, quantized: QuantizedWeight, means: Array) -> Array:
    """By how much rounded weights shift the mean of each output channel, padding aside, for data
    with these means per input channel.

    Taking it off the bias makes the layer's error unbiased (Nagel et al., arXiv 1906.04721)."""
    error = (quantized.values - weight).astype(np.float64)
    outputs, inputs = error.shape[:2]
    by_input = error.reshape(outputs, inputs, -1).sum(axis=2)
    groups = len(means) // inputs
    grouped = by_input.reshape(groups, outputs // groups, inputs)
    return np.asarray((grouped @ means.reshape(groups, inputs, 1)).reshape(outputs))


def _along_outputs(scale: Array, rank: int) -> Array:
    return scale.reshape(-1, *[1] * (rank - 1))

"""Weights of few bits: symmetric around zero, with a scale per output channel, rounded so that the
layer's results change least where its data are known."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from graft.base.dtypes import Array, DType
from graft.quantize.moments import Moments
from graft.quantize.rounding import compensated

_SHARES = np.linspace(0.4, 1.0, 25)  # of the largest weight that fewer than 8 bits may reach to


@dataclass(frozen=True, slots=True)
class QuantizedWeight:
    """Integers [outputs, ...], a scale per output, and by how much rounding shifts the mean of each
    output: taken off the bias, it leaves the layer's error unbiased (arXiv 1906.04721)."""

    integers: Array
    scale: Array
    shift: Array

    @property
    def values(self) -> Array:
        """What the integers stand for."""
        codes = self.integers.astype(np.float32)
        return np.asarray(codes * _along_outputs(self.scale, codes.ndim))


def quantize_weight(
    weight: Array,
    dtype: DType = DType.INT8,
    moments: Moments | None = None,
    has_bias: bool = True,
) -> QuantizedWeight:
    """Round to the levels of a dtype, the outermost being about the largest weight of the channel.

    With moments of the data, errors of weights make up for each other. The mean of the data counts
    where no bias takes up what it is multiplied by."""
    most = (1 << dtype.bits - 1) - 1
    scale = _scales(weight, most)
    wide = _along_outputs(scale, weight.ndim)
    nearest = np.clip(np.rint(weight / wide), -most, most)
    outputs = len(weight)
    if moments is None or not moments.rows:
        return QuantizedWeight(nearest.astype(dtype.numpy), scale, np.zeros(outputs))
    blocks = moments.blocks
    covariance = moments.shrunk(moments.covariance if has_bias else moments.second)
    given = blocks.split(weight)
    steps = blocks.split(np.broadcast_to(wide, weight.shape))[:, :, :1]
    plain = blocks.split(nearest)
    codes = compensated(given, steps, covariance, most)
    losses = [_losses(one * steps - given, covariance) for one in (codes, plain)]
    codes = np.where(losses[0] <= losses[1], codes, plain)
    shift = (codes * steps - given) @ moments.mean[:, :, None]
    by_output = shift.reshape(blocks.groups, blocks.parts, blocks.rows).sum(axis=1).reshape(outputs)
    integers = blocks.joined(codes, weight.shape).astype(dtype.numpy)
    return QuantizedWeight(integers, scale, by_output)


def _losses(errors: Array, covariance: Array) -> Array:
    """The mean square that errors [blocks, rows, columns] of weights add to each row's results."""
    spread: Array = errors @ covariance.astype(np.float32)
    return np.asarray(np.sum(spread * errors, axis=2, keepdims=True))


def _scales(weight: Array, most: int) -> Array:
    """The distance of two levels in each channel. Few levels are worth more closer together, which
    many are not: there the largest weight decides."""
    flat = weight.reshape(len(weight), -1)
    scale: Array = (np.abs(flat).max(axis=1) / most).astype(np.float32)
    scale[scale < np.finfo(np.float32).tiny] = 1.0  # nothing but zeros, or next to it
    if most >= np.iinfo(np.int8).max:
        return scale
    candidates = _SHARES[:, None].astype(np.float32) * scale
    errors = [
        np.sum((np.clip(np.rint(flat / one[:, None]), -most, most) * one[:, None] - flat) ** 2, 1)
        for one in candidates
    ]
    best = np.argmin(errors, axis=0)
    return np.asarray(candidates[best, np.arange(len(flat))])


def _along_outputs(scale: Array, rank: int) -> Array:
    return np.asarray(scale.reshape(-1, *[1] * (rank - 1)))

"""Weights of few bits: symmetric around zero, with a scale per output channel, rounded so that the
layer's results change least if moments of its data are known.

Weights are rounded input by input, and the weights of later inputs compensate for the errors of
earlier ones, according to the covariance of the data (OPTQ, arXiv 2210.17323, in the left-looking
form of arXiv 2307.13304, which factors the covariance and needs no inverse).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from graft.base.dtypes import Array, DType
from graft.quantize.moments import Moments

_DAMPING = 0.01  # of the mean variance: what sampled moments know of small ones is little
_PANEL = 64  # columns whose errors are spread at once
_SHARES = np.linspace(0.4, 1.0, 25)  # of the largest weight that fewer than 8 bits may reach to


@dataclass(frozen=True, slots=True)
class QuantizedWeight:
    """Integers [outputs, ...], a scale per output, and the shift of each output's mean by rounding:
    subtracted from the bias, it leaves the layer's error unbiased (arXiv 1906.04721)."""

    integers: Array
    scale: Array
    shift: Array

    @property
    def values(self) -> Array:
        """The weights that the integers represent."""
        codes = self.integers.astype(np.float32)
        return np.asarray(codes * _along_outputs(self.scale, codes.ndim))


def quantize_weight(
    weight: Array, dtype: DType = DType.INT8, moments: Moments | None = None, has_bias: bool = True
) -> QuantizedWeight:
    """Round to the levels of a dtype, the outermost being about the largest weight of the channel.

    With moments of the data, rounding errors compensate for each other. Without a bias, which would
    absorb it, the error of the mean counts as well."""
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


def compensated(weights: Array, scale: Array, covariance: Array, most: int) -> Array:
    """Integers [blocks, rows, columns] for weights of that shape, with a scale [blocks, rows, 1]
    and covariances [blocks, columns, columns]; no integer is beyond `most` on either side."""
    factors = _unit_factors(covariance)
    # Columns first, so that what is multiplied lies together.
    ratio = np.ascontiguousarray((weights / scale).astype(np.float32).swapaxes(1, 2))
    errors, codes = np.zeros_like(ratio), np.zeros_like(ratio)
    columns = ratio.shape[1]
    for start in range(0, columns, _PANEL):
        stop = min(start + _PANEL, columns)
        moved = ratio[:, start:stop] + factors[:, start:stop, :start] @ errors[:, :start]
        for column in range(start, stop):
            near = factors[:, column, None, start:column] @ errors[:, start:column]
            wanted = moved[:, column - start] + near[:, 0]
            codes[:, column] = np.clip(np.rint(wanted), -most, most)
            errors[:, column] = ratio[:, column] - codes[:, column]
    return codes.swapaxes(1, 2)


def _unit_factors(covariance: Array) -> Array:
    """Transposed unit upper triangular matrices U of U D U' = covariance, D being diagonal."""
    diagonal = np.diagonal(covariance, axis1=1, axis2=2)
    damping = _DAMPING * diagonal.mean(axis=1) + np.finfo(np.float32).tiny
    damped = covariance + damping[:, None, None] * np.eye(covariance.shape[1])
    upper = np.linalg.cholesky(damped[:, ::-1, ::-1])[:, ::-1, ::-1]
    unit = upper / np.diagonal(upper, axis1=1, axis2=2)[:, None, :]
    return np.ascontiguousarray(unit.swapaxes(1, 2)).astype(np.float32)


def _losses(errors: Array, covariance: Array) -> Array:
    """The mean square that errors [blocks, rows, columns] of weights add to each row's results."""
    spread: Array = errors @ covariance.astype(np.float32)
    return np.asarray(np.sum(spread * errors, axis=2, keepdims=True))


def _scales(weight: Array, most: int) -> Array:
    """The distance of two levels in each channel: by the largest weight for 8 bits, and where the
    squared error is least for fewer."""
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

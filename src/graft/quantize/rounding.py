"""Rounds weights so that a layer's results change least: weights and the covariance of the layer's
data in, integers out.

Weights are rounded input by input, and the error of those that are done is made up for by those
that are not: each is moved by what the errors before it, times the data's covariance, ask for
(OPTQ, arXiv 2210.17323, in the left-looking form of arXiv 2307.13304, which factors the covariance
and needs no inverse).
"""

from __future__ import annotations

import numpy as np

from graft.base.dtypes import Array

_DAMPING = 0.01  # of the mean variance: what sampled moments know of small ones is little
_PANEL = 64  # columns whose errors are spread at once


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

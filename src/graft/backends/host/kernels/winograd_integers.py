"""Winograd's algorithm on bytes, exactly.

Matrices are of whole numbers. Tiles of bytes and weights become numbers of 16 bits, of which pairs
are multiplied and summed in 32 bits; what is transformed back is the results times the matrices'
`scale`. Sums may wrap around: from `scale` times a result, modulo 2³², follows the result, modulo
2³² over the largest power of two in the scale, which are 26 bits for F(4x4, 3x3). Where the weights
are such that no bytes make a larger result, it is exact.
"""

from __future__ import annotations

import numpy as np

from graft.backends.host.group import Group
from graft.backends.host.kernels.integer_weights import zero_point_of
from graft.backends.host.kernels.winograd_matrices import Transforms
from graft.base.dtypes import Array, DType
from graft.ir.graph import Node
from graft.loop.ir import Binary, BinaryKind, Const, Expr

PAIR = 2  # numbers of 16 bits in a word
_WORD = 32  # bits


def no_pairs(group: Group, anchor: Node) -> str | None:
    """Why a convolution of bytes cannot be computed with pairs of 16 bits, if it cannot."""
    weight = group.constants[anchor.args[1]].array
    if weight.dtype != np.int8:
        return "the weights are not int8"
    if zero_point_of(group, anchor) is None:
        return "the zero point is not constant"
    return f"{weight.shape[1]} inputs are no pairs" if weight.shape[1] % PAIR else None


def is_exact(matrices: Transforms, weight: Array, data: DType) -> bool:
    """Whether all results of some weights and any bytes are known from what sums leave of them."""
    limits = np.iinfo(data.numpy)
    rows = weight.reshape(len(weight), -1).astype(np.int64)
    above, below = np.maximum(rows, 0).sum(axis=1), np.minimum(rows, 0).sum(axis=1)
    largest = (above * limits.max + below * limits.min).max(initial=0)
    least = (above * limits.min + below * limits.max).min(initial=0)
    half = 1 << _WORD - _halvings(matrices.scale) - 1
    return bool(-half <= least and largest < half)


def unscaled(value: Expr, scale: int) -> Expr:
    """A vector of results from `scale` times as much, modulo 2³².

    The odd part of the scale has an inverse, the rest is shifted out."""
    halvings = _halvings(scale)
    inverse = pow(scale >> halvings, -1, 1 << _WORD)
    inverse -= (inverse >> _WORD - 1) << _WORD

    def spread(number: int) -> Const:
        return Const(number, value.dtype, value.lanes)

    if inverse != 1:
        value = Binary(BinaryKind.MULTIPLY, value, spread(inverse))
    return Binary(BinaryKind.SHIFT_RIGHT, value, spread(halvings)) if halvings else value


def _halvings(scale: int) -> int:
    """How many times two divides the scale."""
    return (scale & -scale).bit_length() - 1

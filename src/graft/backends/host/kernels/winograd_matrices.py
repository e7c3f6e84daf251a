"""The matrices of Winograd's algorithm for 3x3 kernels, and what follows from a tile's size alone.

The side of a tile enters; the transforms of data, weights and results leave, transformed weights in
the order in which a kernel reads them, and the halo that whole tiles need.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import cache

import numpy as np

from graft.backends.host.storage import Halo, shape_of
from graft.base.dtypes import Array
from graft.ir.graph import Node

KERNEL = 3

# Where the polynomials behind the algorithm are evaluated, beside infinity, by the side of a tile.
# For 4 the textbook's nodes 0, 1, -1, 2, -2 make five times the error. All nodes and the
# matrices for data and results are exact in binary.
_NODES = {
    2: (Fraction(0), Fraction(1), Fraction(-1)),
    4: (Fraction(0), Fraction(5, 8), Fraction(-5, 8), Fraction(3, 2), Fraction(-3, 2)),
}
TILES = tuple(_NODES)


@dataclass(frozen=True, eq=False)
class Transforms:
    """F(out x out, 3x3): matrices that are applied from both sides."""

    out: int  # pixels along one side of a tile of results
    data: Array
    result: Array
    weight: Array

    @property
    def side(self) -> int:
        """Pixels along one side of a tile of data."""
        return self.out + KERNEL - 1

    @property
    def points(self) -> int:
        """Numbers per channel of a transformed tile."""
        return self.side**2


@cache
def transforms(out: int) -> Transforms:
    """Toom and Cook's construction for tiles of that side."""
    nodes = _NODES[out]
    others = [[n for n in nodes if n != node] for node in nodes]
    data = [[*_polynomial(rest), Fraction(0)] for rest in others]
    data.append(_polynomial(nodes))
    result = [[*(n**i for n in nodes), Fraction(i == out - 1)] for i in range(out)]
    scale = [math.prod(n - o for o in rest) for n, rest in zip(nodes, others, strict=True)]
    weight = [[n**i / s for i in range(KERNEL)] for n, s in zip(nodes, scale, strict=True)]
    weight.append([Fraction(0), Fraction(0), Fraction(1)])
    arrays = (np.array([[float(n) for n in row] for row in m]) for m in (data, result, weight))
    return Transforms(out, *arrays)


def _polynomial(roots: Sequence[Fraction]) -> list[Fraction]:
    """Coefficients, lowest first, of the product of x minus each root."""
    found = [Fraction(1)]
    for root in roots:
        raised = [Fraction(0), *found]
        found = [r - root * f for r, f in zip(raised, [*found, Fraction(0)], strict=True)]
    return found


def pack_weights(matrices: Transforms, weight: Array, block: int) -> Array:
    """Transformed weights as [out / block, point, in, block], rounded once."""
    transformed = matrices.weight @ weight.astype(np.float64) @ matrices.weight.T
    out, channels = weight.shape[:2]
    points = transformed.reshape(out // block, block, channels, matrices.points)
    return np.ascontiguousarray(points.transpose(0, 3, 2, 1)).astype(weight.dtype)


def tiles_along(extent: int, out: int, dilation: int = 1) -> int:
    """How many tiles cover an axis.

    A dilated convolution is `dilation` ordinary ones over every `dilation`-th pixel each. Their
    tiles interleave: `first_pixel` says where each begins."""
    whole, rest = divmod(extent, out * dilation)
    return whole * dilation + min(dilation, rest)


def first_pixel(tile: int, out: int, dilation: int) -> int:
    """The pixel of an axis that a tile begins at; the others follow at distances of `dilation`."""
    return tile // dilation * out * dilation + tile % dilation


def halo(conv: Node, tile: int) -> Halo:
    """The halo that whole tiles need around the image that the convolution reads."""
    top, left = int(conv.attrs.padding[0]), int(conv.attrs.padding[1])
    return top, left, _halo_behind(conv, tile, 0), _halo_behind(conv, tile, 1)


def _halo_behind(conv: Node, out: int, axis: int) -> int:
    """What whole tiles read behind the image; where its extent is not known, the most."""
    dilation: int = conv.attrs.dilation[axis]
    extent, count = shape_of(conv.args[0])[2 + axis], shape_of(conv.output)[2 + axis]
    if not isinstance(extent, int) or not isinstance(count, int):
        return int(conv.attrs.padding[2 + axis]) + (out - 1) * dilation
    before = int(conv.attrs.padding[axis])
    last = first_pixel(tiles_along(count, out, dilation) - 1, out, dilation)
    return max(0, last + (out + KERNEL - 2) * dilation + 1 - extent - before)

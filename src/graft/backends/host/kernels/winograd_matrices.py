"""The matrices of Winograd's algorithm for 3x3 kernels, and what follows from a tile's size alone.

The side of a tile and the stride enter; the transforms of data, weights and results leave,
transformed weights in the order in which a kernel reads them, and the halo that whole tiles need.
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

# Where the polynomials behind the algorithm are evaluated, beside infinity, by the taps of a filter
# and the side of a tile. For F(4, 3) the textbook's nodes 0, 1, -1, 2, -2 make five times the
# error, for F(4, 2) its 0, 1, -1, 2 four times. All nodes and the matrices for data and results are
# exact in binary.
_NODES = {
    (3, 2): (Fraction(0), Fraction(1), Fraction(-1)),
    (3, 4): (Fraction(0), Fraction(5, 8), Fraction(-5, 8), Fraction(3, 2), Fraction(-3, 2)),
    (2, 2): (Fraction(1), Fraction(-1)),
    (2, 4): (Fraction(1, 2), Fraction(-1, 2), Fraction(5, 4), Fraction(-5, 4)),
}
TILES = (2, 4)
STRIDES = (1, 2)


@dataclass(frozen=True, eq=False)
class Transforms:
    """F(out x out, 3x3) with steps of `stride`: matrices that are applied from both sides."""

    out: int  # pixels along one side of a tile of results
    stride: int
    data: Array
    result: Array
    weight: Array

    @property
    def side(self) -> int:
        """Pixels along one side of a tile of data, and numbers that they are transformed into."""
        return len(self.data)

    @property
    def points(self) -> int:
        """Numbers per channel of a transformed tile."""
        return self.side**2


@cache
def transforms(out: int, stride: int = 1) -> Transforms:
    """The matrices for tiles of that side.

    With a stride, every `stride`-th pixel meets every `stride`-th tap only: the filter is several
    shorter ones, each over its own share of the pixels, whose results are added up. For a stride of
    2 that takes 81 multiplications for 4x4 results instead of 144, and 25 for 2x2 instead of 36.
    """
    side = (out - 1) * stride + KERNEL
    data, weight = np.zeros((side, side)), np.zeros((side, KERNEL))
    result = np.zeros((out, side))
    first = 0
    for phase in range(stride):
        taps = len(range(phase, KERNEL, stride))
        points = slice(first, first + out + taps - 1)
        parts = _toom_cook(out, taps)
        data[points, phase::stride], result[:, points], weight[points, phase::stride] = parts
        first = points.stop
    return Transforms(out, stride, data, result, weight)


def _toom_cook(out: int, taps: int) -> tuple[Array, Array, Array]:
    """Toom and Cook's construction: matrices of data, results and weights for one filter."""
    if taps == 1:
        return np.eye(out), np.eye(out), np.ones((out, 1))
    nodes = _NODES[taps, out]
    others = [[n for n in nodes if n != node] for node in nodes]
    data = [[*_polynomial(rest), Fraction(0)] for rest in others]
    data.append(_polynomial(nodes))
    result = [[*(n**i for n in nodes), Fraction(i == out - 1)] for i in range(out)]
    scale = [math.prod(n - o for o in rest) for n, rest in zip(nodes, others, strict=True)]
    weight = [[n**i / s for i in range(taps)] for n, s in zip(nodes, scale, strict=True)]
    weight.append([Fraction(i == taps - 1) for i in range(taps)])
    first, second, third = (
        np.array([[float(n) for n in row] for row in m]) for m in (data, result, weight)
    )
    return first, second, third


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
    stride: int = conv.attrs.strides[axis]
    extent, count = shape_of(conv.args[0])[2 + axis], shape_of(conv.output)[2 + axis]
    if not isinstance(extent, int) or not isinstance(count, int):
        return int(conv.attrs.padding[2 + axis]) + (out - 1) * dilation * stride
    before = int(conv.attrs.padding[axis])
    last = first_pixel(tiles_along(count, out, dilation) - 1, out, dilation) * stride
    reach = ((out - 1) * stride + KERNEL - 1) * dilation
    return max(0, last + reach + 1 - extent - before)

"""The matrices of Winograd's algorithm, and what follows from a tile's size alone.

The side of a tile, a kernel's and a stride enter; the transforms of data, weights and results
leave, transformed weights in the order in which a kernel reads them, and the halo that whole tiles
need.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import cache

import numpy as np

from graft.backends.host.storage import Halo, shape_of
from graft.base.dtypes import Array, DType
from graft.ir.graph import Node

# Where the polynomials behind the algorithm are evaluated, beside infinity, by the taps of a filter
# and the side of a tile; each stands for its negative, too. For F(4, 3) the textbook's 0, 1, 2 make
# five times the error, for F(4, 2) its 0, 1, -1, 2 four times. All nodes and the matrices for data
# and results are exact in binary.
_NODES = {
    (2, 2): ("1",),
    (2, 4): ("1/2", "5/4"),
    (3, 2): ("0", "1"),
    (3, 4): ("0", "5/8", "3/2"),
    (5, 2): ("0", "5/8", "3/2"),
    (5, 4): ("0", "1/2", "1", "2"),
    (7, 2): ("0", "1/2", "1", "2"),
    (7, 4): ("0", "3/8", "7/8", "5/4", "2"),
}
# The same for bytes, whose sums are exact: whole numbers, so that the matrices are whole as well,
# and the smallest ones, so that 16 bits hold what is transformed.
_WHOLE_NODES = {(3, 2): ("0", "1"), (3, 4): ("0", "1", "2")}
_WHOLE_ROW = 15  # the most that a row of weights adds up to: 15 x 15 x 128 is within 16 bits
_LINES = tuple(size for taps in (3, 5, 7) for size in ((1, taps), (taps, 1)))
# Sides of tiles by kernel, and strides. Transforms in both directions multiply their errors: with
# more taps there are smaller tiles, or only kernels of one direction.
TILES = {(3, 3): (2, 4), (5, 5): (2,), **dict.fromkeys(_LINES, (2, 4))}
STRIDES = {**dict.fromkeys(TILES, (1,)), (3, 3): (1, 2)}
# The kernels of bytes, whose stride is 1.
WHOLE_TILES = dict.fromkeys(((3, 3), (1, 3), (3, 1)), (2, 4))
# OpenBLAS, which comes with NumPy, computes products of up to so many multiply-adds in one thread.
_SERIAL_PRODUCT = 2**18


@dataclass(frozen=True, eq=False)
class AxisTransforms:
    """F(out, taps) along one axis, with steps of `stride`. Results are `scale` times as large."""

    out: int  # pixels of a tile of results
    taps: int
    stride: int
    data: Array
    result: Array
    weight: Array
    scale: int = 1

    @property
    def side(self) -> int:
        """Pixels of a tile of data, and numbers that they are transformed into."""
        return len(self.data)


@dataclass(frozen=True, slots=True)
class Transforms:
    """The algorithm of a convolution: that of its rows, down the image, and that of its columns."""

    down: AxisTransforms
    across: AxisTransforms

    @property
    def points(self) -> int:
        """Numbers per channel of a transformed tile."""
        return self.down.side * self.across.side

    @property
    def scale(self) -> int:
        """By how much results are larger than they should be: more than 1 of whole matrices only,
        whose fractions are left to the end."""
        return self.down.scale * self.across.scale


def transforms(tile: int, kernel: Sequence[int] = (3, 3), stride: int = 1) -> Transforms:
    """The matrices for tiles of that side; along an axis where the kernel has one tap, of one."""
    return Transforms(*(_along_axis(tile if taps > 1 else 1, taps, stride) for taps in kernel))


def transforms_of(conv: Node, kernel: Sequence[int], tile: int) -> Transforms:
    """The matrices of a convolution."""
    if conv.output.dtype is DType.INT32:
        return whole_transforms(tile, kernel)
    return transforms(tile, kernel, conv.attrs.strides[0])


def whole_transforms(tile: int, kernel: Sequence[int]) -> Transforms:
    """The same of whole numbers, for bytes."""
    return Transforms(*(_whole_axis(tile if taps > 1 else 1, taps) for taps in kernel))


@cache
def _whole_axis(out: int, taps: int) -> AxisTransforms:
    """The matrices for one axis, of whole numbers.

    Results are as many times as large as the least multiple of all denominators in the weights'
    matrix. Of that, its rows take as much as leaves transformed weights within 16 bits, since it
    costs nothing there, and the columns of the results' matrix the rest."""
    if taps == 1:
        return AxisTransforms(out, taps, 1, *_toom_cook(out, taps, ()))
    data, result, weight = _toom_cook(out, taps, _WHOLE_NODES[taps, out])
    scale = math.lcm(*(round(1 / min(abs(row[row != 0]))) for row in weight))
    whole = np.rint(scale * weight).astype(int)
    rest = [
        next(
            k
            for k in range(1, scale + 1)
            if not (row % k).any() and abs(row).sum() <= k * _WHOLE_ROW
        )
        for row in whole
    ]
    parts = (data, np.rint(result * rest), whole / np.array([rest]).T)
    return AxisTransforms(out, taps, 1, *parts, scale)


@cache
def _along_axis(out: int, taps: int, stride: int) -> AxisTransforms:
    """The matrices for one axis.

    With a stride, every `stride`-th pixel meets every `stride`-th tap only: the filter is several
    shorter ones, each over its own share of the pixels, whose results are added up. For a stride of
    2 and 3x3 taps that takes 81 multiplications for 4x4 results instead of 144, and 25 for 2x2
    instead of 36.
    """
    side = (out - 1) * stride + taps
    data, weight, result = np.zeros((side, side)), np.zeros((side, taps)), np.zeros((out, side))
    first = 0
    for phase in range(stride):
        count = len(range(phase, taps, stride))
        points = slice(first, first + out + count - 1)
        parts = _toom_cook(out, count, _NODES.get((count, out), ()))
        data[points, phase::stride], result[:, points], weight[points, phase::stride] = parts
        first = points.stop
    return AxisTransforms(out, taps, stride, data, result, weight)


def _toom_cook(out: int, taps: int, positive_nodes: Sequence[str]) -> tuple[Array, Array, Array]:
    """Toom and Cook's construction: matrices of data, results and weights for one filter."""
    if taps == 1:
        return np.eye(out), np.eye(out), np.ones((out, 1))
    positive = [Fraction(node) for node in positive_nodes]
    nodes = list(dict.fromkeys(sign * node for node in positive for sign in (1, -1)))
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
    """Transformed weights as [out / block, point, in, block], rounded once.

    Both transforms are one product with the Kronecker product of their matrices: products of the
    small matrices of each pair of channels take four times as long in NumPy."""
    both = np.kron(matrices.down.weight, matrices.across.weight)
    taps = weight.reshape(-1, block, weight.shape[1], both.shape[1]).transpose(0, 3, 2, 1)
    return _transformed(both, taps)


def pack_half(matrices: Transforms, weight: Array, block: int) -> Array:
    """Weights transformed along their rows, as [out / block, column, row, in, block]."""
    out, channels, rows, columns = weight.shape
    taps = weight.reshape(out // block, block, channels, rows, columns).transpose(0, 4, 3, 2, 1)
    return _transformed(matrices.across.weight, taps)


def _transformed(matrix: Array, taps: Array) -> Array:
    """The product of a matrix and the second axis of the taps, rounded once, to their type.

    It is made of products so small that NumPy's BLAS leaves its threads asleep: awake, they spin
    on cores that LLVM compiles kernels on."""
    blocks, count, *others = taps.shape
    columns = taps.reshape(blocks, count, -1)
    product = np.empty((blocks, len(matrix), columns.shape[2]), taps.dtype)
    width = _SERIAL_PRODUCT // matrix.size
    for block, first in itertools.product(range(blocks), range(0, columns.shape[2], width)):
        part = np.s_[block, :, first : first + width]
        product[part] = matrix @ columns[part]
    return product.reshape(blocks, len(matrix), *others)


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


def _halo_behind(conv: Node, tile: int, axis: int) -> int:
    """What whole tiles read behind the image; where its extent is not known, the most."""
    dilation, stride = int(conv.attrs.dilation[axis]), int(conv.attrs.strides[axis])
    extent, count = shape_of(conv.args[0])[2 + axis], shape_of(conv.output)[2 + axis]
    taps = shape_of(conv.args[1])[2 + axis]
    assert isinstance(taps, int)
    out = tile if taps > 1 else 1
    if not isinstance(extent, int) or not isinstance(count, int):
        return int(conv.attrs.padding[2 + axis]) + (out - 1) * dilation * stride
    before = int(conv.attrs.padding[axis])
    last = first_pixel(tiles_along(count, out, dilation) - 1, out, dilation) * stride
    reach = ((out - 1) * stride + taps - 1) * dilation
    return max(0, last + reach + 1 - extent - before)

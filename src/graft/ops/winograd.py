"""A 3x3 convolution that a compiler has decided to compute by Winograd's algorithm.

It means what `nn.conv2d` means. `tile` is the side of the squares of pixels that are computed at a
time, `dilation` apart: the choice is part of the graph, so that it can be seen, printed and kept.
"""

from __future__ import annotations

from dataclasses import dataclass

from graft.ir.op import Kind, define, get_op
from graft.ir.types import TensorType
from graft.ops.conv import ConvAttrs, convolve
from graft.ops.rules import require
from graft.ops.window import for_rank

TILES = (2, 4)


@dataclass(frozen=True, slots=True)
class WinogradAttrs(ConvAttrs):
    tile: int = 4


def _winograd_type(attrs: WinogradAttrs, data: TensorType, weight: TensorType) -> TensorType:
    require({*attrs.strides, attrs.groups} == {1}, "wants strides and groups of 1")
    kernel = None if weight.shape is None else weight.shape[2:]
    require(kernel in (None, (3, 3)), "wants a kernel of 3x3 elements")
    require(attrs.tile in TILES, f"has tiles of {list(TILES)} pixels a side, not {attrs.tile}")
    (result,) = _CONV.result_types(attrs, (data, weight))
    assert isinstance(result, TensorType)
    return result


_CONV = get_op("nn.conv2d")

define(
    "nn.conv2d_winograd",
    "data weight",
    _winograd_type,
    convolve,
    attrs=for_rank(WinogradAttrs, 2, tile=4),
    kind=Kind.ANCHOR,
    work=_CONV.work,
    summary="a 3x3 convolution by Winograd's algorithm on square tiles of pixels",
)

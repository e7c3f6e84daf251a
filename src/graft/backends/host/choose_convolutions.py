"""Chooses the algorithm of a convolution: direct summation, or Winograd's with some tile."""

from __future__ import annotations

from collections.abc import Sequence

from graft.backends.host.convolution_cost import Layer, cost
from graft.backends.host.group import Group, Winograd
from graft.backends.host.kernels.conv_plan import computed_rows, halo, unfit_extents
from graft.backends.host.kernels.winograd_matrices import STRIDES, TILES
from graft.backends.host.kernels.winograd_matrices import halo as tiled_halo
from graft.backends.host.storage import Halo
from graft.backends.host.typical import typical_shape
from graft.base.dims import UNKNOWN
from graft.base.dtypes import DType
from graft.ir.graph import Node
from graft.rewrite.rule import Refusal
from graft.target.target import Target

_LEAST_CHANNELS = 16


def choose_convolution(group: Group, target: Target) -> Winograd | Refusal:
    """Winograd's algorithm where it is possible and pays, with its cheapest tile."""
    layer = _layer(group)
    if isinstance(layer, Refusal):
        return layer
    tile = min((0, *TILES[layer.kernel]), key=lambda tile: cost(layer, tile, target))
    return Winograd(tile) if tile else Refusal("direct summation is cheaper")


def _layer(group: Group) -> Layer | Refusal:
    """The convolution's extents, if the algorithm is possible."""
    conv = group.sole_anchor
    literal = group.constants.get(conv.args[1])
    if literal is None or conv.output.dtype is not DType.FLOAT32:
        return Refusal("the weights are not constant float32")
    weight = literal.array
    if not _is_plain(conv, weight.shape[2:]):
        return Refusal("it has no such kernel, or not such steps")
    outputs, inputs = weight.shape[:2]
    if (conv.args[0].tensor.shape or ())[1:2] != (inputs,):
        return Refusal("that there are as many channels as the weights want is not known before")
    if min(outputs, inputs) < _LEAST_CHANNELS:
        return Refusal("there are too few channels")
    reason = unfit_extents(conv, weight.shape[2:])
    if reason is not None:
        return Refusal(reason)
    batch, _, rows, columns = typical_shape(conv.output)
    kernel, extents = weight.shape[2:], typical_shape(conv.args[0])[2:]
    direct = _bordered(extents, halo(conv, kernel))
    border = {tile: _bordered(extents, tiled_halo(conv, tile)) - direct for tile in TILES[kernel]}
    dilation, computed = conv.attrs.dilation, computed_rows(conv, kernel, extents[0], rows)
    stride: int = conv.attrs.strides[0]
    return Layer(batch, inputs, outputs, rows, columns, kernel, stride, dilation, computed, border)


def _bordered(extents: Sequence[int], border: Halo) -> int:
    """The pixels of an image with a halo."""
    top, left, bottom, right = border
    return (extents[0] + top + bottom) * (extents[1] + left + right)


def _is_plain(conv: Node, kernel: tuple[int, int]) -> bool:
    attrs, shapes = conv.attrs, (conv.output.shape, conv.args[0].shape)
    known = all(shape is not None and UNKNOWN not in shape for shape in shapes)
    down, across = attrs.strides
    in_steps = down == across and down in STRIDES.get(kernel, ())
    in_steps = in_steps and (down == 1 or {*attrs.dilation} == {1})
    return known and attrs.groups == 1 and in_steps

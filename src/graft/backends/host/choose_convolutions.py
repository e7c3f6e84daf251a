"""Chooses the algorithm of a 3x3 convolution: direct summation, or Winograd's with some tile."""

from __future__ import annotations

from graft.backends.host.convolution_cost import Layer, cost
from graft.backends.host.group import Group, Winograd
from graft.backends.host.kernels.conv_plan import unfit_extents
from graft.backends.host.kernels.winograd_matrices import TILES
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
    tile = min((0, *TILES), key=lambda tile: cost(layer, tile, target))
    return Winograd(tile) if tile else Refusal("direct summation is cheaper")


def _layer(group: Group) -> Layer | Refusal:
    """The convolution's extents, if the algorithm is possible."""
    conv = group.sole_anchor
    literal = group.constants.get(conv.args[1])
    if literal is None or conv.output.dtype is not DType.FLOAT32:
        return Refusal("the weights are not constant float32")
    weight = literal.array
    if weight.shape[2:] != (3, 3) or not _is_plain(conv):
        return Refusal("it is no 3x3 convolution with steps of 1")
    outputs, inputs = weight.shape[:2]
    if (conv.args[0].tensor.shape or ())[1:2] != (inputs,):
        return Refusal("that there are as many channels as the weights want is not known before")
    if min(outputs, inputs) < _LEAST_CHANNELS:
        return Refusal("there are too few channels")
    reason = unfit_extents(conv, weight.shape[2:])
    if reason is not None:
        return Refusal(reason)
    batch, _, rows, columns = typical_shape(conv.output)
    return Layer(batch, inputs, outputs, rows, columns)


def _is_plain(conv: Node) -> bool:
    attrs, shapes = conv.attrs, (conv.output.shape, conv.args[0].shape)
    known = all(shape is not None and UNKNOWN not in shape for shape in shapes)
    return known and {*attrs.strides, *attrs.dilation, attrs.groups} == {1}

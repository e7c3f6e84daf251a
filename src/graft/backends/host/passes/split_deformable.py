"""Takes deformable convolutions apart: what windows read, then a convolution of single pixels.

A graph enters; `nn.deformable_conv2d` leaves as `nn.deformable_windows` and `nn.conv2d`: samples
are interpolated once, and not again for each output, and sums are made as those of any layer.
Floats of 16 bits become float32 on the way, as in the reference.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from graft.base.dtypes import DType
from graft.ir.graph import Graph, Value
from graft.rewrite.driver import Site, apply_rules
from graft.rewrite.pattern import is_op
from graft.rewrite.rule import Refusal, Replacement, RuleSet

RULES = RuleSet("split_deformable")


def split_deformable(graph: Graph) -> Graph:
    """Apply the rule to every layer."""
    return apply_rules(graph, RULES)


@RULES.rule(is_op("nn.deformable_conv2d"))
def windows_and_sums(site: Site) -> Replacement:
    node, attrs = site.node, site.node.attrs
    data, weight = node.args[0], node.args[2]
    extents = tuple(dim for dim in weight.tensor.shape or () if isinstance(dim, int))
    if len(extents) != 4 or not isinstance((data.tensor.shape or (None,) * 2)[1], int):
        return Refusal("channels or the extents of the weight become known only at run time")
    if 0 in (*(data.tensor.shape or ()), *(node.output.shape or ())):
        return Refusal("there is nothing to sample, or no result")
    dtype = node.output.dtype
    wide = DType.FLOAT64 if dtype is DType.FLOAT64 else DType.FLOAT32
    window: dict[str, Any] = {
        "strides": attrs.strides,
        "padding": attrs.padding,
        "dilation": attrs.dilation,
        "groups": attrs.groups,
        "deformable_groups": attrs.deformable_groups,
        "kernel_size": extents[2:],
    }
    operands = [None if one is None else _cast(site, one, wide) for one in _sampled(site)]
    windows = site.emit("nn.deformable_windows", *operands, **window)
    sums = site.emit("nn.conv2d", windows, _matrix(site, weight, wide), groups=attrs.groups)
    return _cast(site, sums, dtype)


def _sampled(site: Site) -> list[Value | None]:
    """The data, the offset and the mask."""
    inputs = site.node.inputs
    return [*inputs[:2], *inputs[3:]]


def _matrix(site: Site, weight: Value, dtype: DType) -> Value:
    """The weight with the elements of a window times channels as channels."""
    array = site.array(weight)
    outputs, *rest = (dim for dim in weight.tensor.shape or () if isinstance(dim, int))
    shape, axes = (outputs, int(np.prod(rest)), 1, 1), (0, 2, 3, 1)
    if array is not None:
        matrix = array.transpose(axes).reshape(shape)
        return site.constant(matrix.astype(dtype.numpy, copy=False))
    moved = site.emit("transpose", _cast(site, weight, dtype), axes=axes)
    return site.emit("reshape", moved, shape=shape)


def _cast(site: Site, value: Value, dtype: DType) -> Value:
    return value if value.dtype is dtype else site.emit("cast", value, dtype=dtype)

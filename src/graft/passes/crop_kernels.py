"""Cuts off the rows and columns of convolution kernels that only ever meet padding.

With a dilation of 36 on an image of 14 pixels, the outer taps of a 3x3 kernel read nothing but
zeros: what is left is a 1x1 convolution without padding.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from graft.ir.attrs import as_keywords
from graft.ir.graph import Graph
from graft.rewrite.driver import Site, apply_rules
from graft.rewrite.pattern import is_op
from graft.rewrite.rule import Refusal, Replacement, RuleSet

RULES = RuleSet("crop_kernels")


def crop_kernels(graph: Graph) -> Graph:
    """Apply the rule until it fits nowhere."""
    return apply_rules(graph, RULES)


@RULES.rule(is_op("nn.conv1d") | is_op("nn.conv2d") | is_op("nn.conv3d"))
def crop(site: Site) -> Replacement:
    """Keep the taps that overlap the image for some output."""
    node = site.node
    weight = site.array(node.args[1])
    if weight is None or not np.isfinite(weight).all():
        return Refusal("the weights are not finite constants")
    extents, counts = (
        [dim for dim in (value.shape or ())[2:] if isinstance(dim, int)]
        for value in (node.args[0], node.output)
    )
    if not len(extents) == len(counts) == weight.ndim - 2:
        return Refusal("which taps meet the image depends on sizes")
    attrs, rank = node.attrs, weight.ndim - 2
    padding = list(attrs.padding)
    slices: list[slice] = []
    for axis in range(rank):
        extent, count = extents[axis], counts[axis]
        stride, step = attrs.strides[axis], attrs.dilation[axis]
        # tap k reads first + k * step to last + k * step
        first = -attrs.padding[axis]
        last = first + (count - 1) * stride
        taps = range(weight.shape[2 + axis])
        alive = [k for k in taps if last + k * step >= 0 and first + k * step < extent]
        if not alive:
            return Refusal("no result reads the image")
        padding[axis] -= alive[0] * step
        padding[rank + axis] -= (len(taps) - 1 - alive[-1]) * step
        slices.append(slice(alive[0], alive[-1] + 1))
    cropped = weight[(slice(None), slice(None), *slices)]
    if cropped.shape == weight.shape:
        return Refusal("every tap meets the image")
    if min(padding) < 0:
        return Refusal("what is left would begin within the image")
    keywords = as_keywords(replace(attrs, padding=tuple(padding)))
    return site.emit(node.op.name, node.args[0], site.constant(cropped), **keywords)

"""Makes transposed convolutions of single pixels matrix products, as generators begin with.

A graph enters; `nn.conv2d_transpose` on images of one pixel leaves as `nn.dense`: each weight is
used once per image, in the order of memory, where the kernels for images take one tap at a time.
"""

from __future__ import annotations

import math

import numpy as np

from graft.backends.host.passes.transposed_convolution import known_convolution
from graft.ir.graph import Graph
from graft.rewrite.driver import Site, apply_rules
from graft.rewrite.pattern import is_op
from graft.rewrite.rule import Refusal, Replacement, RuleSet

RULES = RuleSet("pixel_products")


def pixel_products(graph: Graph) -> Graph:
    """Apply the rule to every transposed convolution."""
    return apply_rules(graph, RULES)


@RULES.rule(is_op("nn.conv2d_transpose"))
def product_for_single_pixels(site: Site) -> Replacement:
    node, attrs = site.node, site.node.attrs
    conv = known_convolution(site)
    if isinstance(conv, Refusal):
        return conv
    if conv.pixels != (1, 1) or attrs.groups > 1:
        return Refusal("the images have several pixels, or the weights are in groups")
    weight = conv.weight
    top, left, bottom, right = attrs.padding
    extents = [
        (size - 1) * step + 1 + more
        for size, step, more in zip(
            weight.shape[2:], attrs.dilation, attrs.output_padding, strict=True
        )
    ]
    channels, outputs = weight.shape[:2]
    spread = np.zeros((channels, outputs, *extents), weight.dtype)
    down, right_by = attrs.dilation
    taps = np.s_[:, :, : weight.shape[2] * down : down, : weight.shape[3] * right_by : right_by]
    spread[taps] = weight
    kept = spread[:, :, top : extents[0] - bottom, left : extents[1] - right]
    matrix = kept.reshape(channels, math.prod(kept.shape[1:])).T
    rows = site.emit("reshape", node.args[0], shape=(conv.batch, channels))
    product = site.emit("nn.dense", rows, site.constant(np.ascontiguousarray(matrix)))
    return site.emit("reshape", product, shape=(conv.batch, *kept.shape[1:]))

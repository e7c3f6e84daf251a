"""Makes transposed convolutions of few outputs matrix products, whose columns are added up.

A graph enters; `nn.conv2d_transpose` leaves as `nn.batch_matmul` and `col2im`, where its outputs
would fill less than half of a vector and windows overlap: kernels in blocks of outputs would
multiply by zeros, and the rows of a product are all elements of a window, of each output.
"""

from __future__ import annotations

import math

import numpy as np

from graft.backends.host.kernels.conv_plan import MOST_PHASES, NARROWEST_SLAB
from graft.ir.graph import Graph
from graft.rewrite.driver import Site, apply_rules
from graft.rewrite.pattern import is_op
from graft.rewrite.rule import Refusal, Replacement, RuleSet

RULES = RuleSet("column_products")


def column_products(graph: Graph) -> Graph:
    """Apply the rule to every transposed convolution."""
    return apply_rules(graph, RULES)


@RULES.rule(is_op("nn.conv2d_transpose"))
def product_of_columns(site: Site) -> Replacement:
    node, attrs = site.node, site.node.attrs
    weight = site.array(node.args[1])
    before, after = node.args[0].tensor.shape or (), node.output.tensor.shape or ()
    extents = [dim for dim in (*before[1:], *after[1:]) if isinstance(dim, int)]
    if weight is None or len(extents) < 6 or 0 in (*before, *after):
        return Refusal("sizes or weights become known only at run time, or there is no result")
    channels, height, width, outputs, *counts = extents
    kernel, strides = weight.shape[2:], attrs.strides
    if attrs.groups > 1 or weight.dtype != np.float32 or min(attrs.padding) < 0:
        return Refusal("there are groups, zeros are added, or it is not of float32")
    if 2 * outputs > NARROWEST_SLAB or math.prod(strides) > MOST_PHASES:
        return Refusal("outputs, or the phases of all of them, fill vectors")
    if all(size <= step for size, step in zip(kernel, strides, strict=True)):
        return Refusal("windows do not overlap")
    if any(more >= step for more, step in zip(attrs.output_padding, strides, strict=True)):
        return Refusal("there would be room for more windows")
    matrix = site.constant(np.ascontiguousarray(weight.reshape(1, channels, -1).swapaxes(1, 2)))
    pixels = site.emit("reshape", node.args[0], shape=(before[0], channels, height * width))
    columns = site.emit("nn.batch_matmul", matrix, pixels)
    windows = {"strides": strides, "padding": attrs.padding, "dilation": attrs.dilation}
    sizes = {"image_shape": tuple(counts), "block_shape": tuple(kernel)}
    return site.emit("col2im", columns, **sizes, **windows)

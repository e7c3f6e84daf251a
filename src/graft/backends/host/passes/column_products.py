"""Makes transposed convolutions of few outputs matrix products, whose columns are added up.

A graph enters; `nn.conv2d_transpose` leaves as `nn.batch_matmul` and `col2im`, where its outputs
would fill less than half of a vector and windows overlap: kernels in blocks of outputs would
multiply by zeros, and the rows of a product are all elements of a window, of each output.
"""

from __future__ import annotations

import math

import numpy as np

from graft.backends.host.kernels.conv_plan import MOST_PHASES, NARROWEST_SLAB
from graft.backends.host.passes.transposed_convolution import known_convolution
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
    conv = known_convolution(site)
    if isinstance(conv, Refusal):
        return conv
    weight, channels, strides = conv.weight, conv.channels, attrs.strides
    kernel = weight.shape[2:]
    if attrs.groups > 1:
        return Refusal("there are groups")
    if 2 * conv.outputs > NARROWEST_SLAB or math.prod(strides) > MOST_PHASES:
        return Refusal("outputs, or the phases of all of them, fill vectors")
    if all(size <= step for size, step in zip(kernel, strides, strict=True)):
        return Refusal("windows do not overlap")
    if any(more >= step for more, step in zip(attrs.output_padding, strides, strict=True)):
        return Refusal("there would be room for more windows")
    matrix = site.constant(np.ascontiguousarray(weight.reshape(1, channels, -1).swapaxes(1, 2)))
    pixels = site.emit(
        "reshape", node.args[0], shape=(conv.batch, channels, math.prod(conv.pixels))
    )
    columns = site.emit("nn.batch_matmul", matrix, pixels)
    windows = {"strides": strides, "padding": attrs.padding, "dilation": attrs.dilation}
    sizes = {"image_shape": conv.result_pixels, "block_shape": tuple(kernel)}
    return site.emit("col2im", columns, **sizes, **windows)

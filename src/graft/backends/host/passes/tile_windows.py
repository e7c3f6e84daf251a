"""Makes `col2im` of windows side by side movement: no elements meet, so that none are added.

A graph enters; `col2im` whose windows tile the image leaves as reshapes and a transpose, which have
kernels of their own; sums look for the windows of each element.
"""

from __future__ import annotations

from graft.ir.graph import Graph
from graft.rewrite.driver import Site, apply_rules
from graft.rewrite.pattern import is_op
from graft.rewrite.rule import Refusal, Replacement, RuleSet

RULES = RuleSet("tile_windows")


def tile_windows(graph: Graph) -> Graph:
    """Apply the rule to every `col2im`."""
    return apply_rules(graph, RULES)


@RULES.rule(is_op("col2im"))
def moved_windows(site: Site) -> Replacement:
    node, attrs = site.node, site.node.attrs
    shape, result = node.args[0].tensor.shape, node.output.tensor.shape
    if len(node.args) > 1 or shape is None or result is None or 0 in (*shape, *result):
        return Refusal("the extents are operands, or not known, or there are none")
    if not all(isinstance(dim, int) for dim in (*shape[1:], *result[1:])):
        return Refusal("the extents are known only at run time")
    batch, channels, *image = result
    block = attrs.block_shape
    whole = all(extent % size == 0 for extent, size in zip(image, block, strict=True))
    if tuple(attrs.strides) != tuple(block) or not whole or any(attrs.padding):
        return Refusal("windows overlap, leave gaps or reach beyond the image")
    if any(step != 1 for step in attrs.dilation):
        return Refusal("windows have gaps")
    counts = [extent // size for extent, size in zip(image, block, strict=True)]
    rank = len(image)
    split = site.emit("reshape", node.args[0], shape=(batch, channels, *block, *counts))
    pairs = [axis for n in range(rank) for axis in (2 + rank + n, 2 + n)]
    moved = site.emit("transpose", split, axes=(0, 1, *pairs))
    return site.emit("reshape", moved, shape=result)

"""Makes maxima over windows of volumes those of images: rows and columns first, then depth.

A graph enters; `nn.max_pool3d` leaves as two `nn.max_pool2d` on views of the volume: images that
are slices, and images whose rows are whole slices. A maximum of maxima is the maximum, in fewer
comparisons, and there are kernels for images.
"""

from __future__ import annotations

from typing import Any

from graft.ir.graph import Graph, Value
from graft.rewrite.driver import Site, apply_rules
from graft.rewrite.pattern import is_op
from graft.rewrite.rule import Refusal, Replacement, RuleSet

RULES = RuleSet("split_pool")


def split_pool(graph: Graph) -> Graph:
    """Apply the rule to every maximum."""
    return apply_rules(graph, RULES)


@RULES.rule(is_op("nn.max_pool3d"))
def slices_then_depth(site: Site) -> Replacement:
    node = site.node
    before, after = node.args[0].tensor.shape or (), node.output.tensor.shape or ()
    if not all(isinstance(dim, int) and dim for dim in (*before[1:], *after[1:])):
        return Refusal("the extents are known only at run time, or there is no result")
    if len(before) != 5 or before[0] == 0:
        return Refusal("the rank is not known, or there is no result")
    batch, channels, depth, height, width = before
    images = site.emit("reshape", node.args[0], shape=(batch, channels * depth, height, width))
    lines = (batch, channels, depth, after[3] * after[4])
    value = site.emit("reshape", _pooled(site, images, (1, 2)), shape=lines)
    return site.emit("reshape", _pooled(site, value, (0, None)), shape=after)


def _pooled(site: Site, images: Value, axes: tuple[int | None, int | None]) -> Value:
    """The maxima over windows that are the volume's along two of its axes, or single pixels."""
    attrs = site.node.attrs

    def along(numbers: Any, neutral: int, start: int = 0) -> tuple[Any, ...]:
        return tuple(neutral if axis is None else numbers[start + axis] for axis in axes)

    sizes = along(attrs.pool_size, 1)
    steps = along(attrs.strides, 1)
    padding = *along(attrs.padding, 0), *along(attrs.padding, 0, 3)
    if {*sizes, *steps} == {1} and not any(padding):
        return images
    return site.emit(
        "nn.max_pool2d",
        images,
        pool_size=sizes,
        strides=steps,
        dilation=along(attrs.dilation, 1),
        padding=padding,
        ceil_mode=attrs.ceil_mode,
    )

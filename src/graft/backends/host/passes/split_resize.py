"""Makes resizes of volumes those of images: rows and columns first, then depth.

A graph enters; `resize` over three spatial axes leaves as one over two of them, of images that are
slices, and one along depth, of images whose rows are whole slices. Both are of views of a volume,
for which there are kernels in blocks. Interpolation is done axis by axis anyway, and where a volume
grows, the first step is the smaller one.
"""

from __future__ import annotations

from typing import Any

from graft.backends.host.kernels.images.resize import NEAREST
from graft.base.dtypes import DType
from graft.ir.graph import Graph, Value
from graft.ops.resize import resize_steps
from graft.rewrite.driver import Site, apply_rules
from graft.rewrite.pattern import is_op
from graft.rewrite.rule import Refusal, Replacement, RuleSet

RULES = RuleSet("split_resize")

_RANK = 5
_FREE = "stretch"  # the policy by which axes have scales of their own
_FLOATS = (DType.FLOAT32, DType.FLOAT64)


def split_resize(graph: Graph) -> Graph:
    """Apply the rule to every resize."""
    return apply_rules(graph, RULES)


@RULES.rule(is_op("resize"))
def slices_then_depth(site: Site) -> Replacement:
    node, attrs = site.node, site.node.attrs
    before, after = node.args[0].tensor.shape or (), node.output.tensor.shape or ()
    if len(node.args) > 1 or len(before) != _RANK or 0 in (*before, *after):
        return Refusal("it is no resize of volumes by attributes")
    if not all(isinstance(dim, int) for dim in (*before[1:], *after[1:])):
        return Refusal("the extents are known only at run time")
    if before[:2] != after[:2] or attrs.roi is not None or attrs.keep_aspect_ratio_policy != _FREE:
        return Refusal("more than scales or sizes of spatial axes matters")
    if attrs.method != NEAREST and node.output.dtype not in _FLOATS:
        return Refusal(f"{node.output.dtype} would be rounded twice")
    changed = {step.axis for step in resize_steps(attrs, before, after)}
    batch, channels, depth, height, width = before
    value = node.args[0]
    if changed & {3, 4}:
        images = site.emit("reshape", value, shape=(batch, channels * depth, height, width))
        value = _resized(site, images, {axis: axis - 1 for axis in changed & {3, 4}})
    if 2 in changed:
        lines = (batch, channels, depth, after[3] * after[4])
        value = _resized(site, site.emit("reshape", value, shape=lines), {2: 2})
    return site.emit("reshape", value, shape=after)


def _resized(site: Site, view: Value, axes: dict[int, int]) -> Value:
    """A view of the volume, resized as some of the volume's axes are, which it has as others."""
    attrs = site.node.attrs
    numbers = range(_RANK) if attrs.axes is None else attrs.axes
    positions = {axis % _RANK: position for position, axis in enumerate(numbers)}
    order = sorted(axes)
    given: dict[str, Any] = {"axes": tuple(axes[axis] for axis in order)}
    for name in ("scales", "sizes"):
        entries = getattr(attrs, name)
        if entries is not None:
            given[name] = tuple(entries[positions[axis]] for axis in order)
    return site.again(site.node, view, **given)

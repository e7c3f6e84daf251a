"""Gathers and scatters whose indices repeat over slices become gathers and scatters of slices.

An index per slice, broadcast to an index per element, is how torch's `scatter` and `gather` name
slices: detectors write the features of a pyramid level to their rows of a tensor like that. The
expanded indices are as many as the elements (and wider than most), and have to be written, read and
checked one by one; of slices, one index each is.

Nothing is done where the expanded indices may have no elements: an index out of range is then no
error, but would be one as the index of an empty slice.
"""

from __future__ import annotations

from graft.base.dim_questions import provably_equal
from graft.base.dims import at_least
from graft.base.dtypes import DType
from graft.ir.graph import Graph, Value
from graft.ir.types import Shape
from graft.passes.eliminate_noops import same_shape
from graft.rewrite.driver import Site, apply_rules
from graft.rewrite.pattern import is_op
from graft.rewrite.rule import Refusal, Replacement, RuleSet

RULES = RuleSet("index_slices")


def index_slices(graph: Graph) -> Graph:
    """Index whole slices where each element of a slice is given the same index."""
    return apply_rules(graph, RULES)


@RULES.rule(is_op("gather"))
def gather_slices(site: Site) -> Replacement:
    axis, indices = _slice_indices(site)
    if isinstance(indices, Refusal):
        return indices
    return site.emit("take", site.node.args[0], _flat(site, indices), axis=axis)


@RULES.rule(is_op("scatter_elements"))
def scatter_slices(site: Site) -> Replacement:
    """Axes of extent 1 before the axis are left out and put back; other ones would have to move."""
    data, expanded, updates = site.node.args
    if not same_shape(expanded, updates):
        return Refusal("there may not be an update for each index")
    axis, indices = _slice_indices(site)
    if isinstance(indices, Refusal):
        return indices
    if not all(provably_equal(extent, 1) for extent in (data.shape or ())[:axis]):
        return Refusal("the slices are not contiguous")
    positions = _flat(site, indices, 1)
    if positions.dtype is not DType.INT64:  # ONNX knows no others for ScatterND
        positions = site.emit("cast", positions, dtype=DType.INT64)
    outer, reduction = list(range(axis)), site.node.attrs.reduction
    if outer:
        data, updates = (site.emit("squeeze", value, axes=outer) for value in (data, updates))
    result = site.emit("scatter_nd", data, positions, updates, reduction=reduction)
    return site.emit("expand_dims", result, axes=outer) if outer else result


def _flat(site: Site, indices: Value, *extents: int) -> Value:
    return site.emit("reshape", indices, shape=[-1, *extents])


def _slice_indices(site: Site) -> tuple[int, Value | Refusal]:
    """The axis that a node indexes, and an index for each of the slices, which its indices repeat
    over all elements of the slice."""
    data, expanded = site.node.args[:2]
    shape, extents = data.shape, expanded.shape
    expansion = site.producer(expanded)
    if shape is None or extents is None:
        return 0, Refusal("the rank is not known")
    axis = site.node.attrs.axis % len(shape)
    if expansion is None or expansion.op.name not in ("broadcast_to", "tile"):
        return axis, Refusal("the indices are not repeated")
    indices = expansion.args[0]
    own = indices.shape
    if own is None or len(own) > len(extents):
        return axis, Refusal("the rank is not known")
    own = (*[1] * (len(extents) - len(own)), *own)
    return axis, _misfit(axis, shape, extents, own) or indices


def _misfit(axis: int, shape: Shape, extents: Shape, own: Shape) -> Refusal | None:
    """Why indices of the shape `own`, repeated to `extents`, do not name slices of `shape`."""
    if not provably_equal(own[axis], extents[axis]):
        return Refusal("the indices are repeated along the axis too")
    for other in (number for number in range(len(shape)) if number != axis):
        if not provably_equal(own[other], 1):
            return Refusal("there may be several indices for a slice")
        if not provably_equal(extents[other], shape[other]):
            return Refusal("parts of slices are indexed")
        if not at_least(extents[other], 1):
            return Refusal("the slices may be empty")
    return None

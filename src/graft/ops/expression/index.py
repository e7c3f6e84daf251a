"""Reading elements at positions that are data.

Positions count from the end where negative. One that lies outside reads the nearest element, since
a loop cannot raise an error; nothing is read that is not there. `out_of_range` tells of such ones.
"""

from __future__ import annotations

from typing import Any

from graft.base.dims import AnyDim
from graft.base.dtypes import DType
from graft.loop.build import Term, cast, equal, maximum, minimum, select, term
from graft.loop.tensor import Reduce, Tensor, max_
from graft.ops.expression.registry import Inputs, Results, Types, Unexpressed, expresses
from graft.ops.expression.shapes import (
    by_index,
    extents_of,
    is_known,
    number,
    numbers,
    present,
    read,
    reduce_axes,
    sizes,
)
from graft.ops.rules import normalize_axis
from graft.program.guards import INSIDE


def position(indices: Tensor, at: list[Term], extent: AnyDim) -> Term:
    """The place along an axis that an element of `indices` names."""
    found = cast(DType.INT64, read(indices, at))
    if not indices.dtype.is_unsigned_integer:
        found = select(found < 0, found + extent, found)
    return maximum(minimum(found, extent - 1), 0)


def unless_empty(data: Tensor, value: Term) -> Term:
    """An element of data that may turn out to have none, which is a mistake too."""
    unsure = [extent for extent in sizes(data) if not is_known(extent)]
    for extent in unsure:
        value = select(term(extent) > 0, value, number(0, data.dtype))
    return value


def _is_empty(data: Tensor, types: Types) -> bool:
    """Whether results are wanted of data that has no elements, which is a mistake."""
    return 0 in sizes(data) and 0 not in extents_of(types[0])


@expresses("take")
def take(attrs: Any, inputs: Inputs, types: Types, name: str) -> Results:
    """Whole slices along an axis."""
    data, indices = map(present, inputs)
    axis = normalize_axis(attrs.axis, len(data.shape))
    if _is_empty(data, types):
        return Unexpressed("there is nothing to take")
    count, extent = len(indices.shape), sizes(data)[axis]

    def element(*at: Term) -> Term:
        place = position(indices, list(at[axis : axis + count]), extent)
        return unless_empty(data, read(data, [*at[:axis], place, *at[axis + count :]]))

    return (by_index(name, extents_of(types[0]), element),)


@expresses("gather")
def gather(attrs: Any, inputs: Inputs, types: Types, name: str) -> Results:
    """One element per index, at the index's own place but for one axis."""
    data, indices = map(present, inputs)
    axis = normalize_axis(attrs.axis, len(data.shape))
    if _is_empty(data, types):
        return Unexpressed("there is nothing to gather")
    extent = sizes(data)[axis]

    def element(*at: Term) -> Term:
        place = position(indices, list(at), extent)
        return unless_empty(data, read(data, [*at[:axis], place, *at[axis + 1 :]]))

    return (by_index(name, extents_of(types[0]), element),)


@expresses("gather_nd")
def gather_nd(attrs: Any, inputs: Inputs, types: Types, name: str) -> Results:
    """Slices at places of several axes."""
    data, indices = map(present, inputs)
    batch, shape = attrs.batch_dims, sizes(data)
    if _is_empty(data, types):
        return Unexpressed("there is nothing to gather")
    count = len(indices.shape) - 1
    (named,) = numbers(sizes(indices)[-1:], "how many axes the positions name")

    def element(*at: Term) -> Term:
        places = [
            position(indices, [*at[:count], term(entry)], shape[batch + entry])
            for entry in range(named)
        ]
        return unless_empty(data, read(data, [*at[:batch], *places, *at[count:]]))

    return (by_index(name, extents_of(types[0]), element),)


@expresses("out_of_range")
def out_of_range(attrs: Any, inputs: Inputs, types: Types, name: str) -> Results:
    """Per axis the largest of the indices that lie outside."""
    indices, extents = present(inputs[0]), attrs.extents
    shape = indices.shape if len(extents) == 1 else indices.shape[:-1]
    none, count = number(INSIDE, DType.INT64), term(attrs.count)

    def outside(found: Term, extent: Term) -> Term:
        low = 0 - extent if attrs.wraps else term(0)
        wrong = (found < low) | (found > extent - count)
        wrong = wrong if attrs.count == 1 else wrong & (count > 0)
        return select(wrong, maximum(found, number(INSIDE + 1, DType.INT64)), none)

    def element(entry: Term) -> Reduce | Term:
        reduced = reduce_axes(shape)
        at = [*reduced, *([entry] if len(extents) > 1 else [])]
        extent = term(extents[0])
        for position, other in enumerate(extents[1:], start=1):
            extent = select(equal(entry, position), term(other), extent)
        value = outside(cast(DType.INT64, read(indices, at)), extent)
        return max_(value, reduced) if reduced else value

    return (by_index(name, extents_of(types[0]), element),)

"""What lands where: tensors with a part replaced, and columns of windows added up to images.

Each element of the result asks what reaches it, so that nothing is written twice.
"""

from __future__ import annotations

from typing import Any

from graft.base.dims import AnyDim
from graft.base.dtypes import DType
from graft.loop.build import Term, cast, equal, maximum, minimum, select, term
from graft.loop.ir import INDEX
from graft.loop.tensor import Reduce, Tensor, reduce_axis, sum_
from graft.ops.expression.convolution import accumulated_in, rounded, sum_name
from graft.ops.expression.registry import Inputs, Results, Types, Unexpressed, expresses
from graft.ops.expression.shapes import (
    at_least,
    by_index,
    extents_of,
    number,
    present,
    read,
    sizes,
)
from graft.ops.rules import normalize_axis


@expresses("tensor_scatter")
def tensor_scatter(attrs: Any, inputs: Inputs, types: Types, name: str) -> Results:
    """A part of an axis replaced, from an index per batch on; a circular one goes on in front."""
    data, update, start = present(inputs[0]), present(inputs[1]), inputs[2]
    axis = normalize_axis(attrs.axis, len(data.shape))
    extent, count = sizes(data)[axis], sizes(update)[axis]
    if not at_least(extent, count):
        return Unexpressed("whether there is room for all is known only at run time")
    if count == 0:
        return (by_index(name, data.shape, lambda *at: read(data, at)),)

    def element(*at: Term) -> Term:
        first = term(0) if start is None else cast(INDEX, read(start, [at[0]]))
        place = at[axis] - first
        if attrs.mode == "circular":
            place = place % extent
        inside = (place >= 0) & (place < count)
        bounded = maximum(minimum(place, term(count) - 1), 0)
        written = read(update, [*at[:axis], bounded, *at[axis + 1 :]])
        return select(inside, written, read(data, at))

    return (by_index(name, extents_of(types[0]), element),)


@expresses("col2im")
def col2im(attrs: Any, inputs: Inputs, types: Types, name: str) -> Results:
    """Every pixel is the sum of the elements of the blocks that lie over it."""
    data, shape, dtype = present(inputs[0]), extents_of(types[0]), types[0].dtype
    rank = len(shape) - 2
    block = _block(attrs.block_shape, inputs[2], rank)
    strides, dilation = attrs.strides or (1,) * rank, attrs.dilation or (1,) * rank
    padding = attrs.padding or (0,) * (2 * rank)
    wide = accumulated_in(dtype)
    if 0 in sizes(data) or shape[1] == 0:
        return (by_index(name, shape, lambda *_: number(0, dtype)),)
    area: AnyDim = sizes(data)[1] // shape[1]

    def blocks(axis: int) -> Term:
        """How many blocks lie along an axis."""
        reach = (block[axis] - 1) * dilation[axis] + 1
        left = term(shape[2 + axis]) + (padding[axis] + padding[rank + axis]) - reach
        return left // strides[axis] + 1

    def element(batch: Term, channel: Term, *place: Term) -> Reduce:
        tap = reduce_axis("tap", area)
        rest: Term = tap
        column, inside = term(0), number(True, DType.BOOL)
        along: list[Term] = []
        for axis in reversed(range(rank)):
            along.insert(0, rest % maximum(block[axis], 1))
            rest = rest // maximum(block[axis], 1)
        for axis in range(rank):
            at = place[axis] + padding[axis] - along[axis] * dilation[axis]
            number_ = at // strides[axis]
            inside = inside & (at >= 0) & equal(at % strides[axis], 0) & (number_ < blocks(axis))
            column = column * blocks(axis) + number_
        bounded = maximum(minimum(column, term(sizes(data)[2]) - 1), 0)
        row = channel * area + tap
        value = cast(wide, read(data, [batch, row, bounded]))
        return sum_(select(inside, value, number(0, wide)), [tap])

    total = by_index(sum_name(name, dtype), shape, element)
    return (rounded(total, dtype, name),)


def _block(attribute: Any, operand: Tensor | None, rank: int) -> list[Term]:
    if operand is None:
        return [term(extent) for extent in attribute]
    return [cast(INDEX, read(operand, [axis])) for axis in range(rank)]

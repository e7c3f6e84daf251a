"""Deformable convolution: windows whose elements are read at places moved by an offset."""

from __future__ import annotations

from typing import Any

from graft.loop.build import Term, call, cast, equal, maximum, minimum, select, term
from graft.loop.ir import INDEX
from graft.loop.tensor import Reduce, sum_
from graft.ops.expression.convolution import accumulated_in
from graft.ops.expression.registry import Inputs, Results, Types, Unexpressed, expresses
from graft.ops.expression.shapes import (
    by_index,
    extents_of,
    number,
    numbers,
    present,
    read,
    reduce_axes,
    sizes,
)


@expresses("nn.deformable_conv2d")
def deformable_conv2d(attrs: Any, inputs: Inputs, types: Types, name: str) -> Results:
    """The samples of all windows first, then their weighted sums."""
    data, offset, weight = map(present, inputs[:3])
    mask, wide = inputs[3], accumulated_in(types[0].dtype)
    batch, channels, height, width = sizes(data)
    outputs, inside, *kernel = numbers(sizes(weight), "the extents of the weight")
    (count,) = numbers((channels,), "the channels")
    if 0 in (height, width):
        return Unexpressed("there is nothing to sample in an empty image")
    places = extents_of(types[0])[2:]
    area, per_part = kernel[0] * kernel[1], max(count // attrs.deformable_groups, 1)
    extents = height, width

    def sample(image: Term, channel: Term, tap: Term, row: Term, column: Term) -> Term:
        entry = channel // per_part * area + tap
        taps, at = (tap // kernel[1], tap % kernel[1]), []
        for axis, index in enumerate((row, column)):
            start = index * attrs.strides[axis] - attrs.padding[axis]
            plain = cast(wide, start + taps[axis] * attrs.dilation[axis])
            moved = cast(wide, read(offset, [image, entry * 2 + axis, row, column]))
            at.append(plain + moved)
        found = _interpolated(
            [cast(wide, extent) for extent in extents],
            at,
            lambda y, x: cast(wide, read(data, [image, channel, y, x])),
        )
        return (
            found if mask is None else found * cast(wide, read(mask, [image, entry, row, column]))
        )

    samples = by_index(f"{name}_samples", [batch, count, area, *places], sample)

    def element(image: Term, output: Term, row: Term, column: Term) -> Reduce:
        channel, tap = reduce_axes([inside, area])
        source = output // max(outputs // attrs.groups, 1) * inside + channel
        factor = read(weight, [output, channel, tap // kernel[1], tap % kernel[1]])
        value = read(samples, [image, source, tap, row, column])
        return sum_(value * cast(wide, factor), [channel, tap])

    total = by_index(f"{name}_sum", extents_of(types[0]), element)
    shape = extents_of(types[0])
    return (by_index(name, shape, lambda *at: cast(types[0].dtype, read(total, at))),)


def _interpolated(extents: list[Term], at: list[Term], pixel: Any) -> Term:
    """The four pixels around a place by their shares; what is not there is zero."""
    zero = number(0, at[0].dtype)
    near = (at[0] > -1.0) & (at[0] < extents[0]) & (at[1] > -1.0) & (at[1] < extents[1])
    places = [select(near, one, number(-1, one.dtype)) for one in at]
    corners = [call("floor", one) for one in places]
    total = zero
    for below in (0, 1):
        for beside in (0, 1):
            share, counted, indices = term(1.0, zero.dtype), near, []
            pairs = zip(places, corners, (below, beside), extents, strict=True)
            for place, corner, step, extent in pairs:
                here = corner + float(step)
                share = share * call("abs", float(1 - step) - (place - corner))
                counted = counted & (here >= 0.0) & (here < extent)
                bounded = minimum(maximum(here, 0.0), extent - 1.0)
                indices.append(cast(INDEX, bounded))
            read_ = select(equal(share, 0.0), zero, pixel(*indices) * share)
            total = total + select(counted, read_, zero)
    return total

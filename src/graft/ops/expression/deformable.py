"""Deformable convolution: windows whose elements are read at places moved by an offset."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from itertools import product
from typing import Any

from graft.base.dims import AnyDim
from graft.base.dtypes import DType
from graft.loop.build import Term, call, cast, maximum, minimum, select, term
from graft.loop.ir import INDEX
from graft.loop.tensor import Reduce, Tensor, sum_
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
    """Where windows read, then the samples of all windows, then their weighted sums."""
    data, offset, weight = map(present, inputs[:3])
    mask, wide = inputs[3], accumulated_in(types[0].dtype)
    batch, channels, height, width = sizes(data)
    outputs, inside, *kernel = numbers(sizes(weight), "the extents of the weight")
    (count,) = numbers((channels,), "the channels")
    if 0 in (height, width):
        return Unexpressed("there is nothing to sample in an empty image")
    shape = extents_of(types[0])
    area, per_part = kernel[0] * kernel[1], max(count // attrs.deformable_groups, 1)
    at = _positions(attrs, offset, (kernel[1], shape[2:], (height, width)), name, wide)

    def sample(image: Term, channel: Term, tap: Term, row: Term, column: Term) -> Term:
        entry = channel // per_part * area + tap
        found = _interpolated(
            (height, width),
            [read(one, [image, entry, row, column]) for one in at],
            lambda y, x: cast(wide, read(data, [image, channel, y, x])),
        )
        if mask is None:
            return found
        return found * cast(wide, read(mask, [image, entry, row, column]))

    samples = by_index(f"{name}_samples", [batch, count, area, *shape[2:]], sample)

    def element(image: Term, output: Term, row: Term, column: Term) -> Reduce:
        channel, tap = reduce_axes([inside, area])
        source = output // max(outputs // attrs.groups, 1) * inside + channel
        factor = read(weight, [output, channel, tap // kernel[1], tap % kernel[1]])
        value = read(samples, [image, source, tap, row, column])
        return sum_(value * cast(wide, factor), [channel, tap])

    total = by_index(f"{name}_sum", shape, element)
    return (by_index(name, shape, lambda *at: cast(types[0].dtype, read(total, at))),)


_Extents = tuple[AnyDim, ...]


def _positions(
    attrs: Any,
    offset: Tensor,
    extents: tuple[int, _Extents, _Extents],
    name: str,
    wide: DType,
) -> list[Tensor]:
    """Rows and columns where windows read, [batch, groups * taps, ...]; -1 for both of them where
    that is outside. `extents` are the kernel's width and those of the result and the image."""
    width, wanted, image = extents
    (entries,) = numbers(sizes(offset)[1:2], "the offsets")

    def moved(axis: int, batch: Term, entry: Term, *place: Term) -> Term:
        height = max(entries // (2 * attrs.deformable_groups * width), 1)
        tap = (entry // width % height, entry % width)[axis]
        start = place[axis] * attrs.strides[axis] - attrs.padding[axis]
        plain = cast(wide, start + tap * attrs.dilation[axis])
        return plain + cast(wide, read(offset, [batch, entry * 2 + axis, *place]))

    shape = [sizes(offset)[0], entries // 2, *wanted]
    anywhere = [by_index(f"{name}_moved{n}", shape, partial(moved, n)) for n in (0, 1)]

    def bounded(axis: int, *at: Term) -> Term:
        near = number(True, DType.BOOL)
        for one, extent in zip(anywhere, image, strict=True):
            near = near & (read(one, at) > -1.0) & (read(one, at) < cast(wide, extent))
        return select(near, read(anywhere[axis], at), number(-1, wide))

    return [by_index(f"{name}_at{axis}", shape, partial(bounded, axis)) for axis in (0, 1)]


def _interpolated(
    extents: _Extents, places: list[Term], pixel: Callable[[Term, Term], Term]
) -> Term:
    """The four pixels around a place by their shares; what is not there is zero."""
    zero = number(0, places[0].dtype)
    total = zero
    for steps in product((0, 1), repeat=2):
        share, counted = number(1, zero.dtype), number(True, DType.BOOL)
        indices: list[Term] = []
        for place, step, extent in zip(places, steps, extents, strict=True):
            here = call("floor", place) + float(step)
            share = share * (1.0 - call("abs", place - here))
            counted = counted & (here >= 0.0) & (here < cast(zero.dtype, extent))
            indices.append(maximum(minimum(cast(INDEX, here), term(extent) - 1), 0))
        counted = counted & (share > 0.0)  # a pixel without a share may be infinite
        total = total + select(counted, pixel(*indices) * share, zero)
    return total

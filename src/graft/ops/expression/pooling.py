"""Pooling: the largest, the mean or the p-norm of what lies under a window."""

from __future__ import annotations

import math
from typing import Any

from graft.base.dims import AnyDim, product
from graft.base.dtypes import DType
from graft.loop.build import Term, call, cast, equal, maximum, minimum, select, term
from graft.loop.ir import BinaryKind
from graft.loop.tensor import Axis, Reduce, Tensor, identity, max_, min_, sum_
from graft.ops.expression.registry import Inputs, Results, Types, expresses
from graft.ops.expression.shapes import (
    Extents,
    at_least,
    bordered,
    by_index,
    extents_of,
    floats,
    is_known,
    linear,
    number,
    present,
    read,
    reduce_axes,
    sizes,
    unravelled,
)
from graft.ops.scalar import is_narrow, widened

_RANKS = (1, 2, 3)


def _windows(attrs: Any, data: Tensor, name: str, shape: Extents, fill: Term) -> Tensor:
    """The data with what windows read around them."""
    counts = zip(shape[2:], attrs.strides, attrs.pool_size, attrs.dilation, strict=True)
    wanted = [(count - 1) * stride + (taps - 1) * step + 1 for count, stride, taps, step in counts]
    begins, ends = attrs.padding[: len(wanted)], attrs.padding[len(wanted) :]
    return bordered(data, name, begins, wanted, fill, ends=None if attrs.ceil_mode else ends)


def _at(attrs: Any, indices: tuple[Term, ...], taps: list[Axis]) -> list[Term]:
    """Where a window's element is read."""
    steps = zip(indices[2:], attrs.strides, taps, attrs.dilation, strict=True)
    return [index * stride + tap * dilation for index, stride, tap, dilation in steps]


@expresses(*(f"nn.max_pool{rank}d" for rank in _RANKS))
def max_pool(attrs: Any, inputs: Inputs, types: Types, name: str) -> Results:
    """Padding never wins; NaN always does."""
    data, dtype, shape = present(inputs[0]), types[0].dtype, extents_of(types[0])
    wide = DType.FLOAT32 if is_narrow(dtype) else dtype
    total_name = f"{name}_wide" if is_narrow(dtype) else name
    total = _largest(attrs, data, shape, wide, total_name, f"{name}_pad")
    if total.dtype is dtype:
        return (total,)
    return (by_index(name, shape, lambda *indices: cast(dtype, read(total, indices))),)


def _largest(
    attrs: Any, data: Tensor, shape: Extents, dtype: DType, name: str, border: str
) -> Tensor:
    lowest = Term(identity(BinaryKind.MAXIMUM, dtype))
    source = _windows(attrs, data, border, shape, lowest)

    def element(*indices: Term) -> Reduce:
        taps = reduce_axes(attrs.pool_size)
        pixel = source[(*indices[:2], *_at(attrs, indices, taps))]
        return max_(cast(dtype, pixel), taps)

    return by_index(name, shape, element)


@expresses(*(f"nn.max_pool{rank}d_with_indices" for rank in _RANKS))
def max_pool_with_indices(attrs: Any, inputs: Inputs, types: Types, name: str) -> Results:
    """The first of the largest elements wins; a window of padding alone has index -1."""
    data, shape = present(inputs[0]), extents_of(types[0])
    values = max_pool(attrs, inputs, types, name)
    assert isinstance(values, tuple)
    largest = _largest(attrs, data, shape, data.dtype, f"{name}_best", f"{name}_around")
    images, extents = sizes(data)[:2], sizes(data)[2:]
    nowhere = math.prod(attrs.pool_size)
    begins = attrs.padding[: len(extents)]

    def first(*indices: Term) -> Reduce:
        taps = reduce_axes(attrs.pool_size)
        place = [at - begin for at, begin in zip(_at(attrs, indices, taps), begins, strict=True)]
        inside = (place[0] >= 0) & (place[0] < extents[0])
        for index, extent in zip(place[1:], extents[1:], strict=True):
            inside = inside & (index >= 0) & (index < extent)
        clamped = [
            maximum(minimum(index, extent - 1), 0)
            for index, extent in zip(place, extents, strict=True)
        ]
        pixel, best = data[(*indices[:2], *clamped)], read(largest, indices)
        found = equal(pixel, best)
        if data.dtype.is_float:
            found = found | (call("isnan", pixel) & call("isnan", best))
        window = linear(taps, attrs.pool_size)
        return min_(select(inside & found, window, nowhere), taps)

    tap = by_index(f"{name}_tap", shape, first)

    def index(*indices: Term) -> Term:
        window = read(tap, indices)
        taps = unravelled(minimum(window, nowhere - 1), attrs.pool_size)
        steps = zip(indices[2:], attrs.strides, taps, attrs.dilation, begins, strict=True)
        place = [at * s + k * d - begin for at, s, k, d, begin in steps]
        order = list(zip(place, extents, strict=True))
        image = indices[0] * images[1] + indices[1]
        total: Term | int = 0
        for position, extent in reversed(order) if attrs.column_major else order:
            total = total * extent + position
        return select(equal(window, nowhere), -1, image * product(extents) + total)

    return values[0], by_index(f"{name}_1", shape, index)


@expresses(*(f"nn.avg_pool{rank}d" for rank in _RANKS))
def avg_pool(attrs: Any, inputs: Inputs, types: Types, name: str) -> Results:
    """The sum under a window over how many elements it counts."""
    data, dtype, shape = present(inputs[0]), types[0].dtype, extents_of(types[0])
    wide = DType.FLOAT32 if is_narrow(dtype) else dtype
    source = _windows(attrs, data, f"{name}_pad", shape, number(0, wide))

    def element(*indices: Term) -> Reduce:
        taps = reduce_axes(attrs.pool_size)
        return sum_(widened(source[(*indices[:2], *_at(attrs, indices, taps))]), taps)

    total = by_index(f"{name}_sum", shape, element)
    extents = sizes(data)[2:]

    def mean(*indices: Term) -> Term:
        members: Term | int = 1
        for axis, extent in enumerate(extents):
            members = _members(attrs, axis, extent, shape[2 + axis], indices[2 + axis]) * members
        return cast(dtype, read(total, indices) / floats(members, wide))

    return (by_index(name, shape, mean),)


def _members(attrs: Any, axis: int, extent: AnyDim, count: AnyDim, index: Term) -> Term | int:
    """How many elements a window along an axis counts."""
    rank, taps, step = len(attrs.strides), attrs.pool_size[axis], attrs.dilation[axis]
    begin, end = attrs.padding[axis], attrs.padding[rank + axis]
    low, high = (-begin, extent + end) if attrs.count_include_pad else (0, extent)
    reach = (count - 1) * attrs.strides[axis] + (taps - 1) * step
    # Windows that are not rounded up end within the padding, whatever the extents are.
    whole = not attrs.ceil_mode and not is_known(extent) and at_least(high, extent + end)
    if at_least(-begin, low) and (whole or at_least(high, reach - begin + 1)):
        return int(taps)
    start = index * attrs.strides[axis] - begin
    first = maximum((term(low + step - 1) - start) // step, 0)
    last = minimum((term(high - 1) - start) // step, taps - 1)
    return maximum(last - first + 1, 0)


@expresses(*(f"nn.lp_pool{rank}d" for rank in _RANKS))
def lp_pool(attrs: Any, inputs: Inputs, types: Types, name: str) -> Results:
    """The p-th root of the sum of p-th powers."""
    data, dtype, shape = present(inputs[0]), types[0].dtype, extents_of(types[0])
    wide = DType.FLOAT32 if is_narrow(dtype) else dtype
    source = _windows(attrs, data, f"{name}_pad", shape, number(0, wide))

    def element(*indices: Term) -> Reduce:
        taps = reduce_axes(attrs.pool_size)
        size = call("abs", widened(source[(*indices[:2], *_at(attrs, indices, taps))]))
        if attrs.p <= 2:
            return sum_(size if attrs.p == 1 else size * size, taps)
        return sum_(call("pow", size, float(attrs.p)), taps)

    total = by_index(f"{name}_sum", shape, element)

    def root(*indices: Term) -> Term:
        powers = read(total, indices)
        if attrs.p <= 2:
            return cast(dtype, powers if attrs.p == 1 else call("sqrt", powers))
        return cast(dtype, call("pow", powers, 1 / attrs.p))

    return (by_index(name, shape, root),)

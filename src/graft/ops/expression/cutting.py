"""Cutting pieces out of tensors, and borders around them.

Bounds and widths that are attributes are part of the code. Those that are operands are read by it;
an index that they lead outside is brought back to the nearest element, since a loop cannot raise an
error.
"""

from __future__ import annotations

from typing import Any

from graft.base.dims import AnyDim, dim_max, dim_min
from graft.base.dtypes import DType
from graft.loop.build import Term, cast, equal, maximum, minimum, select, term
from graft.loop.ir import INDEX
from graft.loop.tensor import Tensor
from graft.ops.expression.index import unless_empty
from graft.ops.expression.registry import Inputs, Results, Types, expresses
from graft.ops.expression.shapes import (
    at_least,
    by_index,
    extents_of,
    number,
    numbers,
    present,
    read,
    single,
    sizes,
)
from graft.ops.rules import normalize_axes
from graft.ops.slicing import slice_positions, slice_start


@expresses("strided_slice")
def strided_slice(attrs: Any, inputs: Inputs, types: Types, name: str) -> Results:
    """Every stride-th element between bounds."""
    data = present(inputs[0])
    if attrs.begin is None or attrs.end is None or any(one is not None for one in inputs[1:]):
        return _slice_at_run_time(attrs, inputs, types, name)
    shape = sizes(data)
    axes = normalize_axes(range(len(attrs.begin)) if attrs.axes is None else attrs.axes, len(shape))
    strides = attrs.strides or (1,) * len(axes)
    starts: dict[int, tuple[AnyDim, int]] = {}
    for axis, begin, end, stride in zip(axes, attrs.begin, attrs.end, strides, strict=True):
        extent = shape[axis]
        if isinstance(begin, int) and isinstance(end, int) and isinstance(extent, int):
            starts[axis] = slice_positions(begin, end, stride, extent).start, stride
        else:
            starts[axis] = slice_start(begin, stride, extent), stride

    def element(*indices: Term) -> Term:
        at: list[Term] = []
        for axis, index in enumerate(indices):
            first, step = starts.get(axis, (0, 1))
            at.append(index * step + first)
        return read(data, at)

    return (by_index(name, extents_of(types[0]), element),)


def _slice_at_run_time(attrs: Any, inputs: Inputs, types: Types, name: str) -> Results:
    data = present(inputs[0])
    begins, _, axes, strides = (
        _listed(getattr(attrs, field), operand)
        for field, operand in zip(("begin", "end", "axes", "strides"), inputs[1:], strict=True)
    )
    steps = strides or [term(1)] * len(begins)

    def element(*indices: Term) -> Term:
        at: list[Term] = []
        for axis, (index, extent) in enumerate(zip(indices, sizes(data), strict=True)):
            first = _of_axis(axis, len(indices), axes, begins, 0)
            step = _of_axis(axis, len(indices), axes, steps, 1)
            start = select(first < 0, first + extent, first)
            start = maximum(select(step < 0, minimum(start, term(extent) - 1), start), 0)
            at.append(maximum(minimum(start + index * step, term(extent) - 1), 0))
        return unless_empty(data, read(data, at))

    return (by_index(name, extents_of(types[0]), element),)


def _listed(attribute: Any, operand: Tensor | None) -> list[Term]:
    """Numbers that are an attribute or an operand; none where they are left out."""
    if operand is None:
        return [cast(INDEX, term(entry)) for entry in attribute or ()]
    (count,) = numbers(sizes(operand), "the numbers of bounds and axes")
    return [cast(INDEX, read(operand, [entry])) for entry in range(count)]


def _of_axis(axis: int, rank: int, axes: list[Term], entries: list[Term], default: int) -> Term:
    """The entry that speaks of an axis; without a list of axes they come in order."""
    if not axes:
        return entries[axis] if axis < len(entries) else term(default)
    found = term(default)
    for named, entry in zip(axes, entries, strict=False):
        found = select(equal(named, axis) | equal(named, axis - rank), entry, found)
    return found


@expresses("nn.pad")
def pad(attrs: Any, inputs: Inputs, types: Types, name: str) -> Results:
    """A border of a filler, or of elements of the data; negative widths cut off."""
    data, value = present(inputs[0]), inputs[1]
    if attrs.pad_width is None or any(one is not None for one in inputs[2:]):
        return _pad_at_run_time(attrs, inputs, types, name)
    rank, shape = len(data.shape), sizes(data)
    axes = range(rank) if attrs.axes is None else normalize_axes(attrs.axes, rank)
    begins = dict(zip(axes, attrs.pad_width, strict=False))
    ends = dict(zip(axes, attrs.pad_width[len(begins) :], strict=True))

    def place(axis: int, index: Term) -> tuple[Term, Term | None]:
        """Where an index of the result reads, and whether that is inside."""
        begin, end = begins.get(axis, 0), ends.get(axis, 0)
        at = index - begin
        if at_least(-begin, 0) and at_least(-end, 0):
            return at, None
        if attrs.mode == "constant":
            return at, (at >= 0) & (at < shape[axis])
        first, last = (
            dim_max(-begin, 0),
            shape[axis] + dim_min(end, 0),
        )  # what is left after cutting
        return _source(attrs.mode, at - first, last - first) + first, None

    def element(*indices: Term) -> Term:
        places = [place(axis, index) for axis, index in enumerate(indices)]
        found = read(data, [at for at, _ in places])
        tests = [test for _, test in places if test is not None]
        if not tests:
            return found
        inside = tests[0]
        for test in tests[1:]:
            inside = inside & test
        fill = number(attrs.fill, data.dtype) if value is None else single(value)
        return select(inside, found, cast(data.dtype, fill))

    return (by_index(name, extents_of(types[0]), element),)


def _pad_at_run_time(attrs: Any, inputs: Inputs, types: Types, name: str) -> Results:
    data, value, width, named = present(inputs[0]), inputs[1], inputs[2], inputs[3]
    widths, axes = _listed(attrs.pad_width, width), _listed(attrs.axes, named)
    begins, ends = widths[: len(widths) // 2], widths[len(widths) // 2 :]
    fill = number(attrs.fill, data.dtype) if value is None else single(value)
    if 0 in sizes(data):
        return (by_index(name, extents_of(types[0]), lambda *_: cast(data.dtype, fill)),)

    def element(*indices: Term) -> Term:
        at: list[Term] = []
        outside = number(False, DType.BOOL)
        for axis, (index, extent) in enumerate(zip(indices, sizes(data), strict=True)):
            begin = _of_axis(axis, len(indices), axes, begins, 0)
            place = index - begin
            if attrs.mode == "constant":
                outside = outside | (place < 0) | (place >= extent)
            else:
                end = _of_axis(axis, len(indices), axes, ends, 0)
                first = maximum(0 - begin, 0)  # what is left after cutting
                left = minimum(end, 0) + extent - first
                place = _source_at_run_time(attrs.mode, place - first, left) + first
            at.append(maximum(minimum(place, term(extent) - 1), 0))
        return select(outside, cast(data.dtype, fill), unless_empty(data, read(data, at)))

    return (by_index(name, extents_of(types[0]), element),)


def _source_at_run_time(mode: str, position: Term, extent: Term) -> Term:
    if mode == "edge":
        return maximum(minimum(position, extent - 1), 0)
    if mode == "wrap":
        return position % maximum(extent, 1)
    period = maximum((extent - 1) * 2, 1)
    inside = position % period
    return minimum(inside, period - inside)


def _source(mode: str, position: Term, extent: AnyDim) -> Term:
    """Which of `extent` elements stands at a position that may lie outside."""
    if mode == "edge":
        return maximum(minimum(position, extent - 1), 0)
    if mode == "wrap":
        return position % extent
    if extent == 1:
        return position * 0
    period = dim_max(2 * (extent - 1), 1)
    inside = position % period
    return minimum(inside, term(period) - inside)

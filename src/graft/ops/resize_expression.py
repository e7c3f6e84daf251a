"""Resizing: which elements each result element looks at, and with what weights.

Both are tables where extents are known, and formulas where they are not.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import reduce
from typing import Any

import numpy as np

from graft.base.dtypes import DType, dtype_of
from graft.loop.build import Operand, Term, call, cast, maximum, minimum, select
from graft.loop.tensor import Reduce, Tensor, sum_
from graft.ops import expression as te
from graft.ops import resize_axis
from graft.ops.resize import (
    axes_of,
    axis_steps,
    common_scale,
    crops,
    to_dtype,
    working_dtype,
)
from graft.ops.resize_axis import AxisResize, nearest_table, outside_table, tap_tables

_WIDE = DType.FLOAT64


@te.expresses("resize")
def resize(attrs: Any, inputs: te.Inputs, types: te.Types, name: str) -> te.Results:
    """Nearest neighbours or weighted sums of a few, along the axes that change."""
    data = te.present(inputs[0])
    steps = resize_steps(attrs, te.sizes(data), te.extents_of(types[0]), inputs[1:])
    inner = f"{name}_inside" if crops(attrs) else name
    if attrs.method == "nearest_neighbor":
        result = _copied(attrs, data, steps, types, inner)
    elif any(one is not None for one in inputs[1:]):
        result = _axis_by_axis(attrs, data, steps, types, inner)
    else:
        result = _interpolated(attrs, data, steps, types, inner)
    return (_extrapolated(attrs, steps, result, name) if crops(attrs) else result,)


def resize_steps(
    attrs: Any, before: te.Extents, after: te.Extents, operands: te.Inputs = (None, None, None)
) -> list[AxisResize]:
    """How axes are resized, by attributes or by operands (roi, scales, sizes)."""
    axes = axes_of(attrs, len(before))

    def entries(attribute: Any, operand: Tensor | None, count: int) -> Any:
        return attribute if operand is None else [te.read(operand, [n]) for n in range(count)]

    roi = entries(attrs.roi, operands[0], 2 * len(axes))
    scales = entries(attrs.scales, operands[1], len(axes))
    if scales is None and attrs.keep_aspect_ratio_policy != "stretch":
        sizes, extents = entries(attrs.sizes, operands[2], len(axes)), [before[a] for a in axes]
        if operands[2] is None:
            numbers = te.numbers(extents, "the extents whose ratio is kept")
            scales = (common_scale(attrs, numbers, te.numbers(sizes, "sizes")),) * len(axes)
        else:
            pairs = zip(sizes, extents, strict=True)
            ratios = [cast(_WIDE, size) / cast(_WIDE, extent) for size, extent in pairs]
            smallest = attrs.keep_aspect_ratio_policy == "not_larger"
            scales = (reduce(minimum if smallest else maximum, ratios),) * len(axes)
    if operands[0] is not None:
        roi = [cast(_WIDE, number) for number in roi]
    return axis_steps(attrs, before, after, roi, scales)


def _copied(
    attrs: Any, data: Tensor, steps: list[AxisResize], types: te.Types, name: str
) -> Tensor:
    places = {step.axis: _nearest(attrs, step, f"{name}_places{step.axis}") for step in steps}

    def element(*indices: Term) -> Term:
        at = [places[a](index) if a in places else index for a, index in enumerate(indices)]
        return te.read(data, at)

    return te.by_index(name, te.extents_of(types[0]), element)


def _nearest(attrs: Any, step: AxisResize, name: str) -> Callable[[Term], Term]:
    if not step.is_static:
        return lambda index: resize_axis.nearest(attrs, step, index)
    places = te.table(name, nearest_table(attrs, step))
    return lambda index: places[index]


@dataclass(frozen=True)
class _Taps:
    """The elements of an axis that are averaged: how many, which, and with what weights."""

    count: Operand
    place: Callable[[Term, Term], Term]
    weight: Callable[[Term, Term], Term]


def _taps(attrs: Any, step: AxisResize, name: str, wide: DType) -> _Taps:
    if not step.is_static:
        return _Taps(
            resize_axis.tap_count(attrs, step),
            lambda index, tap: resize_axis.place(attrs, step, index, tap),
            lambda index, tap: resize_axis.weight(attrs, step, index, tap, wide),
        )
    elements, factors = tap_tables(attrs, step)
    places = te.table(f"{name}_places{step.axis}", elements)
    weights = te.table(f"{name}_weights{step.axis}", factors.astype(wide.numpy))
    return _Taps(
        places.shape[1],
        lambda index, tap: places[index, tap],
        lambda index, tap: weights[index, tap],
    )


def _interpolated(
    attrs: Any, data: Tensor, steps: list[AxisResize], types: te.Types, name: str
) -> Tensor:
    """The sum over all combinations of the axes' elements, each with the product of weights."""
    dtype, shape = types[0].dtype, te.extents_of(types[0])
    wide = dtype_of(working_dtype(dtype.numpy))
    found = [(step.axis, _taps(attrs, step, name, wide)) for step in steps]

    def element(*indices: Term) -> Reduce | Term:
        reduced = te.reduce_axes([one.count for _, one in found])
        at, factor = list(indices), te.number(1, wide)
        for place, ((axis, one), tap) in enumerate(zip(found, reduced, strict=True)):
            index = indices[axis]
            at[axis] = one.place(index, tap)
            weight = one.weight(index, tap)
            factor = factor * weight if place else weight
        value = cast(wide, te.read(data, at))
        return sum_(value * factor, reduced) if reduced else value

    total = te.by_index(f"{name}_sum", shape, element)
    return te.by_index(name, shape, lambda *indices: saturated(te.read(total, indices), dtype))


def _axis_by_axis(
    attrs: Any, data: Tensor, steps: list[AxisResize], types: te.Types, name: str
) -> Tensor:
    """One axis after the other: any of them may turn out to stay as it is."""
    dtype, shape = types[0].dtype, list(te.sizes(data))
    wide = dtype_of(working_dtype(dtype.numpy))

    def along(step: AxisResize, source: Tensor, wanted: te.Extents) -> Tensor:
        taps_ = _taps(attrs, step, name, wide)

        def element(*indices: Term) -> Reduce:
            (tap,) = te.reduce_axes([taps_.count])
            at = list(indices)
            at[step.axis] = taps_.place(indices[step.axis], tap)
            weight = taps_.weight(indices[step.axis], tap)
            return sum_(cast(wide, te.read(source, at)) * weight, [tap])

        return te.by_index(f"{name}_axis{step.axis}", wanted, element)

    result = data
    for step in steps:
        shape[step.axis] = step.resized
        result = along(step, result, tuple(shape))
    return te.by_index(name, shape, lambda *indices: saturated(te.read(result, indices), dtype))


def saturated(value: Term, dtype: DType) -> Term:
    """A number in a dtype; integers are rounded and saturate."""
    if not dtype.is_integer:
        return cast(dtype, value)
    limits = np.iinfo(dtype.numpy)
    low, high = int(limits.min), int(limits.max)
    rounded = call("round", value)
    above, below = rounded >= float(high), rounded <= float(low)
    inside = cast(dtype, select(above | below, 0.0, rounded))
    return select(above, high, select(below, low, inside))


def _extrapolated(attrs: Any, steps: list[AxisResize], result: Tensor, name: str) -> Tensor:
    """What looks past the operand's edge is one value."""
    dtype = result.dtype
    value = to_dtype(np.array(attrs.extrapolation_value), dtype.numpy)
    outside = {step.axis: _beyond(attrs, step, f"{name}_outside{step.axis}") for step in steps}

    def element(*indices: Term) -> Term:
        found = te.read(result, indices)
        for axis, flags in outside.items():
            fill = te.number(float(value) if dtype.is_float else int(value), dtype)
            found = select(flags(indices[axis]), fill, found)
        return found

    return te.by_index(name, result.shape, element)


def _beyond(attrs: Any, step: AxisResize, name: str) -> Callable[[Term], Term]:
    if not step.is_static:
        return lambda index: resize_axis.is_outside(attrs, step, index)
    flags = te.table(name, outside_table(attrs, step))
    return lambda index: flags[index]

"""Resizing by tables: which elements each result element looks at, and with what weights."""

from __future__ import annotations

from typing import Any

import numpy as np

from graft.base.dtypes import Array, DType, dtype_of
from graft.loop.build import Term, call, cast, select
from graft.loop.tensor import Reduce, Tensor, sum_
from graft.ops.expression.registry import Inputs, Results, Types, Unexpressed, expresses, table
from graft.ops.expression.shapes import (
    Extents,
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
from graft.ops.resize import (
    AxisResize,
    coordinates,
    nearest,
    plan,
    taps,
    to_dtype,
    working_dtype,
)
from graft.ops.rules import normalize_axes


@expresses("resize")
def resize(attrs: Any, inputs: Inputs, types: Types, name: str) -> Results:
    """Nearest neighbours or weighted sums of a few, along the axes that change."""
    data = present(inputs[0])
    if any(one is not None for one in inputs[1:]):
        return Unexpressed("scales, sizes or the region are known only at run time")
    steps = _steps(attrs, sizes(data), extents_of(types[0]))
    inner = f"{name}_inside" if _crops(attrs) else name
    if attrs.method == "nearest_neighbor":
        result = _copied(attrs, data, steps, types, inner)
    else:
        result = _interpolated(attrs, data, steps, types, inner)
    return (_extrapolated(attrs, steps, result, name) if _crops(attrs) else result,)


def _steps(attrs: Any, before: Extents, after: Extents) -> list[AxisResize]:
    """How axes are resized, those apart that stay as they are, whatever their extents."""
    axes = normalize_axes(range(len(before)) if attrs.axes is None else attrs.axes, len(before))
    scales = attrs.scales or (1.0,) * len(axes)
    idle = {axis for axis, scale in zip(axes, scales, strict=True) if scale == 1}
    same = [
        axis in idle and not is_known(one) and one == after[axis] for axis, one in enumerate(before)
    ]
    have = numbers([1 if kept else one for kept, one in zip(same, before, strict=True)], "extents")
    sized = None
    if attrs.sizes is not None:
        wanted = [1 if same[axis] else one for axis, one in zip(axes, attrs.sizes, strict=True)]
        sized = numbers(wanted, "sizes")
    return plan(attrs, have, attrs.roi, attrs.scales, sized)


def _crops(attrs: Any) -> bool:
    return bool(attrs.coordinate_transformation_mode == "tf_crop_and_resize")


def _copied(attrs: Any, data: Tensor, steps: list[AxisResize], types: Types, name: str) -> Tensor:
    places = {
        step.axis: table(f"{name}_places{step.axis}", nearest(attrs, step).astype(np.int64))
        for step in steps
    }

    def element(*indices: Term) -> Term:
        at = [places[a][index] if a in places else index for a, index in enumerate(indices)]
        return read(data, at)

    return by_index(name, extents_of(types[0]), element)


def _interpolated(
    attrs: Any, data: Tensor, steps: list[AxisResize], types: Types, name: str
) -> Tensor:
    """The sum over all combinations of the axes' elements, each with the product of weights."""
    dtype, shape = types[0].dtype, extents_of(types[0])
    wide = dtype_of(working_dtype(dtype.numpy))
    found = {step.axis: taps(attrs, step) for step in steps}
    places = {a: table(f"{name}_places{a}", pair[0].astype(np.int64)) for a, pair in found.items()}
    weights = {
        a: table(f"{name}_weights{a}", pair[1].astype(wide.numpy)) for a, pair in found.items()
    }

    def element(*indices: Term) -> Reduce | Term:
        reduced = reduce_axes([places[step.axis].shape[1] for step in steps])
        at, factor = list(indices), number(1, wide)
        for step, tap in zip(steps, reduced, strict=True):
            index = indices[step.axis]
            at[step.axis] = places[step.axis][index, tap]
            weight = weights[step.axis][index, tap]
            factor = weight if step is steps[0] else factor * weight
        value = cast(wide, read(data, at))
        return sum_(value * factor, reduced) if reduced else value

    total = by_index(f"{name}_sum", shape, element)
    return by_index(name, shape, lambda *indices: _saturated(read(total, indices), dtype))


def _saturated(value: Term, dtype: DType) -> Term:
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
    outside = {
        step.axis: table(f"{name}_outside{step.axis}", _beyond(attrs, step)) for step in steps
    }

    def element(*indices: Term) -> Term:
        found = read(result, indices)
        for axis, flags in outside.items():
            fill = number(float(value) if dtype.is_float else int(value), dtype)
            found = select(flags[indices[axis]], fill, found)
        return found

    return by_index(name, result.shape, element)


def _beyond(attrs: Any, step: AxisResize) -> Array:
    x = coordinates(attrs, step)
    return np.asarray((x < 0) | (x > step.extent - 1))

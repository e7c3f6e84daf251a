"""Resizing: which elements each result element looks at, and with what weights.

Both are tables where extents are known, and formulas where they are not.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import reduce
from typing import Any

import numpy as np

from graft.base.dims import AnyDim
from graft.base.dtypes import DType, dtype_of
from graft.loop.build import Operand, Term, call, cast, maximum, minimum, select, term
from graft.loop.tensor import Reduce, Tensor, sum_
from graft.ops import expression as te
from graft.ops import resize_formulas as formulas
from graft.ops.resize import AxisResize, coordinates, nearest, plan, taps, to_dtype, working_dtype
from graft.ops.resize_formulas import SymbolicResize
from graft.ops.rules import normalize_axes

Step = AxisResize | SymbolicResize
_WIDE = DType.FLOAT64


@te.expresses("resize")
def resize(attrs: Any, inputs: te.Inputs, types: te.Types, name: str) -> te.Results:
    """Nearest neighbours or weighted sums of a few, along the axes that change."""
    data = te.present(inputs[0])
    at_run_time = any(one is not None for one in inputs[1:])
    if at_run_time:
        steps = _steps_of_data(attrs, inputs, te.extents_of(types[0]))
    else:
        steps = resize_steps(attrs, te.sizes(data), te.extents_of(types[0]))
    inner = f"{name}_inside" if _crops(attrs) else name
    if attrs.method == "nearest_neighbor":
        result = _copied(attrs, data, steps, types, inner)
    elif at_run_time:
        result = _axis_by_axis(attrs, data, steps, types, inner)
    else:
        result = _interpolated(attrs, data, steps, types, inner)
    return (_extrapolated(attrs, steps, result, name) if _crops(attrs) else result,)


def resize_steps(attrs: Any, before: te.Extents, after: te.Extents) -> list[Step]:
    """How axes are resized, those apart that stay as they are."""
    axes = normalize_axes(range(len(before)) if attrs.axes is None else attrs.axes, len(before))
    unknown = [
        not (te.is_known(old) and te.is_known(new)) for old, new in zip(before, after, strict=True)
    ]
    if any(unknown) and attrs.keep_aspect_ratio_policy != "stretch" and attrs.scales is None:
        raise te.NumbersNeededError("the extents whose ratio is kept are known only at run time")
    # Axes of unknown extents do not count as resized where the tables are planned.
    have = te.numbers([1 if unknown[n] else old for n, old in enumerate(before)], "extents")
    sized = scales = None
    if attrs.sizes is not None:
        pairs = zip(axes, attrs.sizes, strict=True)
        sized = te.numbers([1 if unknown[axis] else size for axis, size in pairs], "sizes")
    if attrs.scales is not None:
        pairs = zip(axes, attrs.scales, strict=True)
        scales = tuple(1.0 if unknown[axis] else scale for axis, scale in pairs)
    known = [step for step in plan(attrs, have, attrs.roi, scales, sized) if not unknown[step.axis]]
    found = [_symbolic(attrs, n, axis, before[axis], after[axis]) for n, axis in enumerate(axes)]
    return sorted(
        [*known, *(step for step in found if unknown[step.axis] and not _is_idle(step))],
        key=lambda step: step.axis,
    )


def _steps_of_data(attrs: Any, inputs: te.Inputs, after: te.Extents) -> list[Step]:
    """How axes are resized by numbers that are operands."""
    before, (roi, scales, wanted) = te.sizes(te.present(inputs[0])), inputs[1:]
    axes = normalize_axes(range(len(before)) if attrs.axes is None else attrs.axes, len(before))
    count, common = len(axes), None
    if attrs.keep_aspect_ratio_policy != "stretch" and scales is None and attrs.scales is None:
        given = (
            [term(size) for size in attrs.sizes or ()]
            if wanted is None
            else [te.read(wanted, [n]) for n in range(count)]
        )
        pairs = zip(given, axes, strict=True)
        ratios = [cast(_WIDE, size) / cast(_WIDE, before[axis]) for size, axis in pairs]
        common = reduce(
            minimum if attrs.keep_aspect_ratio_policy == "not_larger" else maximum, ratios
        )

    def step(n: int, axis: int) -> SymbolicResize:
        scale = common if attrs.scales is None else attrs.scales[n]
        if scales is not None:
            scale = te.read(scales, [n])
        start, end = (0.0, 1.0) if attrs.roi is None else (attrs.roi[n], attrs.roi[count + n])
        if roi is not None:
            start, end = (cast(_WIDE, te.read(roi, [at])) for at in (n, count + n))
        if not _crops(attrs):
            start, end = 0.0, 1.0
        return SymbolicResize(axis, before[axis], after[axis], scale, start, end)

    return sorted((step(n, axis) for n, axis in enumerate(axes)), key=lambda one: one.axis)


def _symbolic(attrs: Any, number: int, axis: int, old: AnyDim, new: AnyDim) -> SymbolicResize:
    scale = None if attrs.scales is None else attrs.scales[number]
    if not _crops(attrs) or attrs.roi is None:
        return SymbolicResize(axis, old, new, scale)
    count = len(attrs.roi) // 2
    return SymbolicResize(axis, old, new, scale, attrs.roi[number], attrs.roi[count + number])


def _is_idle(step: SymbolicResize) -> bool:
    same = step.extent == step.resized and step.scale in (None, 1)
    return same and (step.start, step.end) == (0.0, 1.0)


def _crops(attrs: Any) -> bool:
    return bool(attrs.coordinate_transformation_mode == "tf_crop_and_resize")


def _copied(attrs: Any, data: Tensor, steps: list[Step], types: te.Types, name: str) -> Tensor:
    places = {step.axis: _nearest(attrs, step, f"{name}_places{step.axis}") for step in steps}

    def element(*indices: Term) -> Term:
        at = [places[a](index) if a in places else index for a, index in enumerate(indices)]
        return te.read(data, at)

    return te.by_index(name, te.extents_of(types[0]), element)


def _nearest(attrs: Any, step: Step, name: str) -> Callable[[Term], Term]:
    if isinstance(step, SymbolicResize):
        return lambda index: formulas.nearest(attrs, step, index)
    numbers_of = te.table(name, nearest(attrs, step).astype(np.int64))
    return lambda index: numbers_of[index]


@dataclass(frozen=True)
class _Taps:
    """The elements of an axis that are averaged: how many, which, and with what weights."""

    count: Operand
    place: Callable[[Term, Term], Term]
    weight: Callable[[Term, Term], Term]


def _taps(attrs: Any, step: Step, name: str, wide: DType) -> _Taps:
    if isinstance(step, SymbolicResize):
        return _Taps(
            formulas.tap_count(attrs),
            lambda index, tap: formulas.place(attrs, step, index, tap),
            lambda index, tap: formulas.weight(attrs, step, index, tap, wide),
        )
    elements, factors = taps(attrs, step)
    places = te.table(f"{name}_places{step.axis}", elements.astype(np.int64))
    weights = te.table(f"{name}_weights{step.axis}", factors.astype(wide.numpy))
    return _Taps(
        places.shape[1],
        lambda index, tap: places[index, tap],
        lambda index, tap: weights[index, tap],
    )


def _interpolated(
    attrs: Any, data: Tensor, steps: list[Step], types: te.Types, name: str
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
    attrs: Any, data: Tensor, steps: list[Step], types: te.Types, name: str
) -> Tensor:
    """One axis after the other: any of them may turn out to stay as it is."""
    dtype, shape = types[0].dtype, list(te.sizes(data))
    wide = dtype_of(working_dtype(dtype.numpy))

    def along(step: Step, source: Tensor, wanted: te.Extents) -> Tensor:
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


def _extrapolated(attrs: Any, steps: list[Step], result: Tensor, name: str) -> Tensor:
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


def _beyond(attrs: Any, step: Step, name: str) -> Callable[[Term], Term]:
    if isinstance(step, SymbolicResize):
        return lambda index: formulas.is_outside(attrs, step, index)
    x = coordinates(attrs, step)
    flags = te.table(name, np.asarray((x < 0) | (x > step.extent - 1)))
    return lambda index: flags[index]

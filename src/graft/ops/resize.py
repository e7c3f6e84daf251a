"""Resizing along any axes: nearest neighbour, linear and cubic interpolation, antialiased or not.

In go a tensor and either the factor (`scales`) or the wanted extent (`sizes`) of each axis; out
comes the resampled tensor. Interpolation is separable, so that an axis is described by itself
(`resize_axis.py`). Interpolated integers are rounded to the nearest even one and saturate.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import reduce
from typing import Any

import numpy as np

from graft.base.capacity import check_extents
from graft.base.dim_questions import provably_below, provably_different
from graft.base.dims import UNKNOWN, AnyDim
from graft.base.dtypes import Array, DType, dtype_of
from graft.ir.attrs import Attrs, Dims, Floats, Ints
from graft.ir.op import Kind, Work, movement_work, traffic
from graft.ir.types import Shape, TensorType
from graft.loop.build import Operand, Term, call, cast, maximum, minimum, select
from graft.loop.tensor import Reduce, Tensor, sum_
from graft.ops import expression as te
from graft.ops import resize_axis
from graft.ops.resize_axis import (
    COORDINATES,
    RADII,
    ROUNDINGS,
    AxisResize,
    nearest_table,
    outside_table,
    tap_tables,
)
from graft.ops.rules import normalize_axes, operator, require, unknown_shape


@dataclass(frozen=True, slots=True)
class ResizeAttrs(Attrs):
    roi: Floats | None = None  # starts, then ends, as fractions of the operand's extents
    scales: Floats | None = None
    sizes: Dims | None = None
    axes: Ints | None = None  # what roi, scales and sizes speak of; None: all axes
    method: str = "nearest_neighbor"
    coordinate_transformation_mode: str = "half_pixel"
    rounding_method: str = "round_prefer_floor"
    cubic_alpha: float = -0.75
    exclude_outside: bool = False
    antialias: bool = False
    extrapolation_value: float = 0.0
    keep_aspect_ratio_policy: str = "stretch"


_METHODS = ("nearest_neighbor", *RADII)
_POLICIES: dict[str, Callable[[list[float]], float]] = {"not_larger": min, "not_smaller": max}


def _scaled(extent: AnyDim, scale: float) -> AnyDim:
    """floor(extent * scale), in float32 where both are numbers, as ONNX infers shapes."""
    if isinstance(extent, int):
        with np.errstate(over="ignore"):
            scaled = np.floor(np.float32(extent) * np.float32(scale))
        require(bool(np.isfinite(scaled)), f"{extent} times {scale} is no extent")
        return int(scaled)
    exact = Fraction(scale)
    if exact.denominator <= 1024 and exact.numerator <= 1024:  # float32 makes no error then
        return extent * exact.numerator // exact.denominator
    return UNKNOWN


def common_scale(attrs: ResizeAttrs, extents: Sequence[int], sizes: Sequence[int]) -> float:
    """The scale of all axes where their ratio is kept."""
    require(0 not in extents, "the aspect ratio of an empty tensor cannot be kept")
    ratios = [size / extent for extent, size in zip(extents, sizes, strict=True)]
    return _POLICIES[attrs.keep_aspect_ratio_policy](ratios)


def _resized(
    attrs: ResizeAttrs, extents: Sequence[AnyDim], scales: Floats | None, sizes: Dims | None
) -> list[AnyDim]:
    """The extents of the resized axes after resizing."""
    if scales is not None:
        require(all(scale > 0 for scale in scales), f"scales have to be positive: {list(scales)}")
        require(math.inf not in scales, f"scales have to be finite: {list(scales)}")
        return [_scaled(extent, scale) for extent, scale in zip(extents, scales, strict=True)]
    assert sizes is not None
    numbers = [size for size in sizes if isinstance(size, int)]
    require(min(numbers, default=0) >= 0, f"sizes cannot be negative: {list(sizes)}")
    if attrs.keep_aspect_ratio_policy == "stretch":
        return list(sizes)
    before = [extent for extent in extents if isinstance(extent, int)]
    if len(before) < len(extents) or len(numbers) < len(sizes):
        return [UNKNOWN] * len(extents)
    scale = common_scale(attrs, before, numbers)
    return [int(scale * extent + 0.5) for extent in before]


def _resize_type(
    attrs: ResizeAttrs,
    data: TensorType,
    roi: TensorType | None,
    scales: TensorType | None,
    sizes: TensorType | None,
) -> TensorType:
    _check_attrs(attrs, data.dtype)
    by_scale = attrs.scales is not None or scales is not None
    by_size = attrs.sizes is not None or sizes is not None
    require(by_scale != by_size, "wants either scales or sizes")
    cropped = crops(attrs)
    require(not cropped or roi is not None or attrs.roi is not None, "cropping wants a roi")
    words = data.dtype is DType.STRING
    require(not (cropped and words), "strings have no value to extrapolate with")
    factors = attrs.scales if attrs.sizes is None else attrs.sizes
    shape = data.shape
    if shape is None:
        if attrs.axes is not None or factors is None:
            return TensorType(data.dtype, None)
        shape = unknown_shape(len(factors))
    count = len(shape if attrs.axes is None else attrs.axes)
    for what, operand, expected in (("scales", scales, 1), ("sizes", sizes, 1), ("roi", roi, 2)):
        if operand is not None:
            fits = not provably_different(operand.size, expected * count)
            require(fits, f"{what} has {operand.size} elements for {count} axes")
    return TensorType(data.dtype, _resized_shape(attrs, shape, factors))


def _resized_shape(attrs: ResizeAttrs, shape: Shape, factors: Sequence[Any] | None) -> Shape:
    axes = axes_of(attrs, len(shape))
    result = list(shape)
    if factors is None:
        extents: list[AnyDim] = [UNKNOWN] * len(axes)
    else:
        _check_lengths(len(axes), attrs.roi, attrs.scales, attrs.sizes)
        extents = _resized(attrs, [shape[axis] for axis in axes], attrs.scales, attrs.sizes)
    for axis, extent in zip(axes, extents, strict=True):
        grows = provably_below(shape[axis], 1) and provably_below(0, extent)
        require(not grows, "an empty axis cannot grow")
        result[axis] = extent
    return tuple(result)


def _check_lengths(
    count: int, roi: Floats | None, scales: Floats | None, sizes: Dims | None
) -> None:
    for what, numbers, expected in (("scales", scales, 1), ("sizes", sizes, 1), ("roi", roi, 2)):
        fits = numbers is None or len(numbers) == expected * count
        require(fits, f"{what} has {len(numbers or ())} elements for {count} axes")


def _check_attrs(attrs: ResizeAttrs, dtype: DType) -> None:
    choices: list[tuple[str, str, Sequence[str]]] = [
        ("method", attrs.method, _METHODS),
        ("coordinate mode", attrs.coordinate_transformation_mode, tuple(COORDINATES)),
        ("rounding", attrs.rounding_method, tuple(ROUNDINGS)),
        ("aspect ratio policy", attrs.keep_aspect_ratio_policy, ("stretch", *_POLICIES)),
    ]
    for what, value, known in choices:
        require(value in known, f"the {what} '{value}' is none of {', '.join(known)}")
    weighs = interpolates(attrs)
    require(not weighs or dtype.is_number, f"{dtype} elements cannot be interpolated")
    require(weighs or not attrs.antialias, "nearest neighbour has no antialiasing")


def crops(attrs: ResizeAttrs) -> bool:
    """Whether a region of the operand is resized, which may reach beyond it."""
    return attrs.coordinate_transformation_mode == "tf_crop_and_resize"


def interpolates(attrs: ResizeAttrs) -> bool:
    """Whether results are weighted sums, which integers are rounded from."""
    return attrs.method != "nearest_neighbor"


def axes_of(attrs: ResizeAttrs, rank: int) -> Ints:
    """The axes that roi, scales and sizes refer to."""
    return normalize_axes(range(rank) if attrs.axes is None else attrs.axes, rank)


def axis_steps(
    attrs: ResizeAttrs,
    before: Sequence[AnyDim],
    after: Sequence[AnyDim],
    roi: Sequence[Any] | None,
    scales: Sequence[Any] | None,
) -> list[AxisResize]:
    """How each axis is resized, those left out that surely stay as they are."""
    axes = axes_of(attrs, len(before))
    count, borders = len(axes), roi if crops(attrs) else None
    borders = borders or (*(0.0,) * count, *(1.0,) * count)
    numbers = zip(axes, scales or (None,) * count, borders[:count], borders[count:], strict=True)
    steps = [AxisResize(axis, before[axis], after[axis], *rest) for axis, *rest in numbers]
    return sorted((step for step in steps if not step.is_idle), key=lambda step: step.axis)


def _interpolated(attrs: ResizeAttrs, axis: AxisResize, data: Array) -> Array:
    elements, weights = tap_tables(attrs, axis)
    aligned = (-1, *[1] * (data.ndim - axis.axis - 1))
    shape = (*data.shape[: axis.axis], len(elements), *data.shape[axis.axis + 1 :])
    total = np.zeros(shape, data.dtype)
    for tap in range(elements.shape[1]):
        factor = weights[:, tap].astype(data.dtype).reshape(aligned)
        total += np.take(data, elements[:, tap], axis=axis.axis) * factor
    return total


def _extrapolate(attrs: ResizeAttrs, steps: Sequence[AxisResize], result: Array) -> Array:
    """The result with elements read beyond the operand's edge replaced."""
    outside = np.zeros((1,) * result.ndim, dtype=bool)
    for axis in steps:
        beyond = outside_table(attrs, axis)
        outside = outside | beyond.reshape(-1, *[1] * (result.ndim - axis.axis - 1))
    value = to_dtype(np.array(attrs.extrapolation_value), result.dtype)
    return np.where(outside, value, result)


def working_dtype(dtype: np.dtype[Any]) -> np.dtype[Any]:
    """What to interpolate elements of a dtype in."""
    kind = dtype_of(dtype)
    if kind.is_complex:
        return dtype
    exact = kind is not DType.FLOAT64 and (kind.is_float or dtype.itemsize <= 2)
    return np.dtype(np.float32 if exact else np.float64)


def to_dtype(numbers: Array, dtype: np.dtype[Any]) -> Array:
    """Numbers brought into a dtype; integers are rounded and saturate."""
    if not dtype_of(dtype).is_integer:
        return numbers.astype(dtype)
    limits = np.iinfo(dtype)
    rounded = np.rint(numbers)
    above, below = rounded >= float(limits.max), rounded <= float(limits.min)
    inside = np.where(above | below, 0, rounded).astype(dtype)
    return np.where(above, limits.max, np.where(below, limits.min, inside)).astype(dtype)


def _resize_work(attrs: ResizeAttrs, ins: Sequence[TensorType], outs: Sequence[TensorType]) -> Work:
    if not interpolates(attrs):
        return movement_work(attrs, ins, outs)
    data, result = ins[0], outs[0]
    changed = 1
    if data.shape is not None and result.shape is not None:
        changed = sum(a != b for a, b in zip(data.shape, result.shape, strict=True))
    per_axis = 4 * RADII[attrs.method]  # two taps per unit of reach, a product and a sum each
    return Work(0, result.size * (per_axis * changed), traffic(ins, outs))


@operator("resize", "data roi? scales? sizes?", _resize_type, kind=Kind.ANCHOR, work=_resize_work)
def _resize(attrs: ResizeAttrs, data: Array) -> Array:
    """Images of another size: nearest, linear or cubic, by scales or sizes."""
    factors: Any = attrs.scales
    expected: Any = attrs.sizes
    axes = axes_of(attrs, data.ndim)
    _check_lengths(len(axes), attrs.roi, factors, expected)
    before, extents = [data.shape[axis] for axis in axes], list[Any](data.shape)
    for axis, extent in zip(axes, _resized(attrs, before, factors, expected), strict=True):
        extents[axis] = extent
        if data.shape[axis] == 0 < extents[axis]:
            raise ValueError("an empty axis cannot grow")
    if factors is None and attrs.keep_aspect_ratio_policy != "stretch":
        factors = (common_scale(attrs, before, expected),) * len(axes)
    steps = axis_steps(attrs, data.shape, extents, attrs.roi, factors)
    check_extents(extents, data.dtype, "resize")
    if 0 in extents:
        return np.zeros(extents, data.dtype)
    if not interpolates(attrs):
        result = data
        for step in steps:
            result = np.take(result, nearest_table(attrs, step), axis=step.axis)
    else:
        result = data.astype(working_dtype(data.dtype))
        for step in steps:
            result = _interpolated(attrs, step, result)
        result = to_dtype(result, data.dtype)
    if crops(attrs):
        result = _extrapolate(attrs, steps, result)
    return result


_WIDE = DType.FLOAT64


@te.expresses("resize")
def resize(attrs: Any, out: te.Out, data: Tensor, *operands: Tensor | None) -> te.Results:
    """Nearest neighbours or weighted sums of a few, along the axes that change."""
    steps = resize_steps(attrs, te.sizes(data), out.shape, operands)
    inner = te.Out(f"{out.name}_inside", out.types) if crops(attrs) else out
    if not interpolates(attrs):
        result = _copied(attrs, data, steps, inner)
    elif any(operand is not None for operand in operands):
        result = _axis_by_axis(attrs, data, steps, inner)
    else:
        result = _interpolated_tensor(attrs, data, steps, inner)
    return (_extrapolated_tensor(attrs, steps, result, out.name) if crops(attrs) else result,)


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


def _copied(attrs: Any, data: Tensor, steps: list[AxisResize], out: te.Out) -> Tensor:
    positions = {
        step.axis: _nearest(attrs, step, f"{out.name}_places{step.axis}") for step in steps
    }

    def element(*indices: Term) -> Term:
        at = [positions[a](index) if a in positions else index for a, index in enumerate(indices)]
        return te.read(data, at)

    return te.by_index(out.name, out.shape, element)


def _nearest(attrs: Any, step: AxisResize, name: str) -> Callable[[Term], Term]:
    if not step.is_static:
        return lambda index: resize_axis.nearest(attrs, step, index)
    positions = te.table(name, nearest_table(attrs, step))
    return lambda index: positions[index]


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
    positions = te.table(f"{name}_places{step.axis}", elements)
    weights = te.table(f"{name}_weights{step.axis}", factors.astype(wide.numpy))
    return _Taps(
        positions.shape[1],
        lambda index, tap: positions[index, tap],
        lambda index, tap: weights[index, tap],
    )


def _interpolated_tensor(attrs: Any, data: Tensor, steps: list[AxisResize], out: te.Out) -> Tensor:
    """The sum over all combinations of the axes' elements, each with the product of weights."""
    wide = dtype_of(working_dtype(out.dtype.numpy))
    tap_axes = [(step.axis, _taps(attrs, step, out.name, wide)) for step in steps]

    def element(*indices: Term) -> Reduce | Term:
        reduced = te.reduce_axes([one.count for _, one in tap_axes])
        at, factor = list(indices), te.number(1, wide)
        for position, ((axis, one), tap) in enumerate(zip(tap_axes, reduced, strict=True)):
            index = indices[axis]
            at[axis] = one.place(index, tap)
            weight = one.weight(index, tap)
            factor = factor * weight if position else weight
        value = cast(wide, te.read(data, at))
        return sum_(value * factor, reduced) if reduced else value

    total = te.by_index(f"{out.name}_sum", out.shape, element)
    return _saturated_tensor(total, out)


def _saturated_tensor(total: Tensor, out: te.Out) -> Tensor:
    return te.by_index(out.name, total.shape, lambda *at: saturated(te.read(total, at), out.dtype))


def _axis_by_axis(attrs: Any, data: Tensor, steps: list[AxisResize], out: te.Out) -> Tensor:
    """One axis after the other: at run time, any of them may keep its extent."""
    shape, wide = list(te.sizes(data)), dtype_of(working_dtype(out.dtype.numpy))

    def along(step: AxisResize, source: Tensor, expected: te.Extents) -> Tensor:
        taps_ = _taps(attrs, step, out.name, wide)

        def element(*indices: Term) -> Reduce:
            (tap,) = te.reduce_axes([taps_.count])
            at = list(indices)
            at[step.axis] = taps_.place(indices[step.axis], tap)
            weight = taps_.weight(indices[step.axis], tap)
            return sum_(cast(wide, te.read(source, at)) * weight, [tap])

        return te.by_index(f"{out.name}_axis{step.axis}", expected, element)

    result = data
    for step in steps:
        shape[step.axis] = step.resized
        result = along(step, result, tuple(shape))
    return _saturated_tensor(result, out)


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


def _extrapolated_tensor(attrs: Any, steps: list[AxisResize], result: Tensor, name: str) -> Tensor:
    """Elements read beyond the operand's edge replaced by one value."""
    dtype = result.dtype
    value = to_dtype(np.array(attrs.extrapolation_value), dtype.numpy)
    outside = {step.axis: _beyond(attrs, step, f"{name}_outside{step.axis}") for step in steps}

    def element(*indices: Term) -> Term:
        pixel = te.read(result, indices)
        for axis, flags in outside.items():
            fill = te.number(float(value) if dtype.is_float else int(value), dtype)
            pixel = select(flags(indices[axis]), fill, pixel)
        return pixel

    return te.by_index(name, result.shape, element)


def _beyond(attrs: Any, step: AxisResize, name: str) -> Callable[[Term], Term]:
    if not step.is_static:
        return lambda index: resize_axis.is_outside(attrs, step, index)
    flags = te.table(name, outside_table(attrs, step))
    return lambda index: flags[index]

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
from typing import Any

import numpy as np

from graft.base.capacity import check_extents
from graft.base.dim_questions import provably_below, provably_different
from graft.base.dims import UNKNOWN, AnyDim
from graft.base.dtypes import Array, DType, dtype_of
from graft.ir.attrs import Attrs, Dims, Floats, Ints
from graft.ir.op import Kind, Work, movement_work, traffic
from graft.ir.types import Shape, TensorType
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
    wanted = [size for size in sizes if isinstance(size, int)]
    require(min(wanted, default=0) >= 0, f"sizes cannot be negative: {list(sizes)}")
    if attrs.keep_aspect_ratio_policy == "stretch":
        return list(sizes)
    before = [extent for extent in extents if isinstance(extent, int)]
    if len(before) < len(extents) or len(wanted) < len(sizes):
        return [UNKNOWN] * len(extents)
    scale = common_scale(attrs, before, wanted)
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
    given = attrs.scales if attrs.sizes is None else attrs.sizes
    shape = data.shape
    if shape is None:
        if attrs.axes is not None or given is None:
            return TensorType(data.dtype, None)
        shape = unknown_shape(len(given))
    count = len(shape if attrs.axes is None else attrs.axes)
    for what, operand, wanted in (("scales", scales, 1), ("sizes", sizes, 1), ("roi", roi, 2)):
        if operand is not None:
            fits = not provably_different(operand.size, wanted * count)
            require(fits, f"{what} has {operand.size} elements for {count} axes")
    return TensorType(data.dtype, _resized_shape(attrs, shape, given))


def _resized_shape(attrs: ResizeAttrs, shape: Shape, given: Sequence[Any] | None) -> Shape:
    axes = axes_of(attrs, len(shape))
    result = list(shape)
    if given is None:
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
    for what, given, wanted in (("scales", scales, 1), ("sizes", sizes, 1), ("roi", roi, 2)):
        fits = given is None or len(given) == wanted * count
        require(fits, f"{what} has {len(given or ())} elements for {count} axes")


def _check_attrs(attrs: ResizeAttrs, dtype: DType) -> None:
    choices: list[tuple[str, str, Sequence[str]]] = [
        ("method", attrs.method, _METHODS),
        ("coordinate mode", attrs.coordinate_transformation_mode, tuple(COORDINATES)),
        ("rounding", attrs.rounding_method, tuple(ROUNDINGS)),
        ("aspect ratio policy", attrs.keep_aspect_ratio_policy, ("stretch", *_POLICIES)),
    ]
    for what, value, known in choices:
        require(value in known, f"the {what} '{value}' is none of {', '.join(known)}")
    copies = attrs.method == "nearest_neighbor"
    require(copies or dtype.is_number, f"{dtype} elements cannot be interpolated")
    require(not (copies and attrs.antialias), "nearest neighbour has no antialiasing")


def crops(attrs: ResizeAttrs) -> bool:
    """Whether a region of the operand is resized, which may reach beyond it."""
    return attrs.coordinate_transformation_mode == "tf_crop_and_resize"


def axes_of(attrs: ResizeAttrs, rank: int) -> Ints:
    """The axes that roi, scales and sizes speak of."""
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


def _given(attribute: Any, operand: Array | None) -> Any:
    """The value from whichever of the two holds it."""
    return attribute if operand is None else tuple(operand.reshape(-1).tolist())


def _interpolated(attrs: ResizeAttrs, axis: AxisResize, data: Array) -> Array:
    elements, weights = tap_tables(attrs, axis)
    aligned = (-1, *[1] * (data.ndim - axis.axis - 1))
    shape = (*data.shape[: axis.axis], len(elements), *data.shape[axis.axis + 1 :])
    total = np.zeros(shape, data.dtype)
    for tap in range(elements.shape[1]):
        factor = weights[:, tap].astype(data.dtype).reshape(aligned)
        total += np.take(data, elements[:, tap], axis=axis.axis) * factor
    return total


def _extrapolated(attrs: ResizeAttrs, steps: Sequence[AxisResize], result: Array) -> Array:
    """The result with everything that looks past the operand's edge replaced."""
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
    if attrs.method == "nearest_neighbor":
        return movement_work(attrs, ins, outs)
    data, result = ins[0], outs[0]
    changed = 1
    if data.shape is not None and result.shape is not None:
        changed = sum(a != b for a, b in zip(data.shape, result.shape, strict=True))
    per_axis = 4 * RADII[attrs.method]  # two taps per unit of reach, a product and a sum each
    return Work(0, result.size * (per_axis * changed), traffic(ins, outs))


@operator("resize", "data roi? scales? sizes?", _resize_type, kind=Kind.ANCHOR, work=_resize_work)
def _resize(
    attrs: ResizeAttrs, data: Array, roi: Array | None, scales: Array | None, sizes: Array | None
) -> Array:
    """Images of another size: nearest, linear or cubic, by scales or sizes."""
    region, factors = _given(attrs.roi, roi), _given(attrs.scales, scales)
    wanted, axes = _given(attrs.sizes, sizes), axes_of(attrs, data.ndim)
    _check_lengths(len(axes), region, factors, wanted)
    before, extents = [data.shape[axis] for axis in axes], list[Any](data.shape)
    for axis, extent in zip(axes, _resized(attrs, before, factors, wanted), strict=True):
        extents[axis] = extent
        if data.shape[axis] == 0 < extents[axis]:
            raise ValueError("an empty axis cannot grow")
    if factors is None and attrs.keep_aspect_ratio_policy != "stretch":
        factors = (common_scale(attrs, before, wanted),) * len(axes)
    steps = axis_steps(attrs, data.shape, extents, region, factors)
    check_extents(extents, data.dtype, "resize")
    if 0 in extents:
        return np.zeros(extents, data.dtype)
    if attrs.method == "nearest_neighbor":
        result = data
        for step in steps:
            result = np.take(result, nearest_table(attrs, step), axis=step.axis)
    else:
        result = data.astype(working_dtype(data.dtype))
        for step in steps:
            result = _interpolated(attrs, step, result)
        result = to_dtype(result, data.dtype)
    if crops(attrs):
        result = _extrapolated(attrs, steps, result)
    return result

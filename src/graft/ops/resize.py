"""Resizing along any axes: nearest neighbour, linear and cubic interpolation, antialiased or not.

In go a tensor and either the factor (`scales`) or the wanted extent (`sizes`) of each axis; out
comes the resampled tensor. Interpolation is separable, so that an axis is described by itself: by
the coordinate in the operand that each result element looks at, and by the elements around that
coordinate with the weight of each (`taps`).

Two choices are not in the formulas. Nearest neighbour computes coordinates in float32, as every
engine in use does: what rounds to which neighbour depends on it. Interpolated integers are
rounded to the nearest even one and saturate.
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


@dataclass(frozen=True, slots=True)
class AxisResize:
    """How one axis is resized; `width` is `resized` before it was cut to a whole number."""

    axis: int
    extent: int
    resized: int
    scale: float
    width: float
    start: float = 0.0
    end: float = 1.0

    @property
    def is_idle(self) -> bool:
        unscaled = self.scale == 1 and self.extent == self.resized
        return unscaled and (self.start, self.end) == (0.0, 1.0)


def _align_corners(axis: AxisResize, x: Array) -> Array:
    # The fractional width is what ONNX's own cases expect when scales are given.
    return x * 0 if axis.width == 1 else x * (axis.extent - 1) / (axis.width - 1)


def _half_pixel(axis: AxisResize, x: Array) -> Array:
    return (x + 0.5) / axis.scale - 0.5


def _half_pixel_symmetric(axis: AxisResize, x: Array) -> Array:
    offset = axis.extent / 2 * (1 - axis.resized / axis.width)
    return offset + _half_pixel(axis, x)


def _crop(axis: AxisResize, x: Array) -> Array:
    last = axis.extent - 1
    if axis.resized == 1:
        return x * 0 + 0.5 * (axis.start + axis.end) * last
    span = axis.end - axis.start
    return axis.start * last + x * span * last / (axis.resized - 1)


# Where in the operand the result elements at positions x look, in the floats that x holds.
_COORDINATES: dict[str, Callable[[AxisResize, Array], Array]] = {
    "half_pixel": _half_pixel,
    "half_pixel_symmetric": _half_pixel_symmetric,
    "pytorch_half_pixel": lambda axis, x: _half_pixel(axis, x) if axis.resized > 1 else x * 0,
    "align_corners": _align_corners,
    "asymmetric": lambda axis, x: x / axis.scale,
    "tf_half_pixel_for_nn": lambda axis, x: (x + 0.5) / axis.scale,
    "tf_crop_and_resize": _crop,
}


# How near to halfway between two elements counts as halfway; float32 may just have missed it.
HALFWAY = 1e-6


def _simple(axis: AxisResize, x: Array) -> Array:
    return np.ceil(x) if axis.scale < 1 else np.floor(x)


# "simple" is the rule of the times when there was no choice: down when growing, up when shrinking.
_ROUNDINGS: dict[str, Callable[[AxisResize, Array], Array]] = {
    "round_prefer_floor": lambda axis, x: np.ceil(x - (0.5 + HALFWAY)),
    "round_prefer_ceil": lambda axis, x: np.floor(x + (0.5 + HALFWAY)),
    "floor": lambda axis, x: np.floor(x),
    "ceil": lambda axis, x: np.ceil(x),
    "simple": _simple,
}

# How far around a coordinate, in elements, the interpolation reaches.
RADII = {"linear": 1, "cubic": 2}
_METHODS = ("nearest_neighbor", *RADII)
_POLICIES: dict[str, Callable[[list[float]], float]] = {"not_larger": min, "not_smaller": max}


def _kernel(attrs: ResizeAttrs, distance: Array) -> Array:
    """The weight of an element at a distance from the coordinate."""
    d = np.abs(distance)
    if attrs.method == "linear":
        return np.asarray(np.maximum(1 - d, 0))
    a = attrs.cubic_alpha
    near = ((a + 2) * d - (a + 3)) * d * d + 1
    far = ((a * d - 5 * a) * d + 8 * a) * d - 4 * a
    return np.where(d <= 1, near, np.where(d < 2, far, 0))


def coordinates(attrs: ResizeAttrs, axis: AxisResize) -> Array:
    """Per result position, the coordinate in the operand that it looks at."""
    dtype = np.float32  # as scales are: other implementations round coordinates alike
    positions = np.arange(axis.resized, dtype=dtype)
    return _COORDINATES[attrs.coordinate_transformation_mode](axis, positions)


def nearest(attrs: ResizeAttrs, axis: AxisResize) -> Array:
    """Per result position, the operand's element that it is a copy of."""
    rounded = _ROUNDINGS[attrs.rounding_method](axis, coordinates(attrs, axis))
    return np.clip(rounded, 0, axis.extent - 1).astype(np.intp)


def taps(attrs: ResizeAttrs, axis: AxisResize) -> tuple[Array, Array]:
    """Per result position, the operand's elements that it averages and the weight of each."""
    x = coordinates(attrs, axis)[:, None]
    shrink = min(axis.scale, 1.0) if attrs.antialias else 1.0
    reach = RADII[attrs.method] / shrink
    elements = np.floor(x - reach) + 1 + np.arange(int(np.ceil(2 * reach)))
    weights = _kernel(attrs, (elements - x) * shrink)
    if attrs.antialias:
        weights = weights / weights.sum(axis=1, keepdims=True)
    if attrs.exclude_outside:
        weights = np.where((elements < 0) | (elements >= axis.extent), 0, weights)
        total = weights.sum(axis=1, keepdims=True)
        weights = weights / np.where(total == 0, 1, total)
    return np.clip(elements, 0, axis.extent - 1).astype(np.intp), weights


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


def _common_scale(policy: str, extents: Sequence[int], sizes: Sequence[int]) -> float:
    require(0 not in extents, "the aspect ratio of an empty tensor cannot be kept")
    return _POLICIES[policy]([size / e for e, size in zip(extents, sizes, strict=True)])


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
    scale = _common_scale(attrs.keep_aspect_ratio_policy, before, wanted)
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
    cropped = attrs.coordinate_transformation_mode == "tf_crop_and_resize"
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
    axes = normalize_axes(range(len(shape)) if attrs.axes is None else attrs.axes, len(shape))
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
        ("coordinate mode", attrs.coordinate_transformation_mode, tuple(_COORDINATES)),
        ("rounding", attrs.rounding_method, tuple(_ROUNDINGS)),
        ("aspect ratio policy", attrs.keep_aspect_ratio_policy, ("stretch", *_POLICIES)),
    ]
    for what, value, known in choices:
        require(value in known, f"the {what} '{value}' is none of {', '.join(known)}")
    copies = attrs.method == "nearest_neighbor"
    require(copies or dtype.is_number, f"{dtype} elements cannot be interpolated")
    require(not (copies and attrs.antialias), "nearest neighbour has no antialiasing")


def plan(
    attrs: ResizeAttrs,
    shape: Sequence[int],
    roi: Floats | None,
    scales: Floats | None,
    sizes: Ints | None,
) -> list[AxisResize]:
    """How each axis is resized, those that stay as they are left out."""
    axes = normalize_axes(range(len(shape)) if attrs.axes is None else attrs.axes, len(shape))
    _check_lengths(len(axes), roi, scales, sizes)
    extents = [shape[axis] for axis in axes]
    resized = [new for new in _resized(attrs, extents, scales, sizes) if isinstance(new, int)]
    if scales is None and sizes is not None and attrs.keep_aspect_ratio_policy != "stretch":
        scales = (_common_scale(attrs.keep_aspect_ratio_policy, extents, sizes),) * len(axes)
    starts, ends = (0.0,) * len(axes), (1.0,) * len(axes)
    if attrs.coordinate_transformation_mode == "tf_crop_and_resize" and roi is not None:
        starts, ends = roi[: len(axes)], roi[len(axes) :]
    found: list[AxisResize] = []
    for i, (old, new) in enumerate(zip(extents, resized, strict=True)):
        scale, width = new / max(old, 1), float(new)
        if scales is not None:
            scale, width = scales[i], float(np.float32(scales[i]) * np.float32(old))
        found.append(AxisResize(axes[i], old, new, scale, width, starts[i], ends[i]))
    return [axis for axis in found if not axis.is_idle]


def _given(attribute: Any, operand: Array | None) -> Any:
    """The value from whichever of the two holds it."""
    return attribute if operand is None else tuple(operand.reshape(-1).tolist())


def _interpolated(attrs: ResizeAttrs, axis: AxisResize, data: Array) -> Array:
    elements, weights = taps(attrs, axis)
    aligned = (-1, *[1] * (data.ndim - axis.axis - 1))
    shape = (*data.shape[: axis.axis], axis.resized, *data.shape[axis.axis + 1 :])
    total = np.zeros(shape, data.dtype)
    for tap in range(elements.shape[1]):
        factor = weights[:, tap].astype(data.dtype).reshape(aligned)
        total += np.take(data, elements[:, tap], axis=axis.axis) * factor
    return total


def _extrapolated(attrs: ResizeAttrs, steps: Sequence[AxisResize], result: Array) -> Array:
    """The result with everything that looks past the operand's edge replaced."""
    outside = np.zeros((1,) * result.ndim, dtype=bool)
    for axis in steps:
        x = coordinates(attrs, axis)
        beyond = (x < 0) | (x > axis.extent - 1)
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
    given = (_given(attrs.roi, roi), _given(attrs.scales, scales), _given(attrs.sizes, sizes))
    steps = plan(attrs, data.shape, *given)
    if any(axis.extent == 0 < axis.resized for axis in steps):
        raise ValueError("an empty axis cannot grow")
    extents = list(data.shape)
    for axis in steps:
        extents[axis.axis] = axis.resized
    check_extents(extents, data.dtype, "resize")
    if 0 in extents:
        return np.zeros(extents, data.dtype)
    if attrs.method == "nearest_neighbor":
        result = data
        for axis in steps:
            result = np.take(result, nearest(attrs, axis), axis=axis.axis)
    else:
        result = data.astype(working_dtype(data.dtype))
        for axis in steps:
            result = _interpolated(attrs, axis, result)
        result = to_dtype(result, data.dtype)
    if attrs.coordinate_transformation_mode == "tf_crop_and_resize":
        result = _extrapolated(attrs, steps, result)
    return result

"""Quantisation to narrow types and back: by one scale, by one per index of an axis, or by blocks.

`scale` (and `zero_point`, of the same shape) has no axis or one element for the whole tensor, one
element per index of `axis`, or, with `block_size`, the data's shape but for `axis`, along which
each element serves `block_size` neighbours; the last block may be shorter.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from graft.base.dims import ceildiv
from graft.base.dtypes import Array, DType, dtype_of, integer_info
from graft.ir.attrs import Attrs
from graft.ir.op import Kind
from graft.ir.types import Shape, TensorType, compatible
from graft.loop.build import Term, call, cast, equal, maximum, minimum, select
from graft.loop.ir import Const
from graft.loop.tensor import Tensor
from graft.ops import expression as te
from graft.ops.activation import operations_per_element
from graft.ops.cast import LARGEST
from graft.ops.pointwise import pointwise
from graft.ops.rules import normalize_axis, operator, require, require_same_dim, spreads

_NARROW = (
    DType.INT2,
    DType.UINT2,
    DType.INT4,
    DType.UINT4,
    DType.INT8,
    DType.UINT8,
    DType.INT16,
    DType.UINT16,
    DType.FLOAT4E2M1FN,
    *LARGEST,
)
_REAL = (DType.FLOAT16, DType.BFLOAT16, DType.FLOAT32, DType.FLOAT64)
_SCALES = (*_REAL, DType.INT32, DType.FLOAT8E8M0FNU)


@dataclass(frozen=True, slots=True)
class QuantizeAttrs(Attrs):
    dtype: DType
    axis: int = 1
    block_size: int = 0
    saturate: bool = True  # float8 only: too large becomes the largest, not infinity or NaN
    precision: DType | None = None  # what the division is done in; None: the scale's dtype


@dataclass(frozen=True, slots=True)
class DequantizeAttrs(Attrs):
    axis: int = 1
    block_size: int = 0
    dtype: DType | None = None  # None: the scale's


def _check_granularity(
    attrs: QuantizeAttrs | DequantizeAttrs,
    data: TensorType,
    scale: TensorType,
    zero_point: TensorType | None,
) -> None:
    """Refuse a scale that is none of: for all, per axis, per block."""
    require(attrs.block_size >= 0, f"block_size is {attrs.block_size}")
    if zero_point is not None and not _is_single(zero_point) and not _is_single(scale):
        same = TensorType(scale.dtype, zero_point.shape)
        require(compatible(scale, same), f"the zero point is {zero_point}, the scale {scale}")
    for parameter in (scale,) if zero_point is None else (scale, zero_point):
        if data.shape is not None and parameter.shape is not None and not _is_single(parameter):
            _check_parameter(attrs, data.shape, parameter.shape)


def _is_single(type_: TensorType) -> bool:
    """One element for everything, with or without axes."""
    return type_.shape is not None and all(dim == 1 for dim in type_.shape)


def _check_parameter(
    attrs: QuantizeAttrs | DequantizeAttrs, data: Shape, parameter_shape: Shape
) -> None:
    if not attrs.block_size:
        rank = (
            f"the scale or zero point has rank {len(parameter_shape)}, but there is no block_size"
        )
        require(len(parameter_shape) == 1, rank)
        if isinstance(parameter_shape[0], int):
            axis = normalize_axis(attrs.axis, len(data))
            require_same_dim(data[axis], parameter_shape[0], "extents of the axis and the scale")
        elif -len(data) <= attrs.axis < len(data):
            # It may turn out to be 1, and the axis not to matter.
            extent = data[attrs.axis]
            fits = spreads(parameter_shape[0], extent)
            require(
                fits, f"extents of the axis and the scale differ: {extent} and {parameter_shape[0]}"
            )
        return
    require(
        len(parameter_shape) == len(data),
        f"the scale has rank {len(parameter_shape)}, the data {len(data)}",
    )
    quantized = normalize_axis(attrs.axis, len(data))
    for axis, (extent, scales) in enumerate(zip(data, parameter_shape, strict=True)):
        count = ceildiv(extent, attrs.block_size) if axis == quantized else extent
        require_same_dim(count, scales, f"scales needed and given along axis {axis}")


def _spread(
    attrs: QuantizeAttrs | DequantizeAttrs, parameter: Array, shape: tuple[int, ...]
) -> Array:
    """The scale or zero point, ready to broadcast against data of the shape."""
    if parameter.size == 1:
        return parameter.reshape(())
    axis = normalize_axis(attrs.axis, len(shape))
    if attrs.block_size:
        element = np.arange(shape[axis]) // attrs.block_size
        return np.broadcast_to(np.take(parameter, element, axis=axis), shape)
    extents = [1] * len(shape)
    extents[axis] = shape[axis]
    return parameter.reshape(extents)


def _quantize_type(
    attrs: QuantizeAttrs, data: TensorType, scale: TensorType, zero_point: TensorType | None
) -> TensorType:
    require(attrs.dtype in _NARROW, f"cannot quantize to {attrs.dtype}")
    require(data.dtype in (*_REAL, DType.INT32), f"cannot quantize {data.dtype} data")
    require(scale.dtype in _SCALES, f"the scale is {scale.dtype}")
    require(attrs.precision in (None, *_REAL), f"cannot divide in {attrs.precision}")
    if zero_point is not None:
        same = zero_point.dtype == attrs.dtype
        require(same, f"the zero point is {zero_point.dtype}, the result {attrs.dtype}")
    _check_granularity(attrs, data, scale, zero_point)
    return TensorType(attrs.dtype, data.shape)


def _division_dtype(attrs: QuantizeAttrs, data: Array, scale: Array) -> np.dtype[Any]:
    """What x / scale is rounded to; a scale without mantissa or fraction cannot decide that."""
    candidates = (attrs.precision, dtype_of(scale.dtype), dtype_of(data.dtype))
    dtype = next((c for c in candidates if c is not None and c in _REAL), DType.FLOAT64)
    return dtype.numpy


def _limits(dtype: DType) -> tuple[int, int]:
    info = integer_info(dtype.numpy)
    return int(info.min), int(info.max)


def _to_integers(ratio: Array, zero_point: Array | None, dtype: DType) -> Array:
    """Ties go to even before the zero point is added; NaN becomes the smallest number."""
    low, high = _limits(dtype)
    rounded = np.rint(ratio)
    if zero_point is not None:
        rounded = rounded + zero_point.astype(np.float64)
    clipped = np.clip(np.where(np.isnan(rounded), low, rounded), low, high)
    return clipped.astype(np.int32).astype(dtype.numpy)


@operator(
    "qnn.quantize",
    "data scale zero_point?",
    _quantize_type,
    kind=Kind.BROADCAST,
    work=operations_per_element(3),
)
def _quantize(attrs: QuantizeAttrs, data: Array, scale: Array, zero_point: Array | None) -> Array:
    """saturate(round(data / scale) + zero_point)."""
    dtype = _division_dtype(attrs, data, scale)
    ratio = data.astype(dtype) / _spread(attrs, scale, data.shape).astype(dtype)
    wide = np.asarray(ratio).astype(np.float64)
    zero = None if zero_point is None else _spread(attrs, zero_point, data.shape)
    if attrs.dtype.is_integer:
        return _to_integers(wide, zero, attrs.dtype)
    if zero is not None and np.any(zero != 0):  # adding nothing would turn -0 into 0
        wide = wide + zero.astype(np.float64)
    if attrs.saturate and attrs.dtype in LARGEST:
        largest = LARGEST[attrs.dtype]
        wide = np.clip(wide, -largest, largest)
    return wide.astype(np.float32).astype(attrs.dtype.numpy)


def _dequantize_type(
    attrs: DequantizeAttrs, data: TensorType, scale: TensorType, zero_point: TensorType | None
) -> TensorType:
    require(data.dtype in (*_NARROW, DType.INT32), f"cannot dequantize {data.dtype} data")
    require(scale.dtype in _SCALES and scale.dtype.is_float, f"the scale is {scale.dtype}")
    dtype = attrs.dtype or scale.dtype
    require(dtype in _REAL, f"cannot dequantize to {dtype}")
    if zero_point is not None:
        same = zero_point.dtype == data.dtype
        require(same, f"the zero point is {zero_point.dtype}, the data {data.dtype}")
    _check_granularity(attrs, data, scale, zero_point)
    return TensorType(dtype, data.shape)


@operator(
    "qnn.dequantize",
    "data scale zero_point?",
    _dequantize_type,
    kind=Kind.BROADCAST,
    work=operations_per_element(2),
)
def _dequantize(
    attrs: DequantizeAttrs, data: Array, scale: Array, zero_point: Array | None
) -> Array:
    """(data - zero_point) * scale.

    The difference is exact; float32 multiplies unless the result is wider.
    """
    dtype = scale.dtype if attrs.dtype is None else attrs.dtype.numpy
    computed: np.dtype[Any] = np.dtype(np.float64 if dtype.itemsize == 8 else np.float32)
    difference = data.astype(np.float64)
    if zero_point is not None:
        difference = difference - _spread(attrs, zero_point, data.shape).astype(np.float64)
    factor = _spread(attrs, scale, data.shape).astype(computed)
    product: Array = difference.astype(computed) * factor
    return product.astype(dtype)


@dataclass(frozen=True, slots=True)
class SaturateAttrs(Attrs):
    dtype: DType


def _saturate_type(attrs: SaturateAttrs, data: TensorType, offset: TensorType | None) -> TensorType:
    require(attrs.dtype in _SATURATED, f"{attrs.dtype} is not int8 or uint8")
    for operand in (data, offset):
        is_float = operand is None or operand.dtype is DType.FLOAT32
        require(is_float, "the data or the offset is not float32")
    require(offset is None or _is_single(offset), f"the offset is {offset}, not one number")
    return TensorType(attrs.dtype, data.shape)


def _saturate_array(attrs: SaturateAttrs, data: Array, offset: Array | None) -> Array:
    limits = np.iinfo(attrs.dtype.numpy)
    codes = np.rint(data.astype(np.float64)) + (0 if offset is None else offset.reshape(()))
    bounded = np.clip(np.where(np.isnan(codes), limits.min, codes), limits.min, limits.max)
    narrow: Array = bounded.astype(attrs.dtype.numpy)
    return narrow


def _saturate(attrs: SaturateAttrs, x: Term, offset: Term | None = None) -> Term:
    return call(_SATURATED[attrs.dtype], x, 0.0 if offset is None else offset)


# The intrinsic that makes codes of each dtype.
_SATURATED = {DType.INT8: "to_int8", DType.UINT8: "to_uint8"}

pointwise(
    "qnn.saturate",
    "data offset?",
    _saturate,
    infer=_saturate_type,
    evaluate=_saturate_array,
    attrs=SaturateAttrs,
    summary="the nearest whole number plus an offset, within the limits of dtype; NaN: the lowest",
)


# Tensor expressions.


def _parameter(attrs: Any, tensor: Tensor, indices: tuple[Term, ...], shape: te.Extents) -> Term:
    """The scale or zero point of an element: for all, per index of an axis, or per block."""
    if all(extent == Const(1) for extent in tensor.shape):
        return te.single(tensor)
    axis = normalize_axis(attrs.axis, len(indices))
    if not attrs.block_size:
        return te.along(tensor, indices, axis, shape)
    blocks = list(indices)
    blocks[axis] = indices[axis] // attrs.block_size
    return te.read(tensor, blocks)


@te.expresses("qnn.quantize")
def _express_quantize(
    attrs: Any, out: te.Out, data: Tensor, scale: Tensor, zero_point: Tensor | None
) -> te.Results:
    """Ties go to even before the zero point is added; NaN becomes the smallest number."""
    dtype, shape = out.dtype, out.shape
    candidates = (attrs.precision, scale.dtype, data.dtype, DType.FLOAT64)
    divided = next(candidate for candidate in candidates if candidate in _REAL)
    # What float32 cannot hold of the sum is far beyond the limits of the result.
    wide = DType.FLOAT64 if divided is DType.FLOAT64 else DType.FLOAT32
    low, high = _limits(dtype) if dtype.is_integer else (0, 0)

    def element(*indices: Term) -> Term:
        step = cast(divided, _parameter(attrs, scale, indices, shape))
        exact = cast(wide, cast(divided, te.read(data, indices)) / step)
        zero = None if zero_point is None else _parameter(attrs, zero_point, indices, shape)
        if dtype.is_float:
            return _to_float(exact, zero, attrs)
        ratio = call("round", exact)
        if zero is not None:
            ratio = ratio + cast(wide, zero)
        bounded = minimum(maximum(ratio, low), high)
        code = select(call("isnan", ratio), te.number(low, wide), bounded)
        return cast(dtype, cast(DType.INT32, code))

    return out.of(element)


def _to_float(ratio: Term, zero: Term | None, attrs: Any) -> Term:
    """Adding a zero point of 0 would turn -0 into 0."""
    if zero is not None:
        offset = cast(DType.FLOAT64, zero)
        wide = cast(DType.FLOAT64, ratio)
        ratio = cast(DType.FLOAT32, select(equal(offset, 0.0), wide, wide + offset))
    largest = LARGEST.get(attrs.dtype) if attrs.saturate else None
    if largest is not None:
        ratio = minimum(maximum(ratio, -largest), largest)
    return cast(attrs.dtype, cast(DType.FLOAT32, ratio))


@te.expresses("qnn.dequantize")
def _express_dequantize(
    attrs: Any, out: te.Out, data: Tensor, scale: Tensor, zero_point: Tensor | None
) -> te.Results:
    """The difference is exact; float32 multiplies unless the result is wider."""
    dtype, shape = out.dtype, out.shape
    wide = DType.FLOAT64 if dtype is DType.FLOAT64 else DType.FLOAT32
    exact = DType.INT32 if data.dtype.bits < 32 else DType.INT64
    if data.dtype.is_float:
        exact = DType.FLOAT32

    def element(*indices: Term) -> Term:
        difference = cast(exact, te.read(data, indices))
        if zero_point is not None:
            difference = difference - cast(exact, _parameter(attrs, zero_point, indices, shape))
        factor = cast(wide, _parameter(attrs, scale, indices, shape))
        return cast(dtype, cast(wide, difference) * factor)

    return out.of(element)

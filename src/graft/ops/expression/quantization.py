"""Quantisation to narrow numbers and back."""

from __future__ import annotations

from typing import Any

from graft.base.dtypes import DType
from graft.loop.build import Term, call, cast, equal, maximum, minimum, select
from graft.loop.ir import Const
from graft.loop.tensor import Tensor
from graft.ops.cast import LARGEST
from graft.ops.expression.registry import Inputs, Results, Types, expresses
from graft.ops.expression.shapes import (
    Extents,
    along,
    by_index,
    extents_of,
    number,
    present,
    read,
    single,
)
from graft.ops.rules import normalize_axis

_REAL = (DType.FLOAT16, DType.BFLOAT16, DType.FLOAT32, DType.FLOAT64)


def _parameter(attrs: Any, tensor: Tensor, indices: tuple[Term, ...], shape: Extents) -> Term:
    """The scale or zero point of an element: for all, per index of an axis, or per block."""
    if all(extent == Const(1) for extent in tensor.shape):
        return single(tensor)
    axis = normalize_axis(attrs.axis, len(indices))
    if not attrs.block_size:
        return along(tensor, indices, axis, shape)
    blocks = list(indices)
    blocks[axis] = indices[axis] // attrs.block_size
    return read(tensor, blocks)


@expresses("qnn.quantize")
def quantize(attrs: Any, inputs: Inputs, types: Types, name: str) -> Results:
    """Ties go to even before the zero point is added; NaN becomes the smallest number."""
    data, scale, zero_point = present(inputs[0]), present(inputs[1]), inputs[2]
    dtype, shape = types[0].dtype, extents_of(types[0])
    candidates = (attrs.precision, scale.dtype, data.dtype, DType.FLOAT64)
    divided = next(one for one in candidates if one in _REAL)
    # What float32 cannot hold of the sum is far beyond the limits of the result.
    wide = DType.FLOAT64 if divided is DType.FLOAT64 else DType.FLOAT32
    signed = dtype.is_signed_integer
    low, high = (-1 << dtype.bits - 1 if signed else 0), (1 << dtype.bits - signed) - 1

    def element(*indices: Term) -> Term:
        step = cast(divided, _parameter(attrs, scale, indices, shape))
        exact = cast(wide, cast(divided, read(data, indices)) / step)
        zero = None if zero_point is None else _parameter(attrs, zero_point, indices, shape)
        if dtype.is_float:
            return _to_float(exact, zero, attrs)
        ratio = call("round", exact)
        if zero is not None:
            ratio = ratio + cast(wide, zero)
        bounded = minimum(maximum(ratio, low), high)
        chosen = select(call("isnan", ratio), number(low, wide), bounded)
        return cast(dtype, cast(DType.INT32, chosen))

    return (by_index(name, shape, element),)


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


@expresses("qnn.dequantize")
def dequantize(attrs: Any, inputs: Inputs, types: Types, name: str) -> Results:
    """The difference is exact; float32 multiplies unless the result is wider."""
    data, scale, zero_point = present(inputs[0]), present(inputs[1]), inputs[2]
    dtype, shape = types[0].dtype, extents_of(types[0])
    wide = DType.FLOAT64 if dtype is DType.FLOAT64 else DType.FLOAT32
    exact = DType.INT32 if data.dtype.bits < 32 else DType.INT64
    if data.dtype.is_float:
        exact = DType.FLOAT32

    def element(*indices: Term) -> Term:
        difference = cast(exact, read(data, indices))
        if zero_point is not None:
            difference = difference - cast(exact, _parameter(attrs, zero_point, indices, shape))
        factor = cast(wide, _parameter(attrs, scale, indices, shape))
        return cast(dtype, cast(wide, difference) * factor)

    return (by_index(name, shape, element),)

"""Elementwise operators whose operands are not all of one kind: `clip` and `power`.

`clip` takes its bounds as attributes or as operands; `power` raises numbers of one dtype to
exponents of any other and gives the first one's dtype.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from graft.base.dim_questions import provably_different
from graft.base.dims import dim_max, dim_min
from graft.base.dtypes import Array, DType, dtype_of
from graft.ir.attrs import Attrs, Number
from graft.ir.op import Kind, define
from graft.ir.types import TensorType
from graft.ops.rules import broadcast_shapes, require, same_dtype, symbolic_by


@dataclass(frozen=True, slots=True)
class ClipAttrs(Attrs):
    a_min: Number | None = None
    a_max: Number | None = None


def _is_real(dtype: DType) -> bool:
    return dtype.is_float or dtype.is_integer


def _clip_type(
    attrs: ClipAttrs, data: TensorType, a_min: TensorType | None, a_max: TensorType | None
) -> TensorType:
    dtype = same_dtype(data, a_min, a_max)
    require(_is_real(dtype), f"wants real operands, not {dtype}")
    for bound in (a_min, a_max):
        scalar = bound is None or not provably_different(bound.size, 1)
        require(scalar, "a bound is not one number")
    return data


def _bound(attribute: Number | None, operand: Array | None, dtype: np.dtype[Any]) -> Any:
    if operand is not None:
        return operand.reshape(())
    return None if attribute is None else np.asarray(attribute).astype(dtype)


def _clip(attrs: ClipAttrs, data: Array, a_min: Array | None, a_max: Array | None) -> Array:
    low, high = _bound(attrs.a_min, a_min, data.dtype), _bound(attrs.a_max, a_max, data.dtype)
    result = data if low is None else np.maximum(data, low)
    result = result if high is None else np.minimum(result, high)
    return np.asarray(result).astype(data.dtype, copy=False)


def _clip_dims(attrs: ClipAttrs, data: Array, a_min: Any = None, a_max: Any = None) -> Array:
    low: Any = attrs.a_min if a_min is None else a_min.reshape(())[()]
    high: Any = attrs.a_max if a_max is None else a_max.reshape(())[()]
    result = np.empty_like(data)
    for index, dim in np.ndenumerate(data):
        raised = dim if low is None else dim_max(dim, low)
        result[index] = raised if high is None else dim_min(raised, high)
    return result


define(
    "clip",
    "data a_min? a_max?",
    _clip_type,
    _clip,
    attrs=ClipAttrs,
    kind=Kind.ELEMENTWISE,
    symbolic=symbolic_by(_clip_dims),
    summary="elements no smaller than a_min and no larger than a_max",
)


def _power_type(_attrs: Attrs, lhs: TensorType, rhs: TensorType) -> TensorType:
    for operand in (lhs, rhs):
        require(_is_real(operand.dtype), f"wants real operands, not {operand.dtype}")
    return TensorType(lhs.dtype, broadcast_shapes(lhs.shape, rhs.shape))


def _power(_attrs: Attrs, lhs: Array, rhs: Array) -> Array:
    base, exponent = dtype_of(lhs.dtype), dtype_of(rhs.dtype)
    if base.is_integer and exponent.is_integer:
        return _integer_power(lhs, rhs)
    single = all(dtype.is_float and dtype.bits <= 32 for dtype in (base, exponent))
    wide = np.float32 if single else np.float64
    return np.asarray(np.power(lhs.astype(wide), rhs.astype(wide))).astype(lhs.dtype)


def _integer_power(base: Array, exponent: Array) -> Array:
    """Exact, wrapping around; a negative exponent gives the quotient truncated to an integer."""
    wide = np.uint64 if base.dtype == np.uint64 else np.int64
    numbers, exponents = base.astype(wide), exponent.astype(np.int64)
    powers = np.power(numbers, np.maximum(exponents, 0).astype(wide))
    odd = np.where(exponents % 2 == 0, 1, -1).astype(wide)
    inverses = np.where(numbers == 1, 1, np.where(base.astype(np.float64) == -1, odd, 0))
    return np.asarray(np.where(exponents < 0, inverses, powers)).astype(base.dtype)


define(
    "power",
    "lhs rhs",
    _power_type,
    _power,
    kind=Kind.BROADCAST,
    summary="lhs to the power of rhs, in the dtype of lhs",
)

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
from graft.base.dtypes import Array, DType
from graft.ir.attrs import Attrs, Number
from graft.ir.op import Kind, get_op
from graft.ir.types import TensorType
from graft.loop.build import Term, call, cast, constant, equal, maximum, minimum, select
from graft.ops import expression as te
from graft.ops.pointwise import by_scalar, formula, pointwise
from graft.ops.rules import REALS, broadcast_shapes, require, same_dtype, symbolic_by


@dataclass(frozen=True, slots=True)
class ClipAttrs(Attrs):
    a_min: Number | None = None
    a_max: Number | None = None


def _clip_type(
    attrs: ClipAttrs, data: TensorType, a_min: TensorType | None, a_max: TensorType | None
) -> TensorType:
    same_dtype(data, a_min, a_max)
    for bound in (a_min, a_max):
        scalar = bound is None or not provably_different(bound.size, 1)
        require(scalar, "a bound is not one number")
    return data


def _clip(attrs: ClipAttrs, x: Term, low: Term | None = None, high: Term | None = None) -> Term:
    if low is None and attrs.a_min is not None:
        low = _bound(attrs.a_min, x.dtype)
    if high is None and attrs.a_max is not None:
        high = _bound(attrs.a_max, x.dtype)
    bounded = x if low is None else maximum(x, low)
    return bounded if high is None else minimum(bounded, high)


def _bound(value: Number, dtype: DType) -> Term:
    """An attribute as a number of the dtype; what integers cannot hold of it is cut off."""
    number = np.asarray(value).astype(dtype.numpy)
    return Term(constant(float(number) if dtype.is_float else int(number), dtype))


def _clip_arrays(attrs: ClipAttrs, data: Array, *bounds: Array | None) -> Array:
    scalars = (None if bound is None else bound.reshape(()) for bound in bounds)
    return np.asarray(by_scalar(_clip)(attrs, data, *scalars))


def _clip_dims(attrs: ClipAttrs, data: Array, a_min: Any = None, a_max: Any = None) -> Array:
    low: Any = attrs.a_min if a_min is None else a_min.reshape(())[()]
    high: Any = attrs.a_max if a_max is None else a_max.reshape(())[()]
    result = np.empty_like(data)
    for index, dim in np.ndenumerate(data):
        raised = dim if low is None else dim_max(dim, low)
        result[index] = raised if high is None else dim_min(raised, high)
    return result


def _clip_expression(attrs: ClipAttrs, inputs: te.Inputs, types: te.Types, name: str) -> te.Results:
    """Bounds are attributes or tensors of one element and any rank."""
    data, *bounds = inputs

    def element(*indices: Term) -> Term:
        limits = [None if bound is None else te.single(bound) for bound in bounds]
        operands = [te.read(te.present(data), indices), *limits]
        return formula(get_op("clip"), attrs, operands, types[0].dtype)

    return te.one_result(name, types, element)


pointwise(
    "clip",
    "data a_min? a_max?",
    _clip,
    infer=_clip_type,
    evaluate=_clip_arrays,
    expression=_clip_expression,
    attrs=ClipAttrs,
    kind=Kind.ELEMENTWISE,
    dtypes=REALS,
    symbolic=symbolic_by(_clip_dims),
    summary="elements no smaller than a_min and no larger than a_max",
)


def _power_type(_attrs: Attrs, lhs: TensorType, rhs: TensorType) -> TensorType:
    return TensorType(lhs.dtype, broadcast_shapes(lhs.shape, rhs.shape))


def _power(_attrs: Attrs, x: Term, y: Term) -> Term:
    if x.dtype.is_integer and y.dtype.is_integer:
        return cast(x.dtype, _integer_power(x, y))
    single_precision = all(side.dtype.is_float and side.dtype.bits <= 32 for side in (x, y))
    wide = DType.FLOAT32 if single_precision else DType.FLOAT64
    return cast(x.dtype, call("pow", cast(wide, x), cast(wide, y)))


def _integer_power(x: Term, y: Term) -> Term:
    """Exact, wrapping around; a negative exponent gives the quotient truncated to an integer."""
    if y.dtype is DType.UINT64:
        # What int64 does not hold becomes an exponent with the same result: the powers of an odd
        # number repeat after 2**62, those of an even one are 0 from 64 on.
        y = select(y > 2**63 - 1, (y & (2**62 - 1)) | 2**62, y)
    base, exponent = (cast(DType.INT64, side) for side in (x, y))
    power = call("pow", base, maximum(exponent, 0))
    # a uint64 beyond int64 is not 1, and its powers wrap around alike
    is_odd = equal(exponent & 1, 1)
    inverse = select(equal(base, 1), 1, 0)
    if x.dtype.is_signed_integer:
        inverse = select(equal(base, -1), select(is_odd, -1, 1), inverse)
    return power if y.dtype.is_unsigned_integer else select(exponent < 0, inverse, power)


pointwise(
    "power",
    "lhs rhs",
    _power,
    infer=_power_type,
    dtypes=REALS,
    summary="lhs to the power of rhs, in the dtype of lhs",
)

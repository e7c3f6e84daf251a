"""Constants, ranges and filled tensors; shapes of tensors as data."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from graft.base.capacity import check_extents
from graft.base.dim_questions import provably_different
from graft.base.dims import UNKNOWN, AnyDim, Dim, ceildiv, dim_max
from graft.base.dtypes import Array, DType
from graft.base.errors import EvaluationError
from graft.ir.attrs import Attrs, Dims
from graft.ir.literal import Literal
from graft.ir.op import Kind, no_work
from graft.ir.types import TensorType, Type
from graft.loop.build import Term, cast, equal
from graft.loop.tensor import Tensor
from graft.ops import expression as te
from graft.ops.rules import operator, require, unknown_shape


@dataclass(frozen=True, slots=True)
class ConstantAttrs(Attrs):
    value: Literal


@operator("constant", "", lambda attrs: attrs.value.type, work=no_work)
def _constant(attrs: ConstantAttrs) -> Array:
    """A tensor that is known beforehand."""
    return attrs.value.array


def _shape_of_type(_attrs: Attrs, data: TensorType) -> TensorType:
    return TensorType(DType.INT64, (UNKNOWN if data.rank is None else data.rank,))


def _known_shape(
    _attrs: Attrs, _known: Sequence[Array | None], types: Sequence[Type | None]
) -> Array | None:
    data = types[0]
    if not isinstance(data, TensorType) or data.shape is None:
        return None
    result = np.empty(len(data.shape), dtype=object)
    result[:] = data.shape
    return result


@operator("shape_of", "data", _shape_of_type, work=no_work, symbolic=_known_shape)
def _shape_of(_attrs: Attrs, data: Array) -> Array:
    """The operand's extents as a vector of int64."""
    return np.array(data.shape, dtype=np.int64)


@dataclass(frozen=True, slots=True)
class FullAttrs(Attrs):
    shape: Dims | None = None


def shape_operand(shape: Dims | None, operand: TensorType | None) -> tuple[AnyDim, ...] | None:
    """A shape: an attribute, or an operand of which only the length may be known."""
    if shape is not None:
        return shape
    require(operand is not None, "the shape is given neither as operand nor as attribute")
    assert operand is not None
    require(operand.dtype is DType.INT64, f"the shape is {operand.dtype}, not int64")
    require(operand.rank in (None, 1), f"the shape is {operand}, not a list")
    length = operand.shape[0] if operand.shape else UNKNOWN
    return unknown_shape(length) if isinstance(length, int) else None


def _full_type(attrs: FullAttrs, fill: TensorType, shape: TensorType | None) -> TensorType:
    require(not provably_different(fill.size, 1), "the fill value is not one element")
    return TensorType(fill.dtype, shape_operand(attrs.shape, shape))


@operator("full", "fill shape?", _full_type, kind=Kind.INJECTIVE, on_dims=True)
def _full(attrs: FullAttrs, fill: Array) -> Array:
    """A tensor of that shape with one number everywhere."""
    extents: Any = attrs.shape
    check_extents(extents, fill.dtype, "full")
    return np.full(extents, fill.reshape(-1)[0], dtype=fill.dtype)


@dataclass(frozen=True, slots=True)
class ArangeAttrs(Attrs):
    """Numbers from `start` (included) to `limit` (excluded) in steps of `delta`.

    Floats are operands; how many there are is computed in double precision.
    """

    start: Dim | None = None
    limit: Dim | None = None
    delta: Dim | None = None
    dtype: DType = DType.INT64


def _arange_extent(start: AnyDim, limit: AnyDim, delta: AnyDim) -> AnyDim:
    if not isinstance(delta, int):
        return UNKNOWN
    require(delta != 0, "the step is 0")
    span = limit - start if delta > 0 else start - limit
    return dim_max(ceildiv(span, abs(delta)), 0)


def _arange_type(attrs: ArangeAttrs, *operands: TensorType | None) -> TensorType:
    dtype = attrs.dtype
    require(dtype.is_integer or dtype.is_float, f"counts in real numbers, not {dtype}")
    values: list[AnyDim] = []
    for value, operand in zip((attrs.start, attrs.limit, attrs.delta), operands, strict=True):
        require(value is not None or operand is not None, "start, limit or step is missing")
        same = operand.dtype is dtype if operand is not None else dtype.is_integer
        require(same, f"start, limit or step is not {dtype} as the result")
        values.append(UNKNOWN if value is None else value)
    return TensorType(dtype, (_arange_extent(*values),))


def _numbers_of(attrs: ArangeAttrs, operands: Sequence[Array | None]) -> list[Any]:
    pairs = zip((attrs.start, attrs.limit, attrs.delta), operands, strict=True)
    return [value if array is None else array.reshape(-1)[0].item() for value, array in pairs]


def arange_count(attrs: ArangeAttrs, *operands: Array | None) -> int:
    """The number of elements of the range."""
    start, limit, delta = _numbers_of(attrs, operands)
    if delta == 0:
        raise EvaluationError("the step is 0")
    steps = (limit - start) / delta if attrs.dtype.is_float else -((start - limit) // delta)
    if not math.isfinite(steps):
        raise EvaluationError(f"from {start} to {limit} in steps of {delta} is no finite range")
    count: int = max(math.ceil(steps), 0)
    check_extents([count], attrs.dtype.numpy, "arange")
    return count


@operator("arange", "start? limit? delta?", _arange_type, kind=Kind.INJECTIVE)
def _arange(attrs: ArangeAttrs, *operands: Array | None) -> Array:
    """The numbers from start to limit, without that, in steps of delta."""
    count = arange_count(attrs, *operands)
    start, limit, delta = _numbers_of(attrs, operands)
    if attrs.dtype.is_integer:
        return np.arange(start, limit, delta, dtype=attrs.dtype.numpy)
    first, step = np.array([start, delta], attrs.dtype.numpy)
    return np.asarray(first + np.arange(count).astype(attrs.dtype.numpy) * step)


@dataclass(frozen=True, slots=True)
class EyeAttrs(Attrs):
    """Ones on the `k`-th diagonal of a matrix."""

    shape: Dims | None = None
    k: int = 0
    dtype: DType = DType.FLOAT32


def _eye_type(attrs: EyeAttrs, shape: TensorType | None) -> TensorType:
    dims = shape_operand(attrs.shape, shape)
    require(dims is None or len(dims) == 2, f"a matrix has two axes, not {len(dims or ())}")
    return TensorType(attrs.dtype, unknown_shape(2) if dims is None else dims)


@operator("eye", "shape?", _eye_type, kind=Kind.INJECTIVE)
def _eye(attrs: EyeAttrs) -> Array:
    """Ones along the k-th diagonal, zeros elsewhere."""
    extents: Any = attrs.shape
    rows, columns = extents
    check_extents(extents, attrs.dtype.numpy, "eye")
    return np.eye(rows, columns, k=attrs.k, dtype=np.int8).astype(attrs.dtype.numpy)


# Tensor expressions.


@te.expresses("full")
def _express_full(attrs: Any, out: te.Out, fill: Tensor, *_: Tensor | None) -> te.Results:
    """The fill value at every index."""
    return out.of(lambda *_indices: te.single(fill))


@te.expresses("arange")
def _express_arange(
    attrs: Any, out: te.Out, start: Tensor | None, _: Tensor | None, delta: Tensor | None
) -> te.Results:
    """start + index * delta."""
    dtype = out.dtype

    def number(attribute: Any, operand: Any) -> Term:
        if operand is not None:
            return te.single(operand)
        return te.number(attribute, dtype) if te.is_known(attribute) else cast(dtype, attribute)

    def element(index: Term) -> Term:
        first, step = number(attrs.start, start), number(attrs.delta, delta)
        if dtype.is_integer:
            return first + cast(dtype, index) * step
        # each operation is rounded to the dtype
        product = cast(dtype, te.widened(cast(dtype, index)) * te.widened(step))
        return cast(dtype, te.widened(first) + te.widened(product))

    return out.of(element)


@te.expresses("eye")
def _express_eye(attrs: Any, out: te.Out, *_: Tensor | None) -> te.Results:
    """Ones on a diagonal."""
    dtype = out.dtype
    if dtype is not DType.BOOL and not dtype.is_number:
        return te.Unexpressed(f"ones of {dtype}")

    def element(row: Term, column: Term) -> Term:
        return cast(dtype, equal(column - row, attrs.k))

    return out.of(element)

"""Finding elements: the largest, the non-zero, the distinct.

The order is NumPy's: NaN comes after every number, and lower positions come first among equals.
The number of results depends on the data, so their extents are unknown.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from graft.base.dim_questions import provably_below
from graft.base.dims import UNKNOWN, AnyDim, Dim
from graft.base.dtypes import Array, DType
from graft.base.errors import EvaluationError
from graft.ir.attrs import Attrs
from graft.ir.op import Work, traffic
from graft.ir.types import TensorType
from graft.ops.reduce import comparable, reading_work
from graft.ops.rules import normalize_axis, operator, require

_SELECTED, _SORTED = 16, 256  # operations per element of the first of all, and of the results


@dataclass(frozen=True, slots=True)
class TopKAttrs(Attrs):
    k: Dim | None = None
    axis: int = -1
    largest: bool = True
    sorted: bool = True


def _topk_type(
    attrs: TopKAttrs, data: TensorType, k: TensorType | None
) -> tuple[TensorType, TensorType]:
    require(data.dtype.is_float or data.dtype.is_integer, f"cannot order {data.dtype} elements")
    require(attrs.k is not None or k is not None, "the number of elements to find is missing")
    require(k is None or k.dtype.is_integer, "the number of elements to find is no integer")
    if data.shape is None:
        return TensorType(data.dtype, None), TensorType(DType.INT64, None)
    axis = normalize_axis(attrs.axis, len(data.shape))
    count: AnyDim = UNKNOWN if attrs.k is None else attrs.k
    extent = data.shape[axis]
    fits = not provably_below(count, 0) and not provably_below(extent, count)
    require(fits, f"wants {count} elements of {extent} along axis {axis}")
    shape = (*data.shape[:axis], count, *data.shape[axis + 1 :])
    return TensorType(data.dtype, shape), TensorType(DType.INT64, shape)


def _topk_work(_attrs: TopKAttrs, ins: Sequence[TensorType], outs: Sequence[TensorType]) -> Work:
    """About as many operations as a selection of vectors and a sort of the results take."""
    return Work(0, ins[0].size * _SELECTED + outs[0].size * _SORTED, traffic(ins, outs))


@operator("topk", "data k?", _topk_type, outputs=2, work=_topk_work)
def _topk(attrs: TopKAttrs, data: Array) -> tuple[Array, Array]:
    """The k largest or smallest elements along an axis, and their indices."""
    count: Any = attrs.k
    axis, extent = attrs.axis % data.ndim, data.shape[attrs.axis]
    if not 0 <= count <= extent:
        raise EvaluationError(f"wants {count} elements of {extent} along axis {axis}")
    rows = np.moveaxis(comparable(data), axis, -1)
    if attrs.largest:
        # Stable and ascending on the mirrored row, read backwards, is descending with the lower
        # position first among equals.
        order = extent - 1 - np.argsort(rows[..., ::-1], axis=-1, kind="stable")[..., ::-1]
    else:
        order = np.argsort(rows, axis=-1, kind="stable")
    indices = np.moveaxis(order[..., :count], -1, axis).astype(np.int64)
    return np.take_along_axis(data, indices, axis), indices


def _nonzero_type(_attrs: Attrs, data: TensorType) -> TensorType:
    return TensorType(DType.INT64, (UNKNOWN if data.rank is None else data.rank, UNKNOWN))


@operator("nonzero", "data", _nonzero_type, work=reading_work)
def _nonzero(_attrs: Attrs, data: Array) -> Array:
    """Indices of the elements that are not zero, a column each."""
    return np.ascontiguousarray(np.argwhere(data.astype(bool)).T).astype(np.int64)


@dataclass(frozen=True, slots=True)
class UniqueAttrs(Attrs):
    axis: int | None = None
    sorted: bool = True


def _unique_type(attrs: UniqueAttrs, data: TensorType) -> tuple[TensorType, ...]:
    positions = TensorType(DType.INT64, (UNKNOWN,))
    if attrs.axis is None:
        inverse = TensorType(DType.INT64, (data.size,))
        return TensorType(data.dtype, (UNKNOWN,)), positions, inverse, positions
    if data.shape is None:
        return data, positions, positions, positions
    axis = normalize_axis(attrs.axis, len(data.shape))
    shape = (*data.shape[:axis], UNKNOWN, *data.shape[axis + 1 :])
    inverse = TensorType(DType.INT64, (data.shape[axis],))
    return TensorType(data.dtype, shape), positions, inverse, positions


def _distinct_rows(rows: Array) -> tuple[Array, Array, Array]:
    """Of the distinct slices in ascending order: where first, which one is where, how often."""
    slices = comparable(rows).reshape(len(rows), math.prod(rows.shape[1:]))
    if slices.shape[1] == 0:
        keys = np.zeros(len(rows), np.int64)  # slices without elements are all equal
    else:
        # Ranks stand for the elements: they order strings, and a NaN equals another one.
        keys = np.unique(slices, return_inverse=True)[1].reshape(slices.shape)
        if slices.shape[1] == 1:
            keys = keys.reshape(-1)
    _, first, inverse, counts = np.unique(
        keys, return_index=True, return_inverse=True, return_counts=True, axis=0
    )
    return first.astype(np.int64), inverse.reshape(-1).astype(np.int64), counts.astype(np.int64)


@operator("unique", "data", _unique_type, outputs=4, work=reading_work)
def _unique(attrs: UniqueAttrs, data: Array) -> tuple[Array, Array, Array, Array]:
    """The distinct elements or slices; where each is first, which each was, and how often."""
    axis = 0 if attrs.axis is None else attrs.axis
    items = data.reshape(-1) if attrs.axis is None else data
    first, inverse, counts = _distinct_rows(np.moveaxis(items, axis, 0))
    if not attrs.sorted:
        order = np.argsort(first)
        first, counts = first[order], counts[order]
        inverse = np.argsort(order)[inverse]
    return np.take(items, first, axis), first, inverse, counts

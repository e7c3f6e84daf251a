"""Pooling: the largest, the mean or the p-norm of what lies under a window that slides over data.

Data [batch, channels, ...] enters, the same with fewer positions leaves. Padding never wins a
maximum and adds nothing to a sum; a mean divides by the number of elements under the window that
are data, or, with `count_include_pad`, data or padding. NaN wins every maximum. With `ceil_mode` a
last window may reach beyond the padded data, but not start there.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from graft.base.dims import AnyDim
from graft.base.dtypes import Array, DType, dtype_of
from graft.ir.attrs import Ints
from graft.ir.op import Kind, Work, define, traffic
from graft.ir.types import TensorType, Type
from graft.ops.reduce import comparable
from graft.ops.rules import require
from graft.ops.window import (
    RANKS,
    WindowAttrs,
    check_kernel,
    check_window,
    fixed_counts,
    for_rank,
    pad_pairs,
    padded,
    ranked_shape,
    window_counts,
    window_slices,
)


@dataclass(frozen=True, slots=True)
class PoolAttrs(WindowAttrs):
    pool_size: Ints = ()
    ceil_mode: bool = False


@dataclass(frozen=True, slots=True)
class MaxPoolIndicesAttrs(PoolAttrs):
    column_major: bool = False  # how spatial positions are numbered


@dataclass(frozen=True, slots=True)
class AvgPoolAttrs(PoolAttrs):
    count_include_pad: bool = False


@dataclass(frozen=True, slots=True)
class LpPoolAttrs(PoolAttrs):
    p: int = 2


def _pool_type(rank: int, allowed: str) -> Callable[[PoolAttrs, TensorType], TensorType]:
    def rule(attrs: PoolAttrs, data: TensorType) -> TensorType:
        real = data.dtype.is_float or (data.dtype.is_integer and allowed == "real")
        require(real, f"wants a {allowed} operand, not {data.dtype}")
        require(len(attrs.pool_size) == rank, f"pool_size has not {rank} entries")
        check_window(attrs, rank)
        check_kernel(attrs.pool_size)
        batch, channels, *extents = ranked_shape(data, rank + 2, "the data")
        counts = window_counts(attrs, extents, attrs.pool_size, attrs.ceil_mode)
        return TensorType(data.dtype, (batch, channels, *counts))

    return rule


def _pool_work(attrs: PoolAttrs, ins: Sequence[Type | None], outs: Sequence[Type]) -> Work:
    """One operation per element of each window."""
    result = outs[0]
    assert isinstance(result, TensorType)
    flops: AnyDim = result.size * math.prod(attrs.pool_size)
    return Work(0, flops, traffic(ins, outs))


def _counts(attrs: PoolAttrs, data: Array) -> Ints:
    return fixed_counts(attrs, data.shape[2:], attrs.pool_size, attrs.ceil_mode)


def _slide(attrs: PoolAttrs, data: Array, combine: Callable[..., Any], neutral: Any) -> Array:
    """Combine all elements under each window, one spatial axis after the other."""
    counts = _counts(attrs, data)
    if 0 in counts:
        return np.empty((*data.shape[:2], *counts), data.dtype)
    for axis, count in enumerate(counts):
        data = _slide_along(attrs, data, axis, count, combine, neutral)
    return data


def _slide_along(
    attrs: PoolAttrs,
    data: Array,
    axis: int,
    count: int,
    combine: Callable[..., Any],
    neutral: Any,
) -> Array:
    stride, dilation, size = attrs.strides[axis], attrs.dilation[axis], attrs.pool_size[axis]
    pairs = [_reading_pads(attrs, axis, data.shape[2 + axis], count)]
    pairs += [(0, 0)] * (data.ndim - 3 - axis)
    row = padded(data, pairs, neutral)
    before = (slice(None),) * (2 + axis)
    total: Array | None = None
    for _, (read,) in window_slices((size,), (count,), (stride,), (dilation,)):
        part = row[(*before, read)]
        total = part.copy() if total is None else combine(total, part, out=total)
    assert total is not None
    return total


def _reading_pads(attrs: PoolAttrs, axis: int, extent: int, count: int) -> tuple[int, int]:
    """Padding after which the windows cover the axis exactly, be there too much or too little."""
    begin, _ = pad_pairs(attrs.padding)[axis]
    span = (attrs.pool_size[axis] - 1) * attrs.dilation[axis] + 1
    return begin, (count - 1) * attrs.strides[axis] + span - extent - begin


def _max_pool(attrs: PoolAttrs, data: Array) -> Array:
    plain = comparable(data)
    return _slide(attrs, plain, np.maximum, _lowest(plain)).astype(data.dtype, copy=False)


def _lowest(data: Array) -> Any:
    return -np.inf if data.dtype.kind == "f" else np.iinfo(data.dtype).min


def _max_pool_with_indices(attrs: MaxPoolIndicesAttrs, data: Array) -> tuple[Array, Array]:
    """The first of the largest elements wins; a window of padding alone has index -1."""
    counts, extents = _counts(attrs, data), data.shape[2:]
    shape = (*data.shape[:2], *counts)
    if 0 in shape:
        return np.empty(shape, data.dtype), np.empty(shape, np.int64)
    pairs = [_reading_pads(attrs, axis, n, counts[axis]) for axis, n in enumerate(extents)]
    numbers = np.arange(math.prod(extents))
    by_rows, by_columns = numbers.reshape(extents), numbers.reshape(extents[::-1]).T
    numbers = padded(by_columns if attrs.column_major else by_rows, pairs, -1)
    plain = comparable(data)
    pixels = padded(plain, pairs, _lowest(plain))
    best = np.full(shape, _lowest(plain), plain.dtype)
    index = np.full(shape, -1, np.int64)
    for _, read in window_slices(attrs.pool_size, counts, attrs.strides, attrs.dilation):
        candidate, number = pixels[:, :, *read], numbers[read]
        is_nan = candidate != candidate
        better = (index < 0) | (candidate > best) | (is_nan & (best == best))
        better &= number >= 0
        np.copyto(best, candidate, where=better)
        np.copyto(index, number, where=better)
    images = np.arange(math.prod(shape[:2])).reshape(*shape[:2], *(1,) * len(extents))
    index = np.where(index < 0, -1, index + images * math.prod(extents))
    return best.astype(data.dtype, copy=False), index


def _avg_pool(attrs: AvgPoolAttrs, data: Array) -> Array:
    total = _slide(attrs, _wide(data), np.add, 0)
    members = [
        _members(attrs, axis, data.shape[2 + axis], count)
        for axis, count in enumerate(total.shape[2:])
    ]
    divisor = np.asarray(functools.reduce(np.multiply.outer, members), total.dtype)
    return np.asarray(total / divisor).astype(data.dtype, copy=False)


def _members(attrs: AvgPoolAttrs, axis: int, extent: int, count: int) -> Array:
    """How many elements each window along an axis counts."""
    begin, end = pad_pairs(attrs.padding)[axis]
    starts = np.arange(count) * attrs.strides[axis] - begin
    places = starts[:, None] + np.arange(attrs.pool_size[axis]) * attrs.dilation[axis]
    low, high = (-begin, extent + end) if attrs.count_include_pad else (0, extent)
    return np.asarray(((places >= low) & (places < high)).sum(axis=1))


def _wide(data: Array) -> Array:
    dtype = dtype_of(data.dtype)
    return data.astype(np.float32) if dtype.is_float and dtype.bits < 32 else data


def _lp_pool_type(rank: int) -> Callable[[LpPoolAttrs, TensorType], TensorType]:
    rule = _pool_type(rank, "floating-point")

    def checked(attrs: LpPoolAttrs, data: TensorType) -> TensorType:
        require(attrs.p >= 1, f"p is {attrs.p}")
        return rule(attrs, data)

    return checked


def _lp_pool(attrs: LpPoolAttrs, data: Array) -> Array:
    powers = np.abs(_wide(data)) ** attrs.p
    total = _slide(attrs, powers, np.add, 0)
    return np.asarray(total ** (1 / attrs.p)).astype(data.dtype, copy=False)


def _with_indices_type(rank: int) -> Callable[..., tuple[TensorType, TensorType]]:
    rule = _pool_type(rank, "real")

    def both(attrs: MaxPoolIndicesAttrs, data: TensorType) -> tuple[TensorType, TensorType]:
        values = rule(attrs, data)
        return values, TensorType(DType.INT64, values.shape)

    return both


def _define(name: str, rank: int, rule: Any, meaning: Any, attrs: type[PoolAttrs]) -> None:
    define(
        name,
        "data",
        rule,
        meaning,
        attrs=for_rank(attrs, rank),
        kind=Kind.REDUCTION,
        work=_pool_work,
        outputs=2 if attrs is MaxPoolIndicesAttrs else 1,
        summary=_SUMMARIES[meaning],
    )


_SUMMARIES = {
    _max_pool: "the largest element of each window",
    _max_pool_with_indices: "the largest element of each window, and its index in the image",
    _avg_pool: "the mean of each window",
    _lp_pool: "the p-norm of each window",
}


for _rank in RANKS:
    _real, _float = _pool_type(_rank, "real"), _pool_type(_rank, "floating-point")
    _both = _with_indices_type(_rank)
    _indices = f"nn.max_pool{_rank}d_with_indices"
    _define(f"nn.max_pool{_rank}d", _rank, _real, _max_pool, PoolAttrs)
    _define(_indices, _rank, _both, _max_pool_with_indices, MaxPoolIndicesAttrs)
    _define(f"nn.avg_pool{_rank}d", _rank, _float, _avg_pool, AvgPoolAttrs)
    _define(f"nn.lp_pool{_rank}d", _rank, _lp_pool_type(_rank), _lp_pool, LpPoolAttrs)

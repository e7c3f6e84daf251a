"""Pooling: the largest, the mean or the p-norm of what lies under a window that slides over data.

Data [batch, channels, ...] enters, the same with fewer positions leaves. Padding never wins a
maximum and adds nothing to a sum; a mean divides by the number of elements under the window that
are data, or, with `count_include_pad`, data or padding. NaN wins every maximum. With `ceil_mode` a
last window may reach beyond the padded data, but not start there. Unpooling is the partial inverse
of max pooling: values and their indices into the flattened result enter, a larger tensor leaves
that is zero everywhere else.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from graft.base.dims import UNKNOWN, AnyDim, Unknown, at_least, product
from graft.base.dtypes import Array, DType
from graft.ir.attrs import Ints
from graft.ir.graph import Node
from graft.ir.op import Kind, Work, define, movement_work, traffic
from graft.ir.types import Shape, TensorType
from graft.loop.build import Term, call, cast, equal, maximum, minimum, select, term
from graft.loop.ir import BinaryKind
from graft.loop.tensor import Axis, Reduce, Tensor, identity, max_, min_, sum_
from graft.ops import expression as te
from graft.ops.index import check_indices
from graft.ops.index_bounds import IndexBounds
from graft.ops.pointwise import widened_array
from graft.ops.reduce import comparable, lowest
from graft.ops.rules import ranked_shape, require, require_same_dim
from graft.ops.window import (
    RANKS,
    WindowAttrs,
    check_kernel,
    check_window,
    fixed_counts,
    for_rank,
    pad_pairs,
    padded,
    padding_behind,
    reach,
    read_extents,
    window_counts,
    window_slices,
)
from graft.program.guards import Guard


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


def _pool_type(rank: int, takes_integers: bool) -> Callable[[PoolAttrs, TensorType], Any]:
    def rule(attrs: PoolAttrs, data: TensorType) -> TensorType | tuple[TensorType, TensorType]:
        real = data.dtype.is_float or (data.dtype.is_integer and takes_integers)
        allowed = "real" if takes_integers else "floating-point"
        require(real, f"wants a {allowed} operand, not {data.dtype}")
        require(len(attrs.pool_size) == rank, f"pool_size has not {rank} entries")
        if isinstance(attrs, LpPoolAttrs):
            require(attrs.p >= 1, f"p is {attrs.p}")
        check_window(attrs, rank)
        check_kernel(attrs.pool_size)
        batch, channels, *extents = ranked_shape(data, rank + 2, "the data")
        counts = window_counts(attrs, extents, attrs.pool_size, attrs.ceil_mode)
        values = TensorType(data.dtype, (batch, channels, *counts))
        if isinstance(attrs, MaxPoolIndicesAttrs):
            return values, TensorType(DType.INT64, values.shape)
        return values

    return rule


def _pool_work(attrs: PoolAttrs, ins: Sequence[TensorType], outs: Sequence[TensorType]) -> Work:
    """One operation per element of each window."""
    result = outs[0]
    flops: AnyDim = result.size * math.prod(attrs.pool_size)
    return Work(0, flops, traffic(ins, outs))


def _counts(attrs: PoolAttrs, data: Array) -> Ints:
    return fixed_counts(attrs, data.shape[2:], attrs.pool_size, attrs.ceil_mode)


def _slide(attrs: PoolAttrs, data: Array, combine: Callable[..., Any], neutral: Any) -> Array:
    """Combine all elements under each window, one spatial axis after the other."""
    counts = _counts(attrs, data)
    if 0 in counts:
        return np.empty((*data.shape[:2], *counts), data.dtype)
    pads = _reading_pads(attrs, data.shape[2:], counts)
    for axis, count in enumerate(counts):
        data = _slide_along(attrs, data, axis, count, pads[axis], combine, neutral)
    return data


def _slide_along(
    attrs: PoolAttrs,
    data: Array,
    axis: int,
    count: int,
    pads: tuple[int, int],
    combine: Callable[..., Any],
    neutral: Any,
) -> Array:
    stride, dilation, size = attrs.strides[axis], attrs.dilation[axis], attrs.pool_size[axis]
    row = padded(data, [pads, *[(0, 0)] * (data.ndim - 3 - axis)], neutral)
    before = (slice(None),) * (2 + axis)
    total: Array | None = None
    for _, (taps,) in window_slices((size,), (count,), (stride,), (dilation,)):
        part = row[(*before, taps)]
        total = part.copy() if total is None else combine(total, part, out=total)
    assert total is not None
    return total


def _reading_pads(attrs: PoolAttrs, extents: Ints, counts: Ints) -> list[tuple[int, int]]:
    """Padding after which windows cover the axes exactly, be there too much or too little."""
    behind = padding_behind(attrs, extents, attrs.pool_size, counts)
    return [(begin, end) for (begin, _), end in zip(pad_pairs(attrs.padding), behind, strict=True)]


def _max_pool(attrs: PoolAttrs, data: Array) -> Array:
    plain = comparable(data)
    return _slide(attrs, plain, np.maximum, lowest(plain.dtype)).astype(data.dtype, copy=False)


def _max_pool_with_indices(attrs: MaxPoolIndicesAttrs, data: Array) -> tuple[Array, Array]:
    """The first of the largest elements wins; a window of padding alone has index -1."""
    counts, extents = _counts(attrs, data), data.shape[2:]
    shape = (*data.shape[:2], *counts)
    if 0 in shape:
        return np.empty(shape, data.dtype), np.empty(shape, np.int64)
    pairs = _reading_pads(attrs, extents, counts)
    numbers = np.arange(math.prod(extents))
    by_rows, by_columns = numbers.reshape(extents), numbers.reshape(extents[::-1]).T
    numbers = padded(by_columns if attrs.column_major else by_rows, pairs, -1)
    plain = comparable(data)
    pixels = padded(plain, pairs, lowest(plain.dtype))
    best = np.full(shape, lowest(plain.dtype), plain.dtype)
    index = np.full(shape, -1, np.int64)
    for _, taps in window_slices(attrs.pool_size, counts, attrs.strides, attrs.dilation):
        candidate, number = pixels[:, :, *taps], numbers[taps]
        is_nan = candidate != candidate
        better = (index < 0) | (candidate > best) | (is_nan & (best == best))
        better &= number >= 0
        np.copyto(best, candidate, where=better)
        np.copyto(index, number, where=better)
    images = np.arange(math.prod(shape[:2])).reshape(*shape[:2], *(1,) * len(extents))
    index = np.where(index < 0, -1, index + images * math.prod(extents))
    return best.astype(data.dtype, copy=False), index


def _avg_pool(attrs: AvgPoolAttrs, data: Array) -> Array:
    total = _slide(attrs, widened_array(data), np.add, 0)
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
    positions = starts[:, None] + np.arange(attrs.pool_size[axis]) * attrs.dilation[axis]
    low, high = (-begin, extent + end) if attrs.count_include_pad else (0, extent)
    return np.asarray(((positions >= low) & (positions < high)).sum(axis=1))


def _lp_pool(attrs: LpPoolAttrs, data: Array) -> Array:
    powers = np.abs(widened_array(data)) ** attrs.p
    total = _slide(attrs, powers, np.add, 0)
    return np.asarray(total ** (1 / attrs.p)).astype(data.dtype, copy=False)


# Name for a spatial rank, attributes, meaning, whether it takes integers, in words.
_POOLS: list[tuple[str, type[PoolAttrs], Callable[..., Any], bool, str]] = [
    ("nn.max_pool{}d", PoolAttrs, _max_pool, True, "the largest element of each window"),
    (
        "nn.max_pool{}d_with_indices",
        MaxPoolIndicesAttrs,
        _max_pool_with_indices,
        True,
        "the largest element of each window, and its index in the image",
    ),
    ("nn.avg_pool{}d", AvgPoolAttrs, _avg_pool, False, "the mean of each window"),
    ("nn.lp_pool{}d", LpPoolAttrs, _lp_pool, False, "the p-norm of each window"),
]
for _rank in RANKS:
    for _name, _attrs, _meaning, _takes_integers, _summary in _POOLS:
        define(
            _name.format(_rank),
            "data",
            _pool_type(_rank, _takes_integers),
            _meaning,
            attrs=for_rank(_attrs, _rank),
            kind=Kind.REDUCTION,
            work=_pool_work,
            outputs=2 if _attrs is MaxPoolIndicesAttrs else 1,
            summary=_summary,
        )


# Tensor expressions.


def _windows(attrs: Any, data: Tensor, name: str, shape: te.Extents, fill: Term) -> Tensor:
    """The data with what windows read around them."""
    extents = read_extents(attrs, shape[2:], attrs.pool_size)
    begins, ends = attrs.padding[: len(extents)], attrs.padding[len(extents) :]
    return te.bordered(data, name, begins, extents, fill, ends=None if attrs.ceil_mode else ends)


def _at(attrs: Any, indices: tuple[Term, ...], taps: list[Axis]) -> list[Term]:
    """The coordinates at which a window reads an element."""
    steps = zip(indices[2:], attrs.strides, taps, attrs.dilation, strict=True)
    return [index * stride + tap * dilation for index, stride, tap, dilation in steps]


@te.expresses(*(f"nn.max_pool{rank}d" for rank in RANKS))
def _express_max_pool(attrs: Any, out: te.Out, data: Tensor) -> te.Results:
    """Padding never wins; NaN always does."""
    dtype, shape = out.dtype, out.shape
    wide, name = te.accumulated_in(dtype), te.sum_name(out.name, dtype)
    return out.rounded(_largest(attrs, data, shape, wide, name, f"{out.name}_pad"))


def _largest(
    attrs: Any, data: Tensor, shape: te.Extents, dtype: DType, name: str, border: str
) -> Tensor:
    lowest = Term(identity(BinaryKind.MAXIMUM, dtype))
    source = _windows(attrs, data, border, shape, lowest)

    def element(*indices: Term) -> Reduce:
        taps = te.reduce_axes(attrs.pool_size)
        pixel = source[(*indices[:2], *_at(attrs, indices, taps))]
        return max_(cast(dtype, pixel), taps)

    return te.by_index(name, shape, element)


@te.expresses(*(f"nn.max_pool{rank}d_with_indices" for rank in RANKS))
def _express_max_pool_with_indices(attrs: Any, out: te.Out, data: Tensor) -> te.Results:
    """The first of the largest elements wins; a window of padding alone has index -1."""
    shape = out.shape
    values = _express_max_pool(attrs, out, data)
    assert isinstance(values, tuple)
    largest = _largest(attrs, data, shape, data.dtype, f"{out.name}_best", f"{out.name}_around")
    images, extents = te.sizes(data)[:2], te.sizes(data)[2:]
    nowhere = math.prod(attrs.pool_size)
    begins = attrs.padding[: len(extents)]

    def first(*indices: Term) -> Reduce:
        taps = te.reduce_axes(attrs.pool_size)
        coordinate = [
            at - begin for at, begin in zip(_at(attrs, indices, taps), begins, strict=True)
        ]
        inside = (coordinate[0] >= 0) & (coordinate[0] < extents[0])
        for index, extent in zip(coordinate[1:], extents[1:], strict=True):
            inside = inside & (index >= 0) & (index < extent)
        clamped = [
            maximum(minimum(index, extent - 1), 0)
            for index, extent in zip(coordinate, extents, strict=True)
        ]
        pixel, best = data[(*indices[:2], *clamped)], te.read(largest, indices)
        is_largest = equal(pixel, best)
        if data.dtype.is_float:
            is_largest = is_largest | (call("isnan", pixel) & call("isnan", best))
        window = te.linear(taps, attrs.pool_size)
        return min_(select(inside & is_largest, window, nowhere), taps)

    tap = te.by_index(f"{out.name}_tap", shape, first)

    def index(*indices: Term) -> Term:
        window = te.read(tap, indices)
        taps = te.unravelled(minimum(window, nowhere - 1), attrs.pool_size)
        steps = zip(indices[2:], attrs.strides, taps, attrs.dilation, begins, strict=True)
        coordinate = [at * s + k * d - begin for at, s, k, d, begin in steps]
        order = list(zip(coordinate, extents, strict=True))
        image = indices[0] * images[1] + indices[1]
        total: Term | int = 0
        for position, extent in reversed(order) if attrs.column_major else order:
            total = total * extent + position
        return select(equal(window, nowhere), -1, image * product(extents) + total)

    return values[0], te.by_index(f"{out.name}_1", shape, index)


@te.expresses(*(f"nn.avg_pool{rank}d" for rank in RANKS))
def _express_avg_pool(attrs: Any, out: te.Out, data: Tensor) -> te.Results:
    """The sum under a window over how many elements it counts."""
    dtype, shape = out.dtype, out.shape
    wide = te.accumulated_in(dtype)
    source = _windows(attrs, data, f"{out.name}_pad", shape, te.number(0, wide))

    def element(*indices: Term) -> Reduce:
        taps = te.reduce_axes(attrs.pool_size)
        return sum_(te.widened(source[(*indices[:2], *_at(attrs, indices, taps))]), taps)

    total = te.by_index(f"{out.name}_sum", shape, element)
    extents = te.sizes(data)[2:]

    def mean(*indices: Term) -> Term:
        members: Term | int = 1
        for axis, extent in enumerate(extents):
            members = _counted(attrs, axis, extent, shape[2 + axis], indices[2 + axis]) * members
        return cast(dtype, te.read(total, indices) / te.floats(members, wide))

    return out.of(mean)


def _counted(attrs: Any, axis: int, extent: AnyDim, count: AnyDim, index: Term) -> Term | int:
    """How many elements a window along an axis counts."""
    rank, taps, step = len(attrs.strides), attrs.pool_size[axis], attrs.dilation[axis]
    begin, end = attrs.padding[axis], attrs.padding[rank + axis]
    low, high = (-begin, extent + end) if attrs.count_include_pad else (0, extent)
    reach = (count - 1) * attrs.strides[axis] + (taps - 1) * step
    # Windows that are not rounded up end within the padding, whatever the extents are.
    whole = not attrs.ceil_mode and not te.is_known(extent) and at_least(high, extent + end)
    if at_least(-begin, low) and (whole or at_least(high, reach - begin + 1)):
        return int(taps)
    start = index * attrs.strides[axis] - begin
    first = maximum((term(low + step - 1) - start) // step, 0)
    last = minimum((term(high - 1) - start) // step, taps - 1)
    return maximum(last - first + 1, 0)


@te.expresses(*(f"nn.lp_pool{rank}d" for rank in RANKS))
def _express_lp_pool(attrs: Any, out: te.Out, data: Tensor) -> te.Results:
    """The p-th root of the sum of p-th powers."""
    dtype, shape = out.dtype, out.shape
    wide = te.accumulated_in(dtype)
    source = _windows(attrs, data, f"{out.name}_pad", shape, te.number(0, wide))

    def element(*indices: Term) -> Reduce:
        taps = te.reduce_axes(attrs.pool_size)
        size = call("abs", te.widened(source[(*indices[:2], *_at(attrs, indices, taps))]))
        if attrs.p <= 2:
            return sum_(size if attrs.p == 1 else size * size, taps)
        return sum_(call("pow", size, float(attrs.p)), taps)

    total = te.by_index(f"{out.name}_sum", shape, element)

    def root(*indices: Term) -> Term:
        powers = te.read(total, indices)
        if attrs.p <= 2:
            return cast(dtype, powers if attrs.p == 1 else call("sqrt", powers))
        return cast(dtype, call("pow", powers, 1 / attrs.p))

    return out.of(root)


def _unpooled_shape(attrs: PoolAttrs, shape: Shape) -> Shape:
    """The smallest shape whose pooling has this shape."""
    rank = len(attrs.strides)
    pads, extents = attrs.padding, shape[2:]
    return (
        *shape[:2],
        *(
            (extents[axis] - 1) * attrs.strides[axis]
            + reach(attrs.pool_size[axis], attrs.dilation[axis])
            - pads[axis]
            - pads[rank + axis]
            for axis in range(rank)
        ),
    )


def _max_unpool_type(attrs: PoolAttrs, data: TensorType, indices: TensorType) -> TensorType:
    rank = len(attrs.pool_size)
    require(indices.dtype is DType.INT64, f"the indices are {indices.dtype}, not int64")
    check_window(attrs, rank)
    check_kernel(attrs.pool_size)
    shape = ranked_shape(data, rank + 2, "the data")
    for dim, other in zip(shape, ranked_shape(indices, rank + 2, "the indices"), strict=True):
        require_same_dim(dim, other, "extents of the data and the indices")
    result = _unpooled_shape(attrs, shape)
    negative = any(isinstance(dim, int) and dim < 0 for dim in result)
    require(not negative, f"the padding {list(attrs.padding)} is larger than the result")
    return TensorType(data.dtype, result)


def _max_unpool(attrs: PoolAttrs, data: Array, indices: Array) -> Array:
    shape: Any = _unpooled_shape(attrs, data.shape)
    size = math.prod(shape)
    check_indices(indices, Guard(0, size, wraps=False))
    result = np.zeros(size, data.dtype)
    result[indices.reshape(-1)] = data.reshape(-1)
    return result.reshape(shape)


def _into_flattened(node: Node) -> IndexBounds | None:
    """Indices count elements of the result."""
    size = product(node.output.shape or (UNKNOWN,))
    if isinstance(size, Unknown):
        return None
    return IndexBounds(node.args[1], (0,), (size,), wraps=False)


for _rank in RANKS:
    define(
        f"nn.max_unpool{_rank}d",
        "data indices",
        _max_unpool_type,
        _max_unpool,
        attrs=for_rank(PoolAttrs, _rank),
        kind=Kind.OPAQUE,
        work=movement_work,
        index_bounds=_into_flattened,
        summary="puts values at their indices in a larger tensor of zeros",
    )

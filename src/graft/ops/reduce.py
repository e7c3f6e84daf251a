"""Reductions along axes, positions of extremes, and running totals.

A tensor enters; a tensor leaves in which the axes are gone, or 1 with `keepdims`. No axes given
means all of them; an empty list of axes reduces nothing unless `noop_with_empty_axes` is off.
Totals are gathered in the widest type of their kind and rounded once. A reduction of nothing gives
the operation's neutral element: minus infinity, or the smallest number there is, for max.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from graft.base.dims import UNKNOWN, AnyDim, dim_max, dim_min, product
from graft.base.dtypes import Array, DType, dtype_of, float_info, integer_info
from graft.base.errors import EvaluationError
from graft.ir.attrs import Attrs, Ints
from graft.ir.op import Kind, Work, define, traffic, with_attributes
from graft.ir.types import Shape, TensorType
from graft.loop.build import Term, call, cast, compare, equal, select
from graft.loop.ir import CompareKind
from graft.loop.tensor import Reduce, Tensor, max_, min_, product_, reduce_axis, sum_
from graft.ops import expression as te
from graft.ops.rules import (
    normalize_axes,
    normalize_axis,
    require,
    symbolic_by,
)


@dataclass(frozen=True, slots=True)
class ReduceAttrs(Attrs):
    axes: Ints | None = None
    keepdims: bool = False
    noop_with_empty_axes: bool = True


def reading_work(_attrs: Any, ins: Sequence[TensorType], outs: Sequence[TensorType]) -> Work:
    """One operation per element of the first operand."""
    return Work(0, ins[0].size, traffic(ins, outs))


def accumulator_of(dtype: np.dtype[Any]) -> np.dtype[Any]:
    """The widest dtype of the same kind, in which totals lose nothing."""
    kind = dtype_of(dtype)
    if kind.is_float:
        return np.dtype(np.float64)
    if kind.is_complex:
        return np.dtype(np.complex128)
    if kind.is_integer:
        return np.dtype(np.uint64 if kind.is_unsigned_integer else np.int64)
    return dtype


def comparable(array: Array) -> Array:
    """The same values in the same order, in a dtype that NumPy itself knows how to compare."""
    kind = dtype_of(array.dtype)
    if array.dtype.kind != "V":
        return array
    return array.astype(np.float32 if kind.is_float else np.int8)


def _dtype_allowed(name: str, dtype: DType) -> bool:
    if name in ("max", "min"):
        return dtype is DType.BOOL or dtype.is_float or dtype.is_integer
    return dtype.is_number


def _reduce_type(name: str) -> Callable[[ReduceAttrs, TensorType, TensorType | None], TensorType]:
    def rule(attrs: ReduceAttrs, data: TensorType, axes: TensorType | None) -> TensorType:
        require(_dtype_allowed(name, data.dtype), f"cannot reduce {data.dtype} elements")
        if attrs.axes is None and axes is not None:
            return TensorType(data.dtype, _unknown_axes_shape(attrs, data, axes))
        return TensorType(data.dtype, _reduced_shape(attrs, data))

    return rule


def _reduced_shape(attrs: ReduceAttrs, data: TensorType) -> Shape | None:
    everything = attrs.axes is None or not (attrs.axes or attrs.noop_with_empty_axes)
    if data.shape is None:
        return () if everything and not attrs.keepdims else None
    rank = len(data.shape)
    axes = normalize_axes(range(rank) if everything else attrs.axes or (), rank)
    if attrs.keepdims:
        return tuple(1 if i in axes else dim for i, dim in enumerate(data.shape))
    return tuple(dim for i, dim in enumerate(data.shape) if i not in axes)


def _unknown_axes_shape(attrs: ReduceAttrs, data: TensorType, axes: TensorType) -> Shape | None:
    """What is known where only the data say which axes go."""
    require(axes.dtype is DType.INT64, f"the axes are {axes.dtype}, not int64")
    require(axes.rank in (None, 1), f"the axes are a tensor of rank {axes.rank}, not 1")
    if data.shape is None:
        return None
    rank = len(data.shape)
    count = axes.shape[0] if axes.shape else UNKNOWN
    if count == 0 and not attrs.noop_with_empty_axes:
        count = rank
    if count == rank:
        return (1,) * rank if attrs.keepdims else ()
    require(not isinstance(count, int) or count < rank, f"{count} axes of a rank-{rank} tensor")
    if attrs.keepdims:
        return tuple(1 if dim == 1 else UNKNOWN for dim in data.shape)
    return (UNKNOWN,) * (rank - count) if isinstance(count, int) else None


def _chosen_axes(attrs: ReduceAttrs) -> Ints | None:
    """The axes as NumPy takes them; None is all of them."""
    return attrs.axes if attrs.axes or attrs.noop_with_empty_axes else None


def _total(reduce: Callable[..., Any]) -> Callable[[Array, Ints | None, bool], Array]:
    """A sum or product, in the widest type of its kind."""

    def meaning(data: Array, axes: Ints | None, keepdims: bool) -> Array:
        wide = accumulator_of(data.dtype)
        return np.asarray(reduce(data, axis=axes, keepdims=keepdims, dtype=wide)).astype(data.dtype)

    return meaning


def _mean(data: Array, axes: Ints | None, keepdims: bool) -> Array:
    total = np.sum(data, axis=axes, keepdims=keepdims, dtype=accumulator_of(data.dtype))
    count = data.size // max(np.size(total), 1)
    if dtype_of(data.dtype).is_integer:  # truncates, like integer division
        count = max(count, 1)
        total = total // count + ((total < 0) & (total % count != 0))
        return np.asarray(total).astype(data.dtype)
    return np.asarray(np.divide(total, count)).astype(data.dtype)


def lowest(dtype: np.dtype[Any]) -> Any:
    """The neutral element of max: minus infinity, or the smallest number there is."""
    return _limit(dtype, -np.inf, "min", False)


def highest(dtype: np.dtype[Any]) -> Any:
    """The neutral element of min: infinity, or the largest number there is."""
    return _limit(dtype, np.inf, "max", True)


def _limit(dtype: np.dtype[Any], infinity: float, end: str, boolean: bool) -> Any:
    kind = dtype_of(dtype)
    if kind is DType.BOOL:
        return boolean
    if kind.is_integer:
        return int(getattr(integer_info(dtype), end))
    has_infinity = np.isinf(np.array(infinity).astype(dtype).astype(np.float64))
    if has_infinity:
        return infinity
    return float(getattr(float_info(dtype), end))


def _extreme(
    reduce: Callable[..., Any], neutral: Callable[[np.dtype[Any]], Any]
) -> Callable[[Array, Ints | None, bool], Array]:
    def meaning(data: Array, axes: Ints | None, keepdims: bool) -> Array:
        start = neutral(data.dtype)
        result = reduce(comparable(data), axis=axes, keepdims=keepdims, initial=start)
        return np.asarray(result).astype(data.dtype)

    return meaning


def _of_dims(pair: Callable[[Any, Any], Any], neutral: int | None) -> Callable[..., Any]:
    """The same reduction of symbolic dims; a reduction of nothing needs the neutral element."""
    lifted = np.frompyfunc(pair, 2, 1)

    def follow(attrs: ReduceAttrs, data: Array) -> Array:
        numbers = _chosen_axes(attrs)
        picked = normalize_axes(range(data.ndim) if numbers is None else numbers, data.ndim)
        result = data.astype(object)
        for axis in picked:
            empty = result.shape[axis] == 0 and neutral is not None
            start = {"initial": neutral} if empty else {}
            result = np.asarray(lifted.reduce(result, axis=axis, keepdims=True, **start), object)
        return result if attrs.keepdims else np.squeeze(result, axis=picked)

    return with_attributes(follow, "data axes?", ReduceAttrs)


# name, meaning on (data, axes, keepdims), the same on symbolic dims, in words
_REDUCTIONS: list[tuple[str, Callable[..., Array], Callable[..., Any] | None, str]] = [
    ("sum", _total(np.sum), _of_dims(lambda a, b: a + b, 0), "the sum over axes"),
    ("prod", _total(np.prod), _of_dims(lambda a, b: a * b, 1), "the product over axes"),
    ("mean", _mean, None, "the mean over axes"),
    ("max", _extreme(np.max, lowest), _of_dims(dim_max, None), "the largest element over axes"),
    ("min", _extreme(np.min, highest), _of_dims(dim_min, None), "the smallest element over axes"),
]


def _meaning(reduce: Callable[..., Array]) -> Callable[[ReduceAttrs, Array], Array]:
    return lambda attrs, data: reduce(data, _chosen_axes(attrs), attrs.keepdims)


for _name, _reduce, _symbolic, _summary in _REDUCTIONS:
    define(
        _name,
        "data axes?",
        _reduce_type(_name),
        _meaning(_reduce),
        attrs=ReduceAttrs,
        kind=Kind.REDUCTION,
        work=reading_work,
        symbolic=None if _symbolic is None else symbolic_by(_symbolic),
        summary=_summary,
    )


@dataclass(frozen=True, slots=True)
class ArgReduceAttrs(Attrs):
    axis: int = 0
    keepdims: bool = False
    select_last_index: bool = False


def _arg_type(attrs: ArgReduceAttrs, data: TensorType) -> TensorType:
    require(data.dtype.is_float or data.dtype.is_integer, f"cannot order {data.dtype} elements")
    if data.shape is None:
        return TensorType(DType.INT64, None)
    normalize_axis(attrs.axis, len(data.shape))
    shape = _reduced_shape(ReduceAttrs((attrs.axis,), attrs.keepdims), data)
    return TensorType(DType.INT64, shape)


def _arg(find: Callable[..., Any], name: str) -> Callable[[ArgReduceAttrs, Array], Array]:
    def meaning(attrs: ArgReduceAttrs, data: Array) -> Array:
        axis, extent = attrs.axis, data.shape[attrs.axis]
        if extent == 0:
            raise EvaluationError(f"{name} along axis {axis}, which is empty")
        last = attrs.select_last_index
        ordered = np.flip(comparable(data), axis) if last else comparable(data)
        result = np.asarray(find(ordered, axis=axis, keepdims=attrs.keepdims), np.int64)
        return np.asarray(extent - 1 - result) if last else result

    return meaning


for _name, _find, _which in (("argmax", np.argmax, "largest"), ("argmin", np.argmin, "smallest")):
    define(
        _name,
        "data",
        _arg_type,
        _arg(_find, _name),
        attrs=ArgReduceAttrs,
        kind=Kind.REDUCTION,
        work=reading_work,
        summary=f"the index of the {_which} element along an axis",
    )


@dataclass(frozen=True, slots=True)
class CumulativeAttrs(Attrs):
    axis: int | None = None
    exclusive: bool = False
    reverse: bool = False


def _cumulative_type(
    attrs: CumulativeAttrs, data: TensorType, axis: TensorType | None
) -> TensorType:
    require(data.dtype.is_number, f"cannot total {data.dtype} elements")
    require(attrs.axis is not None or axis is not None, "the axis is missing")
    if axis is not None:
        require(axis.dtype.is_integer, f"the axis is {axis.dtype}, not an integer")
        require(axis.size == 1 or not isinstance(axis.size, int), "the axis is not one number")
    if attrs.axis is not None and data.shape is not None:
        normalize_axis(attrs.axis, len(data.shape))
    return data


def _cumulative(run: Callable[..., Any], neutral: int) -> Callable[[CumulativeAttrs, Array], Array]:
    def meaning(attrs: CumulativeAttrs, data: Array) -> Array:
        along: Any = attrs.axis
        forward = np.moveaxis(data, along, 0)
        if attrs.reverse:
            forward = forward[::-1]
        total = run(forward, axis=0, dtype=accumulator_of(data.dtype))
        if attrs.exclusive:
            first = np.full_like(total[:1], neutral)
            total = np.concatenate([first, total[:-1]])
        if attrs.reverse:
            total = total[::-1]
        return np.asarray(np.moveaxis(total, 0, along).astype(data.dtype))

    return meaning


for _name, _run, _neutral, _what in (
    ("cumsum", np.cumsum, 0, "sums"),
    ("cumprod", np.cumprod, 1, "products"),
):
    define(
        _name,
        "data axis?",
        _cumulative_type,
        _cumulative(_run, _neutral),
        attrs=CumulativeAttrs,
        summary=f"running {_what} along an axis",
    )


# Tensor expressions.


_KINDS: dict[str, Callable[..., Reduce]] = {
    "sum": sum_,
    "mean": sum_,
    "prod": product_,
    "max": max_,
    "min": min_,
}


def _reduction(op: str) -> te.Expression:
    def expression(attrs: Any, out: te.Out, data: Tensor, axes_: Tensor | None) -> te.Results:
        dtype = out.dtype
        if axes_ is not None and attrs.axes is None:
            return _by_extents(op, out, data)
        everything = attrs.axes is None or not (attrs.axes or attrs.noop_with_empty_axes)
        rank = len(data.shape)
        axes = normalize_axes(range(rank) if everything else attrs.axes, rank)
        wide = _accumulator(op, dtype)
        total = te.total_over(
            out.name if wide is dtype and op != "mean" else f"{out.name}_total",
            data,
            axes,
            _KINDS[op],
            lambda value, _place: cast(wide, value),
            attrs.keepdims,
        )
        if total.name == out.name:
            return (total,)
        count = product(te.sizes(data)[axis] for axis in axes)

        def element(*indices: Term) -> Term:
            value = te.read(total, indices)
            return cast(dtype, _mean_of(value, count) if op == "mean" else value)

        return out.of(element)

    return expression


def _by_extents(op: str, out: te.Out, data: Tensor) -> te.Results:
    """Along axes that are known only at run time: those along which the result has one element.

    Of an axis with n elements, of which k are left, n - k + 1 are combined: all or just one."""
    dtype, have = out.dtype, te.sizes(data)
    left = out.shape or (1,) * len(have)
    if len(left) != len(have):
        return te.Unexpressed("the axes are known only at run time")
    wide = _accumulator(op, dtype)
    counts = [before - after + 1 for before, after in zip(have, left, strict=True)]

    def combined(*indices: Term) -> Reduce:
        reduced = te.reduce_axes(counts)
        at = [i + r for i, r in zip(indices, reduced, strict=True)]
        return _KINDS[op](cast(wide, te.read(data, at)), reduced)

    total = te.by_index(f"{out.name}_total", left, combined)

    def element(*indices: Term) -> Term:
        value = te.read(total, indices or [0] * len(have))
        return cast(dtype, _mean_of(value, product(counts)) if op == "mean" else value)

    return out.of(element)


def _accumulator(op: str, dtype: DType) -> DType:
    """What to combine in: wider where a dtype is too small, or has no order."""
    if dtype is DType.BOOL:
        return DType.UINT8
    if op == "mean" and dtype.is_integer:
        return DType.UINT64 if dtype.is_unsigned_integer else DType.INT64
    return te.accumulated_in(dtype)


def _mean_of(total: Term, count: AnyDim) -> Term:
    """The mean from a total and a count; truncated for integers."""
    if total.dtype.is_float:
        return total / te.floats(count, total.dtype)
    parts = dim_max(count, 1)
    divisor = parts if isinstance(parts, int) else cast(total.dtype, parts)
    if total.dtype.is_unsigned_integer:
        return total // divisor
    inexact = (total < 0) & compare(CompareKind.NOT_EQUAL, total % divisor, 0)
    return total // divisor + cast(total.dtype, inexact)


for _op in _KINDS:
    te.expresses(_op)(_reduction(_op))


def _arg_extreme(kind: Callable[..., Reduce], attrs: Any, out: te.Out, data: Tensor) -> te.Results:
    """The first or last index of the largest or smallest element; NaN wins either way."""
    axis = normalize_axis(attrs.axis, len(data.shape))
    extent = te.sizes(data)[axis]
    if extent == 0:
        return te.Unexpressed("there is no place in an empty axis")
    wide = te.accumulated_in(data.dtype)
    best = te.total_over(f"{out.name}_best", data, [axis], kind, lambda value, _: cast(wide, value))

    def is_best(value: Term, position: Sequence[Term]) -> Term:
        winner = te.of_row(best, position, axis)
        result = equal(cast(wide, value), winner)
        if wide.is_float:
            result = result | (call("isnan", cast(wide, value)) & call("isnan", winner))
        return select(result, position[axis], -1 if attrs.select_last_index else extent)

    combine: Callable[..., Reduce] = max_ if attrs.select_last_index else min_
    return (te.total_over(out.name, data, [axis], combine, is_best, attrs.keepdims),)


LONGEST_RUN = 1024


def _running(
    kind: Callable[..., Reduce],
    neutral: int,
    attrs: Any,
    out: te.Out,
    data: Tensor,
    axis_: Tensor | None,
) -> te.Results:
    """Running totals along an axis, each a reduction over the whole axis."""
    dtype = out.dtype
    if attrs.axis is None or axis_ is not None:
        return te.Unexpressed("the axis is known only at run time")
    axis = normalize_axis(attrs.axis, len(data.shape))
    extent = te.sizes(data)[axis]
    if isinstance(extent, int) and extent > LONGEST_RUN:
        return te.Unexpressed(f"running totals along more than {LONGEST_RUN} elements")
    wide = te.accumulated_in(dtype)

    def element(*indices: Term) -> Reduce:
        position = reduce_axis("place", data.shape[axis])
        value = cast(wide, te.read(data, [*indices[:axis], position, *indices[axis + 1 :]]))
        first, last = (indices[axis], position) if attrs.reverse else (position, indices[axis])
        counts = first < last if attrs.exclusive else first <= last
        return kind(select(counts, value, te.number(neutral, wide)), [position])

    total = te.by_index(te.sum_name(out.name, dtype), data.shape, element)
    return out.rounded(total)


te.expresses("argmax")(partial(_arg_extreme, max_))
te.expresses("argmin")(partial(_arg_extreme, min_))
te.expresses("cumsum")(partial(_running, sum_, 0))
te.expresses("cumprod")(partial(_running, product_, 1))

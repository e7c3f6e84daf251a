"""Reductions along axes, and the positions of extremes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from graft.base.dims import AnyDim, dim_max, product
from graft.base.dtypes import DType
from graft.loop.build import Term, call, cast, compare, equal, select
from graft.loop.ir import CompareKind
from graft.loop.tensor import Reduce, Tensor, max_, min_, product_, sum_
from graft.ops.expression.registry import (
    EXPRESSIONS,
    Inputs,
    Results,
    Types,
    Unexpressed,
    expresses,
)
from graft.ops.expression.shapes import (
    by_index,
    extents_of,
    floats,
    present,
    read,
    reduce_axes,
    sizes,
)
from graft.ops.rules import normalize_axes, normalize_axis
from graft.ops.scalar import is_narrow

_KINDS: dict[str, Callable[..., Reduce]] = {
    "sum": sum_,
    "mean": sum_,
    "prod": product_,
    "max": max_,
    "min": min_,
}


def total_over(
    name: str,
    data: Tensor,
    axes: Sequence[int],
    kind: Callable[..., Reduce],
    value: Callable[[Term, Sequence[Term]], Term],
    keepdims: bool = True,
) -> Tensor:
    """The values of all elements along axes combined; those axes are 1, or gone.

    A value gets the element and its indices.
    """
    kept = [axis for axis in range(len(data.shape)) if axis not in axes]
    extents = [data.shape[axis] for axis in axes]
    shape: list[Any] = [1 if axis in axes else extent for axis, extent in enumerate(data.shape)]

    def element(*indices: Term) -> Reduce | Term:
        reduced = reduce_axes(extents)
        outer = indices if not keepdims else [indices[axis] for axis in kept]
        at: dict[int, Term] = {**dict(zip(kept, outer, strict=True))}
        at |= dict(zip(axes, reduced, strict=True))
        place = [at[axis] for axis in range(len(data.shape))]
        found = value(read(data, place), place)
        return kind(found, reduced) if reduced else found

    return by_index(name, shape if keepdims else [shape[axis] for axis in kept], element)


def _reduction(op: str) -> None:
    def expression(attrs: Any, inputs: Inputs, types: Types, name: str) -> Results:
        data, dtype = present(inputs[0]), types[0].dtype
        if inputs[1] is not None and attrs.axes is None:
            return _by_extents(op, data, types, name)
        everything = attrs.axes is None or not (attrs.axes or attrs.noop_with_empty_axes)
        rank = len(data.shape)
        axes = normalize_axes(range(rank) if everything else attrs.axes, rank)
        wide = _accumulator(op, dtype)
        total = total_over(
            name if wide is dtype and op != "mean" else f"{name}_total",
            data,
            axes,
            _KINDS[op],
            lambda value, _place: cast(wide, value),
            attrs.keepdims,
        )
        if total.name == name:
            return (total,)
        count = product(sizes(data)[axis] for axis in axes)

        def element(*indices: Term) -> Term:
            value = read(total, indices)
            return cast(dtype, _mean(value, count) if op == "mean" else value)

        return (by_index(name, extents_of(types[0]), element),)

    EXPRESSIONS.add(op, expression)


def _by_extents(op: str, data: Tensor, types: Types, name: str) -> Results:
    """Along axes that are known only at run time: those along which the result has one element.

    Of an axis with n elements, of which k are left, n - k + 1 are combined: all or just one."""
    dtype, left, have = types[0].dtype, extents_of(types[0]), sizes(data)
    left = left or (1,) * len(have)
    if len(left) != len(have):
        return Unexpressed("the axes are known only at run time")
    wide = _accumulator(op, dtype)
    counts = [before - after + 1 for before, after in zip(have, left, strict=True)]

    def combined(*indices: Term) -> Reduce:
        reduced = reduce_axes(counts)
        at = [i + r for i, r in zip(indices, reduced, strict=True)]
        return _KINDS[op](cast(wide, read(data, at)), reduced)

    total = by_index(f"{name}_total", left, combined)

    def element(*indices: Term) -> Term:
        value = read(total, indices or [0] * len(have))
        return cast(dtype, _mean(value, product(counts)) if op == "mean" else value)

    return (by_index(name, extents_of(types[0]), element),)


def _accumulator(op: str, dtype: DType) -> DType:
    """What to combine in: wider where a dtype is too small, or has no order."""
    if is_narrow(dtype):
        return DType.FLOAT32
    if dtype is DType.BOOL:
        return DType.UINT8
    if op == "mean" and dtype.is_integer:
        return DType.UINT64 if dtype.is_unsigned_integer else DType.INT64
    return dtype


def _mean(total: Term, count: AnyDim) -> Term:
    """Of integers, truncated."""
    if total.dtype.is_float:
        return total / floats(count, total.dtype)
    parts = dim_max(count, 1)
    divisor = parts if isinstance(parts, int) else cast(total.dtype, parts)
    if total.dtype.is_unsigned_integer:
        return total // divisor
    inexact = (total < 0) & compare(CompareKind.NOT_EQUAL, total % divisor, 0)
    return total // divisor + cast(total.dtype, inexact)


for _op in sorted(_KINDS):
    _reduction(_op)


@expresses("argmax")
def argmax(attrs: Any, inputs: Inputs, types: Types, name: str) -> Results:
    """The first or last place of the largest element; NaN is larger than anything."""
    return _place_of(attrs, present(inputs[0]), types, name, max_)


@expresses("argmin")
def argmin(attrs: Any, inputs: Inputs, types: Types, name: str) -> Results:
    """The first or last place of the smallest element; NaN is smaller than anything."""
    return _place_of(attrs, present(inputs[0]), types, name, min_)


def _place_of(
    attrs: Any, data: Tensor, types: Types, name: str, kind: Callable[..., Reduce]
) -> Results:
    axis = normalize_axis(attrs.axis, len(data.shape))
    extent = sizes(data)[axis]
    if extent == 0:
        return Unexpressed("there is no place in an empty axis")
    wide = DType.FLOAT32 if is_narrow(data.dtype) else data.dtype
    best = total_over(f"{name}_best", data, [axis], kind, lambda value, _: cast(wide, value))

    def is_best(value: Term, place: Sequence[Term]) -> Term:
        winner = read(best, [*place[:axis], 0, *place[axis + 1 :]])
        found = equal(cast(wide, value), winner)
        if wide.is_float:
            found = found | (call("isnan", cast(wide, value)) & call("isnan", winner))
        return select(found, place[axis], -1 if attrs.select_last_index else extent)

    chosen: Callable[..., Reduce] = max_ if attrs.select_last_index else min_
    return (total_over(name, data, [axis], chosen, is_best, attrs.keepdims),)

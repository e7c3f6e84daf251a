"""Normalisations by what is near an element: local responses, and norms along an axis.

Floats enter and leave; the result has the data's type. All is computed in float32 or wider.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from graft.base.dims import AnyDim
from graft.base.dtypes import Array
from graft.ir.attrs import Attrs
from graft.ir.op import Work, traffic
from graft.ir.types import TensorType
from graft.loop.build import Term, call, cast, equal, select
from graft.loop.tensor import Reduce, Tensor, reduce_axis, sum_
from graft.ops import expression as te
from graft.ops.activation import operations_per_element
from graft.ops.pointwise import widened_array
from graft.ops.rules import FLOATS, axis_type, normalize_axis, operator, require


@dataclass(frozen=True, slots=True)
class LrnAttrs(Attrs):
    size: int
    axis: int = 1
    bias: float = 1.0
    alpha: float = 1e-4
    beta: float = 0.75


def _lrn_type(attrs: LrnAttrs, data: TensorType) -> TensorType:
    require(attrs.size > 0, f"size is {attrs.size}")
    return axis_type(attrs, data)


def _window(size: int, extent: AnyDim) -> tuple[int, int]:
    """How many elements a window of `size` covers before and after its own, within an axis.

    A window of even size reaches one further ahead than back. Elements outside of the axis count
    as zero, so a window wider than it (the file may say 2^62) is cut to it."""
    before = (size - 1) // 2
    after = size - 1 - before
    if not isinstance(extent, int):
        return before, after
    most = max(extent - 1, 0)
    return min(before, most), min(after, most)


def _lrn_work(attrs: LrnAttrs, ins: Sequence[TensorType], outs: Sequence[TensorType]) -> Work:
    """A square, a sum over the window, a product, a shift, a power and a division each."""
    assert outs[0].shape is not None
    before, after = _window(attrs.size, outs[0].shape[attrs.axis])
    return Work(0, outs[0].size * (before + after + 5), traffic(ins, outs))


@operator("nn.lrn", "data", _lrn_type, dtypes=FLOATS, work=_lrn_work)
def _lrn(attrs: LrnAttrs, data: Array) -> Array:
    """Over (bias + alpha / size * sum of squares of `size` neighbours) ** beta."""
    x = np.moveaxis(widened_array(data), attrs.axis, 0)
    before, after = _window(attrs.size, len(x))
    squares = np.pad(np.square(x), [(before, after), *[(0, 0)] * (x.ndim - 1)])
    sums = np.zeros_like(x)
    for offset in range(before + 1 + after):
        sums += squares[offset : offset + len(x)]
    result = x / (attrs.bias + attrs.alpha / attrs.size * sums) ** attrs.beta
    return np.moveaxis(result, 0, attrs.axis).astype(data.dtype, copy=False)


@dataclass(frozen=True, slots=True)
class LpNormalizeAttrs(Attrs):
    axis: int = -1
    p: int = 2


def _lp_normalize_type(attrs: LpNormalizeAttrs, data: TensorType) -> TensorType:
    require(attrs.p in (1, 2), f"p is {attrs.p}, neither 1 nor 2")
    return axis_type(attrs, data)


@operator(
    "nn.lp_normalize", "data", _lp_normalize_type, dtypes=FLOATS, work=operations_per_element(3)
)
def _lp_normalize(attrs: LpNormalizeAttrs, data: Array) -> Array:
    """Over the p-norm along an axis; zero where the norm is zero."""
    x = data.astype(np.float64)
    powers = np.abs(x) if attrs.p == 1 else np.square(x)
    norm = np.sum(powers, axis=attrs.axis, keepdims=True)
    if attrs.p == 2:
        norm = np.sqrt(norm)
    result = np.divide(x, norm, out=np.zeros_like(x), where=norm != 0)
    return np.asarray(result).astype(data.dtype)


@te.expresses("nn.lrn")
def _express_lrn(attrs: Any, out: te.Out, data: Tensor) -> te.Results:
    """Over a power of the sum of squares of neighbours along an axis."""
    wide = te.accumulated_in(out.dtype)
    axis = normalize_axis(attrs.axis, len(data.shape))
    extent = te.sizes(data)[axis]
    before, after = _window(attrs.size, extent)

    def squares(*indices: Term) -> Reduce:
        offset = reduce_axis("offset", before + 1 + after)
        position = indices[axis] + offset - before
        value = cast(wide, te.read(data, [*indices[:axis], position, *indices[axis + 1 :]]))
        inside = (position >= 0) & (position < extent)
        return sum_(select(inside, value * value, te.number(0, wide)), [offset])

    total = te.by_index(f"{out.name}_sum", data.shape, squares)

    def element(*indices: Term) -> Term:
        base = te.read(total, indices) * (attrs.alpha / attrs.size) + attrs.bias
        value = cast(wide, te.read(data, indices)) / call("pow", base, attrs.beta)
        return cast(out.dtype, value)

    return out.of(element)


@te.expresses("nn.lp_normalize")
def _express_lp_normalize(attrs: Any, out: te.Out, data: Tensor) -> te.Results:
    """Over the p-norm along an axis; zero where the norm is zero."""
    wide = te.accumulated_in(out.dtype)
    axis = normalize_axis(attrs.axis, len(data.shape))

    def power(element: Term, _place: Sequence[Term]) -> Term:
        value = cast(wide, element)
        return call("abs", value) if attrs.p == 1 else value * value

    total = te.total_over(f"{out.name}_sum", data, [axis], sum_, power)

    def element(*indices: Term) -> Term:
        norm = te.of_row(total, indices, axis)
        norm = norm if attrs.p == 1 else call("sqrt", norm)
        ratio = cast(wide, te.read(data, indices)) / norm
        return cast(out.dtype, select(equal(norm, 0.0), te.number(0, wide), ratio))

    return out.of(element)

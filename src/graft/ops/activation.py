"""Activation functions that are one operator, as backends have them: ReLUs, GELU, softmax.

Types in: floats, for the relu family any number. Types out: the operand's type. NaN goes through
all of them, and floats narrower than 32 bits are computed in float32.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from graft.base.dtypes import Array
from graft.ir.attrs import Attrs
from graft.ir.op import Work, WorkRule, define, traffic
from graft.ir.types import TensorType
from graft.loop.build import Term, call, cast, maximum, select
from graft.loop.tensor import Tensor, max_, sum_
from graft.ops import expression as te
from graft.ops.pointwise import pointwise, widened_array
from graft.ops.rules import (
    FLOATS,
    REALS,
    axis_type,
    normalize_axis,
    require,
    same_dtype,
    spreads,
)


def operations_per_element(count: int) -> WorkRule:
    """A work rule: `count` operations for every element of the first result."""

    def work(_attrs: Any, ins: Sequence[TensorType], outs: Sequence[TensorType]) -> Work:
        return Work(0, outs[0].size * count, traffic(ins, outs))

    return work


def _relu(_attrs: Attrs, x: Term) -> Term:
    """The larger of each element and 0."""
    return maximum(x, 0)


pointwise("nn.relu", "data", _relu, dtypes=REALS)


@dataclass(frozen=True, slots=True)
class LeakyReluAttrs(Attrs):
    alpha: float = 0.01


def leaky(x: Term, slope: Term | float) -> Term:
    """x, times a slope where it is negative."""
    return select(x < 0, x * slope, x)


def _leaky_relu(attrs: LeakyReluAttrs, x: Term) -> Term:
    """Elements below 0 times alpha."""
    return leaky(x, attrs.alpha)


pointwise("nn.leaky_relu", "data", _leaky_relu, dtypes=FLOATS)


def _prelu_type(_attrs: Attrs, data: TensorType, alpha: TensorType) -> TensorType:
    same_dtype(data, alpha)
    if data.shape is None or alpha.shape is None:
        return data
    extra = len(data.shape) - len(alpha.shape)
    require(extra >= 0, f"alpha has rank {alpha.rank}, data only {data.rank}")
    for dim, slope in zip(data.shape[extra:], alpha.shape, strict=True):
        require(spreads(slope, dim), f"extents of data and alpha differ: {dim} and {slope}")
    return data


def _prelu(_attrs: Attrs, x: Term, alpha: Term) -> Term:
    """Elements below 0 times alpha, which broadcasts to the data's shape."""
    return leaky(x, alpha)


pointwise("nn.prelu", "data alpha", _prelu, infer=_prelu_type, dtypes=REALS)


@dataclass(frozen=True, slots=True)
class GeluAttrs(Attrs):
    approximate: bool = False  # by tanh rather than erf


def _gelu(attrs: GeluAttrs, x: Term) -> Term:
    """x * Phi(x), Phi being the normal distribution; approximated by tanh on request."""
    if not attrs.approximate:
        return call("gelu", x)
    # (1 + tanh(y)) / 2 is the sigmoid of 2 y
    return x * call("sigmoid", (x + x * x * x * 0.044715) * (2 * math.sqrt(2 / math.pi)))


pointwise("nn.gelu", "data", _gelu, dtypes=FLOATS)


@dataclass(frozen=True, slots=True)
class SoftmaxAttrs(Attrs):
    axis: int = -1


def _exponentials(attrs: SoftmaxAttrs, x: Array) -> tuple[Array, Array, Array]:
    """The elements less the greatest of their row, their exponentials, and the rows' sums."""
    shifted = x - np.max(x, axis=attrs.axis, keepdims=True, initial=-np.inf)
    powers = np.exp(shifted)
    return shifted, powers, np.sum(powers, axis=attrs.axis, keepdims=True)


def _softmax(attrs: SoftmaxAttrs, data: Array) -> Array:
    _, powers, sums = _exponentials(attrs, widened_array(data))
    return np.asarray(powers / sums).astype(data.dtype, copy=False)


def _log_softmax(attrs: SoftmaxAttrs, data: Array) -> Array:
    shifted, _, sums = _exponentials(attrs, widened_array(data))
    return np.asarray(shifted - np.log(sums)).astype(data.dtype, copy=False)


for _name, _meaning, _summary in (
    ("nn.softmax", _softmax, "exp(x) over its sum along an axis"),
    ("nn.log_softmax", _log_softmax, "the logarithm of softmax along an axis"),
):
    define(
        _name,
        "data",
        axis_type,
        _meaning,
        dtypes=FLOATS,
        attrs=SoftmaxAttrs,
        work=operations_per_element(5),
        summary=_summary,
    )


# Tensor expressions.


def _less_largest(data: Tensor, axis: int, name: str) -> Tensor:
    """Each element minus the maximum of its row."""
    wide = te.accumulated_in(data.dtype)
    largest = te.total_over(f"{name}_max", data, [axis], max_, lambda value, _: cast(wide, value))

    def element(*indices: Term) -> Term:
        return cast(wide, te.read(data, indices)) - te.of_row(largest, indices, axis)

    return te.by_index(f"{name}_less", data.shape, element)


@te.expresses("nn.softmax")
def _express_softmax(attrs: Any, out: te.Out, data: Tensor) -> te.Results:
    """Each row's exponentials, divided by their sum."""
    axis = normalize_axis(attrs.axis, len(data.shape))
    less = _less_largest(data, axis, out.name)
    powers = te.by_index(f"{out.name}_exp", data.shape, lambda *at: call("exp", te.read(less, at)))
    total = te.total_over(f"{out.name}_sum", powers, [axis], sum_, lambda value, _: value)

    def element(*indices: Term) -> Term:
        power, whole = te.read(powers, indices), te.of_row(total, indices, axis)
        # The factor is the same for a row, so that all but one of its divisions are saved.
        return cast(out.dtype, power * (1.0 / whole))

    return out.of(element)


@te.expresses("nn.log_softmax")
def _express_log_softmax(attrs: Any, out: te.Out, data: Tensor) -> te.Results:
    """Elements less the logarithm of the sum of their exponentials."""
    axis = normalize_axis(attrs.axis, len(data.shape))
    less = _less_largest(data, axis, out.name)
    total = te.total_over(
        f"{out.name}_sum", less, [axis], sum_, lambda value, _: call("exp", value)
    )

    # A stage of its own: it is one number for a row, however many loops that is made of.
    shift = te.by_index(f"{out.name}_log", total.shape, lambda *at: call("log", te.read(total, at)))

    def element(*indices: Term) -> Term:
        return cast(out.dtype, te.read(less, indices) - te.of_row(shift, indices, axis))

    return out.of(element)

"""Activation functions that backends want whole: the relu family, gelu, softmax.

Types in: floats, for the relu family any number. Types out: the operand's type. NaN goes through
all of them, and floats narrower than 32 bits are computed in float32.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from graft.base.dtypes import Array, DType
from graft.ir.attrs import Attrs
from graft.ir.op import Kind, Work, WorkRule, define, get_op, traffic
from graft.ir.types import TensorType, Type
from graft.ops.elementwise import wide
from graft.ops.rules import normalize_axis, only, require, same_dtype, same_type, spreads


def _real(dtype: DType) -> bool:
    return dtype.is_float or dtype.is_integer


def _floating(dtype: DType) -> bool:
    return dtype.is_float


def operations_per_element(count: int) -> WorkRule:
    """A work rule: `count` operations for every element of the first result."""

    def work(_attrs: Any, ins: Sequence[Type | None], outs: Sequence[Type]) -> Work:
        result = outs[0]
        size = result.size if isinstance(result, TensorType) else 0
        return Work(0, size * count, traffic(ins, outs))

    return work


define(
    "nn.relu",
    "data",
    only(_real, "real", same_type),
    wide(lambda x: np.maximum(x, np.zeros((), x.dtype))),
    kind=Kind.ELEMENTWISE,
    summary="the larger of each element and 0",
)


@dataclass(frozen=True, slots=True)
class LeakyReluAttrs(Attrs):
    alpha: float = 0.01


def _leaky_relu(attrs: LeakyReluAttrs, data: Array) -> Array:
    meaning = wide(lambda x: np.where(x < 0, attrs.alpha * x, x))
    return np.asarray(meaning(attrs, data))


define(
    "nn.leaky_relu",
    "data",
    only(_floating, "floating-point", same_type),
    _leaky_relu,
    attrs=LeakyReluAttrs,
    kind=Kind.ELEMENTWISE,
    summary="elements below 0 times alpha",
)


def _prelu_type(_attrs: Attrs, data: TensorType, alpha: TensorType) -> TensorType:
    same_dtype(data, alpha)
    if data.shape is None or alpha.shape is None:
        return data
    extra = len(data.shape) - len(alpha.shape)
    require(extra >= 0, f"alpha has rank {alpha.rank}, data only {data.rank}")
    for dim, slope in zip(data.shape[extra:], alpha.shape, strict=True):
        require(spreads(slope, dim), f"extents of data and alpha differ: {dim} and {slope}")
    return data


define(
    "nn.prelu",  # alpha broadcasts to data's shape
    "data alpha",
    only(_real, "real", _prelu_type),
    wide(lambda x, alpha: np.where(x < 0, alpha * x, x)),
    kind=Kind.BROADCAST,
    summary="elements below 0 times alpha, which broadcasts to the data's shape",
)


@dataclass(frozen=True, slots=True)
class GeluAttrs(Attrs):
    approximate: bool = False  # by tanh rather than erf


def _gelu_by_erf(x: Array) -> Array:
    """At minus infinity it is the limit, zero."""
    normal = 0.5 * (1 + get_op("erf").evaluate(None, x * math.sqrt(0.5)))
    return np.asarray(np.where(np.isneginf(x), 0.0, x) * normal)


def _gelu_by_tanh(x: Array) -> Array:
    inner = math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)
    return np.asarray(0.5 * x * (1 + np.tanh(inner)))


def _gelu(attrs: GeluAttrs, data: Array) -> Array:
    meaning = wide(_gelu_by_tanh if attrs.approximate else _gelu_by_erf)
    return np.asarray(meaning(attrs, data))


define(
    "nn.gelu",
    "data",
    only(_floating, "floating-point", same_type),
    _gelu,
    attrs=GeluAttrs,
    work=operations_per_element(8),
    kind=Kind.ELEMENTWISE,
    summary="x * Phi(x), Phi being the normal distribution; approximated by tanh on request",
)


@dataclass(frozen=True, slots=True)
class SoftmaxAttrs(Attrs):
    axis: int = -1


def _softmax_type(attrs: SoftmaxAttrs, data: TensorType) -> TensorType:
    if data.rank is not None:
        normalize_axis(attrs.axis, data.rank)
    return data


def _exponentials(attrs: SoftmaxAttrs, x: Array) -> tuple[Array, Array, Array]:
    """The elements less the greatest of their row, their exponentials, and the rows' sums."""
    shifted = x - np.max(x, axis=attrs.axis, keepdims=True, initial=-np.inf)
    powers = np.exp(shifted)
    return shifted, powers, np.sum(powers, axis=attrs.axis, keepdims=True)


def _softmax(attrs: SoftmaxAttrs, data: Array) -> Array:
    def of(x: Array) -> Array:
        _, powers, sums = _exponentials(attrs, x)
        return np.asarray(powers / sums)

    return np.asarray(wide(of)(attrs, data))


def _log_softmax(attrs: SoftmaxAttrs, data: Array) -> Array:
    def of(x: Array) -> Array:
        shifted, _, sums = _exponentials(attrs, x)
        return np.asarray(shifted - np.log(sums))

    return np.asarray(wide(of)(attrs, data))


for _name, _meaning, _summary in (
    ("nn.softmax", _softmax, "exp(x) over its sum along an axis"),
    ("nn.log_softmax", _log_softmax, "the logarithm of softmax along an axis"),
):
    define(
        _name,
        "data",
        only(_floating, "floating-point", _softmax_type),
        _meaning,
        attrs=SoftmaxAttrs,
        work=operations_per_element(5),
        summary=_summary,
    )

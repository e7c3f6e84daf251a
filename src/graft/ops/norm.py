"""Normalisations: of batches (by given statistics), layers, instances, groups, roots of mean
squares, local responses and p-norms.

Floats enter and leave; the result has the data's type. All is computed in float32 or wider, what
standardises in float64, and rounded once.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from graft.base.dim_questions import provably_no_multiple
from graft.base.dims import IndexExpr
from graft.base.dtypes import Array, DType, dtype_of
from graft.ir.attrs import Attrs
from graft.ir.op import Kind, Work, define, traffic
from graft.ir.types import TensorType, Type
from graft.ops.activation import operations_per_element
from graft.ops.rules import (
    normalize_axis,
    only,
    require,
    require_broadcasts_to,
    same_dtype,
    with_extent,
)


def _floating(dtype: DType) -> bool:
    return dtype.is_float


def _wide(array: Array) -> Array:
    narrow = dtype_of(array.dtype).bits < 32
    return array.astype(np.float32) if narrow else array


def _mean(x: Array, axes: tuple[int, ...]) -> Array:
    """The mean along axes, which stay; where there is nothing to average, there is no result."""
    count = max(math.prod(x.shape[axis] for axis in axes), 1)
    total = np.sum(x, axis=axes, keepdims=True, dtype=np.float64)
    return np.asarray(total / count)


def _standardized(x: Array, axes: tuple[int, ...], epsilon: float) -> Array:
    """Less the mean, over the deviation."""
    deviation = x - _mean(x, axes)
    return np.asarray(deviation / np.sqrt(_mean(np.square(deviation), axes) + epsilon))


def _along(parameter: Array, axis: int, rank: int) -> Array:
    """A list of one number per index of an axis, ready to broadcast."""
    extents = [1] * rank
    extents[axis] = -1 if parameter.size else 0
    return _wide(parameter).reshape(extents)


def _with_channels(data: TensorType, axis: int, **parameters: TensorType) -> TensorType:
    """The data's type, with what the parameters tell: each is a list of one number per channel."""
    if data.rank is not None:
        normalize_axis(axis, data.rank)
    for name, parameter in parameters.items():
        if parameter.shape is None:
            continue
        require(len(parameter.shape) == 1, f"{name} has rank {parameter.rank}, not 1")
        what = f"extents of the channels and {name}"
        data = with_extent(data, axis, parameter.shape[0], what)
    return data


@dataclass(frozen=True, slots=True)
class BatchNormAttrs(Attrs):
    axis: int = 1
    epsilon: float = 1e-5


def _batch_norm_type(
    attrs: BatchNormAttrs,
    data: TensorType,
    gamma: TensorType,
    beta: TensorType,
    mean: TensorType,
    variance: TensorType,
) -> TensorType:
    given = {"gamma": gamma, "beta": beta, "mean": mean, "variance": variance}
    return _with_channels(data, attrs.axis, **given)


def _batch_norm(attrs: BatchNormAttrs, data: Array, *parameters: Array) -> Array:
    spread = (_along(parameter, attrs.axis, data.ndim) for parameter in parameters)
    gamma, beta, mean, variance = spread
    factor = gamma / np.sqrt(variance + attrs.epsilon)
    return np.asarray((_wide(data) - mean) * factor + beta).astype(data.dtype, copy=False)


define(
    "nn.batch_norm",
    "data gamma beta mean variance",
    only(_floating, "floating-point", _batch_norm_type),
    _batch_norm,
    attrs=BatchNormAttrs,
    kind=Kind.BROADCAST,
    work=operations_per_element(3),
    summary="(data - mean) / sqrt(variance + epsilon) * gamma + beta, all but data per channel",
)


@dataclass(frozen=True, slots=True)
class LayerNormAttrs(Attrs):
    axis: int = -1  # the first of the normalised axes, which are the last ones
    epsilon: float = 1e-5


def _layer_norm_type(
    attrs: LayerNormAttrs, data: TensorType, *parameters: TensorType | None
) -> TensorType:
    same_dtype(data, *parameters)
    if data.rank is not None:
        normalize_axis(attrs.axis, data.rank)
    for name, parameter in zip(("gamma", "beta"), parameters, strict=False):
        if parameter is not None:
            require_broadcasts_to(parameter, data, name)
    return data


def _affine(x: Array, like: Array, gamma: Array | None, beta: Array | None = None) -> Array:
    """`x * gamma + beta`, rounded to the dtype of `like`."""
    if gamma is not None:
        x = x * np.broadcast_to(_wide(gamma), x.shape)
    if beta is not None:
        x = x + np.broadcast_to(_wide(beta), x.shape)
    return x.astype(like.dtype, copy=False)


def _last_axes(attrs: LayerNormAttrs, data: Array) -> tuple[int, ...]:
    return tuple(range(normalize_axis(attrs.axis, data.ndim), data.ndim))


def _layer_norm(
    attrs: LayerNormAttrs, data: Array, gamma: Array | None, beta: Array | None
) -> Array:
    normal = _standardized(_wide(data), _last_axes(attrs, data), attrs.epsilon)
    return _affine(normal, data, gamma, beta)


def _rms_norm(attrs: LayerNormAttrs, data: Array, gamma: Array | None) -> Array:
    x = _wide(data)
    squares = np.square(x, dtype=np.float64)
    normal = x / np.sqrt(_mean(squares, _last_axes(attrs, data)) + attrs.epsilon)
    return _affine(normal, data, gamma)


define(
    "nn.layer_norm",
    "data gamma? beta?",
    only(_floating, "floating-point", _layer_norm_type),
    _layer_norm,
    attrs=LayerNormAttrs,
    work=operations_per_element(8),
    summary="standardised over the axes from `axis` on, times gamma, plus beta",
)

define(
    "nn.rms_norm",
    "data gamma?",
    only(_floating, "floating-point", _layer_norm_type),
    _rms_norm,
    attrs=LayerNormAttrs,
    work=operations_per_element(5),
    summary="over the root of the mean square of the axes from `axis` on, times gamma",
)


@dataclass(frozen=True, slots=True)
class InstanceNormAttrs(Attrs):
    axis: int = 1
    epsilon: float = 1e-5


@dataclass(frozen=True, slots=True)
class GroupNormAttrs(Attrs):
    num_groups: int
    axis: int = 1
    epsilon: float = 1e-5


def _instance_norm_type(
    attrs: InstanceNormAttrs | GroupNormAttrs,
    data: TensorType,
    gamma: TensorType,
    beta: TensorType,
) -> TensorType:
    same_dtype(data, gamma, beta)
    data = _with_channels(data, attrs.axis, gamma=gamma, beta=beta)
    if data.rank is not None:
        require(data.rank >= 2, f"the data has rank {data.rank}, less than 2")
        require(normalize_axis(attrs.axis, data.rank) > 0, "axis 0 is that of the instances")
    return data


def _group_norm_type(
    attrs: GroupNormAttrs, data: TensorType, gamma: TensorType, beta: TensorType
) -> TensorType:
    groups = attrs.num_groups
    require(groups > 0, f"num_groups is {groups}")
    data = _instance_norm_type(attrs, data, gamma, beta)
    channels = data.shape[attrs.axis] if data.shape is not None else gamma.shape and gamma.shape[0]
    if isinstance(channels, int | IndexExpr):
        even = not provably_no_multiple(channels, groups)
        require(even, f"{channels} channels do not make {groups} equal groups")
    return data


def _per_channel(
    axis: int, standardize: Callable[[Array], Array], data: Array, gamma: Array, beta: Array
) -> Array:
    """Standardise with the channels on axis 1, then scale and shift each channel."""
    normal = np.moveaxis(standardize(np.moveaxis(_wide(data), axis, 1)), 1, axis)
    return _affine(normal, data, _along(gamma, axis, data.ndim), _along(beta, axis, data.ndim))


def _instance_norm(attrs: InstanceNormAttrs, data: Array, gamma: Array, beta: Array) -> Array:
    def standardize(x: Array) -> Array:
        return _standardized(x, tuple(range(2, x.ndim)), attrs.epsilon)

    return _per_channel(attrs.axis, standardize, data, gamma, beta)


def _group_norm(attrs: GroupNormAttrs, data: Array, gamma: Array, beta: Array) -> Array:
    def standardize(x: Array) -> Array:
        instances, channels, *rest = x.shape
        groups = x.reshape(instances, attrs.num_groups, channels // attrs.num_groups, *rest)
        axes = tuple(range(2, groups.ndim))
        return _standardized(groups, axes, attrs.epsilon).reshape(x.shape)

    return _per_channel(attrs.axis, standardize, data, gamma, beta)


define(
    "nn.instance_norm",
    "data gamma beta",
    only(_floating, "floating-point", _instance_norm_type),
    _instance_norm,
    attrs=InstanceNormAttrs,
    work=operations_per_element(8),
    summary="each channel of each instance standardised, times gamma, plus beta",
)

define(
    "nn.group_norm",
    "data gamma beta",
    only(_floating, "floating-point", _group_norm_type),
    _group_norm,
    attrs=GroupNormAttrs,
    work=operations_per_element(8),
    summary="each group of channels of each instance standardised, times gamma, plus beta",
)


@dataclass(frozen=True, slots=True)
class ChannelNormAttrs(Attrs):
    epsilon: float = 1e-5
    centered: bool = True  # about the mean; else only divided by the root of the mean square


def _channel_norm_type(
    attrs: ChannelNormAttrs, data: TensorType, *parameters: TensorType | None
) -> TensorType:
    same_dtype(data, *parameters)
    named = zip(("gamma", "beta"), parameters, strict=False)
    return _with_channels(data, 1, **{name: one for name, one in named if one is not None})


def _channel_norm(
    attrs: ChannelNormAttrs, data: Array, gamma: Array | None, beta: Array | None
) -> Array:
    x = _wide(data)
    if attrs.centered:
        normal = _standardized(x, (1,), attrs.epsilon)
    else:
        normal = x / np.sqrt(_mean(np.square(x, dtype=np.float64), (1,)) + attrs.epsilon)
    factors = (None if one is None else _along(one, 1, data.ndim) for one in (gamma, beta))
    return _affine(normal, data, *factors)


define(
    "nn.channel_norm",
    "data gamma? beta?",
    only(_floating, "floating-point", _channel_norm_type),
    _channel_norm,
    attrs=ChannelNormAttrs,
    kind=Kind.ANCHOR,
    work=operations_per_element(8),
    summary="the channels (axis 1) of each pixel standardised, times gamma, plus beta",
)


@dataclass(frozen=True, slots=True)
class LrnAttrs(Attrs):
    size: int
    axis: int = 1
    bias: float = 1.0
    alpha: float = 1e-4
    beta: float = 0.75


def _lrn_type(attrs: LrnAttrs, data: TensorType) -> TensorType:
    require(attrs.size > 0, f"size is {attrs.size}")
    if data.rank is not None:
        normalize_axis(attrs.axis, data.rank)
    return data


def _lrn(attrs: LrnAttrs, data: Array) -> Array:
    """A window of even size reaches one further ahead than back."""
    x = np.moveaxis(_wide(data), attrs.axis, 0)
    before = (attrs.size - 1) // 2
    edges = [(before, attrs.size - 1 - before), *[(0, 0)] * (x.ndim - 1)]
    squares = np.pad(np.square(x), edges)
    sums = np.zeros_like(x)
    for offset in range(attrs.size):
        sums += squares[offset : offset + len(x)]
    result = x / (attrs.bias + attrs.alpha / attrs.size * sums) ** attrs.beta
    return np.moveaxis(result, 0, attrs.axis).astype(data.dtype, copy=False)


def _lrn_work(attrs: LrnAttrs, ins: Sequence[Type | None], outs: Sequence[Type]) -> Work:
    """A square, a sum over the window, a product, a shift, a power and a division each."""
    assert isinstance(outs[0], TensorType)
    return Work(0, outs[0].size * (attrs.size + 4), traffic(ins, outs))


define(
    "nn.lrn",
    "data",
    only(_floating, "floating-point", _lrn_type),
    _lrn,
    attrs=LrnAttrs,
    work=_lrn_work,
    summary="over (bias + alpha / size * sum of squares of `size` neighbours) ** beta",
)


@dataclass(frozen=True, slots=True)
class LpNormalizeAttrs(Attrs):
    axis: int = -1
    p: int = 2


def _lp_normalize_type(attrs: LpNormalizeAttrs, data: TensorType) -> TensorType:
    require(attrs.p in (1, 2), f"p is {attrs.p}, neither 1 nor 2")
    if data.rank is not None:
        normalize_axis(attrs.axis, data.rank)
    return data


def _lp_normalize(attrs: LpNormalizeAttrs, data: Array) -> Array:
    x = data.astype(np.float64)
    powers = np.abs(x) if attrs.p == 1 else np.square(x)
    norm = np.sum(powers, axis=attrs.axis, keepdims=True)
    if attrs.p == 2:
        norm = np.sqrt(norm)
    result = np.divide(x, norm, out=np.zeros_like(x), where=norm != 0)
    return np.asarray(result).astype(data.dtype)


define(
    "nn.lp_normalize",
    "data",
    only(_floating, "floating-point", _lp_normalize_type),
    _lp_normalize,
    attrs=LpNormalizeAttrs,
    work=operations_per_element(3),
    summary="over the p-norm along an axis; zero where the norm is zero",
)

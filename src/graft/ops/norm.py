"""Normalisations: of batches (by given statistics), layers, instances, groups, roots of mean
squares. Those by neighbours and by norms are in `local_norm.py`.

Floats enter and leave; the result has the data's type. All is computed in float32 or wider, what
standardises in float64, and rounded once.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from operator import add, mul
from typing import Any

import numpy as np

from graft.base.dim_questions import provably_no_multiple
from graft.base.dims import IndexExpr, dim_max, product
from graft.base.dtypes import Array, DType
from graft.ir.attrs import Attrs
from graft.ir.op import Kind
from graft.ir.types import TensorType
from graft.loop.build import Term, call, cast
from graft.loop.tensor import Tensor, sum_
from graft.ops import expression as te
from graft.ops.activation import operations_per_element
from graft.ops.pointwise import widened_array
from graft.ops.rules import (
    FLOATS,
    normalize_axis,
    operator,
    require,
    require_broadcasts_to,
    same_dtype,
    with_extent,
)


def _mean(x: Array, axes: tuple[int, ...]) -> Array:
    """The mean along axes, which stay; where there is nothing to average, there is no result."""
    count = max(math.prod(x.shape[axis] for axis in axes), 1)
    total = np.sum(x, axis=axes, keepdims=True, dtype=np.float64)
    return np.asarray(total / count)


def _standardize(x: Array, axes: tuple[int, ...], epsilon: float) -> Array:
    """Less the mean, over the deviation."""
    deviation = x - _mean(x, axes)
    return np.asarray(deviation / np.sqrt(_mean(np.square(deviation), axes) + epsilon))


def _along(parameter: Array, axis: int, rank: int) -> Array:
    """A list of one number per index of an axis, ready to broadcast."""
    extents = [1] * rank
    extents[axis] = -1 if parameter.size else 0
    return widened_array(parameter).reshape(extents)


def _with_channels(data: TensorType, axis: int, **parameters: TensorType) -> TensorType:
    """The data's type, refined by the parameters: each is a list of one number per channel."""
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
class ChannelAttrs(Attrs):
    axis: int = 1
    epsilon: float = 1e-5


def _batch_norm_type(
    attrs: ChannelAttrs,
    data: TensorType,
    gamma: TensorType,
    beta: TensorType,
    mean: TensorType,
    variance: TensorType,
) -> TensorType:
    statistics = {"gamma": gamma, "beta": beta, "mean": mean, "variance": variance}
    return _with_channels(data, attrs.axis, **statistics)


@operator(
    "nn.batch_norm",
    "data gamma beta mean variance",
    _batch_norm_type,
    dtypes=FLOATS,
    kind=Kind.BROADCAST,
    work=operations_per_element(3),
)
def _batch_norm(attrs: ChannelAttrs, data: Array, *parameters: Array) -> Array:
    """(data - mean) / sqrt(variance + epsilon) * gamma + beta, all but data per channel."""
    spread = (_along(parameter, attrs.axis, data.ndim) for parameter in parameters)
    gamma, beta, mean, variance = spread
    factor = gamma / np.sqrt(variance + attrs.epsilon)
    return np.asarray((widened_array(data) - mean) * factor + beta).astype(data.dtype, copy=False)


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
        x = x * np.broadcast_to(widened_array(gamma), x.shape)
    if beta is not None:
        x = x + np.broadcast_to(widened_array(beta), x.shape)
    return x.astype(like.dtype, copy=False)


def _last_axes(attrs: LayerNormAttrs, data: Array) -> tuple[int, ...]:
    return tuple(range(normalize_axis(attrs.axis, data.ndim), data.ndim))


@operator(
    "nn.layer_norm",
    "data gamma? beta?",
    _layer_norm_type,
    dtypes=FLOATS,
    work=operations_per_element(8),
)
def _layer_norm(
    attrs: LayerNormAttrs, data: Array, gamma: Array | None, beta: Array | None
) -> Array:
    """Standardised over the axes from `axis` on, times gamma, plus beta."""
    normal = _standardize(widened_array(data), _last_axes(attrs, data), attrs.epsilon)
    return _affine(normal, data, gamma, beta)


@operator(
    "nn.rms_norm", "data gamma?", _layer_norm_type, dtypes=FLOATS, work=operations_per_element(5)
)
def _rms_norm(attrs: LayerNormAttrs, data: Array, gamma: Array | None) -> Array:
    """Over the root of the mean square of the axes from `axis` on, times gamma."""
    x = widened_array(data)
    squares = np.square(x, dtype=np.float64)
    normal = x / np.sqrt(_mean(squares, _last_axes(attrs, data)) + attrs.epsilon)
    return _affine(normal, data, gamma)


@dataclass(frozen=True, slots=True)
class GroupNormAttrs(Attrs):
    num_groups: int
    axis: int = 1
    epsilon: float = 1e-5


def _instance_norm_type(
    attrs: ChannelAttrs | GroupNormAttrs,
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
    normal = np.moveaxis(standardize(np.moveaxis(widened_array(data), axis, 1)), 1, axis)
    return _affine(normal, data, _along(gamma, axis, data.ndim), _along(beta, axis, data.ndim))


@operator(
    "nn.instance_norm",
    "data gamma beta",
    _instance_norm_type,
    dtypes=FLOATS,
    work=operations_per_element(8),
)
def _instance_norm(attrs: ChannelAttrs, data: Array, gamma: Array, beta: Array) -> Array:
    """Each channel of each instance standardised, times gamma, plus beta."""

    def standardize(x: Array) -> Array:
        return _standardize(x, tuple(range(2, x.ndim)), attrs.epsilon)

    return _per_channel(attrs.axis, standardize, data, gamma, beta)


@operator(
    "nn.group_norm",
    "data gamma beta",
    _group_norm_type,
    dtypes=FLOATS,
    work=operations_per_element(8),
)
def _group_norm(attrs: GroupNormAttrs, data: Array, gamma: Array, beta: Array) -> Array:
    """Each group of channels of each instance standardised, times gamma, plus beta."""

    def standardize(x: Array) -> Array:
        instances, channels, *rest = x.shape
        groups = x.reshape(instances, attrs.num_groups, channels // attrs.num_groups, *rest)
        axes = tuple(range(2, groups.ndim))
        return _standardize(groups, axes, attrs.epsilon).reshape(x.shape)

    return _per_channel(attrs.axis, standardize, data, gamma, beta)


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


@operator(
    "nn.channel_norm",
    "data gamma? beta?",
    _channel_norm_type,
    dtypes=FLOATS,
    kind=Kind.ANCHOR,
    work=operations_per_element(8),
)
def _channel_norm(
    attrs: ChannelNormAttrs, data: Array, gamma: Array | None, beta: Array | None
) -> Array:
    """The channels (axis 1) of each pixel standardised, times gamma, plus beta."""
    x = widened_array(data)
    if attrs.centered:
        normal = _standardize(x, (1,), attrs.epsilon)
    else:
        normal = x / np.sqrt(_mean(np.square(x, dtype=np.float64), (1,)) + attrs.epsilon)
    factors = (None if one is None else _along(one, 1, data.ndim) for one in (gamma, beta))
    return _affine(normal, data, *factors)


# Tensor expressions.


@te.expresses("nn.batch_norm")
def _express_batch_norm(attrs: Any, out: te.Out, data: Tensor, *parameters: Tensor) -> te.Results:
    """By statistics that are operands, each a list along one axis."""
    wide, shape = _precision_of([data, *parameters]), out.shape

    def element(*indices: Term) -> Term:
        spread_out = (cast(wide, te.along(one, indices, attrs.axis, shape)) for one in parameters)
        gamma, beta, mean, variance = spread_out
        factor = gamma / call("sqrt", variance + attrs.epsilon)
        normal = (cast(wide, te.read(data, indices)) - mean) * factor + beta
        return cast(out.dtype, normal)

    return out.of(element)


def _precision_of(tensors: list[Tensor]) -> DType:
    double = any(tensor.dtype is DType.FLOAT64 for tensor in tensors)
    return DType.FLOAT64 if double else DType.FLOAT32


def _mean_tensor(name: str, data: Tensor, axes: Sequence[int], square: bool, wide: DType) -> Tensor:
    """The mean, or mean square, along axes, which stay as 1."""
    count = dim_max(product(te.sizes(data)[axis] for axis in axes), 1)
    share = 1.0 / (float(count) if isinstance(count, int) else te.floats(count, wide))

    def value(element: Term, _place: Sequence[Term]) -> Term:
        result = cast(wide, element)
        return result * result if square else result

    total = te.total_over(f"{name}_sum", data, axes, sum_, value)
    return te.by_index(name, total.shape, lambda *at: te.read(total, at) * share)


def _at_mean(indices: Sequence[Term], axes: Sequence[int]) -> list[Term | int]:
    return [0 if axis in axes else index for axis, index in enumerate(indices)]


def _standardized_tensor(data: Tensor, axes: Sequence[int], epsilon: float, name: str) -> Tensor:
    """Less the mean, over the deviation, in float32 or float64."""
    wide = te.accumulated_in(data.dtype)
    mean = _mean_tensor(f"{name}_mean", data, axes, False, wide)

    def centred(*indices: Term) -> Term:
        return cast(wide, te.read(data, indices)) - te.read(mean, _at_mean(indices, axes))

    deviation = te.by_index(f"{name}_centred", data.shape, centred)
    variance = _mean_tensor(f"{name}_variance", deviation, axes, True, wide)

    def element(*indices: Term) -> Term:
        spread_out = te.read(variance, _at_mean(indices, axes)) + epsilon
        # the factor is the same for a row, so that all but one of its divisions are saved
        return te.read(deviation, indices) * call("rsqrt", spread_out)

    return te.by_index(f"{name}_normal", data.shape, element)


def _over_root(data: Tensor, axes: Sequence[int], epsilon: float, name: str) -> Tensor:
    """Over the root of the mean square, in float32 or float64."""
    wide = te.accumulated_in(data.dtype)
    mean = _mean_tensor(f"{name}_mean", data, axes, True, wide)

    def element(*indices: Term) -> Term:
        factor = call("rsqrt", te.read(mean, _at_mean(indices, axes)) + epsilon)
        return cast(wide, te.read(data, indices)) * factor

    return te.by_index(f"{name}_normal", data.shape, element)


def _scaled(
    out: te.Out,
    parameters: te.Inputs,
    normal: Callable[[te.Indices], Term],
    spread: Callable[[Tensor, te.Indices], Term],
) -> te.Results:
    """Normalised elements times gamma plus beta; `spread` reads a parameter for an element."""

    def element(*indices: Term) -> Term:
        value = normal(indices)
        for combine, parameter in zip((mul, add), parameters, strict=False):
            if parameter is not None:
                value = combine(value, cast(value.dtype, spread(parameter, indices)))
        return cast(out.dtype, value)

    return out.of(element)


@te.expresses("nn.layer_norm", "nn.rms_norm")
def _express_layer_norm(
    attrs: Any, out: te.Out, data: Tensor, gamma: Tensor | None, *beta: Tensor | None
) -> te.Results:
    """Over the last axes; scale and shift broadcast. RMS normalisation has no shift to take."""
    rank = len(data.shape)
    axes, normalize = range(normalize_axis(attrs.axis, rank), rank), _standardized_tensor
    normal = (normalize if beta else _over_root)(data, axes, attrs.epsilon, out.name)
    shape = te.sizes(data)
    return _scaled(
        out,
        (gamma, *beta),
        lambda at: te.read(normal, at),
        lambda one, at: te.spread(one, at, shape),
    )


def _per_channel_tensor(
    out: te.Out, channel: int, parameters: te.Inputs, normal: Callable[[te.Indices], Term]
) -> te.Results:
    return _scaled(out, parameters, normal, lambda one, at: te.along(one, at, channel, out.shape))


@te.expresses("nn.channel_norm")
def _express_channel_norm(
    attrs: Any, out: te.Out, data: Tensor, *parameters: Tensor | None
) -> te.Results:
    """The channels of each pixel, with or without their mean."""
    normalized = _standardized_tensor if attrs.centered else _over_root
    normal = normalized(data, [1], attrs.epsilon, out.name)
    return _per_channel_tensor(out, 1, parameters, lambda at: te.read(normal, at))


@te.expresses("nn.instance_norm")
def _express_instance_norm(
    attrs: Any, out: te.Out, data: Tensor, *parameters: Tensor
) -> te.Results:
    """Each channel of each instance by itself."""
    rank = len(data.shape)
    channel = normalize_axis(attrs.axis, rank)
    axes = [axis for axis in range(rank) if axis not in (0, channel)]
    normal = _standardized_tensor(data, axes, attrs.epsilon, out.name)
    return _per_channel_tensor(out, channel, parameters, lambda at: te.read(normal, at))


@te.expresses("nn.group_norm")
def _express_group_norm(attrs: Any, out: te.Out, data: Tensor, *parameters: Tensor) -> te.Results:
    """Each group of channels of each instance by itself: an axis more, for the groups."""
    shape = te.sizes(data)
    rank, channel = len(shape), normalize_axis(attrs.axis, len(shape))
    members = shape[channel] // attrs.num_groups
    split = [*shape[:channel], attrs.num_groups, members, *shape[channel + 1 :]]

    def grouped(*indices: Term) -> Term:
        whole = indices[channel] * members + indices[channel + 1]
        return te.read(data, [*indices[:channel], whole, *indices[channel + 2 :]])

    groups = te.by_index(f"{out.name}_groups", split, grouped)
    axes = [axis for axis in range(rank + 1) if axis not in (0, channel)]
    normal = _standardized_tensor(groups, axes, attrs.epsilon, out.name)

    def of_group(at: te.Indices) -> Term:
        index = at[channel]
        return te.read(
            normal, [*at[:channel], index // members, index % members, *at[channel + 1 :]]
        )

    return _per_channel_tensor(out, channel, parameters, of_group)

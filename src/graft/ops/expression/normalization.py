"""Normalisations by statistics of the data: layers, instances, groups, neighbours, norms."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from graft.base.dims import dim_max, product
from graft.base.dtypes import DType
from graft.loop.build import Term, call, cast, equal, select
from graft.loop.tensor import Reduce, Tensor, reduce_axis, sum_
from graft.ops.expression.convolution import accumulated_in
from graft.ops.expression.reduction import total_over
from graft.ops.expression.registry import Inputs, Results, Types, expresses
from graft.ops.expression.shapes import (
    along,
    by_index,
    extents_of,
    floats,
    number,
    present,
    read,
    sizes,
    spread,
)
from graft.ops.rules import normalize_axis


def _mean(name: str, data: Tensor, axes: Sequence[int], square: bool, wide: DType) -> Tensor:
    """The mean, or mean square, along axes, which stay as 1."""
    count = dim_max(product(sizes(data)[axis] for axis in axes), 1)
    share = 1.0 / (float(count) if isinstance(count, int) else floats(count, wide))

    def value(element: Term, _place: Sequence[Term]) -> Term:
        found = cast(wide, element)
        return found * found if square else found

    total = total_over(f"{name}_sum", data, axes, sum_, value)
    return by_index(name, total.shape, lambda *at: read(total, at) * share)


def _at_mean(indices: Sequence[Term], axes: Sequence[int]) -> list[Term | int]:
    return [0 if axis in axes else index for axis, index in enumerate(indices)]


def _standardized(data: Tensor, axes: Sequence[int], epsilon: float, name: str) -> Tensor:
    """Less the mean, over the deviation, in float32 or float64."""
    wide = accumulated_in(data.dtype)
    mean = _mean(f"{name}_mean", data, axes, False, wide)

    def centred(*indices: Term) -> Term:
        return cast(wide, read(data, indices)) - read(mean, _at_mean(indices, axes))

    deviation = by_index(f"{name}_centred", data.shape, centred)
    variance = _mean(f"{name}_variance", deviation, axes, True, wide)

    def element(*indices: Term) -> Term:
        spread_out = read(variance, _at_mean(indices, axes)) + epsilon
        # the factor is the same for a row, so that all but one of its divisions are saved
        return read(deviation, indices) * call("rsqrt", spread_out)

    return by_index(f"{name}_normal", data.shape, element)


def _scaled(value: Term, factors: Sequence[Term | None], dtype: DType) -> Term:
    gamma, beta = factors
    if gamma is not None:
        value = value * cast(value.dtype, gamma)
    if beta is not None:
        value = value + cast(value.dtype, beta)
    return cast(dtype, value)


@expresses("nn.layer_norm")
def layer_norm(attrs: Any, inputs: Inputs, types: Types, name: str) -> Results:
    """Over the last axes; scale and shift broadcast."""
    data, *parameters = present(inputs[0]), *inputs[1:]
    rank = len(data.shape)
    axes = list(range(normalize_axis(attrs.axis, rank), rank))
    normal, shape = _standardized(data, axes, attrs.epsilon, name), sizes(data)

    def element(*indices: Term) -> Term:
        factors = [None if one is None else spread(one, indices, shape) for one in parameters]
        return _scaled(read(normal, indices), factors, types[0].dtype)

    return (by_index(name, data.shape, element),)


def _over_root(data: Tensor, axes: Sequence[int], epsilon: float, name: str) -> Tensor:
    """Over the root of the mean square, in float32 or float64."""
    wide = accumulated_in(data.dtype)
    mean = _mean(f"{name}_mean", data, axes, True, wide)

    def element(*indices: Term) -> Term:
        factor = call("rsqrt", read(mean, _at_mean(indices, axes)) + epsilon)
        return cast(wide, read(data, indices)) * factor

    return by_index(f"{name}_normal", data.shape, element)


@expresses("nn.rms_norm")
def rms_norm(attrs: Any, inputs: Inputs, types: Types, name: str) -> Results:
    """Over the root of the mean square of the last axes."""
    data, gamma = present(inputs[0]), inputs[1]
    rank = len(data.shape)
    axes = list(range(normalize_axis(attrs.axis, rank), rank))
    normal = _over_root(data, axes, attrs.epsilon, name)

    def element(*indices: Term) -> Term:
        factor = None if gamma is None else spread(gamma, indices, sizes(data))
        return _scaled(read(normal, indices), [factor, None], types[0].dtype)

    return (by_index(name, data.shape, element),)


@expresses("nn.channel_norm")
def channel_norm(attrs: Any, inputs: Inputs, types: Types, name: str) -> Results:
    """The channels of each pixel, with or without their mean."""
    data, *parameters = present(inputs[0]), *inputs[1:]
    normalized = _standardized if attrs.centered else _over_root
    normal, shape = normalized(data, [1], attrs.epsilon, name), sizes(data)

    def element(*indices: Term) -> Term:
        factors = [None if one is None else along(one, indices, 1, shape) for one in parameters]
        return _scaled(read(normal, indices), factors, types[0].dtype)

    return (by_index(name, data.shape, element),)


@expresses("nn.instance_norm")
def instance_norm(attrs: Any, inputs: Inputs, types: Types, name: str) -> Results:
    """Each channel of each instance by itself."""
    data, gamma, beta = map(present, inputs)
    rank = len(data.shape)
    channel = normalize_axis(attrs.axis, rank)
    axes = [axis for axis in range(rank) if axis not in (0, channel)]
    normal, shape = _standardized(data, axes, attrs.epsilon, name), sizes(data)

    def element(*indices: Term) -> Term:
        factors = [along(one, indices, channel, shape) for one in (gamma, beta)]
        return _scaled(read(normal, indices), factors, types[0].dtype)

    return (by_index(name, data.shape, element),)


@expresses("nn.group_norm")
def group_norm(attrs: Any, inputs: Inputs, types: Types, name: str) -> Results:
    """Each group of channels of each instance by itself: an axis more, for the groups."""
    data, gamma, beta = map(present, inputs)
    shape = sizes(data)
    rank, channel = len(shape), normalize_axis(attrs.axis, len(shape))
    members = shape[channel] // attrs.num_groups
    split = [*shape[:channel], attrs.num_groups, members, *shape[channel + 1 :]]

    def grouped(*indices: Term) -> Term:
        whole = indices[channel] * members + indices[channel + 1]
        return read(data, [*indices[:channel], whole, *indices[channel + 2 :]])

    groups = by_index(f"{name}_groups", split, grouped)
    axes = [axis for axis in range(rank + 1) if axis not in (0, channel)]
    normal = _standardized(groups, axes, attrs.epsilon, name)

    def element(*indices: Term) -> Term:
        index = indices[channel]
        at = [*indices[:channel], index // members, index % members, *indices[channel + 1 :]]
        factors = [along(one, indices, channel, shape) for one in (gamma, beta)]
        return _scaled(read(normal, at), factors, types[0].dtype)

    return (by_index(name, shape, element),)


@expresses("nn.lrn")
def lrn(attrs: Any, inputs: Inputs, types: Types, name: str) -> Results:
    """Over a power of the sum of squares of neighbours along an axis."""
    data, wide = present(inputs[0]), accumulated_in(types[0].dtype)
    axis = normalize_axis(attrs.axis, len(data.shape))
    before, extent = (attrs.size - 1) // 2, sizes(data)[axis]

    def squares(*indices: Term) -> Reduce:
        offset = reduce_axis("offset", attrs.size)
        place = indices[axis] + offset - before
        value = cast(wide, read(data, [*indices[:axis], place, *indices[axis + 1 :]]))
        inside = (place >= 0) & (place < extent)
        return sum_(select(inside, value * value, number(0, wide)), [offset])

    total = by_index(f"{name}_sum", data.shape, squares)

    def element(*indices: Term) -> Term:
        base = read(total, indices) * (attrs.alpha / attrs.size) + attrs.bias
        value = cast(wide, read(data, indices)) / call("pow", base, attrs.beta)
        return cast(types[0].dtype, value)

    return (by_index(name, data.shape, element),)


@expresses("nn.lp_normalize")
def lp_normalize(attrs: Any, inputs: Inputs, types: Types, name: str) -> Results:
    """Over the p-norm along an axis; zero where the norm is zero."""
    data, wide = present(inputs[0]), accumulated_in(types[0].dtype)
    axis = normalize_axis(attrs.axis, len(data.shape))

    def power(element: Term, _place: Sequence[Term]) -> Term:
        value = cast(wide, element)
        return call("abs", value) if attrs.p == 1 else value * value

    total = total_over(f"{name}_sum", data, [axis], sum_, power)

    def element(*indices: Term) -> Term:
        norm = read(total, [*indices[:axis], 0, *indices[axis + 1 :]])
        norm = norm if attrs.p == 1 else call("sqrt", norm)
        ratio = cast(wide, read(data, indices)) / norm
        return cast(types[0].dtype, select(equal(norm, 0.0), number(0, wide), ratio))

    return (by_index(name, extents_of(types[0]), element),)

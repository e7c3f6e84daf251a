"""Normalisations.

ONNX names a precision for the first stage of some of them (`stash_type`). Graft's operators compute
in float32 or wider whatever the data are, which is never less; only float64 has to be asked for.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from graft.base.dtypes import DType
from graft.frontends.onnx.call import Call, allow, cast_to
from graft.frontends.onnx.registry import lowers, lowers_to
from graft.frontends.onnx.types import dtype_from_onnx
from graft.ir.graph import Value

lowers_to("InstanceNormalization", "nn.instance_norm", "epsilon")
lowers_to("LRN", "nn.lrn", "size alpha beta bias")
lowers_to("LpNormalization", "nn.lp_normalize", "axis p")


_PRECISIONS = (DType.FLOAT16, DType.BFLOAT16, DType.FLOAT32, DType.FLOAT64)


def _epsilon(call: Call) -> float:
    return call.float("epsilon", 1e-5)


def _at_least_float32(call: Call, value: Value) -> Value:
    return cast_to(call, value, DType.FLOAT32) if value.dtype.bits < 32 else value


def _deviation(
    call: Call, x: Value, axes: tuple[int, ...], centred: bool = True
) -> tuple[Value, Value, Value]:
    """The mean along axes, which stay, the difference to it (or to 0), and its mean square."""
    mean = call.op("mean", x, axes=axes, keepdims=True)
    difference = call.op("subtract", x, mean) if centred else x
    square = call.op("multiply", difference, difference)
    return mean, difference, call.op("mean", square, axes=axes, keepdims=True)


def statistics(
    call: Call, x: Value, axis: int, epsilon: float, centred: bool = True
) -> tuple[Value, Value]:
    """The mean along the axes from `axis` on, and one over the deviation from it or from zero."""
    rank = call.rank(x)
    axes = tuple(range(axis + rank if axis < 0 else axis, rank))
    mean, _, variance = _deviation(call, _at_least_float32(call, x), axes, centred)
    shifted = call.op("add", variance, call.scalar(epsilon, variance))
    return mean, call.op("divide", call.scalar(1, variance), call.op("sqrt", shifted))


@lowers("BatchNormalization")
def _batch_normalization(call: Call) -> Value | tuple[Value, ...]:
    x = call.input(0)
    if x.shape is None or len(x.shape) != 1:
        return _batch_norm(call, x)
    results = _batch_norm(call, call.op("expand_dims", x, axes=(1,)))  # a single channel
    if isinstance(results, Value):
        return call.op("squeeze", results, axes=(1,))
    return call.op("squeeze", results[0], axes=(1,)), *results[1:]


def _batch_norm(call: Call, x: Value) -> Value | tuple[Value, ...]:
    statistics = call.input(3), call.input(4)
    wants_more = any(call.has_output(position) for position in range(1, 5))
    # Until opset 14 the number of results distinguished training from inference.
    training = call.int("training_mode", 0) if call.opset >= 14 else wants_more
    if not training:
        if wants_more:
            call.fail("running statistics are wanted, but training_mode is 0")
        return _by_statistics(call, x, *statistics)
    current = _batch_statistics(call, x)
    running = (_running(call, old, new) for old, new in zip(statistics, current, strict=True))
    saved = (cast_to(call, new, x.dtype) for new in current) if call.opset < 14 else ()
    return _by_statistics(call, x, *current), *running, *saved


def _is_spatial(call: Call) -> bool:
    """Whether statistics are per channel; else they are per element of an instance."""
    return bool(call.int("spatial", 1))


def _batch_statistics(call: Call, x: Value) -> tuple[Value, Value]:
    rank = call.rank(x)
    axes = tuple(axis for axis in range(rank) if axis != 1) if _is_spatial(call) else (0,)
    mean, _, variance = _deviation(call, _at_least_float32(call, x), axes)
    return call.op("squeeze", mean, axes=axes), call.op("squeeze", variance, axes=axes)


def _running(call: Call, old: Value, new: Value) -> Value:
    momentum = call.float("momentum", 0.9)
    old_part = call.op("multiply", cast_to(call, old, new.dtype), call.scalar(momentum, new))
    new_part = call.op("multiply", new, call.scalar(1 - momentum, new))
    return cast_to(call, call.op("add", old_part, new_part), old.dtype)


def _by_statistics(call: Call, x: Value, mean: Value, variance: Value) -> Value:
    scale, bias = call.input(1), call.input(2)
    if _is_spatial(call):
        attrs = {"axis": _channels(call, x), "epsilon": _epsilon(call)}
        return call.op("nn.batch_norm", x, scale, bias, mean, variance, **attrs)
    wide_operands = [_at_least_float32(call, value) for value in (x, scale, bias, mean, variance)]
    wide, scale, bias, mean, variance = wide_operands
    shifted = call.op("add", variance, call.scalar(_epsilon(call), variance))
    normal = call.op("divide", call.op("subtract", wide, mean), call.op("sqrt", shifted))
    result = call.op("add", call.op("multiply", normal, scale), bias)
    return cast_to(call, result, x.dtype)


def _channels(call: Call, x: Value) -> int:
    """The axis of the channels: 1, or the only one that the parameters fit.

    ONNX Runtime fuses a normalisation into the product before it, and does not look whether the
    product's columns are still the channels."""
    shape, parameters = x.shape or (), call.input(1).shape or ()
    if len(shape) < 2 or len(parameters) != 1 or not isinstance(shape[1], int):
        return 1
    fitting = [axis for axis, extent in enumerate(shape) if extent == parameters[0]]
    if len(fitting) != 1 or fitting == [1] or not isinstance(parameters[0], int):
        return 1
    message = f"there are parameters for {parameters[0]} channels, but axis 1 has {shape[1]}"
    allow(call, message, f"axis {fitting[0]} is normalised, the only one that they fit")
    return fitting[0]


def _stash_type(call: Call) -> DType:
    dtype = dtype_from_onnx(call.int("stash_type", 1))
    if dtype not in _PRECISIONS:
        call.fail(f"stash_type is {dtype}, not a floating-point type")
    return dtype


def _normalized(call: Call, name: str, *operands: Value | None, **attrs: Any) -> Value:
    """A normalisation with ONNX's epsilon and precision."""
    x = operands[0]
    assert x is not None
    if _stash_type(call) is DType.FLOAT64:
        operands = tuple(v if v is None else cast_to(call, v, DType.FLOAT64) for v in operands)
    return cast_to(call, call.op(name, *operands, epsilon=_epsilon(call), **attrs), x.dtype)


@lowers("LayerNormalization")
def _layer_normalization(call: Call) -> tuple[Value | None, ...]:
    """The result has the scale's dtype, which ONNX Runtime lets be another than the data's."""
    x, axis = call.input(0), call.int("axis", -1)
    operands = cast_to(call, x, call.input(1).dtype), call.input(1), call.optional(2)
    result = _normalized(call, "nn.layer_norm", *operands, axis=axis)
    if not (call.has_output(1) or call.has_output(2)):
        return (result,)
    stash = _stash_type(call)
    wide = cast_to(call, x, stash) if stash is DType.FLOAT64 else x
    return result, *(cast_to(call, v, stash) for v in statistics(call, wide, axis, _epsilon(call)))


@lowers("RMSNormalization")
def _rms_normalization(call: Call) -> Value:
    """The result has the scale's dtype, which need not be the data's."""
    x, scale, axis = call.input(0), call.input(1), call.int("axis", -1)
    if x.dtype is scale.dtype:
        return _normalized(call, "nn.rms_norm", x, scale, axis=axis)
    normal = cast_to(call, _normalized(call, "nn.rms_norm", x, axis=axis), scale.dtype)
    return call.op("multiply", normal, scale)


@lowers("GroupNormalization")
def _group_normalization(call: Call) -> Value:
    x, groups = call.input(0), call.int("num_groups")
    parameters = [call.input(1), call.input(2)]
    if call.opset < 21:
        parameters = [_per_channel(call, x, value, groups) for value in parameters]
    return _normalized(call, "nn.group_norm", x, *parameters, num_groups=groups)


def _per_channel(call: Call, x: Value, parameter: Value, groups: int) -> Value:
    """One number per group of channels -> one per channel."""
    channels = call.op("take", call.op("shape_of", x), call.constant(np.array([1])), axis=0)
    size = call.op("divide", channels, call.constant(np.array([groups])))
    times = call.op("concatenate", call.constant(np.array([1])), size, axis=0)
    tiled = call.op("tile", call.op("expand_dims", parameter, axes=(1,)), times)
    return call.op("reshape", tiled, channels)


@lowers("MeanVarianceNormalization")
def _mean_variance_normalization(call: Call) -> Value:
    """Until opset 9 it was experimental, with other attributes for what is normalised."""
    x, axes = call.input(0), call.ints("axes", (0, 2, 3))
    if call.opset < 9 and call.int("across_channels", 0):
        axes = (0, 1, 2, 3)
    _, difference, variance = _deviation(call, _at_least_float32(call, x), axes)
    if call.opset < 9 and not call.int("normalize_variance", 1):
        return cast_to(call, difference, x.dtype)
    deviation = call.op("sqrt", variance)
    divisor = call.op("add", deviation, call.scalar(1e-9, deviation))
    return cast_to(call, call.op("divide", difference, divisor), x.dtype)

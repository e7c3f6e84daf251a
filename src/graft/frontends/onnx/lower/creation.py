"""Constants, shapes, ranges, random numbers, and operators that are the identity."""

from __future__ import annotations

import math

import numpy as np

from graft.base.dtypes import DType
from graft.frontends.onnx.call import Call
from graft.frontends.onnx.registry import Lowering, lowers, lowers_to
from graft.frontends.onnx.types import dtype_from_onnx
from graft.ir.graph import Value


@lowers("Identity")
def _identity(call: Call) -> Value:
    return call.input(0)


# Attributes that give a constant as plain data, and the dtype they give it.
_PLAIN = {
    "value_int": DType.INT64,
    "value_ints": DType.INT64,
    "value_float": DType.FLOAT32,
    "value_floats": DType.FLOAT32,
    "value_string": DType.STRING,
    "value_strings": DType.STRING,
}


@lowers("Constant")
def _constant(call: Call) -> Value:
    names = [attribute.name for attribute in call.node.attribute]
    if len(names) != 1:
        call.fail(f"Constant wants exactly one value, has {len(names)}")
    if names[0] == "value":
        return call.constant(call.tensor("value"))
    if names[0] == "sparse_value":
        sparse = call.attribute("sparse_value")
        return call.constant(call.scope.source.weights.dense(sparse, "sparse constant"))
    return call.constant(call.attribute(names[0]), _PLAIN[names[0]])


@lowers("ConstantOfShape")
def _constant_of_shape(call: Call) -> Value:
    fill = call.tensor("value") if call.has("value") else np.zeros(1, np.float32)
    return call.op("full", call.constant(fill), call.input(0))


@lowers("Shape")
def _shape(call: Call) -> Value:
    shape = call.op("shape_of", call.input(0))
    start, end = call.int("start", 0), call.int("end", None)
    if start == 0 and end is None:
        return shape
    ends = (np.iinfo(np.int64).max if end is None else end,)
    return call.op("strided_slice", shape, begin=(start,), end=ends)


@lowers("Size")
def _size(call: Call) -> Value:
    return call.op("prod", call.op("shape_of", call.input(0)), keepdims=False)


# Up to here float32 represents all integers.
_EXACT = 2**24


@lowers("Range")
def _range(call: Call) -> Value:
    start, limit, delta = (call.input(position) for position in range(3))
    if start.dtype.is_integer:
        return call.op("arange", start, limit, delta, dtype=start.dtype)
    return _float_range(call, start, limit, delta)


def _float_range(call: Call, start: Value, limit: Value, delta: Value) -> Value:
    """start + i * delta for as many i as fit; short floats are computed in a longer type."""
    dtype = start.dtype
    integers = [_integer_behind(call, value) for value in (start, limit, delta)]
    if dtype.bits >= 32 and None not in integers:
        return call.op("cast", call.op("arange", *integers, dtype=DType.INT64), dtype=dtype)
    wide = dtype_from_onnx(call.int("stash_type", 1)) if dtype.bits < 32 else dtype
    first, last, step = (call.op("cast", value, dtype=wide) for value in (start, limit, delta))
    count = _known_count(call, start, limit, delta)
    if count is None:
        return call.op("cast", call.op("arange", first, last, step, dtype=wide), dtype=dtype)
    index = call.op("cast", call.op("arange", start=0, limit=count, delta=1), dtype=wide)
    offsets = call.op("multiply", index, step)
    return call.op("cast", call.op("add", first, offsets), dtype=dtype)


def _integer_behind(call: Call, value: Value) -> Value | None:
    """The integer that a float was cast from, so that the range has a known extent.

    Exporters write `Range(0.0, Cast(size), 1.0)`.
    """
    constants = call.concrete(value)
    if constants is not None:
        number = float(constants.reshape(-1)[0]) if constants.size == 1 else math.nan
        whole = number.is_integer() and abs(number) <= _EXACT
        return call.constant(int(number), DType.INT64) if whole else None
    node = call.scope.builder.producer(value)
    if node is None or node.op.name != "cast" or call.known(node.args[0]) is None:
        return None
    return call.op("cast", node.args[0], dtype=DType.INT64)


def _known_count(call: Call, *operands: Value) -> int | None:
    """The length of a range of floats if it is known at import."""
    constants = [call.concrete(value) for value in operands]
    if any(array is None or array.size != 1 for array in constants):
        return None
    start, limit, delta = (float(array.reshape(-1)[0]) for array in constants if array is not None)
    steps = (limit - start) / delta if delta else math.nan
    if not math.isfinite(steps):
        call.fail(f"from {start} to {limit} in steps of {delta} is no finite range")
    return max(math.ceil(steps), 0)


@lowers("EyeLike")
def _eye_like(call: Call) -> Value:
    data = call.input(0)
    dtype = dtype_from_onnx(call.int("dtype")) if call.has("dtype") else data.dtype
    return call.op("eye", call.op("shape_of", data), k=call.int("k", 0), dtype=dtype)


@lowers("Dropout")
def _dropout(call: Call) -> tuple[Value, ...]:
    data, ratio, training = call.input(0), call.optional(1), call.optional(2)
    mode = call.concrete(training)
    if training is not None and (mode is None or mode.any()):
        return call.ops("nn.dropout", data, ratio, training, seed=call.int("seed", None))
    if not call.has_output(1):
        return (data,)
    mask_dtype = DType.BOOL if call.opset >= 10 else data.dtype
    return data, call.op("full", call.constant(1, mask_dtype), call.op("shape_of", data))


lowers_to("RandomNormal", "random.normal", "mean scale seed shape dtype")
lowers_to("RandomUniform", "random.uniform", "low high seed shape dtype")
lowers_to("Multinomial", "random.multinomial", "sample_size seed dtype")


def _dtype(call: Call, like: Value) -> DType:
    return dtype_from_onnx(call.int("dtype")) if call.has("dtype") else like.dtype


def _like(name: str, parameters: str) -> Lowering:
    """Random numbers in another tensor's shape, and in its dtype unless one is given."""

    def lower(call: Call) -> Value:
        like = call.input(0)
        attributes = call.attributes(name, parameters)
        return call.op(name, call.op("shape_of", like), dtype=_dtype(call, like), **attributes)

    return lower


lowers("RandomNormalLike")(_like("random.normal", "mean scale seed"))
lowers("RandomUniformLike")(_like("random.uniform", "low high seed"))


@lowers("Bernoulli")
def _bernoulli(call: Call) -> Value:
    odds = call.input(0)
    dtype = _dtype(call, odds)
    if odds.dtype not in (DType.FLOAT32, DType.FLOAT64):
        odds = call.op("cast", odds, dtype=DType.FLOAT32)  # small odds need fine draws
    shape, seed = call.op("shape_of", odds), call.float("seed", None)
    draws = call.op("random.uniform", shape, seed=seed, dtype=odds.dtype)
    return call.op("cast", call.op("less", draws, odds), dtype=dtype)

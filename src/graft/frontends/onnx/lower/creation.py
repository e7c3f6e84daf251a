"""Constants, shapes, ranges, and operators that hand their operand on."""

from __future__ import annotations

import numpy as np
import onnx

from graft.base.dtypes import Array, DType
from graft.frontends.onnx.call import Call
from graft.frontends.onnx.registry import lowers
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
        return call.constant(_dense(call, call.attribute("sparse_value")))
    return call.constant(call.attribute(names[0]), _PLAIN[names[0]])


def _dense(call: Call, sparse: onnx.SparseTensorProto) -> Array:
    """A sparse tensor in full; its indices are linear, or one row of coordinates per value."""
    weights = call.scope.source.weights
    values, indices = weights.array(sparse.values), weights.array(sparse.indices)
    shape = tuple(sparse.dims)
    if indices.ndim == 2:
        if indices.shape[1] != len(shape):
            call.fail(f"sparse indices of {indices.shape[1]} axes for rank {len(shape)}")
        indices = np.ravel_multi_index(tuple(indices.T), shape)
    filler = "" if values.dtype == object else 0
    flat = np.full(int(np.prod(shape)), filler, dtype=values.dtype)
    flat[indices] = values
    return flat.reshape(shape)


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


@lowers("Range")
def _range(call: Call) -> Value:
    start, limit, delta = (call.input(position) for position in range(3))
    if start.dtype.is_integer:
        return call.op("arange", start, limit, delta, dtype=start.dtype)
    return _float_range(call, start, limit, delta)


def _float_range(call: Call, start: Value, limit: Value, delta: Value) -> Value:
    """start + i * delta for as many i as fit; short floats are computed in a longer type."""
    dtype = start.dtype
    wide = dtype_from_onnx(call.int("stash_type", 1)) if dtype.bits < 32 else dtype
    exact = [call.op("cast", value, dtype=DType.FLOAT64) for value in (start, limit, delta)]
    steps = call.op("divide", call.op("subtract", exact[1], exact[0]), exact[2])
    count = call.op("cast", call.op("ceil", steps), dtype=DType.INT64)
    index = call.op("arange", None, count, start=0, delta=1)
    first, step = (call.op("cast", value, dtype=wide) for value in (start, delta))
    offsets = call.op("multiply", call.op("cast", index, dtype=wide), step)
    return call.op("cast", call.op("add", first, offsets), dtype=dtype)


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
    if not call.wants(1):
        return (data,)
    kept = DType.BOOL if call.opset >= 10 else data.dtype
    return data, call.op("full", call.constant(1, kept), call.op("shape_of", data))

"""Gathering from and scattering to positions that are data."""

from __future__ import annotations

from graft.base.dtypes import DType
from graft.frontends.onnx.call import Call
from graft.frontends.onnx.registry import lowers
from graft.ir.graph import Value


@lowers("Gather")
def _gather(call: Call) -> Value:
    return call.op("take", call.input(0), call.input(1), axis=call.int("axis", 0))


@lowers("GatherElements")
def _gather_elements(call: Call) -> Value:
    return call.op("gather", call.input(0), call.input(1), axis=call.int("axis", 0))


@lowers("GatherND")
def _gather_nd(call: Call) -> Value:
    batch_dims = call.int("batch_dims", 0)
    return call.op("gather_nd", call.input(0), call.input(1), batch_dims=batch_dims)


@lowers("Scatter", "ScatterElements")
def _scatter_elements(call: Call) -> Value:
    operands = (call.input(0), call.input(1), call.input(2))
    axis, reduction = call.int("axis", 0), call.string("reduction", "none")
    return call.op("scatter_elements", *operands, axis=axis, reduction=reduction)


@lowers("ScatterND")
def _scatter_nd(call: Call) -> Value:
    operands = (call.input(0), call.input(1), call.input(2))
    return call.op("scatter_nd", *operands, reduction=call.string("reduction", "none"))


@lowers("TensorScatter")
def _tensor_scatter(call: Call) -> Value:
    operands = (call.input(0), call.input(1), call.optional(2))
    axis, mode = call.int("axis", -2), call.string("mode", "linear")
    return call.op("tensor_scatter", *operands, axis=axis, mode=mode)


def _whole(call: Call, value: Value) -> Value:
    """ONNX lets counts and positions be floats, which then lose their fraction."""
    return call.op("cast", value, dtype=DType.INT64) if value.dtype.is_float else value


@lowers("OneHot")
def _one_hot(call: Call) -> Value:
    indices, depth = _whole(call, call.input(0)), _whole(call, call.input(1))
    return call.op("one_hot", indices, call.input(2), depth, axis=call.int("axis", -1))

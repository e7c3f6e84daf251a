"""Gathering from and scattering to positions that are data."""

from __future__ import annotations

from graft.base.dtypes import DType
from graft.frontends.onnx.call import Call
from graft.frontends.onnx.registry import lowers, lowers_to
from graft.ir.graph import Value

lowers_to("Gather", "take", "axis")
lowers_to("GatherElements", "gather", "axis")
lowers_to("GatherND", "gather_nd", "batch_dims")
lowers_to("Scatter", "scatter_elements", "axis")
lowers_to("ScatterElements", "scatter_elements", "axis reduction")
lowers_to("ScatterND", "scatter_nd", "reduction")
lowers_to("TensorScatter", "tensor_scatter", "axis mode")


def _whole(call: Call, value: Value) -> Value:
    """ONNX lets counts and positions be floats, which then lose their fraction."""
    return call.op("cast", value, dtype=DType.INT64) if value.dtype.is_float else value


@lowers("OneHot")
def _one_hot(call: Call) -> Value:
    indices, depth = _whole(call, call.input(0)), _whole(call, call.input(1))
    return call.op("one_hot", indices, call.input(2), depth, axis=call.int("axis", -1))


lowers_to("TopK", "topk", "k axis largest sorted")
lowers_to("NonZero", "nonzero")
lowers_to("Unique", "unique", "axis sorted")


@lowers("Compress")
def _compress(call: Call) -> Value:
    """Elements where the condition holds: their positions, then a gather."""
    data = call.input(0)
    axis = call.attribute("axis", None)
    if axis is None:
        data, axis = call.op("reshape", data, shape=(-1,)), 0
    positions = call.op("squeeze", call.op("nonzero", call.input(1)), axes=(0,))
    return call.op("take", data, positions, axis=axis)

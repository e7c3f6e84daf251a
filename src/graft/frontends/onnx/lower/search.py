"""Finding elements: the largest, the non-zero, the distinct, the chosen."""

from __future__ import annotations

from graft.frontends.onnx.call import Call
from graft.frontends.onnx.registry import lowers
from graft.ir.graph import Value


@lowers("TopK")
def _topk(call: Call) -> tuple[Value, ...]:
    attrs = {
        "axis": call.int("axis", -1),
        "largest": call.int("largest", 1),
        "sorted": call.int("sorted", 1),
    }
    if call.opset < 10:
        return call.ops("topk", call.input(0), k=call.int("k"), **attrs)
    return call.ops("topk", call.input(0), call.input(1), **attrs)


@lowers("NonZero")
def _nonzero(call: Call) -> Value:
    return call.op("nonzero", call.input(0))


@lowers("Unique")
def _unique(call: Call) -> tuple[Value, ...]:
    axis, in_order = call.attribute("axis", None), call.int("sorted", 1)
    return call.ops("unique", call.input(0), axis=axis, sorted=in_order)


@lowers("Compress")
def _compress(call: Call) -> Value:
    """What stands where the condition holds: positions first, then a gather."""
    data = call.input(0)
    axis = call.attribute("axis", None)
    if axis is None:
        data, axis = call.op("reshape", data, shape=(-1,)), 0
    chosen = call.op("squeeze", call.op("nonzero", call.input(1)), axes=(0,))
    return call.op("take", data, chosen, axis=axis)

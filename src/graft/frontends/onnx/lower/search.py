"""Finding elements: the largest, the non-zero, the distinct, the chosen."""

from __future__ import annotations

from graft.frontends.onnx.call import Call
from graft.frontends.onnx.registry import lowers, lowers_to
from graft.ir.graph import Value

lowers_to("TopK", "topk", "k axis largest sorted")
lowers_to("NonZero", "nonzero")
lowers_to("Unique", "unique", "axis sorted")


@lowers("Compress")
def _compress(call: Call) -> Value:
    """What stands where the condition holds: positions first, then a gather."""
    data = call.input(0)
    axis = call.attribute("axis", None)
    if axis is None:
        data, axis = call.op("reshape", data, shape=(-1,)), 0
    chosen = call.op("squeeze", call.op("nonzero", call.input(1)), axes=(0,))
    return call.op("take", data, chosen, axis=axis)

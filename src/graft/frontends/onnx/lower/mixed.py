"""Clipping and powers."""

from __future__ import annotations

from graft.frontends.onnx.call import Call
from graft.frontends.onnx.registry import corresponds, lowers
from graft.ir.graph import Value


@lowers("Clip")
def _clip(call: Call) -> Value:
    data = call.input(0)
    if call.opset < 11:
        low, high = call.float("min", None), call.float("max", None)
        return call.op("clip", data, a_min=low, a_max=high)
    return call.op("clip", data, call.optional(1), call.optional(2))


corresponds("Pow", "power")

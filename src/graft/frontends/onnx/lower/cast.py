"""Conversions between element types."""

from __future__ import annotations

from graft.frontends.onnx.call import Call
from graft.frontends.onnx.registry import lowers, lowers_to
from graft.ir.graph import Value

lowers_to("Cast", "cast", "dtype=to saturate round_mode")
lowers_to("BitCast", "bitcast", "dtype=to")


@lowers("CastLike")
def _cast_like(call: Call) -> Value:
    attributes = call.attributes("cast", "saturate round_mode")
    return call.op("cast", call.input(0), dtype=call.input(1).dtype, **attributes)

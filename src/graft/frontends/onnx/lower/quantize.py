"""Quantisation to narrow types and back."""

from __future__ import annotations

from graft.base.dtypes import DType
from graft.frontends.onnx.call import Call
from graft.frontends.onnx.registry import lowers, lowers_to
from graft.frontends.onnx.types import dtype_from_onnx
from graft.ir.graph import Value

lowers_to("DequantizeLinear", "qnn.dequantize", "axis block_size dtype=output_dtype")


@lowers("QuantizeLinear")
def _quantize_linear(call: Call) -> Value:
    zero_point = call.optional(2)
    code = call.int("output_dtype", 0)
    dtype = dtype_from_onnx(code) if code else None
    if zero_point is not None:
        if dtype not in (None, zero_point.dtype):
            call.fail(f"output_dtype is {dtype}, but the zero point is {zero_point.dtype}")
        dtype = zero_point.dtype
    attributes = call.attributes("qnn.quantize", "axis block_size saturate precision")
    attributes["dtype"] = dtype or DType.UINT8
    return call.op("qnn.quantize", call.input(0), call.input(1), zero_point, **attributes)


@lowers("DynamicQuantizeLinear")
def _dynamic_quantize_linear(call: Call) -> tuple[Value, ...]:
    """The range includes zero; an empty range gets the scale 1."""
    x = call.input(0)
    zero, one, levels = (call.scalar(number, x) for number in (0, 1, 255))
    low = call.op("minimum", call.op("min", x), zero)
    high = call.op("maximum", call.op("max", x), zero)
    extent = call.op("divide", call.op("subtract", high, low), levels)
    scale = call.op("where", call.op("equal", high, low), one, extent)
    offset = call.op("subtract", zero, call.op("divide", low, scale))
    rounded = call.op("round", call.op("clip", offset, a_min=0.0, a_max=255.0))
    zero_point = call.op("cast", rounded, dtype=DType.UINT8)
    quantized = call.op("qnn.quantize", x, scale, zero_point, dtype=DType.UINT8)
    return quantized, scale, zero_point

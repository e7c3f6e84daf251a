"""Quantisation to narrow types and back."""

from __future__ import annotations

from graft.base.dtypes import DType
from graft.frontends.onnx.call import Call
from graft.frontends.onnx.registry import lowers
from graft.frontends.onnx.types import dtype_from_onnx
from graft.ir.graph import Value


def _dtype_attribute(call: Call, name: str) -> DType | None:
    """A dtype that zero or nothing leaves open."""
    code = call.int(name, 0)
    return dtype_from_onnx(code) if code else None


@lowers("QuantizeLinear")
def _quantize_linear(call: Call) -> Value:
    zero_point = call.optional(2)
    dtype = _dtype_attribute(call, "output_dtype")
    if zero_point is not None:
        if dtype not in (None, zero_point.dtype):
            call.fail(f"output_dtype is {dtype}, but the zero point is {zero_point.dtype}")
        dtype = zero_point.dtype
    return call.op(
        "qnn.quantize",
        call.input(0),
        call.input(1),
        zero_point,
        dtype=dtype or DType.UINT8,
        axis=call.int("axis", 1),
        block_size=call.int("block_size", 0),
        saturate=call.int("saturate", 1),
        precision=_dtype_attribute(call, "precision"),
    )


@lowers("DequantizeLinear")
def _dequantize_linear(call: Call) -> Value:
    return call.op(
        "qnn.dequantize",
        call.input(0),
        call.input(1),
        call.optional(2),
        axis=call.int("axis", 1),
        block_size=call.int("block_size", 0),
        dtype=_dtype_attribute(call, "output_dtype"),
    )


@lowers("DynamicQuantizeLinear")
def _dynamic_quantize_linear(call: Call) -> tuple[Value, ...]:
    """The range is that of the data and zero; a range of nothing but zero gets the scale 1."""
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

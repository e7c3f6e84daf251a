"""Conversions between element types."""

from __future__ import annotations

from graft.base.dtypes import DType
from graft.frontends.onnx.call import Call
from graft.frontends.onnx.registry import lowers
from graft.frontends.onnx.types import dtype_from_onnx
from graft.ir.graph import Value


@lowers("Cast")
def _cast(call: Call) -> Value:
    return _cast_to(call, dtype_from_onnx(call.int("to")))


@lowers("CastLike")
def _cast_like(call: Call) -> Value:
    return _cast_to(call, call.input(1).dtype)


def _cast_to(call: Call, dtype: DType) -> Value:
    data = call.input(0)
    saturate, mode = bool(call.int("saturate", 1)), call.string("round_mode", "up")
    return call.op("cast", data, dtype=dtype, saturate=saturate, round_mode=mode)


@lowers("BitCast")
def _bit_cast(call: Call) -> Value:
    return call.op("bitcast", call.input(0), dtype=dtype_from_onnx(call.int("to")))

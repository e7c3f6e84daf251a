"""Fourier transforms, mel filters and window functions."""

from __future__ import annotations

import math

from graft.base.dtypes import DType
from graft.frontends.onnx.call import Call, cast_to
from graft.frontends.onnx.registry import Lowering, lower_as, lowers, lowers_to
from graft.frontends.onnx.types import dtype_from_onnx
from graft.ir.graph import Value

lowers_to("DFT", "dft", "axis inverse onesided")
lowers_to("MelWeightMatrix", "mel_weight_matrix", "dtype=output_datatype")


# Windows are a0 - a1 cos(t) + a2 cos(2t); the fractions of Hamming's are ONNX's.
_WINDOWS = {
    "HannWindow": (0.5, 0.5, 0.0),
    "HammingWindow": (25 / 46, 21 / 46, 0.0),
    "BlackmanWindow": (0.42, 0.5, 0.08),
}


@lowers("STFT")
def _stft(call: Call) -> Value:
    signal, *others = call.inputs
    if signal is not None and len(signal.shape or ()) == 2:
        # Exporters leave out the axis of real and imaginary parts.
        signal = call.op("expand_dims", signal, axes=(2,))
    return call.op("stft", signal, *others, onesided=bool(call.int("onesided", 1)))


def _window(constant: float, first: float, second: float) -> Lowering:
    def lower(call: Call) -> Value:
        dtype = dtype_from_onnx(call.int("output_datatype", 1))
        working = DType.FLOAT64 if dtype is DType.FLOAT64 else DType.FLOAT32
        size = call.input(0)
        one = call.scalar(1, size)
        (positions,) = lower_as(call, "Range", call.scalar(0, size), size, one)
        period = size if call.int("periodic", 1) else call.op("subtract", size, one)
        full_circle = call.constant(2 * math.pi, working)
        step = call.op("divide", full_circle, call.op("cast", period, dtype=working))
        angle = call.op("multiply", call.op("cast", positions, dtype=working), step)
        result = call.op(
            "subtract", call.scalar(constant, full_circle), _cosine(call, first, angle)
        )
        if second:
            double = call.op("multiply", angle, call.scalar(2, angle))
            result = call.op("add", result, _cosine(call, second, double))
        return cast_to(call, result, dtype)

    return lower


def _cosine(call: Call, factor: float, angle: Value) -> Value:
    return call.op("multiply", call.scalar(factor, angle), call.op("cos", angle))


for _name, _terms in _WINDOWS.items():
    lowers(_name)(_window(*_terms))

"""Experimental operators that ONNX has dropped, and that ONNX Runtime still runs."""

from __future__ import annotations

import numpy as np

from graft.frontends.onnx.call import Call
from graft.frontends.onnx.lower.microsoft.contract import main
from graft.frontends.onnx.registry import lower_as, lowers
from graft.ir.graph import Value


def _float(call: Call, name: str, default: float) -> Value:
    return call.scalar(call.float(name, default), call.input(0))


@lowers("Affine")
def _affine(call: Call) -> Value:
    scaled = call.op("multiply", call.input(0), _float(call, "alpha", 1.0))
    return call.op("add", scaled, _float(call, "beta", 0.0))


@lowers("Scale")
def _scale(call: Call) -> Value:
    return call.op("multiply", call.input(0), _float(call, "scale", 1.0))


@lowers("ScaledTanh")
def _scaled_tanh(call: Call) -> Value:
    inner = call.op("multiply", call.input(0), _float(call, "beta", 1.0))
    return call.op("multiply", call.op("tanh", inner), _float(call, "alpha", 1.0))


@lowers("ParametricSoftplus")
def _parametric_softplus(call: Call) -> Value:
    inner = call.op("multiply", call.input(0), _float(call, "beta", 1.0))
    (soft,) = lower_as(call, "Softplus", inner)
    return call.op("multiply", soft, _float(call, "alpha", 1.0))


@lowers("ImageScaler")
def _image_scaler(call: Call) -> Value:
    """One factor for all, and a bias for each channel."""
    data = call.input(0)
    if call.rank(data) != 4:
        call.fail(f"ImageScaler wants [batch, channels, height, width], not {data.type}")
    bias = np.array(call.ints("bias"), data.dtype.numpy).reshape(1, -1, 1, 1)
    scaled = call.op("multiply", data, _float(call, "scale", 1.0))
    return call.op("add", scaled, call.constant(bias))


@lowers("Crop")
def _crop(call: Call) -> Value:
    """An image less its borders, or so much of it from its left and upper border on."""
    data, border, size = call.input(0), call.ints("border"), call.ints("scale", ())
    if call.rank(data) != 4 or len(border) != 4 or len(size) not in (0, 2) or min(border) < 0:
        call.fail("Crop wants an image, four borders, and a height and a width or neither")
    left, top, right, bottom = border
    if size:
        bottom_at, right_at = top + size[0], left + size[1]
    else:
        far = np.iinfo(np.int64).max
        bottom_at, right_at = -bottom or far, -right or far
    return call.op("strided_slice", data, begin=[top, left], end=[bottom_at, right_at], axes=[2, 3])


@lowers("DynamicSlice")
def _dynamic_slice(call: Call) -> Value:
    return main(call, "Slice", *call.inputs)

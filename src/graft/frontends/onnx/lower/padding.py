"""Padding and rearrangement within a tensor."""

from __future__ import annotations

from graft.base.dtypes import DType
from graft.frontends.onnx.call import Call
from graft.frontends.onnx.registry import lowers, lowers_to
from graft.ir.graph import Value

lowers_to("DepthToSpace", "depth_to_space", "block_size=blocksize mode")
lowers_to("SpaceToDepth", "space_to_depth", "block_size=blocksize mode")
lowers_to("Trilu", "trilu", "upper")
lowers_to("ReverseSequence", "reverse_sequence", "seq_axis=time_axis batch_axis")


@lowers("Pad")
def _pad(call: Call) -> Value:
    data, mode = call.input(0), call.string("mode", "constant")
    if call.opset < 11:
        fill = call.float("value", 0.0)
        return call.op("nn.pad", data, value=fill, pad_width=call.ints("pads"), mode=mode)
    pads, value, axes = call.input(1), call.optional(2), call.optional(3)
    return call.op("nn.pad", data, value, pads, axes, mode=mode)


@lowers("CenterCropPad")
def _center_crop_pad(call: Call) -> Value:
    """A crop is a negative pad; the larger part of an odd difference is at the end."""
    data, axes = call.input(0), call.ints("axes", None)
    extents = call.op("cast", call.input(1), dtype=DType.INT64)
    dims = call.op("shape_of", data)
    if axes is not None:
        dims = call.op("take", dims, call.constant(axes, DType.INT64))
    growth, shrinkage = call.op("subtract", extents, dims), call.op("subtract", dims, extents)
    before = call.op("subtract", _half(call, growth), _half(call, shrinkage))
    after = call.op("subtract", growth, before)
    pads = call.op("concatenate", before, after)
    return call.op("nn.pad", data, None, pads, axes=axes)


def _half(call: Call, numbers: Value) -> Value:
    """Half of what is positive, rounded down."""
    positive = call.op("maximum", numbers, call.scalar(0, numbers))
    return call.op("divide", positive, call.scalar(2, numbers))

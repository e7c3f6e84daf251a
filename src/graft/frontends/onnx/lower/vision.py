"""Regions of interest, box selection, sampling grids and image files."""

from __future__ import annotations

from graft.frontends.onnx.call import Call
from graft.frontends.onnx.registry import lowers
from graft.ir.graph import Value

_ALIGNED = {"half_pixel": True, "output_half_pixel": False}
# Opset 20 renamed the interpolations when volumes became possible.
_METHODS = {"bilinear": "linear", "bicubic": "cubic"}


@lowers("RoiAlign")
def _roi_align(call: Call) -> Value:
    default = "output_half_pixel" if call.opset < 16 else "half_pixel"
    mode = call.string("coordinate_transformation_mode", default)
    if mode not in _ALIGNED:
        call.fail(f"coordinate_transformation_mode is '{mode}', none of {', '.join(_ALIGNED)}")
    return call.op(
        "vision.roi_align",
        call.input(0),
        call.input(1),
        call.input(2),
        pooled_size=(call.int("output_height", 1), call.int("output_width", 1)),
        spatial_scale=call.float("spatial_scale", 1.0),
        sample_ratio=call.int("sampling_ratio", 0),
        mode=call.string("mode", "avg").lower(),
        aligned=_ALIGNED[mode],
    )


@lowers("NonMaxSuppression")
def _non_max_suppression(call: Call) -> Value:
    center = bool(call.int("center_point_box", 0))
    return call.op("vision.non_max_suppression", *call.inputs, center_point_box=center)


@lowers("GridSample")
def _grid_sample(call: Call) -> Value:
    mode = call.string("mode", "linear")
    return call.op(
        "grid_sample",
        call.input(0),
        call.input(1),
        method=_METHODS.get(mode, mode),
        padding_mode=call.string("padding_mode", "zeros"),
        align_corners=bool(call.int("align_corners", 0)),
    )


@lowers("AffineGrid")
def _affine_grid(call: Call) -> Value:
    align = bool(call.int("align_corners", 0))
    return call.op("affine_grid", call.input(0), call.input(1), align_corners=align)


@lowers("ImageDecoder")
def _image_decoder(call: Call) -> Value:
    return call.op("image.decode", call.input(0), pixel_format=call.string("pixel_format", "RGB"))

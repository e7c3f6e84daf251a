"""Regions of interest, box selection, sampling grids and image files."""

from __future__ import annotations

from graft.frontends.onnx.call import Call
from graft.frontends.onnx.registry import lowers, lowers_to
from graft.ir.graph import Value

lowers_to("NonMaxSuppression", "vision.non_max_suppression", "center_point_box")
lowers_to("AffineGrid", "affine_grid", "align_corners")
lowers_to("ImageDecoder", "image.decode", "pixel_format")


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
        *(call.input(0), call.input(1), call.input(2)),
        pooled_size=(call.int("output_height"), call.int("output_width")),
        mode=call.string("mode").lower(),
        aligned=_ALIGNED[mode],
        **call.attributes("vision.roi_align", "spatial_scale sample_ratio=sampling_ratio"),
    )


@lowers("GridSample")
def _grid_sample(call: Call) -> Value:
    mode = call.string("mode", "linear")
    attributes = call.attributes("grid_sample", "padding_mode align_corners")
    method = _METHODS.get(mode, mode)
    return call.op("grid_sample", call.input(0), call.input(1), method=method, **attributes)

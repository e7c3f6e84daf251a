"""Resizing, regions of interest, box selection, sampling grids and image files."""

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


_ATTRIBUTES = (
    "axes coordinate_transformation_mode rounding_method=nearest_mode cubic_alpha=cubic_coeff_a"
    " exclude_outside antialias extrapolation_value keep_aspect_ratio_policy"
)
_RESIZE_METHODS = {"nearest": "nearest_neighbor", "linear": "linear", "cubic": "cubic"}


def _method(call: Call) -> str:
    mode = call.string("mode", "nearest")
    if mode not in _RESIZE_METHODS:
        call.fail(f"mode is '{mode}', none of {', '.join(_RESIZE_METHODS)}")
    return _RESIZE_METHODS[mode]


@lowers("Upsample")
def _upsample(call: Call) -> Value:
    factors = {"scales": call.attribute("scales")} if call.opset < 9 else {}
    return _as_before_opset_11(call, factors)


@lowers("Resize")
def _resize(call: Call) -> Value:
    if call.opset < 11:
        return _as_before_opset_11(call, {})
    crops = call.string("coordinate_transformation_mode") == "tf_crop_and_resize"
    scales, sizes = _extents(call)
    return call.op(
        "resize",
        call.input(0),
        call.optional(1) if crops else None,
        scales,
        sizes,
        method=_method(call),
        **call.attributes("resize", _ATTRIBUTES),
    )


def _as_before_opset_11(call: Call, factors: dict[str, object]) -> Value:
    return call.op(
        "resize",
        call.input(0),
        None,
        call.optional(1),
        method=_method(call),
        coordinate_transformation_mode="asymmetric",
        rounding_method="simple",
        **factors,
    )


def _extents(call: Call) -> tuple[Value | None, Value | None]:
    """The scales or the sizes: an empty tensor counts as absent."""
    scales, sizes = call.optional(2), call.optional(3)
    if scales is None or sizes is None:
        return scales, sizes
    if sizes.shape == (0,):
        return scales, None
    if scales.shape and isinstance(scales.shape[0], int) and scales.shape[0] > 0:
        call.fail("Resize has both scales and sizes", "leave one of them out")
    return None, sizes

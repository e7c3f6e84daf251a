"""Recipes of operators that sample images or signals, `col2im` and `einsum`."""

from __future__ import annotations

from typing import Any

import numpy as np

from graft.base.dtypes import DType
from graft.byoc.kit.draw import Draw
from graft.byoc.kit.recipes import Call, Fixed, extents, first, given, recipe
from graft.ir.op import Op
from graft.ir.types import TensorType


def _image(draw: Draw, fixed: Fixed) -> TensorType:
    shape = (draw.extent(3), draw.extent(5), draw.extent(9), draw.extent(9))
    return given(fixed) or TensorType(draw.dtype(), shape)


@recipe("resize")
def _resize(draw: Draw, op: Op, fixed: Fixed) -> Call:
    data = _image(draw, fixed)
    attrs: dict[str, Any] = {"axes": (2, 3), "method": draw.among(("nearest_neighbor", "linear"))}
    if draw.chance(0.5):
        attrs["scales"] = tuple(draw.among((2.0, 0.5, 1.5, 3.0)) for _ in range(2))
    else:
        attrs["sizes"] = tuple(draw.between(1, 12) for _ in range(2))
    modes = ("half_pixel", "asymmetric", "align_corners", "pytorch_half_pixel")
    return Call((data,), {**attrs, "coordinate_transformation_mode": draw.among(modes)})


@recipe("grid_sample")
def _grid_sample(draw: Draw, op: Op, fixed: Fixed) -> Call:
    data = _image(draw, fixed)
    grid = TensorType(data.dtype, (extents(data)[0], draw.extent(5), draw.extent(5), 2))
    method = draw.among(("linear", "nearest"))
    padding = draw.among(("zeros", "border", "reflection"))
    attrs = {"method": method, "padding_mode": padding, "align_corners": draw.chance(0.5)}
    return Call((data, grid), attrs)


@recipe("affine_grid")
def _affine_grid(draw: Draw, op: Op, fixed: Fixed) -> Call:
    batch = draw.extent(3)
    theta = given(fixed) or TensorType(draw.dtype(), (batch, 2, 3))
    size = (extents(theta)[0], draw.extent(3), draw.extent(7), draw.extent(7))
    return Call((theta,), {"size": size, "align_corners": draw.chance(0.5)})


@recipe("vision.roi_align")
def _roi_align(draw: Draw, op: Op, fixed: Fixed) -> Call:
    """Boxes with corners in order, mostly inside of the image."""
    data, count = _image(draw, fixed), draw.extent(4)
    batch, _, height, width = extents(data)
    corners = np.sort(np.abs(draw.array(DType.FLOAT32, (count, 2, 2))) * 2, axis=1)
    scale = np.array([width / 4, height / 4] * 2)
    boxes = (corners.reshape(count, 4) * scale).astype(data.dtype.numpy)
    images = draw.array(DType.INT64, (count,)) % max(batch, 1)
    types = TensorType(data.dtype, (count, 4)), TensorType(DType.INT64, (count,))
    attrs = {"pooled_size": (draw.between(1, 4), draw.between(1, 4)), "sample_ratio": 2}
    return Call((data, *types), attrs, {1: boxes, 2: images})


@recipe("vision.crop_and_resize")
def _crop_and_resize(draw: Draw, op: Op, fixed: Fixed) -> Call:
    """Boxes of any two corners, some of them outside of the image."""
    data, count = _image(draw, fixed), draw.extent(4)
    boxes = (draw.array(DType.FLOAT32, (count, 4)) / 4 + 0.5).astype(data.dtype.numpy)
    images = draw.array(DType.INT32, (count,)) % max(extents(data)[0], 1)
    types = TensorType(data.dtype, (count, 4)), TensorType(DType.INT32, (count,))
    attrs = {
        "crop_size": (draw.between(1, 4), draw.between(1, 4)),
        "method": draw.among(("linear", "nearest")),
        "extrapolation_value": 0.5,
    }
    return Call((data, *types), attrs, {1: boxes, 2: images})


@recipe("nn.deformable_conv2d")
def _deformable(draw: Draw, op: Op, fixed: Fixed) -> Call:
    data = _image(draw, fixed)
    batch, channels, height, width = extents(data)
    kernel = draw.between(1, 3), draw.between(1, 3)
    counts = height - kernel[0] + 1, width - kernel[1] + 1
    offset = TensorType(data.dtype, (batch, 2 * kernel[0] * kernel[1], *counts))
    weight = TensorType(data.dtype, (draw.between(1, 5), channels, *kernel))
    return Call((data, offset, weight))


@recipe("col2im")
def _col2im(draw: Draw, op: Op, fixed: Fixed) -> Call:
    """Windows that stand one pixel apart."""
    block = draw.between(1, 3), draw.between(1, 3)
    image = draw.between(3, 6), draw.between(3, 6)
    windows = (image[0] - block[0] + 1) * (image[1] - block[1] + 1)
    rows = draw.between(1, 3) * block[0] * block[1]
    data = TensorType(draw.dtype(), (draw.extent(3), rows, windows))
    return Call((data,), {"image_shape": image, "block_shape": block})


@recipe("stft", "dft")
def _spectrum(draw: Draw, op: Op, fixed: Fixed) -> Call:
    """Of real signals."""
    data = TensorType(draw.dtype(), (draw.extent(3), draw.between(8, 20), 1))
    if op.name == "dft":
        return Call((data,), {"axis": 1, "onesided": draw.chance(0.5)})
    step, length = draw.between(1, 4), draw.between(2, 8)
    flags = {"onesided": draw.chance(0.5)}
    return Call((data,), {"frame_step": step, "frame_length": length, **flags})


@recipe("einsum")
def _einsum(draw: Draw, op: Op, fixed: Fixed) -> Call:
    """Products, sums, diagonals and reorderings of small tensors."""
    products = ("ij,jk->ik", "bij,bjk->bik", "ij,ij->", "bi,bj->bij", "bhid,bhjd->bhij")
    equation = draw.among((*products, "ij->ji", "ii->i"))
    sizes = {letter: draw.extent(5) for letter in "bdhijk"}
    terms = equation.partition("->")[0].split(",")
    dtype = first(draw, fixed).dtype
    return Call(
        tuple(TensorType(dtype, tuple(sizes[letter] for letter in term)) for term in terms),
        {"equation": equation},
    )

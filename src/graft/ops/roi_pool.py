"""Max pooling of regions of interest into a grid of fixed size.

Data [batch, channels, height, width] and regions [n, 5] (image, left, top, right, bottom, borders
included, in the coordinates of an image `1 / spatial_scale` times as large) enter;
[n, channels, *pooled_size] leaves. A cell of the grid that lies outside the data is 0.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from graft.base.dims import UNKNOWN
from graft.base.dtypes import Array
from graft.base.errors import EvaluationError
from graft.ir.attrs import Attrs, Ints
from graft.ir.op import Work, traffic
from graft.ir.types import TensorType
from graft.ops.rules import operator, require, require_same_dim, same_dtype
from graft.ops.window import ranked_shape


@dataclass(frozen=True, slots=True)
class RoiPoolAttrs(Attrs):
    pooled_size: Ints
    spatial_scale: float = 1.0


def _roi_pool_type(attrs: RoiPoolAttrs, data: TensorType, rois: TensorType) -> TensorType:
    dtype = same_dtype(data, rois)
    require(dtype.is_float, f"wants floating-point operands, not {dtype}")
    fits = len(attrs.pooled_size) == 2 and all(extent >= 1 for extent in attrs.pooled_size)
    require(fits, f"pooled_size {list(attrs.pooled_size)} is not two positive numbers")
    channels = ranked_shape(data, 4, "the data")[1]
    count, width = ranked_shape(rois, 2, "the regions")
    require_same_dim(width, 5, "numbers per region and 5")
    return TensorType(dtype, (count, channels, *attrs.pooled_size))


def _roi_pool_work(
    _attrs: RoiPoolAttrs, ins: Sequence[TensorType], outs: Sequence[TensorType]
) -> Work:
    """At most every element of the image per region: how large regions are only data tell."""
    data, rois = ins[0], ins[1]
    if data.shape is None or rois.shape is None:
        return Work(0, UNKNOWN, traffic(ins, outs))
    _, channels, height, width = data.shape
    return Work(0, rois.shape[0] * channels * height * width, traffic(ins, outs))


def _rounded(values: Array) -> Array:
    """To the nearest whole number, halves away from zero."""
    return np.asarray(np.trunc(values + np.copysign(values.dtype.type(0.5), values)))


def _cells(first: int, last: int, count: int, extent: int, number: Any) -> list[tuple[int, int]]:
    """Where each of `count` cells between two borders begins and ends, within the data."""
    size = number(max(last - first + 1, 1)) / number(count)
    steps = np.arange(count + 1).astype(number) * size
    begins = np.clip(np.floor(steps[:-1]).astype(np.int64) + first, 0, extent)
    ends = np.clip(np.ceil(steps[1:]).astype(np.int64) + first, 0, extent)
    return list(zip(begins.tolist(), ends.tolist(), strict=True))


@operator("vision.roi_pool", "data rois", _roi_pool_type, work=_roi_pool_work)
def _roi_pool(attrs: RoiPoolAttrs, data: Array, rois: Array) -> Array:
    """The largest elements in a grid of cells over each region."""
    computed_in: Any = np.float64 if data.dtype == np.float64 else np.float32
    pixels = data.astype(computed_in, copy=False)
    regions = rois.astype(computed_in, copy=False)
    images = regions[:, 0].astype(np.int64)
    outside = (images < 0) | (images >= data.shape[0])
    if outside.any():
        raise EvaluationError(f"vision.roi_pool: there is no image {images[outside][0]}")
    scaled = regions[:, 1:] * computed_in(attrs.spatial_scale)
    borders = _rounded(scaled).astype(np.int64)
    result = np.zeros((len(rois), data.shape[1], *attrs.pooled_size), computed_in)
    for number, (left, top, right, bottom) in enumerate(borders.tolist()):
        image = pixels[images[number]]
        rows = _cells(top, bottom, attrs.pooled_size[0], data.shape[2], computed_in)
        columns = _cells(left, right, attrs.pooled_size[1], data.shape[3], computed_in)
        for row, (first_row, last_row) in enumerate(rows):
            if first_row >= last_row:
                continue
            strip = image[:, first_row:last_row].max(axis=1)
            for column, (first, last) in enumerate(columns):
                if first < last:
                    result[number, :, row, column] = strip[:, first:last].max(axis=1)
    return result.astype(data.dtype, copy=False)

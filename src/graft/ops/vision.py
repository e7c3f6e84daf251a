"""Detection: pooling over regions of interest, choosing boxes, and decoding image files.

In go feature maps, boxes and scores (or the bytes of an image); out come pooled features, the
indices of the boxes that remain (or pixels).
"""

from __future__ import annotations

import io
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from graft.base.dims import UNKNOWN, AnyDim
from graft.base.dtypes import Array, DType
from graft.base.errors import EvaluationError, UserError
from graft.ir.attrs import Attrs, Ints
from graft.ir.op import Work, traffic
from graft.ir.types import TensorType
from graft.ops.index import check_indices
from graft.ops.index_bounds import of_images
from graft.ops.rules import (
    operator,
    ranked_shape,
    require,
    require_same_dim,
    same_dtype,
)
from graft.program.guards import Guard


@dataclass(frozen=True, slots=True)
class RoiAlignAttrs(Attrs):
    pooled_size: Ints
    spatial_scale: float = 1.0
    sample_ratio: int = 0  # samples per bin and axis; 0: as many as the bin has pixels
    mode: str = "avg"
    aligned: bool = True  # whether pixels have their centres, not corners, on the whole numbers


def check_boxes(
    data: TensorType, boxes: TensorType, batch_indices: TensorType
) -> tuple[AnyDim, AnyDim]:
    """Refuse images, boxes and what says which image each box is of that do not fit each other;
    the numbers of boxes and of channels."""
    dtype = same_dtype(data, boxes)
    require(dtype.is_float, f"wants floating-point images, not {dtype}")
    require(batch_indices.dtype.is_integer, f"the batch indices are {batch_indices.dtype}")
    channels = ranked_shape(data, 4, "images", "have")[1]
    count, corners = ranked_shape(boxes, 2, "boxes", "have")
    (indices,) = ranked_shape(batch_indices, 1, "batch indices", "have")
    require_same_dim(corners, 4, "the numbers per box")
    require_same_dim(count, indices, "the numbers of boxes and of batch indices")
    return indices if count is UNKNOWN or isinstance(indices, int) else count, channels


def _roi_align_type(
    attrs: RoiAlignAttrs, data: TensorType, rois: TensorType, batch_indices: TensorType
) -> TensorType:
    require(attrs.mode in ("avg", "max"), f"mode is '{attrs.mode}', neither avg nor max")
    require(
        len(attrs.pooled_size) == 2 and min(attrs.pooled_size) > 0,
        f"the pooled size is {list(attrs.pooled_size)}, not two positive extents",
    )
    require(attrs.sample_ratio >= 0, f"the sample ratio is {attrs.sample_ratio}")
    count, channels = check_boxes(data, rois, batch_indices)
    return TensorType(data.dtype, (count, channels, *attrs.pooled_size))


@dataclass(frozen=True, slots=True)
class _Samples:
    """Along one axis of one box: bins × samples per bin, each between two pixels."""

    low: Array  # positions of the pixel before each sample
    high: Array  # and of the one behind it
    low_weight: Array
    high_weight: Array

    def matrix(self, first: int, last: int) -> Array:
        """Bins × pixels first..last: how much each pixel adds to the sum over a bin's samples."""
        bins, per_bin = self.low.shape
        weights = np.zeros((bins, last - first + 1), self.low_weight.dtype)
        rows = np.repeat(np.arange(bins), per_bin)
        np.add.at(weights, (rows, self.low.ravel() - first), self.low_weight.ravel())
        np.add.at(weights, (rows, self.high.ravel() - first), self.high_weight.ravel())
        return weights


def _samples(start: Any, size: Any, bins: int, sample_ratio: int, extent: int) -> _Samples:
    """Where the samples along one axis lie; those past the edge weigh nothing."""
    bin_size = size / bins
    per_bin = sample_ratio or max(int(np.ceil(bin_size)), 0)
    within = (np.arange(per_bin, dtype=bin_size.dtype) + 0.5) * bin_size / max(per_bin, 1)
    at = start + np.arange(bins, dtype=bin_size.dtype)[:, None] * bin_size + within
    inside = (at >= -1) & (at <= extent)
    at = np.clip(at, 0, extent - 1)
    low = np.floor(at).astype(np.intp)
    high = np.minimum(low + 1, extent - 1)
    fraction = at - low
    return _Samples(low, high, np.where(inside, 1 - fraction, 0), np.where(inside, fraction, 0))


def _pool_by_matrices(_mode: str, image: Array, rows: _Samples, columns: _Samples) -> Array:
    """The mean over each bin's samples as two matrix products over the box's pixels."""
    top, bottom = int(rows.low.min()), int(rows.high.max())
    left, right = int(columns.low.min()), int(columns.high.max())
    crop = image[top : bottom + 1, left : right + 1]
    tall = rows.matrix(top, bottom) @ crop.reshape(crop.shape[0], -1)
    pooled: Array = columns.matrix(left, right) @ tall.reshape(-1, *crop.shape[1:])
    return pooled / float(rows.low.shape[1] * columns.low.shape[1])


def _pool_samples(mode: str, image: Array, rows: _Samples, columns: _Samples) -> Array:
    """The mean or maximum over each bin's samples; `max` runs over a sample's four pixels too."""
    bins = (*rows.low.shape, *columns.low.shape)
    combine = np.maximum if mode == "max" else np.add
    total: Array | None = None
    for y, y_weight in ((rows.low, rows.low_weight), (rows.high, rows.high_weight)):
        for x, x_weight in (
            (columns.low, columns.low_weight),
            (columns.high, columns.high_weight),
        ):
            weight = np.multiply.outer(y_weight, x_weight).reshape(*bins, 1)
            corner = image[y.reshape(-1, 1), x.reshape(1, -1)].reshape(*bins, -1)
            part = np.where(weight == 0, 0, corner * weight)
            total = part if total is None else combine(total, part)
    assert total is not None
    return np.asarray(total.max(axis=(1, 3)) if mode == "max" else total.mean(axis=(1, 3)))


def _roi_align_work(
    attrs: RoiAlignAttrs, ins: Sequence[TensorType], outs: Sequence[TensorType]
) -> Work:
    samples = max(attrs.sample_ratio, 2) ** 2
    return Work(0, outs[0].size * (8 * samples), traffic(ins, outs))


@operator(
    "vision.roi_align",
    "data rois batch_indices",
    _roi_align_type,
    work=_roi_align_work,
    index_bounds=of_images,
)
def _roi_align(attrs: RoiAlignAttrs, data: Array, rois: Array, batch_indices: Array) -> Array:
    """Regions of images pooled to one size by interpolation."""
    images, channels, height, width = data.shape
    check_indices(batch_indices, Guard(0, images, wraps=False))
    if rois.shape[0] and 0 in (height, width):
        raise ValueError("there are no pixels to pool")
    dtype = np.result_type(data.dtype, np.float32) if data.dtype.kind == "f" else np.float32
    boxes = rois.astype(dtype) * attrs.spatial_scale - (0.5 if attrs.aligned else 0.0)
    starts, sizes = boxes[:, :2], boxes[:, 2:] - boxes[:, :2]
    if not attrs.aligned:
        sizes = np.maximum(sizes, 1)
    pixels = np.ascontiguousarray(np.moveaxis(data, 1, 3), dtype=dtype)  # channels last: one GEMM
    finite = np.isfinite(pixels).all(axis=(1, 2, 3))
    result = np.zeros((len(boxes), *attrs.pooled_size, channels), dtype)
    for i, image in enumerate(batch_indices.tolist()):
        (x, y), (w, h) = starts[i], sizes[i]
        rows = _samples(y, h, attrs.pooled_size[0], attrs.sample_ratio, height)
        columns = _samples(x, w, attrs.pooled_size[1], attrs.sample_ratio, width)
        if rows.low.size and columns.low.size:
            exact = attrs.mode == "max" or not finite[image]  # 0 × inf must not reach other bins
            pool = _pool_samples if exact else _pool_by_matrices
            result[i] = pool(attrs.mode, pixels[image], rows, columns)
    return np.moveaxis(result, 3, 1).astype(data.dtype)


@dataclass(frozen=True, slots=True)
class NonMaxSuppressionAttrs(Attrs):
    max_output_size: int | None = None  # boxes per image and class; None: none at all
    iou_threshold: float | None = None  # None: 0
    score_threshold: float | None = None  # None: whatever the score
    center_point_box: bool = False  # centre, width and height instead of two corners


def _nms_type(
    attrs: NonMaxSuppressionAttrs,
    boxes: TensorType,
    scores: TensorType,
    max_output_size: TensorType | None,
    iou_threshold: TensorType | None,
    score_threshold: TensorType | None,
) -> TensorType:
    require(boxes.dtype.is_float and scores.dtype.is_float, "wants floating-point boxes and scores")
    images, count, corners = ranked_shape(boxes, 3, "boxes", "have")
    score_images, _, score_count = ranked_shape(scores, 3, "scores", "have")
    require_same_dim(corners, 4, "the numbers per box")
    require_same_dim(images, score_images, "the numbers of images")
    require_same_dim(count, score_count, "the numbers of boxes and of scores")
    return TensorType(DType.INT64, (UNKNOWN, 3))


def _corners(boxes: Array, center_point_box: bool) -> Array:
    """4 × boxes: least and greatest coordinate along the first axis, then along the second."""
    boxes = boxes.astype(np.result_type(boxes.dtype, np.float32), copy=False)
    if center_point_box:
        centres, halves = boxes[:, :2], boxes[:, 2:] / 2
        low, high = centres - halves, centres + halves
    else:
        low = np.minimum(boxes[:, :2], boxes[:, 2:])
        high = np.maximum(boxes[:, :2], boxes[:, 2:])
    return np.stack([low[:, 0], high[:, 0], low[:, 1], high[:, 1]])


def _suppress(corners: Array, order: Array, limit: int, overlap: Any) -> list[int]:
    """Boxes in the order given, without those that overlap an earlier one of them too much."""
    result: list[int] = []
    low_y, high_y, low_x, high_x = corners[:, order]
    areas = (high_y - low_y) * (high_x - low_x)
    while order.size and len(result) < limit:
        result.append(int(order[0]))
        height = np.minimum(high_y, high_y[0]) - np.maximum(low_y, low_y[0])
        width = np.minimum(high_x, high_x[0]) - np.maximum(low_x, low_x[0])
        shared = np.maximum(height, 0) * np.maximum(width, 0)
        union = areas + areas[0] - shared
        proper = (shared > 0) & (areas > 0) & (areas[0] > 0) & (union > 0)
        far = ~(proper & (shared / np.where(proper, union, 1) > overlap))
        far[0] = False
        order, areas = order[far], areas[far]
        low_y, high_y, low_x, high_x = low_y[far], high_y[far], low_x[far], high_x[far]
    return result


def _nms_work(_attrs: Attrs, ins: Sequence[TensorType], outs: Sequence[TensorType]) -> Work:
    scores = ins[1]
    return Work(0, scores.size * 16, traffic(ins[:2], ()))


@operator(
    "vision.non_max_suppression",
    "boxes scores max_output_size? iou_threshold? score_threshold?",
    _nms_type,
    work=_nms_work,
)
def _nms(attrs: NonMaxSuppressionAttrs, boxes: Array, scores: Array) -> Array:
    """Boxes by score, without those that overlap one with a higher score."""
    limit, least = attrs.max_output_size or 0, attrs.score_threshold
    overlap = np.float32(attrs.iou_threshold or 0)
    result: list[tuple[int, int, int]] = []
    for image, image_boxes in enumerate(boxes):
        corners = _corners(image_boxes, attrs.center_point_box)
        for category, category_scores in enumerate(scores[image]):
            order = np.argsort(-category_scores, kind="stable")
            if least is not None:
                order = order[category_scores[order] > np.float32(least)]
            selected = _suppress(corners, order, limit, overlap)
            result.extend((image, category, box) for box in selected)
    return np.array(result, dtype=np.int64).reshape(-1, 3)


@dataclass(frozen=True, slots=True)
class DecodeAttrs(Attrs):
    pixel_format: str = "RGB"


_CHANNELS = {"RGB": 3, "BGR": 3, "Grayscale": 1}
_UNDECODABLE = (OSError, ValueError, SyntaxError, EOFError)  # what damaged files make Pillow raise


def _decode_type(attrs: DecodeAttrs, data: TensorType) -> TensorType:
    formats = ", ".join(_CHANNELS)
    require(
        attrs.pixel_format in _CHANNELS,
        f"the pixel format '{attrs.pixel_format}' is none of {formats}",
    )
    require(data.dtype is DType.UINT8, f"the encoded image is {data.dtype}, not uint8")
    ranked_shape(data, 1, "encoded bytes", "have")
    return TensorType(DType.UINT8, (UNKNOWN, UNKNOWN, _CHANNELS[attrs.pixel_format]))


@operator("image.decode", "data", _decode_type)
def _decode(attrs: DecodeAttrs, data: Array) -> Array:
    """The pixels of an image file that is given as bytes."""
    try:
        import PIL.Image
    except ImportError as error:
        raise UserError(
            "decoding an image takes Pillow, which is not installed", hint="pip install Pillow"
        ) from error
    channels = _CHANNELS[attrs.pixel_format]
    try:
        with PIL.Image.open(io.BytesIO(data.tobytes())) as image:
            pixels = np.array(image.convert("L" if channels == 1 else "RGB"))
    except (*_UNDECODABLE, PIL.Image.DecompressionBombError):
        return np.zeros((0, 0, channels), np.uint8)  # ONNX wants an empty image, not an error
    pixels = pixels.reshape(*pixels.shape[:2], channels)
    return pixels[:, :, ::-1] if attrs.pixel_format == "BGR" else pixels


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
    """Every element of the image per region, an upper bound: their sizes depend on data."""
    data, rois = ins[0], ins[1]
    if data.shape is None or rois.shape is None:
        return Work(0, UNKNOWN, traffic(ins, outs))
    _, channels, height, width = data.shape
    return Work(0, rois.shape[0] * channels * height * width, traffic(ins, outs))


def _whole_pixels(values: Array) -> Array:
    """To the nearest whole number, halves away from zero."""
    return np.asarray(np.trunc(values + np.copysign(values.dtype.type(0.5), values)))


def _cell_borders(
    first: int, last: int, count: int, extent: int, number: Any
) -> list[tuple[int, int]]:
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
    borders = _whole_pixels(scaled).astype(np.int64)
    result = np.zeros((len(rois), data.shape[1], *attrs.pooled_size), computed_in)
    for number, (left, top, right, bottom) in enumerate(borders.tolist()):
        image = pixels[images[number]]
        rows = _cell_borders(top, bottom, attrs.pooled_size[0], data.shape[2], computed_in)
        columns = _cell_borders(left, right, attrs.pooled_size[1], data.shape[3], computed_in)
        for row, (first_row, last_row) in enumerate(rows):
            if first_row >= last_row:
                continue
            strip = image[:, first_row:last_row].max(axis=1)
            for column, (first, last) in enumerate(columns):
                if first < last:
                    result[number, :, row, column] = strip[:, first:last].max(axis=1)
    return result.astype(data.dtype, copy=False)

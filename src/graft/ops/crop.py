"""Crops of images, resized to one size: `vision.crop_and_resize`, as TensorFlow has it.

Images and boxes in relative coordinates go in, a batch of crops comes out. Samples lie evenly from
one edge of a box to the other, on pixels' centres; a box may be flipped or reach out of the image.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from graft.base.capacity import check_extents
from graft.base.dims import AnyDim
from graft.base.dtypes import Array, DType, dtype_of
from graft.ir.attrs import Attrs, Dims
from graft.ir.op import Work, traffic
from graft.ir.types import TensorType
from graft.loop.build import Term, call, cast, equal, maximum, select, term
from graft.loop.ir import INDEX
from graft.loop.tensor import Tensor
from graft.ops import expression as te
from graft.ops.index import check_indices
from graft.ops.index_bounds import of_images
from graft.ops.resize import working_dtype
from graft.ops.rules import operator, require, require_shape, unknown_shape
from graft.ops.vision import check_boxes
from graft.program.guards import Guard

_METHODS = ("linear", "nearest")


@dataclass(frozen=True, slots=True)
class CropAndResizeAttrs(Attrs):
    crop_size: Dims | None = None  # rows and columns of each result
    method: str = "linear"
    extrapolation_value: float = 0.0  # of samples outside of the image


def _crop_and_resize_type(
    attrs: CropAndResizeAttrs,
    data: TensorType,
    boxes: TensorType,
    batch_indices: TensorType,
    crop_size: TensorType | None,
) -> TensorType:
    require(attrs.method in _METHODS, f"method is '{attrs.method}', neither linear nor nearest")
    require(attrs.crop_size is not None or crop_size is not None, "the crop size is missing")
    count, channels = check_boxes(data, boxes, batch_indices)
    require_shape(crop_size, (2,), "the crop size")
    if attrs.crop_size is not None:
        require(
            len(attrs.crop_size) == 2, f"the crop size is {list(attrs.crop_size)}, not two extents"
        )
    crop = unknown_shape(2) if attrs.crop_size is None else attrs.crop_size
    return TensorType(data.dtype, (count, channels, *crop))


def _crop_samples(first: Array, last: Array, count: int, extent: int) -> Array:
    """Boxes × samples: coordinates along an axis, in pixels; one sample lies in the middle."""
    reach = first.dtype.type(extent - 1)
    if count == 1:
        return np.asarray(0.5 * (first + last) * reach)[:, None]
    step = (last - first) * reach / first.dtype.type(max(count - 1, 1))
    samples = np.arange(count, dtype=first.dtype)
    return np.asarray((first * reach)[:, None] + samples * step[:, None])


def _crop_work(
    attrs: CropAndResizeAttrs, ins: Sequence[TensorType], outs: Sequence[TensorType]
) -> Work:
    flops = 8 if attrs.method == "linear" else 0
    return Work(0, outs[0].size * flops, traffic(ins[1:], outs) + traffic((), outs) * 4)


@operator(
    "vision.crop_and_resize",
    "data boxes batch_indices crop_size?",
    _crop_and_resize_type,
    work=_crop_work,
    index_bounds=of_images,
)
def _crop_and_resize(
    attrs: CropAndResizeAttrs,
    data: Array,
    boxes: Array,
    batch_indices: Array,
) -> Array:
    """Regions of images resized to one size; boxes are (y, x, y, x) between 0 and 1."""
    images, channels, height, width = data.shape
    check_indices(batch_indices, Guard(0, images, wraps=False))
    size: Any = attrs.crop_size
    rows, columns = size
    check_extents((len(boxes), channels, rows, columns), data.dtype, "vision.crop_and_resize")
    dtype = working_dtype(data.dtype)
    top, left, bottom, right = np.moveaxis(boxes.astype(dtype), 1, 0)
    y, x = _crop_samples(top, bottom, rows, height), _crop_samples(left, right, columns, width)
    inside_y, inside_x = (y >= 0) & (y <= height - 1), (x >= 0) & (x <= width - 1)
    y, x = np.where(inside_y, y, 0), np.where(inside_x, x, 0)
    pixels = np.moveaxis(data, 1, 3)

    def at(row: Array, column: Array) -> Array:
        samples: Array = pixels[
            batch_indices[:, None, None],
            row.astype(np.intp)[:, :, None],
            column.astype(np.intp)[:, None, :],
        ]
        return samples.astype(dtype)

    inside = (inside_y[:, :, None] & inside_x[:, None, :])[..., None]
    if not inside.any():
        values = np.zeros((len(boxes), rows, columns, channels), dtype)
    elif attrs.method == "nearest":
        values = at(np.floor(y + dtype.type(0.5)), np.floor(x + dtype.type(0.5)))
    else:
        dy, dx = (y - np.floor(y))[:, :, None, None], (x - np.floor(x))[:, None, :, None]
        low, high = (
            at(row, np.floor(x)) * (1 - dx) + at(row, np.ceil(x)) * dx
            for row in (np.floor(y), np.ceil(y))
        )
        values = low * (1 - dy) + high * dy
    result = np.where(inside, values, dtype.type(attrs.extrapolation_value))
    return np.moveaxis(result, 3, 1).astype(data.dtype)


@te.expresses("vision.crop_and_resize")
def _express_crop_and_resize(
    attrs: Any,
    out: te.Out,
    data: Tensor,
    boxes: Tensor,
    batch_indices: Tensor,
    _crop_size: Tensor | None,
) -> te.Results:
    """Samples per box and axis, shared by all channels; then the pixels around each."""
    wide = dtype_of(working_dtype(out.dtype.numpy))
    extents = te.sizes(data)[2:]
    if 0 in extents:
        return te.Unexpressed("there are no pixels to sample")
    samples = [_sample_tensor(out, boxes, wide, axis, extents[axis]) for axis in (0, 1)]

    def element(box: Term, channel: Term, row: Term, column: Term) -> Term:
        y, x = (te.read(one, [box, at]) for one, at in zip(samples, (row, column), strict=True))
        inside = (y >= 0.0) & (x >= 0.0)
        image = te.clamped(cast(INDEX, te.read(batch_indices, [box])), te.sizes(data)[0])

        def pixel(at_y: Term, at_x: Term) -> Term:
            indices = (
                te.clamped(cast(INDEX, at), extent)
                for at, extent in zip((at_y, at_x), extents, strict=True)
            )
            return cast(wide, te.read(data, [image, channel, *indices]))

        if attrs.method == "nearest":
            value = pixel(call("floor", y + 0.5), call("floor", x + 0.5))
        else:
            low_y, low_x = call("floor", y), call("floor", x)
            dy, dx = y - low_y, x - low_x
            low, high = (
                pixel(at, low_x) * (1.0 - dx) + pixel(at, call("ceil", x)) * dx
                for at in (low_y, call("ceil", y))
            )
            value = low * (1.0 - dy) + high * dy
        return cast(out.dtype, select(inside, value, te.number(attrs.extrapolation_value, wide)))

    return out.of(element)


def _sample_tensor(out: te.Out, boxes: Tensor, wide: DType, axis: int, extent: AnyDim) -> Tensor:
    """Boxes × samples: coordinates along an axis in pixels, -1 outside of the image."""
    count, reach = out.shape[2 + axis], cast(wide, term(extent) - 1)
    steps = cast(wide, maximum(term(count) - 1, 1))

    def coordinate(box: Term, sample: Term) -> Term:
        first, last = (cast(wide, te.read(boxes, [box, at])) for at in (axis, axis + 2))
        spaced = first * reach + cast(wide, sample) * ((last - first) * reach / steps)
        at = select(equal(term(count), 1), (first + last) * 0.5 * reach, spaced)
        return select((at >= 0.0) & (at <= reach), at, te.number(-1, wide))

    return te.by_index(f"{out.name}_axis{axis}", [boxes.shape[0], count], coordinate)

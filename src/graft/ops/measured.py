"""Operators to which compilers lower those whose result sizes depend on data.

Native code computes a result in memory for the largest possible size, and its actual size as a
number. The runtime binds the number to an extent (`sized`, `trimmed`); later kernels use that.
"""

from __future__ import annotations

import numpy as np

from graft.base.dims import UNKNOWN, AnyDim, dim_min
from graft.base.dtypes import Array, DType
from graft.ir.attrs import Attrs
from graft.ir.op import get_op, no_work
from graft.ir.types import TensorType
from graft.ops.rules import operator, require
from graft.ops.search import UniqueAttrs
from graft.ops.vision import NonMaxSuppressionAttrs


def _sized_type(_attrs: Attrs, count: TensorType) -> TensorType:
    require(count.dtype is DType.INT64, f"the number of elements is {count.dtype}, not int64")
    require(count.shape == (), f"the number of elements is one number, not {count}")
    return TensorType(DType.BOOL, (UNKNOWN,))


@operator("sized", "count", _sized_type, work=no_work)
def _sized(_attrs: Attrs, count: Array) -> Array:
    """An empty-payload tensor whose extent is the scalar operand: it binds a data-dependent dim."""
    return np.broadcast_to(np.zeros((), bool), (int(count),))


def _trimmed_type(_attrs: Attrs, data: TensorType, counts: TensorType) -> TensorType:
    require(counts.dtype is DType.INT64, f"the number of rows is {counts.dtype}, not int64")
    require(counts.rank in (None, 1), f"the numbers of rows are {counts}, not a list")
    rows = () if data.shape is None else data.shape
    require(data.shape is None or len(rows) > 0, "a single number has no rows")
    return TensorType(data.dtype, None if data.shape is None else (UNKNOWN, *rows[1:]))


@operator("trimmed", "data counts", _trimmed_type, work=no_work)
def _trimmed(_attrs: Attrs, data: Array, counts: Array) -> Array:
    """The first `counts[-1]` rows."""
    return data[: int(counts[-1])]


_SUPPRESSION = get_op("vision.non_max_suppression")


def most_boxes(attrs: NonMaxSuppressionAttrs, boxes: TensorType) -> AnyDim:
    """How many boxes may remain of an image and class."""
    count = UNKNOWN if boxes.shape is None else boxes.shape[1]
    return count if attrs.max_output_size is None else dim_min(count, max(attrs.max_output_size, 0))


def _bounded_type(
    attrs: NonMaxSuppressionAttrs,
    boxes: TensorType,
    scores: TensorType,
    max_output_size: TensorType | None,
    iou_threshold: TensorType | None,
    score_threshold: TensorType | None,
) -> tuple[TensorType, TensorType]:
    operands = boxes, scores, max_output_size, iou_threshold, score_threshold
    _SUPPRESSION.result_types(attrs, operands)
    if scores.shape is None:
        return TensorType(DType.INT64, (UNKNOWN, 3)), TensorType(DType.INT64, (UNKNOWN,))
    classes = scores.shape[0] * scores.shape[1]
    rows = classes * most_boxes(attrs, boxes)
    return TensorType(DType.INT64, (rows, 3)), TensorType(DType.INT64, (classes + 1,))


@operator(
    "vision.bounded_non_max_suppression",
    "boxes scores max_output_size? iou_threshold? score_threshold?",
    _bounded_type,
    outputs=2,
    work=_SUPPRESSION.work,
)
def _bounded(
    attrs: NonMaxSuppressionAttrs, boxes: Array, scores: Array, *numbers: Array | None
) -> tuple[Array, Array]:
    """The boxes that remain, in memory for all that may; how many of each class, and in all."""
    result = _SUPPRESSION.evaluate(attrs, boxes, scores, *numbers)
    images, classes, count = scores.shape
    most = count if attrs.max_output_size is None else min(count, max(attrs.max_output_size, 0))
    rows = np.zeros((images * classes * most, 3), np.int64)
    rows[: len(result)] = result
    each = np.bincount(result[:, 0] * classes + result[:, 1], minlength=images * classes)
    return rows, np.append(each, len(result)).astype(np.int64)


_UNIQUE = get_op("unique")


def _bounded_unique_type(attrs: UniqueAttrs, data: TensorType) -> tuple[TensorType, ...]:
    rows = attrs.axis == 0 and data.rank == 2
    require(rows or attrs.axis is None, "elements are compared, or the rows of a matrix")
    all_of_them = (data.shape or ()) if rows else (data.size,)
    numbers = TensorType(DType.INT64, all_of_them[:1])
    return TensorType(data.dtype, all_of_them), *[numbers] * 3, TensorType(DType.INT64, (1,))


@operator("bounded_unique", "data", _bounded_unique_type, outputs=5, work=_UNIQUE.work)
def _bounded_unique(attrs: UniqueAttrs, data: Array) -> tuple[Array, ...]:
    """The distinct elements or rows in memory for all of them, and how many there are."""
    values, first, inverse, counts = _UNIQUE.evaluate(attrs, data)
    memory = data.shape if attrs.axis == 0 else (data.size,)
    first, each = (np.resize(one, memory[:1]) for one in (first, counts))
    return np.resize(values, memory), first, inverse, each, np.array([len(counts)])

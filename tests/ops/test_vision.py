"""Pooling over boxes, choosing boxes and decoding images, against ONNX Runtime and Pillow."""

from __future__ import annotations

import io
import sys
from typing import Any

import ml_dtypes
import numpy as np
import PIL.Image
import pytest
from tests.ops.every_form import agree, by_graft, one_node

from graft.base.dims import symbol
from graft.base.dtypes import Array
from graft.base.errors import EvaluationError, ModelError, TypeRuleError, UserError
from graft.ir.types import TensorType, tensor
from graft.ops import get_op
from graft.ops.vision import DecodeAttrs, NonMaxSuppressionAttrs, RoiAlignAttrs

RANDOM = np.random.default_rng(11)
FEATURES = RANDOM.normal(size=(2, 3, 9, 11)).astype(np.float32)
# Whole, tiny, flipped, partly and wholly outside, on the last pixel, far outside.
BOXES = np.array(
    [
        [0, 0, 36, 30],
        [5.2, 6.1, 5.4, 6.2],
        [20, 18, 10, 9],
        [-9, -7, 12.5, 40],
        [-20, -20, -10, -10],
        [33, 27, 36, 30],
        [500, 500, 600, 600],
    ],
    np.float32,
)
IMAGES = np.array([0, 1, 0, 1, 1, 0, 1], np.int64)
POOLED = {"output_height": 3, "output_width": 4, "spatial_scale": 0.3}


@pytest.mark.parametrize("mode", ["avg", "max"])
@pytest.mark.parametrize("sampling_ratio", [0, 1, 3])
def test_roi_align(mode: str, sampling_ratio: int) -> None:
    given = {**POOLED, "mode": mode, "sampling_ratio": sampling_ratio}
    operands = [FEATURES, BOXES, IMAGES]
    agree("RoiAlign", operands, 10, **given)
    for coordinates in ("half_pixel", "output_half_pixel"):
        agree("RoiAlign", operands, 16, coordinate_transformation_mode=coordinates, **given)
    agree("RoiAlign", [FEATURES.astype(np.float64), BOXES.astype(float), IMAGES], 16, **given)


def pool(data: Array, boxes: Array, images: Array, **attrs: Any) -> Array:
    given = {"pooled_size": (3, 2), "sample_ratio": 2, **attrs}
    found: Array = get_op("vision.roi_align").evaluate(RoiAlignAttrs(**given), data, boxes, images)
    return found


@pytest.mark.parametrize("mode", ["avg", "max"])
@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16])
def test_roi_align_narrow(mode: str, dtype: Any) -> None:
    data, boxes = FEATURES.astype(dtype), (BOXES / 4).astype(dtype)
    found = pool(data, boxes, IMAGES, mode=mode)
    assert found.dtype == dtype
    wide = pool(data.astype(np.float32), boxes.astype(np.float32), IMAGES, mode=mode)
    np.testing.assert_array_equal(found, wide.astype(dtype))


@pytest.mark.parametrize("odd", [np.nan, np.inf])
def test_roi_align_keeps_odd_numbers_in_their_bins(odd: float) -> None:
    data = FEATURES.copy()
    data[1, :, 1, 1] = odd
    boxes = np.array([[0, 0, 8, 9], [0, 0, 8, 9]], np.float32)
    found = pool(data, boxes, np.array([1, 0]))
    plain = pool(FEATURES, boxes, np.array([1, 0]))
    assert not np.isfinite(found[0, :, 0, 0]).any()
    rest = np.ones((2, 3, 3, 2), bool)
    rest[0, :, 0, 0] = False
    np.testing.assert_allclose(found[rest], plain[rest], rtol=1e-5, atol=1e-6)


def test_roi_align_of_no_boxes() -> None:
    none = [FEATURES, np.zeros((0, 4), np.float32), np.zeros(0, np.int64)]
    agree("RoiAlign", none, 16, [np.zeros((0, 3, 3, 4), np.float32)], **POOLED)


def test_roi_align_types() -> None:
    n, c = symbol("n"), symbol("c")
    op = get_op("vision.roi_align")

    def found(*types: TensorType, **attrs: Any) -> str:
        return str(op.result_types(RoiAlignAttrs(**{"pooled_size": (7, 5), **attrs}), types)[0])

    data, count = tensor("float32", 1, c, symbol("h"), 8), tensor("int64", 6)
    boxes = tensor("float32", n, 4)
    assert found(data, boxes, tensor("int64", n)) == "float32[n, c, 7, 5]"
    assert found(data, TensorType(data.dtype), count) == "float32[6, c, 7, 5]"
    assert found(TensorType(data.dtype), boxes, count) == "float32[6, ?, 7, 5]"
    refused = [
        ((tensor("float32", 1, c, 8), boxes, count), {}, "images have rank 3, not 4"),
        ((data, tensor("float32", n, 5), count), {}, "the numbers per box differ: 5 and 4"),
        ((data, tensor("float32", 7, 4), count), {}, "of boxes and of batch indices differ"),
        ((data, tensor("float16", n, 4), count), {}, "dtypes differ: float16, float32"),
        ((data, boxes, count), {"mode": "sum"}, "mode is 'sum', neither avg nor max"),
        ((data, boxes, count), {"pooled_size": (0, 1)}, "not two positive extents"),
    ]
    for types, attrs, message in refused:
        with pytest.raises(TypeRuleError, match=message):
            found(*types, **attrs)


def test_roi_align_refusals() -> None:
    with pytest.raises(ModelError, match="coordinate_transformation_mode is 'x', none of half"):
        by_graft(
            one_node("RoiAlign", [FEATURES, BOXES, IMAGES], 16, coordinate_transformation_mode="x"),
            [],
        )
    operands = [FEATURES, BOXES, IMAGES + 1]
    with pytest.raises(EvaluationError, match="index 2 is out of range for axis 0 of extent 2"):
        by_graft(one_node("RoiAlign", operands, 16), operands)
    operands = [FEATURES[:, :, :0], BOXES, IMAGES]
    with pytest.raises(EvaluationError, match="there are no pixels to pool"):
        by_graft(one_node("RoiAlign", operands, 16), operands)


def boxes_and_scores(count: int) -> tuple[Array, Array]:
    boxes = RANDOM.uniform(0, 1, (2, count, 4)).astype(np.float32)
    if count > 3:
        boxes[:, 3] = boxes[:, 0]  # one twice
        boxes[:, 2, 2:] = boxes[:, 2, :2]  # one without area
    return boxes, np.round(RANDOM.uniform(0, 1, (2, 3, count)), 1).astype(np.float32)  # ties


@pytest.mark.parametrize("count", [0, 1, 24])
@pytest.mark.parametrize("center_point_box", [0, 1])
def test_non_max_suppression(count: int, center_point_box: int) -> None:
    boxes, scores = boxes_and_scores(count)
    thresholds = [np.array([0.4], np.float32), np.array([0.3], np.float32)]
    form = {"center_point_box": center_point_box}
    for limit in (0, 3, 100):
        operands = [boxes, scores, np.array([limit], np.int64), *thresholds]
        for given in range(3, 6):
            for opset in (10, 11):
                agree("NonMaxSuppression", operands[:given], opset, **form)
    agree("NonMaxSuppression", [boxes, scores], 11)
    scalars = [boxes, scores, np.array(9), None, np.array(0.5, np.float32)]
    agree("NonMaxSuppression", scalars, 11)


def test_non_max_suppression_of_odd_scores() -> None:
    boxes = np.array([[[0, 0, 1, 1], [5, 5, 6, 6], [8, 8, 9, 9], [2, 2, 3, 3]]], np.float32)
    scores = np.array([[[np.nan, -np.inf, np.inf, 0]]], np.float32)

    def kept(**attrs: Any) -> list[int]:
        given = NonMaxSuppressionAttrs(max_output_size=9, **attrs)
        op = get_op("vision.non_max_suppression")
        found: list[int] = op.evaluate(given, boxes, scores, None, None, None)[:, 2].tolist()
        return found

    assert kept() == [2, 3, 1, 0]
    assert kept(score_threshold=-1.0) == [2, 3]
    assert kept(score_threshold=0.0) == [2]


def test_non_max_suppression_types() -> None:
    op = get_op("vision.non_max_suppression")
    n, boxes = symbol("n"), tensor("float32", 1, 8, 4)

    def found(*types: TensorType) -> str:
        return str(op.result_types(NonMaxSuppressionAttrs(), types)[0])

    assert found(boxes, tensor("float32", n, 3, 8)) == "int64[?, 3]"
    assert found(TensorType(boxes.dtype), TensorType(boxes.dtype)) == "int64[?, 3]"
    refused = [
        (boxes, tensor("float32", 1, 3, 9), "the numbers of boxes and of scores differ: 8 and 9"),
        (boxes, tensor("float32", 2, 3, 8), "the numbers of images differ: 1 and 2"),
        (boxes, tensor("float32", 3, 8), "scores have rank 2, not 3"),
        (tensor("float32", 1, 8, 5), tensor("float32", 1, 3, 8), "the numbers per box"),
    ]
    for first, second, message in refused:
        with pytest.raises(TypeRuleError, match=message):
            found(first, second)


PIXELS = RANDOM.integers(0, 256, (5, 7, 3), np.uint8)


def encoded(image: PIL.Image.Image, kind: str) -> Array:
    file = io.BytesIO()
    image.save(file, kind)
    return np.frombuffer(file.getvalue(), np.uint8)


@pytest.mark.parametrize("kind", ["PNG", "BMP", "TIFF", "PPM"])
def test_image_decoder(kind: str) -> None:
    image = PIL.Image.fromarray(PIXELS)
    data = encoded(image, kind)
    agree("ImageDecoder", [data], 20, [PIXELS])
    agree("ImageDecoder", [data], 20, [PIXELS[:, :, ::-1]], pixel_format="BGR")
    grey = np.array(image.convert("L"))[:, :, None]
    agree("ImageDecoder", [data], 20, [grey], pixel_format="Grayscale")


def test_image_decoder_changes_the_format() -> None:
    grey = np.array(PIL.Image.fromarray(PIXELS).convert("L"))
    data = encoded(PIL.Image.fromarray(grey), "PNG")
    agree("ImageDecoder", [data], 20, [np.repeat(grey[:, :, None], 3, axis=2)])


@pytest.mark.parametrize("length", [0, 10, 40])
def test_what_cannot_be_decoded_is_empty(length: int) -> None:
    data = encoded(PIL.Image.fromarray(PIXELS), "PNG")[:length]
    agree("ImageDecoder", [data], 20, [np.zeros((0, 0, 3), np.uint8)])


def test_image_decoder_without_pillow(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "PIL", None)
    monkeypatch.setitem(sys.modules, "PIL.Image", None)
    data = np.zeros(4, np.uint8)
    with pytest.raises(UserError, match="decoding an image takes Pillow") as caught:
        by_graft(one_node("ImageDecoder", [data], 20), [data])
    assert caught.value.hint == "pip install Pillow"
    assert caught.value.location is not None


def test_image_decoder_refusals() -> None:
    op = get_op("image.decode")
    with pytest.raises(TypeRuleError, match="the pixel format 'HSV' is none of RGB, BGR, Gray"):
        op.result_types(DecodeAttrs("HSV"), (tensor("uint8", 4),))
    with pytest.raises(TypeRuleError, match="the encoded image is int8, not uint8"):
        op.result_types(DecodeAttrs(), (tensor("int8", 4),))

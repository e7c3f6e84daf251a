"""Crops of images, resized: natively and by the evaluator, beside ONNX Runtime."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from tests.frontends.onnx.microsoft.beside_runtime import agrees, by_graft, floats, model

import graft
from graft.base.dims import symbol
from graft.base.dtypes import Array
from graft.base.errors import EvaluationError, ModelError, TypeRuleError
from graft.ir.types import TensorType, tensor
from graft.ops import get_op
from graft.ops.crop import CropAndResizeAttrs

IMAGES = floats(2, 3, 7, 9)
# Whole, inner, flipped, partly and wholly outside, a point, on the last pixel.
BOXES = np.array(
    [
        [0, 0, 1, 1],
        [0.1, 0.2, 0.6, 0.7],
        [0.8, 0.9, 0.2, 0.1],
        [-0.2, 0.3, 0.5, 1.4],
        [2, 2, 3, 3],
        [0.5, 0.5, 0.5, 0.5],
        [1, 1, 1, 1],
    ],
    np.float32,
)
WHICH = np.array([0, 1, 0, 1, 1, 0, 1], np.int32)
SIZES = [(4, 5), (1, 3), (3, 1), (1, 1)]


def numbers(size: tuple[int, int]) -> Array:
    return np.array(size, np.int32)


@pytest.mark.parametrize("mode", ["bilinear", "nearest"])
@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("constants", [(), (3,)])
def test_beside_onnx_runtime(mode: str, size: tuple[int, int], constants: tuple[int, ...]) -> None:
    operands = (IMAGES, BOXES, WHICH, numbers(size))
    agrees("CropAndResize", *operands, constants=constants, mode=mode, extrapolation_value=2.5)


@pytest.mark.each_value
@pytest.mark.parametrize("mode", ["bilinear", "nearest"])
@pytest.mark.parametrize("constants", [(), (3,)])
@pytest.mark.parametrize("opened", [False, True])
def test_native(mode: str, constants: tuple[int, ...], opened: bool) -> None:
    """One program serves every size, crops of one row included; `strict`: no evaluator."""
    operands = (IMAGES, BOXES, WHICH, numbers(SIZES[0]))
    options: dict[str, Any] = {"mode": mode, "extrapolation_value": -1.0, "constants": constants}
    proto = model("CropAndResize", operands, opened=opened, **options)
    module = graft.compile(proto, strict=True)
    for size in SIZES[:1] if constants else SIZES:
        operands = (IMAGES, BOXES, WHICH, numbers(size))
        names = [value.name for value in module.get_inputs()]
        (native,) = module.run(None, dict(zip(names, operands, strict=False)))
        (expected,) = by_graft("CropAndResize", operands, **options)
        np.testing.assert_allclose(native, expected, rtol=1e-5, atol=1e-6)


def test_an_image_that_is_not_there() -> None:
    operands = (IMAGES, BOXES, WHICH + 1, numbers((2, 2)))
    proto = model("CropAndResize", operands)
    for target in ("host", "reference"):
        module = graft.compile(proto, target=target)
        feeds = {f"in{position}": array for position, array in enumerate(operands)}
        with pytest.raises(EvaluationError, match="index 2 is out of range for axis 0 of extent 2"):
            module.run(None, feeds)


def test_of_no_boxes() -> None:
    operands = (IMAGES, BOXES[:0], WHICH[:0], numbers((2, 3)))
    (result,) = by_graft("CropAndResize", operands, constants=(3,))
    assert result.shape == (0, 3, 2, 3)


def test_types() -> None:
    n, rows = symbol("n"), symbol("rows")
    op = get_op("vision.crop_and_resize")

    def inferred(*types: TensorType | None, **attrs: Any) -> str:
        return str(op.result_types(CropAndResizeAttrs(**attrs), types)[0])

    images, boxes = tensor("float32", 1, 3, symbol("h"), 8), tensor("float32", n, 4)
    which, size = tensor("int32", n), tensor("int32", 2)
    assert inferred(images, boxes, which, crop_size=(rows, 5)) == "float32[n, 3, rows, 5]"
    assert inferred(images, boxes, which, size) == "float32[n, 3, ?, ?]"
    refused: list[tuple[tuple[TensorType, ...], dict[str, Any], str]] = [
        ((images, boxes, which), {}, "the crop size is missing"),
        ((images, boxes, which), {"crop_size": (3,)}, "not two extents"),
        ((images, boxes, which, tensor("int32", 3)), {}, "extents of the crop size .*: 3 and 2"),
        ((images, tensor("float16", n, 4), which, size), {}, "dtypes differ: float16, float32"),
        (
            (images, tensor("float32", 6, 4), tensor("int32", 5), size),
            {},
            "of batch indices differ",
        ),
        ((images, boxes, which, size), {"method": "cubic"}, "neither linear nor nearest"),
    ]
    for types, attrs, message in refused:
        with pytest.raises(TypeRuleError, match=message):
            inferred(*types, **attrs)


def test_a_mode_that_is_none() -> None:
    with pytest.raises(ModelError, match="the mode 'cubic', neither bilinear nor nearest"):
        by_graft("CropAndResize", (IMAGES, BOXES, WHICH, numbers((2, 2))), mode="cubic")

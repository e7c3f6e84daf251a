"""Sampling at given positions, and grids of positions, against ONNX Runtime and formulas."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest
from tests.ops.every_form import agree, by_graft, one_node

from graft.base.dims import symbol
from graft.base.dtypes import Array
from graft.base.errors import EvaluationError, TypeRuleError
from graft.ir.types import TensorType, tensor
from graft.ops import get_op
from graft.ops.grid import AffineGridAttrs, GridSampleAttrs

RANDOM = np.random.default_rng(13)
PADDINGS = ["zeros", "border", "reflection"]
IMAGE = RANDOM.normal(size=(2, 3, 4, 6)).astype(np.float32)
# Positions inside, on the edges, just and far beyond them.
GRID = RANDOM.normal(scale=1.3, size=(2, 5, 4, 2)).astype(np.float32)
GRID[0, 0, :, 0] = [-1, 1, 0, 1.05]
GRID[1, 0, :, 1] = [-40.3, 33.3, -1.01, 0.999]


@pytest.mark.each_value
@pytest.mark.parametrize("align_corners", [0, 1])
@pytest.mark.parametrize("padding", PADDINGS)
@pytest.mark.parametrize("mode", ["linear", "nearest", "cubic"])
def test_grid_sample(mode: str, padding: str, align_corners: int) -> None:
    given = {"padding_mode": padding, "align_corners": align_corners}
    agree("GridSample", [IMAGE, GRID], 20, mode=mode, **given)
    agree("GridSample", [IMAGE[:, :, :1, :2], GRID], 20, mode=mode, **given)
    older = {"linear": "bilinear", "cubic": "bicubic"}.get(mode, mode)
    agree("GridSample", [IMAGE, GRID], 16, mode=older, **given)
    if mode != "cubic":
        volume = RANDOM.normal(size=(1, 2, 3, 4, 5)).astype(np.float32)
        grid = RANDOM.normal(size=(1, 2, 3, 4, 3)).astype(np.float32)
        agree("GridSample", [volume, grid], 20, mode=mode, **given)


def sample(data: Array, grid: Array, **attrs: Any) -> Array:
    found: Array = get_op("grid_sample").evaluate(GridSampleAttrs(**attrs), data, grid)
    return found


def test_default_mode_is_linear_under_either_name() -> None:
    expected = [sample(IMAGE, GRID)]
    for opset in (16, 20, 22):
        agree("GridSample", [IMAGE, GRID], opset, expected)


@pytest.mark.parametrize("padding", PADDINGS)
def test_volumes_along_one_axis(padding: str) -> None:
    """A cubic sample in a volume that is constant along two axes is that of a line."""
    line = RANDOM.normal(size=5).astype(np.float32)
    volume = np.broadcast_to(line, (1, 1, 3, 4, 5)).copy()
    grid = np.zeros((1, 1, 1, 9, 3), np.float32)
    grid[..., 0] = np.linspace(-1.7, 1.7, 9)
    given = {"method": "cubic", "padding_mode": padding}
    expected = sample(line[None, None], grid[0, :, 0, :, :1], **given)
    found = sample(volume, grid, **given)
    np.testing.assert_allclose(found.ravel(), expected.ravel(), rtol=1e-4, atol=1e-5)


def test_grid_sample_of_odd_dtypes() -> None:
    numbers = np.array([[[[0, 100, 255, 7]]]], np.uint8)
    grid = np.zeros((1, 1, 4, 2), np.float32)
    grid[0, 0, :, 0] = [-0.75, -0.5, 0.2, 9]
    between = sample(numbers, grid)
    assert between.dtype == np.uint8
    assert between.ravel().tolist() == [0, 50, 239, 0]  # 239.5 is cut off
    words = np.array([[[["a", "b", "c", "d"]]]], object)
    assert sample(words, grid, method="nearest").ravel().tolist() == ["a", "a", "c", ""]
    truth = np.array([[[[True, True, False, True]]]])
    assert sample(truth, grid, method="nearest").ravel().tolist() == [True, True, False, False]
    doubled = sample(IMAGE + 2j * IMAGE, GRID)
    np.testing.assert_allclose(doubled.imag, 2 * doubled.real, rtol=1e-5)
    for dtype in (np.float16, ml_dtypes.bfloat16):
        data, places = IMAGE.astype(dtype), GRID.astype(dtype)
        wide = sample(data.astype(np.float32), places.astype(np.float32))
        np.testing.assert_array_equal(sample(data, places), wide.astype(dtype))


@pytest.mark.parametrize("padding", PADDINGS)
@pytest.mark.parametrize("method", ["linear", "nearest", "cubic"])
def test_positions_that_are_no_numbers(method: str, padding: str) -> None:
    grid = np.full((2, 1, 3, 2), 0.1, np.float32)
    grid[:, 0, :, 0] = [np.nan, np.inf, -np.inf]
    found = sample(IMAGE, grid, method=method, padding_mode=padding)
    assert np.isfinite(found).all()
    assert padding != "zeros" or not found.any()


def test_nothing_to_sample() -> None:
    agree("GridSample", [IMAGE[:0], GRID[:0]], 20, [np.zeros((0, 3, 5, 4), np.float32)])
    agree("GridSample", [IMAGE, GRID[:, :0]], 20, [np.zeros((2, 3, 0, 4), np.float32)])
    operands = [IMAGE[:, :, :0], GRID]
    with pytest.raises(EvaluationError, match="there is nothing to sample in an empty tensor"):
        by_graft(one_node("GridSample", operands, 20), operands)


def test_grid_sample_types() -> None:
    n, h = symbol("n"), symbol("h")
    op = get_op("grid_sample")

    def found(*types: TensorType, **attrs: Any) -> str:
        return str(op.result_types(GridSampleAttrs(**attrs), types)[0])

    data, grid = tensor("float32", n, 3, 8, 9), tensor("float16", n, h, 5, 2)
    unranked = TensorType(data.dtype)
    assert found(data, grid) == "float32[n, 3, h, 5]"
    assert found(unranked, grid) == "float32[n, ?, h, 5]"
    assert found(data, unranked) == "float32[n, 3, ?, ?]"
    assert found(unranked, unranked) == "float32[*]"
    refused = [
        ((data, tensor("float32", n, h, 2)), {}, "the data have rank 4, the grid 3"),
        ((data, tensor("float32", n, h, 5, 3)), {}, "the coordinates per position and the axes"),
        ((tensor("float32", 2, 3, 8, 9), tensor("float32", 3, 1, 1, 2)), {}, "the batch sizes"),
        ((tensor("float32"), unranked), {}, "data of rank 0 have no axis to sample along"),
        ((data, tensor("int64", n, h, 5, 2)), {}, "the grid is int64, not floating-point"),
        ((data, grid), {"method": "area"}, "the method 'area' is none of nearest, linear, cubic"),
        ((data, grid), {"padding_mode": "wrap"}, "the padding 'wrap' is none of zeros"),
        ((tensor("string", n, 3, 8, 9), grid), {}, "string elements cannot be interpolated"),
    ]
    for types, attrs, message in refused:
        with pytest.raises(TypeRuleError, match=message):
            found(*types, **attrs)


@pytest.mark.parametrize("align_corners", [0, 1])
@pytest.mark.parametrize("size", [(2, 1, 3, 4), (2, 7, 2, 3, 4)])
def test_affine_grid(size: tuple[int, ...], align_corners: int) -> None:
    axes = len(size) - 2
    theta = RANDOM.normal(size=(2, axes, axes + 1))
    for dtype in (np.float32, np.float64):
        operands = [theta.astype(dtype), np.array(size)]
        if dtype == np.float32:
            agree("AffineGrid", operands, 20, align_corners=align_corners)
        else:
            expected = affine_positions(theta, size[2:], align_corners)
            agree("AffineGrid", operands, 20, [expected], align_corners=align_corners)


def affine_positions(theta: Array, extents: tuple[int, ...], align_corners: int) -> Array:
    """One position at a time."""
    grid = np.zeros((len(theta), *extents, len(extents)))
    for place in np.ndindex(*extents):
        point = [
            -1 + 2 * i / (extent - 1) if align_corners else -1 + (2 * i + 1) / extent
            for i, extent in zip(place, extents, strict=True)
        ]
        grid[(slice(None), *place)] = theta @ [*reversed(point), 1]
    return grid


def test_affine_grid_of_one_pixel_and_of_none() -> None:
    theta = np.eye(2, 3, dtype=np.float32)[None] + 1
    for align_corners in (0, 1):
        given = {"align_corners": align_corners}
        middle = [np.full((1, 1, 1, 2), 1, np.float32)]
        agree("AffineGrid", [theta, np.array([1, 1, 1, 1])], 20, middle, **given)
        agree("AffineGrid", [theta, np.array([1, 1, 0, 5])], 20, [np.zeros((1, 0, 5, 2), "f")])


def test_affine_grid_types() -> None:
    n, h = symbol("n"), symbol("h")
    op = get_op("affine_grid")

    def found(*types: TensorType, **attrs: Any) -> str:
        return str(op.result_types(AffineGridAttrs(**attrs), types)[0])

    theta, unranked = tensor("float32", n, 2, 3), TensorType(tensor("float32").dtype)
    assert found(theta, size=(n, 3, h, 5)) == "float32[n, h, 5, 2]"
    assert found(theta, tensor("int64", 4)) == "float32[n, ?, ?, 2]"
    assert found(theta, tensor("int64", h)) == "float32[n, ?, ?, 2]"
    assert found(unranked, tensor("int64", 5)) == "float32[?, ?, ?, ?, 3]"
    assert found(unranked, tensor("int64", h)) == "float32[*]"
    refused = [
        ((theta,), {}, "the size is given nowhere"),
        ((theta,), {"size": (1, 1, 2)}, "the size has 3 extents, neither 4 nor 5"),
        ((theta,), {"size": (1, 1, 2, 2, 2)}, "the matrices' rows and the axes differ: 2 and 3"),
        ((tensor("float32", 2, 2, 3),), {"size": (3, 1, 2, 2)}, "the batch sizes differ"),
        ((tensor("int32", 2, 2, 3),), {"size": (2, 1, 2, 2)}, "the matrices are int32"),
    ]
    for types, attrs, message in refused:
        with pytest.raises(TypeRuleError, match=message):
            found(*types, **attrs)

"""Unpooling, and pooling of regions, against ONNX Runtime and plain NumPy."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from tests.ops.one_node import assert_same, by_graft, by_runtime, graph_of

from graft.base.dims import UNKNOWN, symbol
from graft.base.dtypes import Array
from graft.base.errors import EvaluationError, TypeRuleError, UserError
from graft.ir.builder import Builder
from graft.ir.types import tensor

RANDOM = np.random.default_rng(17)


def floats(*shape: int) -> Array:
    return RANDOM.standard_normal(shape).astype(np.float32)


@pytest.mark.parametrize(
    ("shape", "attributes"),
    [
        ((2, 3, 8), {"kernel_shape": [2], "strides": [2]}),
        ((2, 3, 6, 9), {"kernel_shape": [2, 3], "strides": [2, 3]}),
        ((1, 2, 7, 7), {"kernel_shape": [3, 3], "strides": [2, 2]}),
        ((1, 2, 4, 4, 6), {"kernel_shape": [2, 2, 3], "strides": [2, 2, 3]}),
        ((1, 2, 6, 6), {"kernel_shape": [2, 2], "strides": [2, 2], "pads": [1, 1, 1, 1]}),
    ],
)
@pytest.mark.parametrize("opset", [9, 22])
def test_pooling_undone_as_onnx_runtime(
    shape: tuple[int, ...], attributes: dict[str, Any], opset: int
) -> None:
    pooled, indices = by_runtime("MaxPool", {"x": floats(*shape)}, 12, outputs=2, **attributes)
    feeds = {"x": pooled, "i": indices}
    expected = by_runtime("MaxUnpool", feeds, opset, **attributes)
    assert expected[0].shape == shape
    for declared in (pooled.shape, ["n", "c", *"hwd"[: len(shape) - 2]], None):
        shapes = {"x": declared, "i": declared}
        assert_same(by_graft("MaxUnpool", feeds, opset, shapes=shapes, **attributes), expected, 0)


@pytest.mark.parametrize("wanted", [(1, 1, 4, 4), (1, 1, 5, 7), (2, 2, 4, 5)])
def test_a_larger_shape_is_filled_up(wanted: tuple[int, ...]) -> None:
    """Indices count in the smallest shape, here 4 by 4, as in ONNX's own test."""
    feeds: dict[str, Array | None] = {
        "x": np.array([[[[1, 2], [3, 4]]]], np.float32),
        "i": np.array([[[[5, 7], [13, 15]]]]),
        "shape": np.array(wanted),
    }
    expected = np.zeros(wanted, np.float32)
    expected[0, 0, [1, 1, 3, 3], [1, 3, 1, 3]] = [1, 2, 3, 4]
    options: dict[str, Any] = {"kernel_shape": [2, 2], "strides": [2, 2]}
    for declared in ([1, 1, 2, 2], ["n", "c", "h", "w"]):
        found = by_graft("MaxUnpool", feeds, 11, shapes={"x": declared}, **options)
        assert_same(found, [expected], 0)


def test_indices_outside() -> None:
    options: dict[str, Any] = {"kernel_shape": [2], "strides": [2]}
    for index in (-1, 4):
        feeds = {"x": floats(1, 1, 2), "i": np.array([[[0, index]]])}
        with pytest.raises(EvaluationError, match=f"index {index} is out of range"):
            by_graft("MaxUnpool", feeds, 11, **options)


def test_symbolic_unpooling() -> None:
    builder = Builder()
    n, h = symbol("n"), symbol("h")
    x, i = (
        builder.input(name, tensor(kind, n, 3, h))
        for name, kind in (("x", "float32"), ("i", "int64"))
    )
    y = builder("nn.max_unpool1d", x, i, pool_size=(3,), strides=(2,), padding=(1, 0))
    assert y.type == tensor("float32", n, 3, 2 * h)


@pytest.mark.parametrize(
    ("data", "indices", "kind", "given", "message"),
    [
        ((1, 1, 2), (1, 1, 3), "int64", {}, "extents of the data and the indices differ: 2 and 3"),
        ((1, 1, 2), (1, 1, 2), "int32", {}, "the indices are int32, not int64"),
        ((1, 1, 2, 2), (1, 1, 2), "int64", {}, "the data has rank 4, not 3"),
        ((1, 1, 2), (1, 1, 2), "int64", {"padding": (2, 2)}, "is larger than the result"),
    ],
)
def test_refusals(data: Any, indices: Any, kind: str, given: dict[str, Any], message: str) -> None:
    builder = Builder()
    x = builder.input("x", tensor("float32", *data))
    i = builder.input("i", tensor(kind, *indices))
    with pytest.raises(TypeRuleError, match=message):
        builder("nn.max_unpool1d", x, i, pool_size=(2,), **given)


@pytest.mark.parametrize("scale", [1.0, 0.5, 0.0625])
@pytest.mark.parametrize("pooled", [[2, 3], [7, 7], [1, 1]])
def test_regions_as_onnx_runtime(scale: float, pooled: list[int]) -> None:
    """Regions inside, across and outside the borders, thin, inverted, and with halves to round."""
    x = floats(2, 3, 11, 13)
    corners = np.array(
        [
            [0, 0, 0, 12, 10],
            [1, 2.5, 3.5, 7.5, 8.49],
            [0, -5, -4, 3, 4],
            [1, 9, 8, 40, 30],
            [1, 5, 5, 5, 5],
            [0, 9, 9, 2, 2],
            [0, 100, 100, 120, 120],
        ],
        np.float32,
    )
    rois = np.concatenate([corners[:, :1], corners[:, 1:] / np.float32(scale)], axis=1)
    feeds = {"x": x, "rois": rois}
    options: dict[str, Any] = {"pooled_shape": pooled, "spatial_scale": scale}
    expected = by_runtime("MaxRoiPool", feeds, 7, **options)
    for shapes in ({}, {"x": ["n", "c", "h", "w"], "rois": ["r", 5]}, {"x": None, "rois": None}):
        assert_same(by_graft("MaxRoiPool", feeds, 7, shapes=shapes, **options), expected, 0)


@pytest.mark.parametrize("dtype", [np.float16, np.float64])
def test_regions_of_other_floats(dtype: Any) -> None:
    x = np.arange(16).reshape(1, 1, 4, 4).astype(dtype)
    rois = np.array([[0, 0, 0, 3, 3], [0, 1, 0, 2, 1]], dtype)
    (found,) = by_graft("MaxRoiPool", {"x": x, "rois": rois}, 22, pooled_shape=[2, 2])
    assert found.dtype == dtype
    assert found.tolist() == [[[[5, 7], [13, 15]]], [[[1, 2], [5, 6]]]]


def test_no_regions_and_types() -> None:
    feeds = {"x": floats(1, 2, 4, 4), "rois": np.zeros((0, 5), np.float32)}
    (found,) = by_graft("MaxRoiPool", feeds, 7, pooled_shape=[2, 3])
    assert found.shape == (0, 2, 2, 3)
    builder = Builder()
    r, c = symbol("r"), symbol("c")
    x = builder.input("x", tensor("float32", 1, c, UNKNOWN, UNKNOWN))
    rois = builder.input("rois", tensor("float32", r, 5))
    y = builder("vision.roi_pool", x, rois, pooled_size=(2, 3))
    assert y.type == tensor("float32", r, c, 2, 3)


def test_region_refusals() -> None:
    x, rois = floats(1, 2, 4, 4), np.array([[1, 0, 0, 1, 1]], np.float32)
    with pytest.raises(EvaluationError, match="there is no image 1"):
        by_graft("MaxRoiPool", {"x": x, "rois": rois}, 7, pooled_shape=[2, 2])
    with pytest.raises(UserError, match="numbers per region and 5 differ: 4 and 5"):
        graph_of("MaxRoiPool", {"x": x, "rois": rois[:, 1:]}, 7, pooled_shape=[2, 2])
    with pytest.raises(UserError, match=r"pooled_size \[2\] is not two positive numbers"):
        graph_of("MaxRoiPool", {"x": x, "rois": rois}, 7, pooled_shape=[2])

"""Operators that ONNX has taken over since, or has in all but name."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from tests.frontends.onnx.microsoft.beside_runtime import agrees, floats, model, scalar, whole

from graft.base.errors import UnsupportedError
from graft.frontends.onnx.importer import import_model


@pytest.mark.parametrize("upper", [0, 1])
@pytest.mark.parametrize("diagonal", [None, -1, 2])
def test_triangles(upper: int, diagonal: int | None) -> None:
    k = None if diagonal is None else scalar(diagonal, np.int64)
    agrees("Trilu", floats(2, 4, 5), k, upper=upper, opened=False)


def test_gathering_by_positions() -> None:
    agrees("GatherND", floats(3, 4, 5), np.array([[0, 1], [2, 3], [1, -1]]))


@pytest.mark.parametrize("mode", ["bilinear", "nearest", "bicubic"])
@pytest.mark.parametrize("padding_mode", ["zeros", "border", "reflection"])
def test_sampling(mode: str, padding_mode: str) -> None:
    grid = floats(2, 3, 4, 2, seed=1)
    attributes = {"mode": mode, "padding_mode": padding_mode, "opened": False}
    agrees("GridSample", floats(2, 3, 5, 6), grid, align_corners=1, **attributes)


@pytest.mark.parametrize("mode", ["constant", "reflect", "edge"])
@pytest.mark.parametrize("shape", [(4,), (1, 4)])
def test_padding(mode: str, shape: Any) -> None:
    pads = np.array([1, 2, 0, 3]).reshape(shape)
    value = np.array([7], np.float32) if mode == "constant" else None
    agrees("Pad", floats(3, 5), pads, value, mode=mode, constants=[1], opened=False)


@pytest.mark.parametrize("dtype", [np.int32, np.int64, np.float32])
def test_ranges(dtype: Any) -> None:
    agrees("Range", scalar(1, dtype), np.array([9], dtype), scalar(3, dtype), opened=False)
    agrees("Range", scalar(-2, dtype), scalar(4, dtype))


def test_an_axis_more() -> None:
    agrees("ExpandDims", whole(np.int64, 2, 3, low=0, high=9), scalar(-1, np.int32), constants=[1])
    with pytest.raises(UnsupportedError, match="wants to know its axis"):
        import_model(model("ExpandDims", [floats(2, 3), scalar(1, np.int32)]))


@pytest.mark.parametrize("metric", ["sqeuclidean", "euclidean"])
def test_distances(metric: str) -> None:
    agrees("CDist", floats(4, 3), floats(5, 3, seed=1), metric=metric, tolerance=1e-4)
    with pytest.raises(UnsupportedError, match="the metric 'cosine'"):
        import_model(model("CDist", [floats(4, 3), floats(5, 3)], metric="cosine"))

"""Choosing boxes as native code: scores that tie, thresholds at run time, boxes of every form."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from tests.backends.host.flows import check_flow

from graft.base.dims import symbol
from graft.base.dtypes import Array, DType
from graft.ir.builder import Builder
from graft.ir.graph import Graph
from graft.ir.types import TensorType, tensor

FLOATS = ["float32", "float64", "float16", "bfloat16"]


def _boxes(images: int, count: int, seed: int = 0) -> Array:
    random = np.random.default_rng([images, count, seed])
    centres = random.uniform(0, 10, (images, count, 2))
    sizes = random.uniform(-1, 4, (images, count, 2))  # corners in any order
    return np.concatenate([centres, centres + sizes], axis=2).astype(np.float32)


def _scores(images: int, classes: int, count: int) -> Array:
    random = np.random.default_rng([images, classes, count])
    return (random.integers(0, 12, (images, classes, count)) / 8).astype(np.float32)


def _graph(dtype: str = "float32", images: Any = 1, classes: Any = 1, **attrs: Any) -> Graph:
    g = Builder()
    boxes = g.input("boxes", TensorType(DType(dtype), (images, symbol("n"), 4)))
    scores = g.input("scores", TensorType(DType(dtype), (images, classes, symbol("n"))))
    return g.build(g("vision.non_max_suppression", boxes, scores, **attrs))


@pytest.mark.each_value
@pytest.mark.parametrize("center_point_box", [True, False])
@pytest.mark.parametrize("most", [0, 1, 7, 2**63 - 1])
def test_numbers_of_boxes(most: int, center_point_box: bool) -> None:
    attrs = {"max_output_size": most, "iou_threshold": 0.3, "center_point_box": center_point_box}
    runs = [[_boxes(2, n), _scores(2, 3, n)] for n in (0, 1, 5, 40, 257)]
    steps = check_flow(_graph(images=2, classes=symbol("c"), **attrs), *runs)
    assert steps == ["Segment", "Slice"]


@pytest.mark.each_value
@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("least", [None, -1.0, 0.5, 2.0])
def test_thresholds_of_every_dtype(dtype: str, least: float | None) -> None:
    attrs = {"max_output_size": 20, "iou_threshold": 0.45, "score_threshold": least}
    runs = [[_boxes(1, n), _scores(1, 2, n)] for n in (3, 100)]
    given = [[array.astype(DType(dtype).numpy) for array in run] for run in runs]
    check_flow(_graph(dtype, classes=2, **attrs), *given)


def test_odd_scores_and_boxes() -> None:
    boxes, scores = _boxes(1, 64), _scores(1, 1, 64)
    scores[0, 0, ::5], scores[0, 0, 1], scores[0, 0, 2] = np.nan, np.inf, -np.inf
    scores[0, 0, 3:9:2] = -0.0
    boxes[0, ::7], boxes[0, 1::7, 0] = boxes[0, 0], np.nan
    boxes[0, 2::7, 2:] = boxes[0, 2::7, :2]  # without an area
    for attrs in ({}, {"score_threshold": 0.1}, {"iou_threshold": 0.0}, {"iou_threshold": 1.0}):
        graph = _graph(**{"max_output_size": 50, "iou_threshold": 0.5, **attrs})
        check_flow(graph, [boxes, scores])


def test_limits_that_are_data() -> None:
    g = Builder()
    operands = [
        g.input("boxes", tensor("float32", symbol("b"), 30, 4)),
        g.input("scores", tensor("float32", symbol("b"), 2, 30)),
        g.input("most", tensor("int64", 1)),
        g.input("overlap", tensor("float32")),
        g.input("least", tensor("float32", 1)),
    ]
    kept = g("vision.non_max_suppression", *operands)
    graph = g.build(g("take", kept, g.constant(np.array([2])), axis=1), kept)
    limits = [(0, 0.5, 0.1), (3, 0.5, 0.4), (100, 0.0, -9.0), (-1, 0.5, 0.0), (5, 2.0, 3.0)]
    runs = [
        [
            *(_boxes(b, 30, b), _scores(b, 2, 30)),
            *(np.array([most]), np.array(overlap, np.float32), np.array([least], np.float32)),
        ]
        for b, (most, overlap, least) in zip((1, 2, 3, 1, 0), limits, strict=True)
    ]
    assert check_flow(graph, *runs) == ["Segment", "Slice", "Segment"]


def test_static_boxes() -> None:
    g = Builder()
    boxes, scores = (g.constant(array) for array in (_boxes(1, 50), _scores(1, 4, 50)))
    shift = g.input("shift", tensor("float32"))
    moved = g("add", scores, shift)
    graph = g.build(
        g("vision.non_max_suppression", boxes, moved, max_output_size=9, iou_threshold=0.4)
    )
    check_flow(graph, [np.float32(0.5)])

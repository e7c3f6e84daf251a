"""Whole models as ONNX: choices by data, branches, loops and parameters that are known at run time
mean the same to another reader."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest

import graft
from graft.base.dims import symbol
from graft.base.errors import UnsupportedError
from graft.byoc.formats.onnx_model import to_onnx, why_not
from graft.ir.builder import Builder
from graft.ir.evaluate import evaluate
from graft.ir.graph import Graph, Value
from graft.ir.types import tensor

DRAW = np.random.default_rng(3)
F = DRAW.standard_normal((4, 6)).astype(np.float32)
POSITIONS = DRAW.permutation(24).reshape(4, 6)


def right(graph: Graph, *feeds: Any, tolerance: float = 1e-6) -> None:
    """Checked by ONNX's rules; computed alike by ONNX Runtime, and by Graft, which reads it."""
    model = to_onnx(graph, whole=True)
    onnx.checker.check_model(model, full_check=True)
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    session = onnxruntime.InferenceSession(model.SerializeToString(), options)
    given = {value.name: array for value, array in zip(graph.inputs, feeds, strict=True)}
    theirs, ours = session.run(None, given), graft.compile(model).run(None, given)
    for exact, *others in zip(evaluate(graph, list(feeds)), theirs, ours, strict=True):
        for other in others:
            assert other.dtype == exact.dtype
            np.testing.assert_allclose(other, exact, rtol=tolerance, atol=tolerance)


def built(op: str, *feeds: Any, dims: Sequence[Any] = (), **attrs: Any) -> Graph:
    """One node on inputs like some arrays; the first may have other dims in its type."""
    build = Builder()
    inputs = [
        build.input(f"x{n}", tensor(str(a.dtype), *(dims if dims and not n else a.shape)))
        if isinstance(a, np.ndarray)
        else a
        for n, a in enumerate(feeds)
    ]
    return build.build(*build.call(op, *inputs, **attrs))


def ints(*numbers: int) -> Any:
    return np.array(numbers, np.int64)


@pytest.mark.parametrize(
    ("op", "feeds", "attrs"),
    [
        ("nonzero", (F > 0.3,), {}),
        ("nonzero", (F > 9,), {}),
        ("gather", (F, POSITIONS % 4), {"axis": 0}),
        ("gather_nd", (F, np.array([[1, 2], [3, -1]])), {}),
        ("gather_nd", (F, np.array([[1], [0], [5], [2]])), {"batch_dims": 1}),
        ("scatter_elements", (F, POSITIONS[:2, :3] % 4, -F[:2, :3]), {"reduction": "add"}),
        ("scatter_nd", (F, np.array([[2], [0]]), F[:2] * 2), {}),
        ("argmax", (F,), {"axis": 1, "keepdims": False}),
        ("topk", (F,), {"k": 3, "axis": 0}),
        ("topk", (F, ints(2)), {"axis": -1, "largest": False}),
        ("full", (np.array([7.0], np.float32), ints(2, 3)), {}),
        ("full", (np.array(7), ints()), {}),
        ("reshape", (F, ints(0, 3, -1)), {}),
        ("reshape", (np.zeros((0, 6), np.float32), ints(0, 3, 2)), {"allowzero": True}),
        ("broadcast_to", (F[:, :1], ints(2, 4, 6)), {}),
        ("tile", (F, ints(2, 1)), {}),
        ("strided_slice", (F, ints(1), ints(9), ints(1), ints(2)), {}),
        ("strided_slice", (F, ints(-1), ints(-9)), {"axes": (0,), "strides": (-1,)}),
        ("split", (F,), {"axis": 1, "sizes": (1, 5)}),
    ],
    ids=lambda one: one if isinstance(one, str) else "",
)
def test_what_is_known_at_run_time_only(op: str, feeds: Any, attrs: Any) -> None:
    right(built(op, *feeds, **attrs), *feeds)


def test_parts_of_rows_whose_number_is_not_known() -> None:
    graph = built("split", F, dims=(symbol("n"), 6), axis=1, sizes=(2, 4))
    right(graph, F)
    right(built("shape_of", F, dims=(symbol("n"), 6)), F)


@pytest.mark.parametrize(
    "given",
    [
        {"sizes": (1, 2, 7, 9), "method": "linear"},
        {"scales": (1.0, 1.0, 2.0, 1.5), "method": "cubic"},
        {"sizes": (10, 4), "axes": (2, 3), "coordinate_transformation_mode": "asymmetric"},
        {"sizes": (9, 11), "axes": (2, 3), "rounding_method": "ceil"},
        {"scales": (0.5, 0.5), "axes": (2, 3), "method": "linear", "antialias": True},
    ],
    ids=str,
)
def test_resized_images(given: dict[str, Any]) -> None:
    image = DRAW.standard_normal((1, 2, 5, 6)).astype(np.float32)
    right(built("resize", image, **given), image, tolerance=1e-4)
    sizes = ints(1, 2, 8, 8)
    right(built("resize", image, None, None, sizes, method="linear"), image, sizes, tolerance=1e-4)


@pytest.mark.parametrize("aligned", [True, False])
def test_pooled_regions(aligned: bool) -> None:
    image = DRAW.standard_normal((2, 3, 8, 9)).astype(np.float32)
    rois = np.array([[0, 0, 4, 4], [1.5, 2, 7, 6], [3, 1, 5, 7]], np.float32)
    attrs = {"pooled_size": (2, 3), "spatial_scale": 0.5, "sample_ratio": 2, "aligned": aligned}
    feeds = image, rois, ints(0, 1, 1)
    right(built("vision.roi_align", *feeds, **attrs), *feeds, tolerance=1e-5)


def test_boxes_that_overlap() -> None:
    low = DRAW.random((1, 30, 2), np.float32)
    boxes = np.concatenate([low, low + 0.4], axis=2)
    scores = DRAW.random((1, 2, 30), np.float32)
    limits = ints(5), np.array([0.3], np.float32), np.array([0.2], np.float32)
    op = "vision.non_max_suppression"
    right(built(op, boxes, scores, *limits), boxes, scores, *limits)
    right(
        built(op, boxes, scores, max_output_size=4, iou_threshold=0.5, center_point_box=True),
        *(boxes, scores),
    )


def branch(name: str, *steps: str) -> Graph:
    """Of x and y: x, changed by operators whose values have the same names in every branch."""
    build = Builder(name)
    x, y = build.input("x", tensor("float32", 4, 6)), build.input("y", tensor("float32", 6))
    value = x
    for step in steps:
        value = build(step, value, y, out="z")
    return build.build(value)


@pytest.mark.parametrize("condition", [True, False])
def test_branches(condition: bool) -> None:
    build = Builder()
    flag = build.input("flag", tensor("bool"))
    z, y = build.input("z", tensor("float32", 4, 6)), build.input("y", tensor("float32", 6))
    outer = build("multiply", z, z, out="x")
    branches = {"then_branch": branch("one", "add", "multiply"), "else_branch": branch("two")}
    graph = build.build(build("if", flag, outer, y, **branches))
    right(graph, np.array(condition), F, F[0])


def test_branches_that_choose() -> None:
    """One gives nothing, the other positions; both are of an extent that data decide on."""
    nothing, chosen = Builder("nothing"), Builder("chosen")
    nothing.input("s", tensor("float32", 6))
    scores = chosen.input("s", tensor("float32", 6))
    zero = chosen.constant(np.zeros((), np.float32))
    found = chosen("squeeze", chosen("nonzero", chosen("greater", scores, zero)), axes=(0,))
    empty = nothing.build(nothing.constant(np.zeros(0, np.int64)))
    build = Builder()
    flag, data = build.input("flag", tensor("bool")), build.input("data", tensor("float32", 6))
    kept = build("if", flag, data, then_branch=empty, else_branch=chosen.build(found))
    graph = build.build(build("take", data, kept, axis=0))
    for condition in (True, False):
        right(graph, np.array(condition), F[0])


def test_loops_and_scans() -> None:
    body = Builder("body")
    number = body.input("i", tensor("int64"))
    keep = body.input("keep", tensor("bool"))
    total, step = (
        body.input("total", tensor("float32", 6)),
        body.input("step", tensor("float32", 6)),
    )
    more = body("add", total, step)
    graph = body.build(keep, more, body("cast", number, dtype="float32"))
    build = Builder()
    count, start = build.input("count", tensor("int64")), build.input("start", tensor("float32", 6))
    step = build.input("step", tensor("float32", 6))
    right(
        build.build(*build.call("loop", count, None, start, step, body=graph, carried=1)),
        *(np.array(3), F[0], F[1]),
    )
    right(build_scan(), F[0], F, F[1])


def build_scan() -> Graph:
    """Running sums of the rows of a matrix from the last one on, each times a captured vector."""
    body = Builder("body")
    names = ("total", "row", "factor")
    total, row, factor = (body.input(name, tensor("float32", 6)) for name in names)
    more = body("add", total, body("multiply", row, factor))
    attrs = {"carried": 1, "num_scan_inputs": 1, "input_axes": (0,), "input_directions": (1,)}
    build = Builder()
    operands: list[Value] = [
        build.input("start", tensor("float32", 6)),
        build.input("rows", tensor("float32", 4, 6)),
        build.input("by", tensor("float32", 6)),
    ]
    outputs = {"output_axes": (1,), "output_directions": (0,)}
    return build.build(
        *build.call("scan", *operands, body=body.build(more, more), **attrs, **outputs)
    )


def test_regions_have_none_of_these() -> None:
    graph = built("nonzero", F > 0)
    refusal = why_not(graph.nodes)
    assert refusal is not None
    assert refusal.reason == "nonzero has no ONNX form here"
    with pytest.raises(UnsupportedError, match="nonzero has no ONNX form here"):
        to_onnx(graph)


def test_what_has_no_form_is_named_in_branches_too() -> None:
    inner = Builder("inner")
    x = inner.input("x", tensor("float32", 4, 6))
    odd = inner.build(inner("mod", x, x))
    build = Builder()
    flag, data = build.input("flag", tensor("bool")), build.input("data", tensor("float32", 4, 6))
    graph = build.build(build("if", flag, data, then_branch=odd, else_branch=odd))
    with pytest.raises(UnsupportedError, match="mod has no ONNX form here"):
        to_onnx(graph, whole=True)

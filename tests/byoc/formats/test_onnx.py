"""Regions as ONNX models mean what the regions mean; what ONNX has no words for is refused."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
from tests.byoc.formats.peer import OnnxRuntime

from graft.base.errors import UnsupportedError
from graft.byoc.formats.onnx_model import to_onnx, why_not
from graft.byoc.formats.onnx_writer import WRITERS
from graft.byoc.kit import conformance
from graft.byoc.kit.trial import attempt
from graft.ir.builder import Builder
from graft.ir.graph import Graph
from graft.ir.types import tensor


def one(op: str, *shapes: tuple[int, ...], **attrs: Any) -> Graph:
    build = Builder()
    operands = [build.input(f"x{n}", tensor("float32", *shape)) for n, shape in enumerate(shapes)]
    return build.build(build(op, *operands, **attrs))


def reason(graph: Graph) -> str:
    refusal = why_not(graph.nodes)
    return refusal.reason if refusal else ""


def right(graph: Graph) -> None:
    """The model is one by ONNX's rules, and another reader computes what it should."""
    onnx.checker.check_model(to_onnx(graph), full_check=True)
    outcome = attempt(graph, OnnxRuntime(), "")
    assert (outcome.refused, outcome.failed, outcome.useless) == ("", "", False)


def test_another_reader_computes_what_the_regions_mean() -> None:
    """ONNX Runtime's LRN is off by a percent for inputs as large as the kit's. What makes or reads
    booleans is no region by itself."""
    report = conformance(OnnxRuntime(), 10, seed=1)
    assert set(report.untested) == {
        *("equal", "greater", "greater_equal", "less", "less_equal", "where", "isnan"),
    }
    known = {"nn.lrn", *report.untested}
    assert [str(failure) for failure in report.failures if failure.pattern not in known] == []


@pytest.mark.parametrize("kind", ["max", "avg"])
def test_last_windows_that_are_cut_off_are_whole_in_the_model(kind: str) -> None:
    given = {"pool_size": (3, 2), "strides": (2, 3), "padding": (0, 1, 1, 0), "ceil_mode": True}
    graph = one(f"nn.{kind}_pool2d", (1, 2, 8, 8), **given)
    right(graph)
    (node,) = to_onnx(graph).graph.node
    attrs = {item.name: onnx.helper.get_attribute_value(item) for item in node.attribute}
    assert "ceil_mode" not in attrs
    assert attrs["pads"] == [0, 1, 1, 0]


def test_a_mean_that_counts_padding_but_not_what_is_beyond() -> None:
    given = {"pool_size": (3,), "strides": (2,), "ceil_mode": True, "count_include_pad": True}
    graph = one("nn.avg_pool1d", (1, 1, 5), padding=(1, 1), **given)
    assert [node.op_type for node in to_onnx(graph).graph.node] == ["AveragePool"]
    right(graph)
    graph = one("nn.avg_pool1d", (1, 1, 5), padding=(1, 0), **given)
    assert [node.op_type for node in to_onnx(graph).graph.node] == ["Pad", "AveragePool"]
    right(graph)


def test_both_forms_of_gelu_and_slopes_of_fewer_axes() -> None:
    right(one("nn.gelu", (3, 5), approximate=True))
    right(one("nn.gelu", (3, 5)))
    right(one("nn.prelu", (2, 4, 4), (4,)))
    right(one("nn.prelu", (2, 4, 3), (4, 1)))


def test_scalars_stay_scalars() -> None:
    build = Builder()
    x, index = build.input("x", tensor("float32", 3, 5)), build.constant(np.array(2, np.int64))
    graph = build.build(build("take", x, index, axis=1))
    right(graph)
    assert list(to_onnx(graph).graph.initializer[0].dims) == []
    right(one("transpose", ()))
    right(one("strided_slice", (3,), begin=(), end=(), strides=(), axes=()))


def test_names_of_the_region_are_not_taken_again() -> None:
    """A bias is reshaped under a name of its own, which here is that of another value."""
    build = Builder()
    x, bias = build.input("x", tensor("float32", 2, 3)), build.input("y.bias", tensor("float32", 3))
    shape = build.input("y.shape", tensor("float32", 2, 3))
    y = build("nn.bias_add", x, bias, out="y")
    graph = build.build(build("add", y, shape))
    right(graph)
    names = [name for node in to_onnx(graph).graph.node for name in node.output]
    assert names == ["y.bias_", "y", "add"]


@pytest.mark.parametrize(
    ("graph", "expected"),
    [
        (
            one("nn.max_pool1d", (1, 1, 3), pool_size=(2,), padding=(2, 0)),
            "ONNX does not say what a window of padding alone gives",
        ),
        (
            one("nn.avg_pool1d", (1, 1, 1), pool_size=(2,), dilation=(2,), padding=(1, 1)),
            "ONNX does not say what a window of padding alone gives",
        ),
        (
            one("nn.pad", (1, 4), pad_width=(1, 0, 0, 0), mode="reflect"),
            "ONNX does not say how 1 elements are reflected on and on",
        ),
        (one("nn.instance_norm", (2, 3), (3,), (3,)), "ONNX normalises instances that have pixels"),
        (one("clip", (3,), (), ()), ""),
        (one("mod", (3,), (3,)), "mod has no ONNX form here"),
    ],
)
def test_refusals(graph: Graph, expected: str) -> None:
    assert reason(graph) == expected
    if expected:
        with pytest.raises(UnsupportedError, match=expected):
            to_onnx(graph)


def test_every_writer_is_for_an_operator_that_the_kit_can_draw() -> None:
    report = conformance(OnnxRuntime(), 1, seed=5)
    not_floats_alone = {
        *("logical_and", "logical_not", "logical_or", "logical_xor"),
        *("bitwise_and", "bitwise_not", "bitwise_or", "bitwise_xor"),
        *("qnn.dequantize", "qnn.quantize"),
    }
    assert {pattern.name for pattern in report.patterns} == set(WRITERS) - not_floats_alone

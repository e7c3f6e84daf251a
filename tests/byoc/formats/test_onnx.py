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
from graft.ir.evaluate import evaluate
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


@pytest.mark.parametrize(
    "given",
    [
        {},
        {"scale": 0.3, "softcap": 1.5},
        {"causal": True},
        {"left_window": 1, "right_window": 0, "offset": -3},  # the first queries see no key
    ],
    ids=str,
)
@pytest.mark.parametrize("key_heads", [4, 2])
def test_attention_is_two_products_and_a_softmax(given: dict[str, Any], key_heads: int) -> None:
    right(one("nn.attention", (2, 4, 5, 8), *[(2, key_heads, 7, 8)] * 2, **given))


@pytest.mark.parametrize("dtype", ["bool", "float32"])
@pytest.mark.parametrize("causal", [False, True])
def test_masked_attention_gives_zeros_for_rows_that_see_no_key(dtype: str, causal: bool) -> None:
    build = Builder()
    shapes = (1, 2, 3, 4), (1, 2, 5, 4), (1, 2, 5, 6)
    operands = [build.input(f"x{n}", tensor("float32", *shape)) for n, shape in enumerate(shapes)]
    operands.append(build.input("mask", tensor(dtype, 3, 5)))
    graph = build.build(build("nn.attention", *operands, causal=causal))
    generator = np.random.default_rng(0)
    feeds: list[Any] = [generator.standard_normal(shape, np.float32) for shape in shapes]
    seen = generator.random((3, 5)) < 0.7
    seen[1] = False
    feeds.append(seen if dtype == "bool" else np.where(seen, 0.5, -np.inf).astype(np.float32))
    (result,) = OnnxRuntime().load(to_onnx(graph).SerializeToString())(feeds, [])
    (expected,) = evaluate(graph, feeds)
    np.testing.assert_allclose(result, expected, rtol=1e-5, atol=1e-6)
    assert not result[:, :, 1].any()


def test_attention_at_positions_of_run_time_is_refused() -> None:
    build = Builder()
    operands = [build.input(f"x{n}", tensor("float32", 1, 2, 3, 4)) for n in range(3)]
    lengths = build.input("lengths", tensor("int64", 1))
    graph = build.build(build("nn.attention", *operands, None, lengths))
    assert "known at run time only" in reason(graph)
    assert "nothing to attend" in reason(one("nn.attention", (1, 2, 3, 4), *[(1, 2, 0, 4)] * 2))


def test_a_scalar_that_is_padded() -> None:
    right(one("nn.pad", (), pad_width=()))


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

"""Convolutions on awkward operands, against ONNX Runtime and against loops over windows."""

from __future__ import annotations

import itertools
from typing import Any

import ml_dtypes
import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import helper
from tests.ops.one_node import assert_same, by_graft, by_runtime, graph_of

from graft.base.dims import UNKNOWN, symbol
from graft.base.dtypes import Array, DType
from graft.base.errors import TypeRuleError, UserError
from graft.frontends.onnx.importer import import_model
from graft.ir.attrs import make_attrs
from graft.ir.builder import Builder
from graft.ir.evaluate import evaluate
from graft.ir.types import TensorType, tensor
from graft.ir.verify import verify
from graft.ops import conv, get_op

RANDOM = np.random.default_rng(7)


def floats(*shape: int) -> Array:
    return RANDOM.standard_normal(shape).astype(np.float32)


def by_loops(data: Array, weight: Array, attrs: dict[str, Any], dtype: Any) -> Array:
    """Convolution by its definition, window by window, in Python's or NumPy's `dtype`."""
    rank = data.ndim - 2
    strides, dilation = attrs.get("strides", (1,) * rank), attrs.get("dilation", (1,) * rank)
    padding, groups = attrs.get("padding", (0,) * (2 * rank)), attrs.get("groups", 1)
    pads = [(0, 0), (0, 0), *zip(padding[:rank], padding[rank:], strict=True)]
    padded = np.pad(data, pads).astype(dtype)
    kernel = weight.shape[2:]
    spans = [(k - 1) * d + 1 for k, d in zip(kernel, dilation, strict=True)]
    counts = [(padded.shape[2 + i] - spans[i]) // strides[i] + 1 for i in range(rank)]
    result = np.zeros((data.shape[0], weight.shape[0], *counts), dtype)
    depth, share = weight.shape[1], weight.shape[0] // groups
    for output, place in itertools.product(range(weight.shape[0]), np.ndindex(*counts)):
        first = output // share * depth
        window = tuple(
            slice(p * s, p * s + span, d)
            for p, s, span, d in zip(place, strides, spans, dilation, strict=True)
        )
        part = padded[(slice(None), slice(first, first + depth), *window)]
        products = part * weight[output].astype(dtype)
        result[(slice(None), output, *place)] = products.reshape(len(data), -1).sum(axis=1)
    return result


# data, weight, attributes
CONVOLUTIONS: list[tuple[tuple[int, ...], tuple[int, ...], dict[str, Any]]] = [
    ((2, 3, 11), (4, 3, 3), {"strides": [2], "pads": [2, 1]}),
    ((1, 4, 9), (6, 2, 2), {"group": 2, "dilations": [3]}),
    ((2, 3, 7, 5), (4, 3, 3, 2), {"strides": [2, 3], "pads": [0, 1, 2, 3]}),
    ((2, 4, 8, 6), (8, 1, 3, 3), {"group": 4, "pads": [1, 1, 1, 1], "dilations": [1, 2]}),
    ((1, 6, 5, 5), (9, 2, 3, 3), {"group": 3}),
    ((3, 5, 6, 7), (2, 5, 1, 1), {"strides": [2, 3]}),
    ((1, 4, 6, 7), (6, 2, 1, 1), {"group": 2, "pads": [1, 0, 0, 2]}),
    ((1, 2, 4, 5, 6), (3, 2, 2, 3, 2), {"strides": [1, 2, 2], "pads": [1, 0, 1, 0, 2, 0]}),
    ((2, 3, 7, 8), (4, 3, 3, 4), {"auto_pad": "SAME_UPPER", "strides": [2, 3]}),
    ((2, 3, 7, 8), (4, 3, 3, 4), {"auto_pad": "SAME_LOWER", "strides": [2, 3]}),
    ((1, 2, 10), (1, 2, 2), {"auto_pad": "SAME_UPPER", "strides": [4]}),
    ((1, 2, 10), (1, 2, 2), {"auto_pad": "SAME_LOWER", "strides": [1]}),
    ((1, 2, 6, 6), (1, 2, 3, 3), {"auto_pad": "VALID", "strides": [2, 2]}),
]


@pytest.mark.parametrize(("data", "weight", "attributes"), CONVOLUTIONS)
@pytest.mark.parametrize("opset", [7, 11, 22])
def test_conv_as_onnx_runtime(
    data: tuple[int, ...], weight: tuple[int, ...], attributes: dict[str, Any], opset: int
) -> None:
    feeds = {"x": floats(*data), "w": floats(*weight), "b": floats(weight[0])}
    expected = by_runtime("Conv", feeds, opset, **attributes)
    symbolic = ["n", data[1], *"hwd"[: len(data) - 2]]
    for shape in (data, symbolic, [None] * len(data), None):
        found = by_graft("Conv", feeds, opset, shapes={"x": shape}, **attributes)
        assert_same(found, expected, 1e-5)


@pytest.mark.parametrize(
    ("dtype", "tolerance"),
    [
        (np.float16, 5e-3),
        (ml_dtypes.bfloat16, 4e-2),
        (ml_dtypes.float8_e4m3fn, 0.2),
        (np.float64, 1e-12),
        (np.complex64, 1e-5),
    ],
)
@pytest.mark.parametrize(("weight", "groups"), [((4, 2, 3, 2), 1), ((4, 1, 3, 2), 2)])
def test_conv_of_other_floats(
    dtype: Any, tolerance: float, weight: tuple[int, ...], groups: int
) -> None:
    x, w = (floats(*shape).astype(dtype) for shape in ((2, 2, 6, 5), weight))
    given = {"strides": (2, 1), "padding": (1, 0, 0, 1), "dilation": (1, 2), "groups": groups}
    op = get_op("nn.conv2d")
    found = op.evaluate(make_attrs(op.attrs, given), x, w)
    assert found.dtype == dtype
    wide = np.complex128 if found.dtype.kind == "c" else np.float64
    expected = by_loops(x, w, given, wide)
    np.testing.assert_allclose(found.astype(wide), expected, tolerance, tolerance)


@pytest.mark.parametrize(
    ("dtype", "low", "high"),
    [
        ("int8", -128, 128),
        ("uint8", 0, 256),
        ("int4", -8, 8),
        ("int32", -300, 300),  # sums of these fit float32
        ("int32", -100_000, 100_000),  # and of these float64, but not int32: they wrap around
        ("int32", -(1 << 31), 1 << 31),  # and of these not even float64
        ("int64", -(1 << 62), 1 << 62),
        ("uint64", 0, 1 << 63),
    ],
)
@pytest.mark.parametrize(("weight", "groups"), [((4, 2, 2, 3), 1), ((2, 1, 3, 3), 2)])
def test_integers_are_exact(
    dtype: str, low: int, high: int, weight: tuple[int, ...], groups: int
) -> None:
    """Against Python's integers, modulo two to the power of the bits."""
    kind = np.uint64 if dtype == "uint64" else np.int64
    x = RANDOM.integers(low, high, (2, 2, 5, 6), dtype=kind)
    w = RANDOM.integers(low, high, weight, dtype=kind)
    given = {"strides": (2, 1), "padding": (1, 2, 0, 1), "groups": groups}
    exact = by_loops(x, w, given, object)
    bits = DType(dtype).bits
    smallest = 0 if dtype.startswith("u") else 1 << (bits - 1)
    wrapped = (exact + smallest) % (1 << bits) - smallest
    op = get_op("nn.conv2d")
    numpy_dtype = DType(dtype).numpy
    found = op.evaluate(make_attrs(op.attrs, given), x.astype(numpy_dtype), w.astype(numpy_dtype))
    assert found.dtype == numpy_dtype
    assert found.astype(kind).tolist() == wrapped.tolist()


@pytest.mark.parametrize(
    ("data", "weight", "expected"),
    [
        ((0, 3, 5, 5), (2, 3, 3, 3), (0, 2, 3, 3)),
        ((1, 0, 5, 5), (2, 0, 3, 3), (1, 2, 3, 3)),
        ((1, 3, 5, 5), (0, 3, 3, 3), (1, 0, 3, 3)),
        ((1, 3, 2, 5), (2, 3, 3, 3), (1, 2, 0, 3)),
        ((1, 3, 0, 0), (2, 3, 1, 1), (1, 2, 0, 0)),
    ],
)
@pytest.mark.parametrize("dtype", ["float32", "int32"])
def test_nothing_to_convolve(
    data: tuple[int, ...], weight: tuple[int, ...], expected: tuple[int, ...], dtype: str
) -> None:
    builder = Builder()
    x, w = builder.input("x", tensor(dtype, *data)), builder.input("w", tensor(dtype, *weight))
    graph = builder.build(builder("nn.conv2d", x, w))
    assert graph.outputs[0].type == tensor(dtype, *expected)
    (result,) = evaluate(graph, [np.ones(data, dtype), np.ones(weight, dtype)])
    assert result.shape == expected
    assert not result.any()


def test_blocks_make_no_difference(monkeypatch: pytest.MonkeyPatch) -> None:
    op = get_op("nn.conv3d")
    attrs = make_attrs(op.attrs, {"strides": (2, 1, 1), "groups": 2})
    x, w = floats(2, 4, 9, 6, 5), floats(6, 2, 2, 3, 2)
    whole = op.evaluate(attrs, x, w)
    for limit in (1, 9000):
        monkeypatch.setattr(conv, "_BLOCK_BYTES", limit)
        np.testing.assert_allclose(op.evaluate(attrs, x, w), whole, 1e-5, 1e-6)


def test_special_values_spread_no_further_than_the_window() -> None:
    x = np.zeros((1, 1, 6), np.float32)
    x[0, 0, 2], x[0, 0, 5] = np.nan, np.inf
    feeds = {"x": x, "w": np.ones((1, 1, 2), np.float32)}
    assert_same(by_graft("Conv", feeds, 11), [np.array([[[0, np.nan, np.nan, 0, np.inf]]], "f")], 0)


def test_operands_are_left_alone() -> None:
    x, w = floats(1, 2, 5, 5), floats(2, 1, 3, 3)
    before = x.copy(), w.copy()
    by_graft("Conv", {"x": x, "w": w}, 11, group=2, pads=[1, 1, 1, 1])
    assert np.array_equal(x, before[0])
    assert np.array_equal(w, before[1])


def test_symbolic_extents() -> None:
    builder = Builder()
    n, h, w = symbol("n"), symbol("h"), symbol("w")
    x = builder.input("x", tensor("float32", n, 3, h, w))
    weight = builder.input("weight", tensor("float32", 8, 3, 3, 3))
    y = builder("nn.conv2d", x, weight, strides=(1, 2), padding=(0, 1, 0, 1))
    assert y.type == tensor("float32", n, 8, h - 2, (w - 1) // 2 + 1)
    (result,) = evaluate(builder.build(y), [floats(2, 3, 7, 6), floats(8, 3, 3, 3)])
    assert result.shape == (2, 8, 5, 3)


def test_same_padding_follows_the_inputs_extents() -> None:
    """Whatever the extent, the result has one element per stride begun."""
    feeds = {"x": floats(1, 2, 7), "w": floats(1, 2, 3)}
    attributes = {"auto_pad": "SAME_UPPER", "strides": [2]}
    graph = graph_of("Conv", feeds, 11, shapes={"x": [1, 2, "n"]}, **attributes)
    assert [node.op.name for node in graph.nodes] == ["nn.conv1d"]
    assert graph.outputs[0].type == tensor("float32", 1, 1, (symbol("n") + 1) // 2)
    for extent in (1, 2, 3, 8, 0):
        (result,) = evaluate(graph, [floats(1, 2, extent), feeds["w"]])
        assert result.shape == (1, 1, (extent + 1) // 2)


def sliced_model(op_type: str, rank: int, **attributes: Any) -> onnx.ModelProto:
    """A node on data whose spatial extents only the operand `ends` decides."""
    axes = helper.make_tensor("axes", onnx.TensorProto.INT64, [rank], range(2, 2 + rank))
    starts = helper.make_tensor("starts", onnx.TensorProto.INT64, [rank], [0] * rank)
    operands = ["part", "w"] if op_type == "Conv" else ["part"]
    nodes = [
        helper.make_node("Slice", ["x", "starts", "ends", "axes"], ["part"]),
        helper.make_node(op_type, operands, ["y"], **attributes),
    ]
    inputs = [
        helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, [1, 2, *[9] * rank]),
        helper.make_tensor_value_info("ends", onnx.TensorProto.INT64, [rank]),
    ]
    if op_type == "Conv":
        weight = [3, 2, *[3] * rank]
        inputs.append(helper.make_tensor_value_info("w", onnx.TensorProto.FLOAT, weight))
    undeclared = [onnx.ValueInfoProto(name="y")]
    graph = helper.make_graph(nodes, "sliced", inputs, undeclared, [axes, starts])
    opsets = [helper.make_opsetid("", 13)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=8)


@pytest.mark.parametrize(
    ("op_type", "attributes"),
    [
        ("Conv", {}),
        ("MaxPool", {"kernel_shape": [3, 3]}),
        ("MaxPool", {"kernel_shape": [1, 2]}),
        ("AveragePool", {"kernel_shape": [3, 3]}),
        ("AveragePool", {"kernel_shape": [3, 3], "count_include_pad": 1}),
        ("LpPool", {"kernel_shape": [3, 3], "p": 3}),
    ],
)
@pytest.mark.parametrize("auto_pad", ["SAME_UPPER", "SAME_LOWER"])
def test_same_padding_of_extents_that_data_decide(
    op_type: str, attributes: dict[str, Any], auto_pad: str
) -> None:
    model = sliced_model(op_type, 2, auto_pad=auto_pad, strides=[2, 2], **attributes)
    graph = verify(import_model(model))
    assert sum(node.op.name == "nn.pad" for node in graph.nodes) in (1, 2)
    session = onnxruntime.InferenceSession(model.SerializeToString())
    feeds = {"x": floats(1, 2, 9, 9), "w": floats(3, 2, 3, 3)}
    for ends in ([9, 8], [5, 4], [3, 7]):
        feeds["ends"] = np.array(ends)
        given = {value.name: feeds[value.name] for value in graph.inputs}
        small = attributes.get("kernel_shape") == [1, 2] and ends[0] % 2 == 0
        if not small:  # where the kernel is smaller than the stride, ONNX Runtime pads by -1
            assert_same(evaluate(graph, list(given.values())), session.run(None, given), 1e-5)


def test_work_is_the_number_of_products() -> None:
    builder = Builder()
    n = symbol("n")
    x = builder.input("x", tensor("float32", n, 6, 10, 10))
    w = builder.input("w", tensor("float32", 9, 2, 3, 3))
    builder("nn.conv2d", x, w, groups=3)
    (node,) = builder.build().nodes
    types = [value.type for value in node.args], [value.type for value in node.outputs]
    work = node.op.work(node.attrs, *types)
    assert (work.macs, work.flops) == (n * 9 * 64 * 2 * 9, 0)
    assert work.bytes == 4 * (n * 600 + 162 + n * 9 * 64)


def test_unknown_ranks() -> None:
    op = get_op("nn.conv2d")
    unranked, weight = TensorType(DType.FLOAT32, None), tensor("float32", 8, 3, 3, 3)
    attrs = op.attrs()
    assert op.result_types(attrs, (unranked, weight)) == (
        tensor("float32", UNKNOWN, 8, UNKNOWN, UNKNOWN),
    )
    (found,) = op.result_types(attrs, (tensor("float32", 2, 3, 9, 9), unranked))
    assert found == tensor("float32", 2, UNKNOWN, UNKNOWN, UNKNOWN)


@pytest.mark.parametrize(
    ("data", "weight", "given", "message"),
    [
        ((1, 3, 5), (2, 3, 3, 3), {}, "the data has rank 3, not 4"),
        ((1, 3, 5, 5), (2, 4, 3, 3), {}, "channels of the data and the weight differ: 3 and 4"),
        ((1, 4, 5, 5), (3, 2, 3, 3), {"groups": 2}, "3 outputs do not make 2 groups"),
        ((1, 3, 5, 5), (2, 3, 3, 3), {"strides": (1,)}, "strides has 1 entries, not 2"),
        ((1, 3, 5, 5), (2, 3, 3, 3), {"dilation": (1, 0)}, "dilation [1, 0] is not positive"),
        ((1, 3, 5, 5), (2, 3, 3, 3), {"padding": (0, 0)}, "padding has 2 entries, not 4"),
        ((1, 3, 5, 5), (2, 3, 3, 3), {"padding": (0, 0, 0, -1)}, "is negative"),
        ((1, 3, 5, 5), (2, 3, 0, 3), {}, "the window [0, 3] is empty"),
        ((1, 3, 1, 5), (2, 3, 3, 3), {}, "a window that spans 3 does not fit into 1 padded to 1"),
    ],
)
def test_refusals(
    data: tuple[int, ...], weight: tuple[int, ...], given: dict[str, Any], message: str
) -> None:
    builder = Builder()
    x = builder.input("x", tensor("float32", *data))
    w = builder.input("w", tensor("float32", *weight))
    with pytest.raises(TypeRuleError) as caught:
        builder("nn.conv2d", x, w, **given)
    assert message in str(caught.value)


@pytest.mark.parametrize(
    ("data", "weight", "attributes", "message"),
    [
        ((1, 3), (2, 3), {}, "Conv has 0 spatial axes; 1 to 3 are supported"),
        ((1, 1, 2, 2, 2, 2), (1, 1, 1, 1, 1, 1), {}, "Conv has 4 spatial axes"),
        (
            (1, 1, 5),
            (1, 1, 3),
            {"kernel_shape": [2]},
            "kernel_shape is [2], but the weight's is [3]",
        ),
        ((1, 1, 5), (1, 1, 3), {"auto_pad": "SAME"}, "auto_pad is 'SAME', none of"),
        ((1, 1, 5), (1, 1, 3), {"strides": [1, 1]}, "strides has 2 entries, not 1"),
        ((1, 1, 5), (1, 1, 3), {"dilations": [0]}, "are not positive"),
        ((1, 1, 5), (1, 1, 3), {"pads": [1]}, "padding has 1 entries, not 2"),
    ],
)
def test_models_that_break_the_rules(
    data: tuple[int, ...], weight: tuple[int, ...], attributes: dict[str, Any], message: str
) -> None:
    with pytest.raises(UserError) as caught:
        graph_of("Conv", {"x": floats(*data), "w": floats(*weight)}, 11, **attributes)
    assert message in str(caught.value)
    assert "node 'it' (Conv)" in str(caught.value)


def test_nothing_tells_the_rank() -> None:
    feeds = {"x": floats(1, 1, 5), "w": floats(1, 1, 3)}
    with pytest.raises(UserError, match="wants to know the rank of 'x'"):
        graph_of("Conv", feeds, 11, shapes={"x": None, "w": None})
    expected = by_runtime("Conv", feeds, 11)
    found = by_graft("Conv", feeds, 11, shapes={"x": None, "w": None}, kernel_shape=[3])
    assert_same(found, expected, 1e-6)


@pytest.mark.parametrize(
    ("axis", "expected"),
    [(1, [[[1], [2]], [[1], [2]]]), (-2, [[[1], [2]], [[1], [2]]]), (0, [[[1], [1]], [[2], [2]]])],
)
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "int8"])
def test_bias_add(axis: int, expected: list[Any], dtype: str) -> None:
    builder = Builder()
    x, b = builder.input("x", tensor(dtype, 2, 2, 1)), builder.input("b", tensor(dtype, 2))
    graph = builder.build(builder("nn.bias_add", x, b, axis=axis))
    kind = DType(dtype).numpy
    (result,) = evaluate(graph, [np.zeros((2, 2, 1), kind), np.array([1, 2], kind)])
    assert result.dtype == kind
    assert result.astype(int).tolist() == expected


@pytest.mark.parametrize(
    ("bias", "axis", "message"),
    [
        ((3,), 1, "extents of the data's axis and the bias differ: 2 and 3"),
        ((2, 1), 1, "the bias has rank 2, not 1"),
        ((2,), 3, "axis 3 is out of range for rank 3"),
    ],
)
def test_bias_that_does_not_fit(bias: tuple[int, ...], axis: int, message: str) -> None:
    builder = Builder()
    x = builder.input("x", tensor("float32", 2, 2, 1))
    b = builder.input("b", tensor("float32", *bias))
    with pytest.raises(TypeRuleError, match=message):
        builder("nn.bias_add", x, b, axis=axis)

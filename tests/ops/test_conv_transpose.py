"""Transposed convolutions and `col2im`, against ONNX Runtime and against loops over windows."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest
from tests.ops.one_node import assert_same, by_graft, by_runtime, graph_of

from graft.base.dims import UNKNOWN, symbol
from graft.base.dtypes import Array, DType
from graft.base.errors import TypeRuleError, UserError
from graft.ir.attrs import make_attrs
from graft.ir.builder import Builder
from graft.ir.evaluate import evaluate
from graft.ir.types import TensorType, tensor
from graft.ops import get_op

RANDOM = np.random.default_rng(11)


def floats(*shape: int) -> Array:
    return RANDOM.standard_normal(shape).astype(np.float32)


# data, weight, attributes
TRANSPOSED: list[tuple[tuple[int, ...], tuple[int, ...], dict[str, Any]]] = [
    ((2, 3, 5), (3, 4, 3), {"strides": [3], "output_padding": [2], "pads": [1, 0]}),
    ((1, 4, 5), (4, 3, 2), {"group": 2, "strides": [2], "dilations": [3]}),
    ((2, 3, 4, 5), (3, 2, 3, 2), {"strides": [2, 3], "pads": [0, 1, 2, 0]}),
    ((1, 4, 3, 4), (4, 1, 3, 3), {"group": 4, "strides": [2, 2], "pads": [1, 1, 1, 1]}),
    ((1, 2, 2, 3, 2), (2, 3, 2, 3, 2), {"strides": [2, 1, 3], "output_padding": [1, 0, 2]}),
    ((1, 2, 3, 3), (2, 2, 3, 3), {"strides": [3, 2], "output_shape": [10, 8]}),
    ((1, 2, 3, 3), (2, 2, 4, 4), {"output_shape": [5, 3], "auto_pad": "SAME_UPPER"}),
    ((1, 2, 3, 3), (2, 2, 4, 4), {"output_shape": [5, 3], "auto_pad": "SAME_LOWER"}),
    ((1, 2, 3), (2, 1, 3), {"output_shape": [8], "strides": [2], "auto_pad": "SAME_UPPER"}),
    ((1, 2, 3), (2, 1, 3), {"output_shape": [6], "strides": [2], "pads": [7, 7]}),
    ((1, 2, 3), (2, 1, 3), {"strides": [2], "auto_pad": "SAME_UPPER"}),
    ((1, 2, 3), (2, 1, 3), {"strides": [2], "auto_pad": "SAME_LOWER"}),
    ((1, 2, 3), (2, 1, 2), {"strides": [3], "auto_pad": "SAME_UPPER"}),
    ((1, 2, 3), (2, 1, 4), {"strides": [2], "auto_pad": "VALID"}),
]


@pytest.mark.parametrize(("data", "weight", "attributes"), TRANSPOSED)
@pytest.mark.parametrize("opset", [7, 11, 22])
def test_conv_transpose_as_onnx_runtime(
    data: tuple[int, ...], weight: tuple[int, ...], attributes: dict[str, Any], opset: int
) -> None:
    outputs = weight[1] * attributes.get("group", 1)
    feeds = {"x": floats(*data), "w": floats(*weight), "b": floats(outputs)}
    expected = by_runtime("ConvTranspose", feeds, opset, **attributes)
    shapes: list[Any] = [data, ["n", data[1], *"hwd"[: len(data) - 2]], [None] * len(data)]
    for shape in [*shapes, None] if "output_shape" not in attributes else shapes:
        found = by_graft("ConvTranspose", feeds, opset, shapes={"x": shape}, **attributes)
        assert_same(found, expected, 1e-5)


def test_a_given_shape_is_the_results() -> None:
    feeds = {"x": floats(1, 2, 3), "w": floats(2, 1, 3)}
    options: dict[str, Any] = {"shapes": {"x": [1, 2, "n"]}, "output_shape": [7]}
    graph = graph_of("ConvTranspose", feeds, 11, **options)
    assert graph.outputs[0].type == tensor("float32", 1, 1, 7)
    for extent in (3, 5, 6):
        (result,) = evaluate(graph, [floats(1, 2, extent), feeds["w"]])
        assert result.shape == (1, 1, 7)


def test_zeros_are_added_on_both_sides_of_a_small_result() -> None:
    """Five elements are wanted of two: one more behind than before, as halves round down."""
    feeds = {"x": np.array([[[1, 2]]], np.float32), "w": np.ones((1, 1, 1), np.float32)}
    for mode, expected in (("NOTSET", [0, 1, 2, 0, 0]), ("SAME_UPPER", [0, 1, 2, 0, 0])):
        found = by_graft("ConvTranspose", feeds, 11, output_shape=[5], auto_pad=mode)
        assert found[0].tolist() == [[expected]]


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float64", "int8", "int32", "uint64"])
def test_other_dtypes_as_the_gradient_of_a_convolution(dtype: str) -> None:
    """<transposed(x), y> == <x, conv(y)> for all x and y, exactly on small whole numbers."""
    kind, signed = DType(dtype).numpy, not dtype.startswith("u")
    x, w, y = (
        RANDOM.integers(-3 if signed else 0, 4, shape).astype(kind)
        for shape in ((2, 4, 3, 4), (4, 1, 3, 2), (2, 2, 6, 9))
    )
    steps: dict[str, Any] = {"strides": (2, 3), "padding": (1, 1, 0, 1), "groups": 2}
    forward, backward = get_op("nn.conv2d"), get_op("nn.conv2d_transpose")
    attrs = make_attrs(backward.attrs, {**steps, "output_padding": (0, 0)})
    spread = backward.evaluate(attrs, x, w)
    assert spread.dtype == kind
    y = y[:, :, : spread.shape[2], : spread.shape[3]]
    folded = forward.evaluate(make_attrs(forward.attrs, steps), y, w)
    assert folded.shape == x.shape
    products = [
        (a.astype(np.int64) * b.astype(np.int64)).sum() for a, b in ((spread, y), (x, folded))
    ]
    modulus = 256 if dtype == "int8" else 1 << 62
    assert products[0] % modulus == products[1] % modulus


@pytest.mark.parametrize(
    ("data", "weight", "expected"),
    [
        ((0, 2, 3), (2, 1, 3), (0, 1, 5)),
        ((1, 0, 3), (0, 1, 3), (1, 1, 5)),
        ((1, 2, 3), (2, 0, 3), (1, 0, 5)),
        ((1, 2, 0), (2, 1, 3), (1, 1, 2)),
    ],
)
def test_nothing_to_spread(
    data: tuple[int, ...], weight: tuple[int, ...], expected: tuple[int, ...]
) -> None:
    builder = Builder()
    x = builder.input("x", tensor("float32", *data))
    w = builder.input("w", tensor("float32", *weight))
    graph = builder.build(builder("nn.conv1d_transpose", x, w))
    assert graph.outputs[0].type == tensor("float32", *expected)
    (result,) = evaluate(graph, [np.ones(data, np.float32), np.ones(weight, np.float32)])
    assert not result.any()


def test_symbolic_extents_and_work() -> None:
    builder = Builder()
    n, h = symbol("n"), symbol("h")
    x = builder.input("x", tensor("float32", n, 4, h))
    w = builder.input("w", tensor("float32", 4, 3, 5))
    y = builder("nn.conv1d_transpose", x, w, strides=(2,), padding=(1, 1), groups=2)
    assert y.type == tensor("float32", n, 6, 2 * h + 1)
    (node,) = builder.build(y).nodes
    work = node.op.work(node.attrs, [x.type, w.type], [y.type])
    assert work.macs == n * 4 * h * 3 * 5


@pytest.mark.parametrize(
    ("data", "weight", "given", "message"),
    [
        ((1, 2, 3), (3, 1, 3), {}, "channels of the data and the weight differ: 2 and 3"),
        ((1, 3, 3), (3, 1, 3), {"groups": 2}, "3 channels do not make 2 groups"),
        ((1, 2, 3), (2, 1, 3), {"padding": (3, 3)}, r"padding \[3, 3\] cuts off more than \[5\]"),
        (
            (1, 2, 3),
            (2, 1, 3),
            {"output_padding": (-1,)},
            r"output_padding \[-1\] is not 1 amounts",
        ),
        ((1, 2, 3, 3), (2, 1, 3), {}, "the data has rank 4, not 3"),
    ],
)
def test_refusals(
    data: tuple[int, ...], weight: tuple[int, ...], given: dict[str, Any], message: str
) -> None:
    builder = Builder()
    x = builder.input("x", tensor("float32", *data))
    w = builder.input("w", tensor("float32", *weight))
    with pytest.raises(TypeRuleError, match=message):
        builder("nn.conv1d_transpose", x, w, **given)


def test_output_shape_of_another_rank() -> None:
    feeds = {"x": floats(1, 2, 3), "w": floats(2, 1, 3)}
    with pytest.raises(UserError, match="output_shape has 3 entries, not 1"):
        graph_of("ConvTranspose", feeds, 11, output_shape=[1, 1, 5])
    with pytest.raises(UserError, match="wants to know the rank of 'x'"):
        graph_of("ConvTranspose", feeds, 11, output_shape=[5], shapes={"x": None})


def folded(
    columns: Array,
    image: list[int],
    block: list[int],
    strides: list[int],
    pads: list[int],
    dilations: list[int],
) -> Array:
    """`col2im` by adding one column after the other."""
    rank = len(image)
    spans = [(b - 1) * d + 1 for b, d in zip(block, dilations, strict=True)]
    full = [n + pads[i] + pads[rank + i] for i, n in enumerate(image)]
    counts = [(full[i] - spans[i]) // strides[i] + 1 for i in range(rank)]
    batch, rows, _ = columns.shape
    total = np.zeros((batch, rows // int(np.prod(block)), *full), columns.dtype)
    for number, place in enumerate(np.ndindex(*counts)):
        window = tuple(
            slice(place[i] * strides[i], place[i] * strides[i] + spans[i], dilations[i])
            for i in range(rank)
        )
        total[(..., *window)] += columns[:, :, number].reshape(batch, -1, *block)
    return total[(..., *(slice(pads[i], pads[i] + n) for i, n in enumerate(image)))]


# columns, image, block, strides, pads, dilations
FOLDS: list[tuple[Any, ...]] = [
    ((2, 12, 6), [4, 5], [2, 3], [1, 2], [0, 0, 0, 0], [1, 1]),
    ((1, 4, 20), [4, 5], [2, 2], [1, 1], [1, 1, 0, 0], [1, 1]),
    ((1, 8, 4), [5, 7], [2, 2], [2, 3], [0, 0, 0, 1], [2, 3]),
    ((2, 12, 8), [3, 3, 4], [2, 2, 3], [1, 1, 1], [0] * 6, [1, 1, 1]),
    ((2, 6, 4), [5], [2], [1], [0, 0], [1]),
]


@pytest.mark.parametrize(("shape", "image", "block", "strides", "pads", "dilations"), FOLDS)
@pytest.mark.parametrize("dtype", [np.float32, np.int8, np.bool_, ml_dtypes.bfloat16])
def test_col2im(
    shape: tuple[int, ...],
    image: Any,
    block: Any,
    strides: Any,
    pads: Any,
    dilations: Any,
    dtype: Any,
) -> None:
    columns = RANDOM.integers(0, 5, shape).astype(dtype)
    expected = folded(columns, image, block, strides, pads, dilations)
    feeds = {"x": columns, "image": np.array(image), "block": np.array(block)}
    steps = {"strides": strides, "pads": pads, "dilations": dilations}
    for declared in (shape, None):
        found = by_graft("Col2Im", feeds, 18, shapes={"x": declared}, **steps)
        assert_same(found, [expected], 0)
    if dtype is np.float32 and len(image) > 1:
        assert_same(by_runtime("Col2Im", feeds, 18, **steps), [expected], 1e-6)


def test_col2im_types() -> None:
    builder = Builder()
    n, h = symbol("n"), symbol("h")
    x = builder.input("x", tensor("float32", n, 12, UNKNOWN))
    y = builder("col2im", x, image_shape=(h, 6), block_shape=(2, 3))
    assert y.type == tensor("float32", n, 2, h, 6)
    op, shape = get_op("col2im"), TensorType(DType.INT64, (UNKNOWN,))
    (unranked,) = op.result_types(op.attrs(), (tensor("float32", 1, 4, 9), shape, shape))
    assert unranked == TensorType(DType.FLOAT32, None)


@pytest.mark.parametrize(
    ("shape", "image", "block", "message"),
    [
        ((1, 12, 6), (4, 5), (2,), "the block has 1 axes and the image 2"),
        ((1, 11, 12), (4, 5), (2, 3), "11 rows are not whole blocks of 6"),
        ((1, 12, 6), (4, 5), (2, 3), "the number of blocks in the data and in the image differ"),
        ((12, 6), (4, 5), (2, 3), "the data has rank 2, not 3"),
        ((1, 12, 6), (1, 5), (4, 3), "a window that spans 4 does not fit into 1"),
    ],
)
def test_col2im_refusals(
    shape: tuple[int, ...], image: tuple[int, ...], block: tuple[int, ...], message: str
) -> None:
    builder = Builder()
    x = builder.input("x", tensor("float32", *shape))
    with pytest.raises(TypeRuleError, match=message):
        builder("col2im", x, image_shape=image, block_shape=block)

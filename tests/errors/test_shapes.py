"""Models whose shapes and dtypes contradict each other."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper
from tests.frontends.onnx.small_models import (
    BOOL,
    FLOAT,
    INT64,
    Mistake,
    graph,
    it,
    model,
    node,
    refused,
    tensor,
    value,
)

from graft.base.errors import ModelError, TypeRuleError, UnsupportedError


def sequence(name: str) -> onnx.ValueInfoProto:
    return helper.make_tensor_sequence_value_info(name, FLOAT, None)


def conv(shape: list[int], weight: list[int], **attributes: Any) -> onnx.ModelProto:
    weights = [tensor("w", np.zeros(weight, np.float32))]
    return model(it("Conv", ["x", "w"], **attributes), [value("x", FLOAT, shape)], weights=weights)


def with_ints(op_type: str, numbers: list[int], **attributes: Any) -> onnx.ModelProto:
    """An operator on `x` and a list of integers."""
    node_ = it(op_type, ["x", "i"], **attributes)
    return model(node_, weights=[tensor("i", numbers, np.int64)])


def with_weight(op_type: str, *shape: int, **attributes: Any) -> onnx.ModelProto:
    weights = [tensor("w", np.zeros(shape, np.float32))]
    return model(it(op_type, ["x", "w"], **attributes), weights=weights)


def branches(then: onnx.GraphProto, other: onnx.GraphProto) -> onnx.ModelProto:
    inputs = [value("x"), value("c", BOOL, [])]
    return model(it("If", ["c"], then_branch=then, else_branch=other), inputs)


RELU = graph([node("Relu", "x", "o")], "o")
SHAPES: dict[str, Mistake] = {
    "Add": (
        lambda: with_weight("Add", 4),
        TypeRuleError,
        "extents 3 and 4 do not broadcast (operands: float32[2, 3], float32[4])",
        "it",
    ),
    "MatMul": (
        lambda: model(it("MatMul", ["x", "x"])),
        TypeRuleError,
        "extents to sum over differ: 3 and 2",
        "it",
    ),
    "Gemm": (
        lambda: with_weight("Gemm", 4, 5),
        TypeRuleError,
        "extents to sum over differ: 3 and 4",
        "it",
    ),
    "Conv channels": (
        lambda: conv([1, 3, 8, 8], [4, 5, 3, 3]),
        TypeRuleError,
        "channels of the data and the weight differ: 3 and 5",
        "it",
    ),
    "Conv groups": (
        lambda: conv([1, 4, 8, 8], [3, 2, 3, 3], group=2),
        TypeRuleError,
        "3 outputs do not make 2 groups",
        "it",
    ),
    "Conv no groups": (
        lambda: conv([1, 4, 8, 8], [3, 2, 3, 3], group=0),
        TypeRuleError,
        "groups is 0",
        "it",
    ),
    "Conv kernel": (
        lambda: conv([1, 3, 8, 8], [4, 3, 3, 3], kernel_shape=[5, 5]),
        ModelError,
        "kernel_shape is [5, 5], but the weight's is [3, 3]",
        "it",
    ),
    "Conv strides": (
        lambda: conv([1, 3, 8, 8], [4, 3, 3, 3], strides=[1]),
        ModelError,
        "strides has 1 entries, not 2",
        "it",
    ),
    "Conv strides of zero": (
        lambda: conv([1, 3, 8, 8], [4, 3, 3, 3], strides=[0, 0]),
        ModelError,
        "strides [0, 0] or dilations [1, 1] are not positive",
        "it",
    ),
    "Conv without pixels": (
        lambda: conv([1, 3], [4, 3]),
        UnsupportedError,
        "Conv has 0 spatial axes",
        "it",
    ),
    "Concat": (
        lambda: with_weight("Concat", 4, 5, axis=0),
        TypeRuleError,
        "extents of axis 1 differ: 3 and 5",
        "it",
    ),
    "Reshape": (
        lambda: with_ints("Reshape", [4, 2]),
        TypeRuleError,
        "6 elements do not fill [4, 2]",
        "it",
    ),
    "Reshape unclear": (
        lambda: with_ints("Reshape", [-1, -1]),
        TypeRuleError,
        "-1 stands more than once",
        "it",
    ),
    "Reshape negative": (
        lambda: with_ints("Reshape", [-5, 2]),
        TypeRuleError,
        "a negative extent in [-5, 2]",
        "it",
    ),
    "Transpose": (
        lambda: model(it("Transpose", perm=[0, 0])),
        TypeRuleError,
        "an axis is named twice in [0, 0]",
        "it",
    ),
    "Squeeze": (
        lambda: with_ints("Squeeze", [0]),
        TypeRuleError,
        "axis 0 has extent 2, not 1",
        "it",
    ),
    "Split": (
        lambda: model(it("Split", ["x", "i"], ["y", "z"], axis=1), weights=[tensor("i", [1, 1])]),
        TypeRuleError,
        "the extent and the sum of the sizes differ: 3 and 2",
        "it",
    ),
    "Pad": (
        lambda: with_ints("Pad", [0, 0, -9, 0]),
        TypeRuleError,
        "pads 0 and -9 cut more than the 2 of axis 0",
        "it",
    ),
    "TopK": (
        lambda: model(it("TopK", ["x", "k"], ["y", "i"]), weights=[tensor("k", [99])]),
        TypeRuleError,
        "wants 99 elements of 3 along axis 1",
        "it",
    ),
    "If of a tensor": (
        lambda: model(it("If", ["x"], then_branch=RELU, else_branch=RELU)),
        TypeRuleError,
        "the condition is float32[2, 3], not one element of bool",
        "it",
    ),
    "If with unequal branches": (
        lambda: branches(RELU, graph([node("Relu", "x", "o")], "o o")),
        TypeRuleError,
        "the branches give 1 and 2 results",
        "it",
    ),
    "If with two dtypes": (
        lambda: branches(RELU, graph([node("Cast", "x", "o", to=INT64)], "o")),
        TypeRuleError,
        "result 0 is float32[2, 3] or int64[2, 3]",
        "it",
    ),
    "Loop without a condition": (
        lambda: model(
            it("Loop", ["m", "", "x"], body=graph([], "", [value("i", INT64, [])])),
            weights=[tensor("m", 3)],
        ),
        ModelError,
        "the body of a Loop takes the iteration number and the condition",
        "it",
    ),
    "declared shape": (
        lambda: model(it("Relu"), outputs=[value("y", FLOAT, [2, 4])]),
        ModelError,
        "declared float32[2, 4], but computed as float32[2, 3]",
        "y",
    ),
    "declared rank": (
        lambda: model(it("Relu"), outputs=[value("y", FLOAT, [2, 3, 1])]),
        ModelError,
        "declared float32[2, 3, 1], but computed as float32[2, 3]",
        "y",
    ),
    "declared dtype": (
        lambda: model(it("Relu"), outputs=[value("y", INT64)]),
        ModelError,
        "declared int64[2, 3], but computed as float32[2, 3]",
        "y",
    ),
    "declared kind": (
        lambda: model(
            it("Relu"), outputs=[helper.make_tensor_sequence_value_info("y", FLOAT, None)]
        ),
        ModelError,
        "declared sequence<float32[*]>, but computed as float32[2, 3]",
        "y",
    ),
}


@pytest.mark.parametrize("mistake", SHAPES.values(), ids=SHAPES)
def test_shapes(mistake: Mistake) -> None:
    refused(*mistake)

"""Models that break ONNX's rules: each is refused with what is wrong and where, and nothing else.

One table row per mistake: the model, the kind of error, a piece of its message, and the place.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper
from tests.frontends.onnx.small_models import (
    BOOL,
    FLOAT,
    INT64,
    MINE,
    STRING,
    function,
    graph,
    it,
    model,
    node,
    tensor,
    untyped,
    value,
)

from graft.base.errors import (
    GraftError,
    ModelError,
    TypeRuleError,
    UnsupportedError,
    UserError,
)
from graft.frontends.onnx.importer import import_model
from graft.ir.evaluate import evaluate

Mistake = tuple[Callable[[], Any], type[GraftError], str, str]


def check(make: Callable[[], Any], error: type[GraftError], message: str, place: str) -> None:
    """The model is refused on import, by this error, with this in its message, at this place."""
    source = make()
    with pytest.raises(GraftError) as caught:
        import_model(source)
    assert type(caught.value) is error
    assert isinstance(caught.value, UserError)
    assert message in caught.value.message
    assert caught.value.place is not None
    assert caught.value.place.source in ("<ModelProto>", "<bytes>")
    assert caught.value.place.node == place


OPERANDS: dict[str, Mistake] = {
    "none": (lambda: model(it("Relu", [])), ModelError, "Relu lacks operand 0", "it"),
    "left out": (lambda: model(it("Relu", [""])), ModelError, "Relu lacks operand 0", "it"),
    "too many": (
        lambda: model(it("Relu", ["x", "x"])),
        ModelError,
        "Relu takes 1 to 1 operands, has 2",
        "it",
    ),
    "too few": (
        lambda: model(it("Add", ["x"])),
        ModelError,
        "Add takes 2 to 2 operands, has 1",
        "it",
    ),
    "no weight": (
        lambda: model(it("Conv", ["x"])),
        ModelError,
        "Conv takes 2 to 3 operands, has 1",
        "it",
    ),
    "nothing to join": (
        lambda: model(it("Concat", [], axis=0)),
        TypeRuleError,
        "there is nothing to join",
        "it",
    ),
    "one result too many": (
        lambda: model(it("Relu", outputs=["y", "z"])),
        UnsupportedError,
        "the result 'z' is not available",
        "it",
    ),
    "a sequence": (
        lambda: model(it("SequenceAt", ["x", "i"]), weights=[tensor("i", 0)]),
        TypeRuleError,
        "wants a sequence, not float32[2, 3]",
        "it",
    ),
    "strings": (
        lambda: model(it("Relu"), inputs=[value("x", STRING)]),
        TypeRuleError,
        "wants real operands, not string",
        "it",
    ),
    "floats as indices": (
        lambda: model(it("Gather", ["x", "i"]), weights=[tensor("i", [1.0], np.float32)]),
        TypeRuleError,
        "the indices are float32, not integers",
        "it",
    ),
    "floats as condition": (
        lambda: model(it("Where", ["x", "x", "x"])),
        TypeRuleError,
        "the condition is float32, not bool",
        "it",
    ),
    "two dtypes": (
        lambda: model(it("Add", ["x", "w"]), weights=[tensor("w", [1.0, 2.0, 3.0])]),
        TypeRuleError,
        "dtypes differ: float32, float64",
        "it",
    ),
}


@pytest.mark.parametrize("mistake", OPERANDS.values(), ids=OPERANDS)
def test_operands(mistake: Mistake) -> None:
    check(*mistake)


def changed_attribute(**fields: Any) -> onnx.ModelProto:
    """A Softmax whose attribute is not as it was made."""
    made = model(it("Softmax", axis=1))
    for name, content in fields.items():
        setattr(made.graph.node[0].attribute[0], name, content)
    return made


ATTRIBUTES: dict[str, Mistake] = {
    "unknown": (
        lambda: model(it("Relu", alpha=1.0)),
        ModelError,
        "Relu of opset 18 has no 'alpha'",
        "it",
    ),
    "missing": (lambda: model(it("Cast")), ModelError, "Cast lacks the attribute 'to'", "it"),
    "a string for a list": (
        lambda: model(it("Transpose", perm="ab")),
        ModelError,
        "attribute 'perm' of Transpose has a wrong type",
        "it",
    ),
    "a float for an integer": (
        lambda: model(it("Softmax", axis=1.5)),
        ModelError,
        "attribute 'axis' of Softmax has a wrong type",
        "it",
    ),
    "a number for a graph": (
        lambda: model(it("If", ["c"], then_branch=1, else_branch=2), [value("c", BOOL, [])]),
        ModelError,
        "attribute 'else_branch' of If has a wrong type",
        "it",
    ),
    "without a type": (
        lambda: changed_attribute(type=0),
        ModelError,
        "attribute 'axis' is None, not an integer",
        "it",
    ),
    "without a name": (
        lambda: changed_attribute(name=""),
        ModelError,
        "Softmax of opset 18 has no ''",
        "it",
    ),
    "unknown dtype": (
        lambda: model(it("Cast", to=77)),
        UnsupportedError,
        "element type number 77 is unknown",
        "it",
    ),
    "no dtype": (lambda: model(it("Cast", to=0)), ModelError, "an element type is missing", "it"),
    "unknown word": (
        lambda: model(
            it("Conv", ["x", "w"], auto_pad="SAME"),
            [value("x", FLOAT, [1, 3, 8, 8])],
            weights=[tensor("w", np.zeros((4, 3, 3, 3), np.float32))],
        ),
        ModelError,
        "auto_pad is 'SAME', none of NOTSET, VALID, SAME_UPPER, SAME_LOWER",
        "it",
    ),
    "constant of nothing": (
        lambda: model(it("Constant", [])),
        ModelError,
        "Constant wants exactly one value, has 0",
        "it",
    ),
    "constant of two things": (
        lambda: model(it("Constant", [], value_int=1, value_float=2.0)),
        ModelError,
        "Constant wants exactly one value, has 2",
        "it",
    ),
    "axis out of range": (
        lambda: model(it("Softmax", axis=1 << 62)),
        TypeRuleError,
        "axis 4611686018427387904 is out of range for rank 2",
        "it",
    ),
}


@pytest.mark.parametrize("mistake", ATTRIBUTES.values(), ids=ATTRIBUTES)
def test_attributes(mistake: Mistake) -> None:
    check(*mistake)


def without_opset() -> onnx.ModelProto:
    made = model(it("Relu"))
    del made.opset_import[:]
    return made


OPERATORS: dict[str, Mistake] = {
    "misspelt": (
        lambda: model(it("Relo")),
        UnsupportedError,
        "operator Relo of opset 18 is not known",
        "it",
    ),
    "foreign": (
        lambda: model(it("FusedGemm", domain="com.microsoft"), opsets={"": 18, "com.microsoft": 1}),
        UnsupportedError,
        "operator FusedGemm belongs to the foreign domain 'com.microsoft'",
        "it",
    ),
    "of a domain not imported": (
        lambda: model(it("Scaler", domain="ai.onnx.ml")),
        ModelError,
        "the model imports no opset of domain 'ai.onnx.ml'",
        "it",
    ),
    "misspelt in ai.onnx.ml": (
        lambda: model(it("Scalar", domain="ai.onnx.ml"), opsets={"": 18, "ai.onnx.ml": 3}),
        UnsupportedError,
        "operator Scalar of opset 3 is not known",
        "it",
    ),
    "not yet there": (
        lambda: model(it("Gelu"), opsets={"": 13}),
        ModelError,
        "Gelu does not exist in opset 13",
        "it",
    ),
    "no opset at all": (without_opset, ModelError, "does not say which opset it uses", ""),
    "no main opset": (
        lambda: model(it("Relu"), opsets={"ai.onnx.ml": 3}),
        ModelError,
        "the model imports no opset of domain ''",
        "it",
    ),
    "opset 0": (lambda: model(it("Relu"), opsets={"": 0}), ModelError, "there is no opset 0", ""),
    "opset -3": (
        lambda: model(it("Relu"), opsets={"": -3}),
        ModelError,
        "there is no opset -3",
        "",
    ),
    "opset of the future": (
        lambda: model(it("Relu"), opsets={"": 999}),
        UnsupportedError,
        "opset 999 is newer than onnx knows",
        "",
    ),
}


@pytest.mark.parametrize("mistake", OPERATORS.values(), ids=OPERATORS)
def test_operators(mistake: Mistake) -> None:
    check(*mistake)


def test_foreign_operators_say_what_to_do() -> None:
    with pytest.raises(UnsupportedError) as caught:
        import_model(OPERATORS["foreign"][0]())
    assert str(caught.value) == (
        "operator FusedGemm belongs to the foreign domain 'com.microsoft'\n"
        "  at node 'it' (FusedGemm) in <ModelProto>\n"
        "  hint: export the model without it, or give it a body as a local function of the model"
    )


def cycle_through_a_branch() -> onnx.ModelProto:
    branch = graph([node("Relu", "y", "o")], "o")
    return model(it("If", ["c"], then_branch=branch, else_branch=branch), [value("c", BOOL, [])])


def shadowing_branch() -> onnx.ModelProto:
    shadow, other = graph([node("Relu", "x", "x")], "x"), graph([node("Relu", "x", "o")], "o")
    inputs = [value("x"), value("c", BOOL, [])]
    return model(it("If", ["c"], then_branch=shadow, else_branch=other), inputs)


NAMES: dict[str, Mistake] = {
    "missing weight": (
        lambda: model(it("Add", ["x", "w"])),
        ModelError,
        "'w' is neither an input, an initialiser nor any node's result",
        "it",
    ),
    "missing output": (
        lambda: model(it("Relu", outputs=["z"])),
        ModelError,
        "the output 'y' is defined nowhere",
        "",
    ),
    "output without a name": (
        lambda: model(it("Relu"), outputs=[untyped("")]),
        ModelError,
        "the output '' is defined nowhere",
        "",
    ),
    "cycle": (
        lambda: model(
            [it("Add", ["x", "b"], ["a"]), node("Relu", "a", "b"), node("Relu", "b", "y")]
        ),
        ModelError,
        "the nodes form a cycle",
        "it",
    ),
    "cycle of one": (lambda: model(it("Add", ["x", "y"])), ModelError, "'y' is neither", "it"),
    "cycle through a branch": (
        cycle_through_a_branch,
        ModelError,
        "'y' is neither an input",
        "it/then_branch/Relu_0",
    ),
    "cycle in a function": (
        lambda: model(
            it("f", domain="my"),
            opsets=MINE,
            functions=[function("f", [node("Add", "a c", "b"), node("Relu", "b", "c")])],
        ),
        ModelError,
        "the nodes form a cycle",
        "b",
    ),
    "input redefined": (
        lambda: model(it("Relu", outputs=["x"]), outputs=[untyped("x")]),
        ModelError,
        "'x' is defined twice",
        "it",
    ),
    "result redefined": (
        lambda: model([node("Relu", "x", "y"), it("Neg")]),
        ModelError,
        "'y' is defined twice",
        "it",
    ),
    "result redefined at once": (
        lambda: model(it("Split", outputs=["y", "y"], axis=0)),
        ModelError,
        "'y' is defined twice",
        "it",
    ),
    "result redefined in a branch": (
        shadowing_branch,
        ModelError,
        "'x' is defined twice",
        "it/then_branch/Relu_0",
    ),
    "input twice": (
        lambda: model(it("Relu"), inputs=[value("x"), value("x")]),
        ModelError,
        "the input 'x' is declared twice",
        "",
    ),
    "initialiser twice": (
        lambda: model(it("Add", ["x", "w"]), weights=[tensor("w", [1.0]), tensor("w", [2.0])]),
        ModelError,
        "initialiser 'w' is given twice",
        "",
    ),
    "input without a type": (
        lambda: model(it("Relu"), inputs=[untyped("x")]),
        ModelError,
        "a type is missing",
        "x",
    ),
    "input without a dtype": (
        lambda: model(it("Relu"), inputs=[value("x", 0)]),
        ModelError,
        "an element type is missing",
        "x",
    ),
}


@pytest.mark.parametrize("mistake", NAMES.values(), ids=NAMES)
def test_names(mistake: Mistake) -> None:
    check(*mistake)


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
        "the body takes 1 inputs, not 3",
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
    check(*mistake)


def weight_with(**fields: Any) -> onnx.ModelProto:
    """A model whose initialiser is not as it was made."""
    made = model(it("Add", ["x", "w"]), weights=[tensor("w", [1, 2, 3], np.float32)])
    weight = made.graph.initializer[0]
    for name, content in fields.items():
        if name == "dims":
            weight.dims[:] = content
        else:
            setattr(weight, name, content)
    return made


WEIGHTS: dict[str, Mistake] = {
    "too short": (
        lambda: weight_with(dims=[5]),
        ModelError,
        "initialiser 'w' holds 12 bytes, but float32 [5] takes 20",
        "",
    ),
    "negative": (
        lambda: weight_with(dims=[-3]),
        ModelError,
        "initialiser 'w' has a negative dimension: [-3]",
        "",
    ),
    "absurd": (
        lambda: weight_with(dims=[1 << 40, 1 << 40]),
        ModelError,
        "initialiser 'w' has the absurd shape [1099511627776, 1099511627776]",
        "",
    ),
    "unknown dtype": (
        lambda: weight_with(data_type=99),
        ModelError,
        "initialiser 'w' has element type 99, which ONNX does not define",
        "",
    ),
    "no text": (
        lambda: model(it("Constant", [], value=helper.make_tensor("v", STRING, [1], [b"\xff"]))),
        ModelError,
        "holds a string that is not UTF-8",
        "",
    ),
    "garbage": (lambda: b"garbage", ModelError, "not a readable ONNX model", ""),
    "nothing": (lambda: b"", ModelError, "the model is empty", ""),
    "empty message": (onnx.ModelProto, ModelError, "it has no IR version", ""),
    "name that is no text": (
        lambda: model(it("Relu")).SerializeToString().replace(b"it", b"\xff\xfe", 1),
        ModelError,
        "a name in the model is not UTF-8",
        "",
    ),
}


@pytest.mark.parametrize("mistake", WEIGHTS.values(), ids=WEIGHTS)
def test_weights_and_files(mistake: Mistake) -> None:
    check(*mistake)


ODD_NAMES = ["a b", "%y", '"', "\n", "😀", "1", "{", "none", "->", " ", "n" * 5000]


@pytest.mark.parametrize("name", ODD_NAMES, ids=ascii)
def test_odd_names_are_no_mistake(name: str) -> None:
    shape = [value("x", FLOAT, [name, 3])]
    graph_ = import_model(model(it("Relu", outputs=[name]), shape, [untyped(name)]))
    assert graph_.output_names == (name,)
    assert evaluate(graph_, [-np.ones((2, 3), np.float32)])[0].tolist() == [[0] * 3] * 2


def test_order_of_nodes_does_not_matter() -> None:
    """A chain of 5,000 nodes, last one first."""
    count = 5000
    chain = [node("Neg", f"t{i}" if i else "x", f"t{i + 1}") for i in range(count)][::-1]
    graph_ = import_model(model(chain, outputs=[untyped(f"t{count}")]))
    x = np.ones((2, 3), np.float32)
    assert evaluate(graph_, [x])[0].tolist() == x.tolist()

"""Models whose nodes ONNX does not allow: operands, attributes, operators and opsets.

One table row per mistake: the model, the kind of error, a piece of its message, and the place.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import onnx
import pytest
from onnx.helper import make_function, make_opsetid, make_tensor_sequence_value_info
from tests.frontends.onnx.small_models import (
    BOOL,
    FLOAT,
    MINE,
    STRING,
    Mistake,
    it,
    model,
    refused,
    tensor,
    value,
)

from graft.base.errors import ModelError, TypeRuleError, UnsupportedError
from graft.frontends.onnx.importer import import_model

OPERANDS: dict[str, Mistake] = {
    "none": (lambda: model(it("Relu", [])), ModelError, "Relu lacks operand 0", "it"),
    "left out": (lambda: model(it("Relu", [""])), ModelError, "Relu lacks operand 0", "it"),
    "too many": (
        lambda: model(it("Relu", ["x", "x"])),
        ModelError,
        "Relu takes 1 operand, has 2",
        "it",
    ),
    "too few": (
        lambda: model(it("Add", ["x"])),
        ModelError,
        "Add takes 2 operands, has 1",
        "it",
    ),
    "no weight": (
        lambda: model(it("Conv", ["x"])),
        ModelError,
        "Conv takes 2 to 3 operands, has 1",
        "it",
    ),
    "too few of any number": (
        lambda: model(it("Loop", ["x"])),
        ModelError,
        "Loop takes at least 2 operands, has 1",
        "it",
    ),
    "one left out": (
        lambda: model(it("Add", ["x", ""])),
        ModelError,
        "Add lacks operand 1",
        "it",
    ),
    "one of many left out": (
        lambda: model(it("Concat", ["x", "", "x"], axis=0)),
        TypeRuleError,
        "concatenate lacks operand 1 ('data')",
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
    "a sequence for a tensor": (
        lambda: model(it("Relu"), [make_tensor_sequence_value_info("x", FLOAT, None)]),
        TypeRuleError,
        "nn.relu: wants tensors, not sequence<float32[*]>",
        "it",
    ),
    "a sequence for scales": (
        lambda: model(
            it("Resize", ["x", "", "s"]),
            [value("x"), make_tensor_sequence_value_info("s", FLOAT, None)],
        ),
        TypeRuleError,
        "resize: wants tensors, not float32[2, 3], none, sequence<float32[*]>",
        "it",
    ),
    "floats as a shape": (
        lambda: model(it("Reshape", ["x", "s"]), weights=[tensor("s", [6.0], np.float32)]),
        TypeRuleError,
        "'shape' is float32, not integers",
        "it",
    ),
    "words as axes": (
        lambda: model(
            it("Pad", ["x", "p", "", "a"]),
            [value("x"), value("a", STRING, [1])],
            weights=[tensor("p", [1, 1])],
        ),
        TypeRuleError,
        "'axes' is string, not integers",
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
    refused(*mistake)


def changed_attributes(change: Callable[[Any], object]) -> onnx.ModelProto:
    """A Softmax whose attributes are not as they were made."""
    made = model(it("Softmax", axis=1))
    change(made.graph.node[0].attribute)
    return made


def changed_attribute(**fields: Any) -> onnx.ModelProto:
    """A Softmax whose one attribute has other fields."""

    def change(attributes: Any) -> None:
        for name, content in fields.items():
            setattr(attributes[0], name, content)

    return changed_attributes(change)


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
        "attribute 'axis' does not say of which type it is",
        "it",
    ),
    "without a name": (
        lambda: changed_attribute(name=""),
        ModelError,
        "Softmax of opset 18 has no ''",
        "it",
    ),
    "given twice": (
        lambda: changed_attributes(lambda found: found.append(found[0])),
        ModelError,
        "attribute 'axis' of Softmax is given twice",
        "it",
    ),
    "of a function that is not there": (
        lambda: changed_attribute(ref_attr_name="foo"),
        ModelError,
        "attribute 'axis' of Softmax refers to 'foo' of a function, but is in none",
        "it",
    ),
    "unknown, of an operator that is a function": (
        lambda: model(it("MeanVarianceNormalization", size=1)),
        ModelError,
        "MeanVarianceNormalization of opset 18 has no 'size'",
        "it",
    ),
    "more sizes than results": (
        lambda: model(
            it("Split", ["x", "s"], ["y", "z"], axis=1), weights=[tensor("s", [1, 1, 1])]
        ),
        ModelError,
        "Split makes 3 parts, but names 2",
        "it",
    ),
    "more results than named": (
        lambda: model(it("Split", ["x"], ["y", "z"], axis=1, num_outputs=1 << 62)),
        ModelError,
        "Split makes 4611686018427387904 parts, but names 2",
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
    refused(*mistake)


def with_opsets(*opsets: tuple[str, int]) -> onnx.ModelProto:
    made = model(it("Relu"))
    del made.opset_import[:]
    made.opset_import.extend(make_opsetid(*opset) for opset in opsets)
    return made


OPERATORS: dict[str, Mistake] = {
    "misspelt": (
        lambda: model(it("Relo")),
        UnsupportedError,
        "operator Relo of opset 18 is not known",
        "it",
    ),
    "foreign": (
        lambda: model(it("AttnLSTM", domain="com.microsoft"), opsets={"": 18, "com.microsoft": 1}),
        UnsupportedError,
        "operator AttnLSTM belongs to the foreign domain 'com.microsoft'",
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
    "no opset at all": (with_opsets, ModelError, "does not say which opset it uses", ""),
    "two opsets": (
        lambda: with_opsets(("", 18), ("ai.onnx", 7)),
        ModelError,
        "opsets 18 and 7 are both imported",
        "",
    ),
    "two opsets of another domain": (
        lambda: with_opsets(("", 18), ("my", 1), ("my", 2)),
        ModelError,
        "opsets 1 and 2 of 'my' are both imported",
        "",
    ),
    "an absurd opset of another domain": (
        lambda: with_opsets(("", 18), ("my", 1 << 40)),
        ModelError,
        "there is no opset 1099511627776 of 'my'",
        "",
    ),
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
    "opset of the future of another domain": (
        lambda: model(it("Relu"), opsets={"": 18, "ai.onnx.ml": 99}),
        UnsupportedError,
        "opset 99 of 'ai.onnx.ml' is newer than onnx knows",
        "",
    ),
    "opset of the future in a function": (
        lambda: model(
            it("f", domain="my"),
            opsets=MINE,
            functions=[make_function("my", "f", ["a"], ["a"], [], [make_opsetid("", 999)])],
        ),
        UnsupportedError,
        "opset 999 is newer than onnx knows",
        "it",
    ),
}


def test_one_opset_twice_is_no_mistake() -> None:
    assert import_model(with_opsets(("", 18), ("ai.onnx", 18))).nodes


@pytest.mark.parametrize("mistake", OPERATORS.values(), ids=OPERATORS)
def test_operators(mistake: Mistake) -> None:
    refused(*mistake)


def test_foreign_operators_say_what_to_do() -> None:
    with pytest.raises(UnsupportedError) as caught:
        import_model(OPERATORS["foreign"][0]())
    assert str(caught.value) == (
        "operator AttnLSTM belongs to the foreign domain 'com.microsoft'\n"
        "  at node 'it' (AttnLSTM) in <ModelProto>\n"
        "  hint: define it by a local function, export without it, or register a lowering in Python"
    )

"""Deep nesting: branches in branches, functions in functions, and such that call themselves."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
from tests.frontends.onnx.small_models import (
    BOOL,
    FLOAT,
    INT64,
    MINE,
    function,
    graph,
    it,
    model,
    node,
    refused,
    untyped,
    value,
)

from graft.base.errors import ModelError, UnsupportedError
from graft.frontends.onnx.importer import import_model
from graft.frontends.onnx.scope import MAX_DEPTH
from graft.ir.evaluate import evaluate


def nested(levels: int) -> onnx.ModelProto:
    """An If in the branch of an If in the branch of an If ...

    Made in place, since protobuf does not copy what is nested so deeply.
    """
    made = model(it("If", ["c"]), [value("x"), value("c", BOOL, [])])
    outer = made.graph.node[0]
    for level in range(levels):
        for name in ("then_branch", "else_branch"):
            attribute = outer.attribute.add()
            attribute.name, attribute.type = name, onnx.AttributeProto.GRAPH
            attribute.g.output.add().name = "o"
        last = level == levels - 1
        then, other = (attribute.g.node.add() for attribute in outer.attribute)
        for inner, kind in ((then, "Relu" if last else "If"), (other, "Neg")):
            inner.op_type = kind
            inner.input.append("c" if kind == "If" else "x")
            inner.output.append("o")
        outer = then
    return made


def test_branches_as_deep_as_they_may_be() -> None:
    found = import_model(nested(MAX_DEPTH))
    x = np.array([[-1, 2, 3], [4, -5, 6]], np.float32)
    assert evaluate(found, [x, np.array(True)])[0].tolist() == np.maximum(x, 0).tolist()
    assert evaluate(found, [x, np.array(False)])[0].tolist() == (-x).tolist()


def test_branches_too_deep() -> None:
    place = "/then_branch/".join(["it", *["If_0"] * MAX_DEPTH])
    message = "graphs are nested more than 48 deep"
    refused(lambda: nested(MAX_DEPTH + 1), ModelError, message, place)


@pytest.mark.parametrize("levels", [200, 2000])
def test_branches_deeper_than_anyone_looks(levels: int) -> None:
    message = "the model is nested more than 256 messages deep"
    refused(lambda: nested(levels), ModelError, message, "")


def test_types_deeper_than_anyone_looks() -> None:
    made = model(it("Identity"), [untyped("x")])
    inner = made.graph.input[0].type
    for _ in range(2000):
        inner = inner.sequence_type.elem_type
    inner.tensor_type.elem_type = FLOAT
    message = "the model is nested more than 256 messages deep"
    refused(lambda: made, ModelError, message, "")


def test_files_with_branches_too_deep() -> None:
    """Protobuf gives up by itself."""
    data = nested(200).SerializeToString()
    refused(lambda: data, ModelError, "not a readable ONNX model", "")


def call(name: str, *inputs: str, **attributes: Any) -> onnx.NodeProto:
    return it(name, inputs or ("x",), domain="my", **attributes)


def inner(name: str, inputs: str = "a", outputs: str = "b") -> onnx.NodeProto:
    return node(name, inputs, outputs, domain="my")


def chain(count: int) -> onnx.ModelProto:
    """Functions of which each calls the one before."""
    functions = [function("f0", [node("Neg", "a", "b")])]
    functions += [function(f"f{i}", [inner(f"f{i - 1}")]) for i in range(1, count)]
    return model(call(f"f{count - 1}"), opsets=MINE, functions=functions)


def test_functions_as_deep_as_they_may_be() -> None:
    found = import_model(chain(MAX_DEPTH))
    assert evaluate(found, [np.ones((2, 3), np.float32)])[0].tolist() == [[-1] * 3] * 2


@pytest.mark.parametrize("count", [MAX_DEPTH + 1, 200])
def test_functions_too_deep(count: int) -> None:
    names = [f"f{count - 1 - i}_0" for i in range(1, MAX_DEPTH + 1)]
    message = "functions or graphs are nested more than 48 deep"
    refused(lambda: chain(count), ModelError, message, "/".join(["it", *names]))


def with_functions(*functions: onnx.FunctionProto, **attributes: Any) -> onnx.ModelProto:
    return model(call("f", **attributes), opsets=MINE, functions=functions)


def test_functions_that_call_themselves() -> None:
    itself = function("f", [inner("f")])
    message = "the function 'f' calls itself: my.f -> my.f"
    refused(lambda: with_functions(itself), ModelError, message, "it/f_0")

    twice = function("f", [inner("f", "a", "t"), inner("f", "t", "b")])
    refused(lambda: with_functions(twice), ModelError, message, "it/f_0")

    each_other = [function("f", [inner("g")]), function("g", [inner("f")])]
    message = "the function 'f' calls itself: my.f -> my.g -> my.f"
    refused(lambda: with_functions(*each_other), ModelError, message, "it/g_0/f_0")


def test_functions_that_call_themselves_from_a_branch() -> None:
    branch = graph([inner("f", "a", "o")], "o")
    nodes = [
        node("Constant", "", "c", value_int=1),
        node("Cast", "c", "d", to=BOOL),
        node("If", "d", "b", then_branch=branch, else_branch=branch),
    ]
    with pytest.raises(ModelError) as caught:
        import_model(with_functions(function("f", nodes)))
    assert caught.value.location is not None
    assert caught.value.location.node.startswith("it/If_2/")


def referring(name: str) -> onnx.NodeProto:
    """A Softmax whose axis is the function's attribute of that name."""
    made = node("Softmax", "a", "b")
    attribute = made.attribute.add()
    attribute.name, attribute.type = "axis", onnx.AttributeProto.INT
    attribute.ref_attr_name = name
    return made


def test_calls_that_do_not_fit() -> None:
    negation = function("f", [node("Neg", "a", "b")])
    wrong = model(call("f", "x", "x"), opsets=MINE, functions=[negation])
    refused(lambda: wrong, ModelError, "f takes 1 operands, has 2", "it")

    more = model(it("f", outputs=["y", "z"], domain="my"), opsets=MINE, functions=[negation])
    refused(lambda: more, UnsupportedError, "the result 'z' is not available", "it")

    nothing = function("f", [node("Neg", "a", "c")])
    message = "the function 'f' does not define its output 'b'"
    refused(lambda: with_functions(nothing), ModelError, message, "it")

    message = "the function 'f' has no 'foo'"
    refused(lambda: with_functions(negation, foo=1), ModelError, message, "it")

    relu = function("f", [node("Relu", "a", "b")])
    message = "there are two functions 'my.f'"
    refused(lambda: with_functions(negation, relu), ModelError, message, "f")

    softmax = function("f", [referring("axis")], ["axis"])
    text = with_functions(softmax, axis="one")
    message = "attribute 'axis' of Softmax has a wrong type"
    refused(lambda: text, ModelError, message, "it/Softmax_0")


def doubling(count: int) -> onnx.ModelProto:
    """Functions of which each calls the one before twice."""
    functions = [function("f0", [node("Neg", "a", "b")])]
    functions += [
        function(f"f{i}", [inner(f"f{i - 1}", "a", "t"), inner(f"f{i - 1}", "t", "b")])
        for i in range(1, count)
    ]
    return model(call(f"f{count - 1}"), opsets=MINE, functions=functions)


def test_functions_that_double() -> None:
    assert len(import_model(doubling(12)).nodes) == 2**11


@pytest.mark.parametrize("count", [31, 5000])
def test_functions_that_double_too_often(count: int) -> None:
    """A file of a few kilobytes must not ask for any number of nodes."""
    last = f"f{count - 1}"
    message = f"with the function '{last}' inlined there are more than 1000000 nodes"
    refused(lambda: doubling(count), ModelError, message, last)


def loops(levels: int) -> onnx.ModelProto:
    """A Loop in the body of a Loop ..., each of which changes the extent of what it carries."""
    nodes = [node("Concat", "v v", "w", axis=0)]
    for level in range(levels):
        inputs = [value(f"i{level}", INT64, []), value(f"c{level}", BOOL, []), untyped("v")]
        flag = node("Identity", f"c{level}", f"d{level}")
        body = graph([*nodes, flag], f"d{level} w", inputs)
        start = "x" if level == levels - 1 else "v"
        nodes = [node("Loop", f"n c {start}", "w", body=body)]
    inputs = [value("x"), value("n", INT64, []), value("c", BOOL, [])]
    return model(nodes, inputs, [untyped("w")])


def test_loops_in_loops() -> None:
    """Each level is imported again until its types settle, so that the work multiplies."""
    assert len(import_model(loops(3)).nodes) == 1
    with pytest.raises(ModelError, match="importing has no end: are loops nested in loops"):
        import_model(loops(20))

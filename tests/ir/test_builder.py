"""Building graphs: names, types, absorbed operands, errors that name attribute and place."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import graft.ops  # noqa: F401  (registers the operators)
from graft.base.dims import UNKNOWN, symbol
from graft.base.dtypes import DType
from graft.base.errors import InternalError, Location, TypeRuleError, UserError
from graft.ir.builder import Builder
from graft.ir.evaluate import evaluate
from graft.ir.graph import Value
from graft.ir.types import TensorType, tensor
from graft.ir.verify import verify

N, M = symbol("n"), symbol("m")
X = tensor("float32", 2, 3)
PLACE = Location("model.onnx", "layer/1", "Sum")


def test_names_are_fresh() -> None:
    g = Builder()
    x, again = g.input("x", X), g.input("x", X)
    named = [g("exp", x), g("exp", x), g("exp", x, out="x"), g("exp", again, out="exp")]
    assert [v.name for v in (x, again, *named)] == ["x", "x_1", "exp", "exp_1", "x_2", "exp_2"]
    verify(g.build(*named))


def test_a_name_that_looks_numbered_is_not_given_twice() -> None:
    g = Builder()
    x = g.input("x_1", X)
    assert [g("exp", x, out="x").name for _ in range(3)] == ["x", "x_2", "x_3"]


def test_names_of_several_results() -> None:
    g = Builder()
    x = g.input("x", X)
    assert [v.name for v in g.call("topk", x, k=1, out=["best"])] == ["best", "topk"]
    assert [v.name for v in g.call("split", x, sections=2)] == ["split", "split_1"]


def test_a_call_for_one_result_refuses_two() -> None:
    g = Builder()
    with pytest.raises(InternalError, match=r"topk gives 2 results; use Builder.call"):
        g("topk", g.input("x", X), k=1)


def test_unknown_extents_get_symbols() -> None:
    g = Builder()
    x = g.input("d0", tensor("float32", symbol("d1"), 2))
    first, second = g("nonzero", x), g("nonzero", x)
    assert (first.shape, second.shape) == ((2, symbol("d0")), (2, symbol("d2")))
    assert g.input("y", tensor("float32", UNKNOWN)).shape == (symbol("d3"),)


def test_outputs_of_any_kind() -> None:
    g = Builder()
    x = g.input("x", X)
    graph = verify(g.build(x, x, names=["a", "b"]))
    assert (graph.outputs, graph.output_names) == ((x, x), ("a", "b"))
    assert verify(Builder().build()).outputs == ()


# What the builder knows of a shape, and what the reshape by it becomes.
SHAPES: dict[str, Any] = {
    "constant": (lambda g, x: g.constant(np.array([3, 4])), (3, 4)),
    "shape of another": (lambda g, x: g("shape_of", g("transpose", x)), (4, N)),
    "slice and join": (
        lambda g, x: g(
            "concatenate",
            g("strided_slice", g("shape_of", x), begin=[0], end=[1]),
            g.constant(np.array([-1])),
        ),
        (N, -1),
    ),
    "arithmetic": (
        lambda g, x: g(
            "multiply",
            g("shape_of", x),
            g("divide", g.constant(np.array([4, 2])), g.constant(np.array([4, 2]))),
        ),
        (N, 4),
    ),
    "product": (
        lambda g, x: g("expand_dims", g("prod", g("shape_of", x), axes=[0]), axes=[0]),
        (4 * N,),
    ),
    "where": (
        lambda g, x: g(
            "where",
            g.constant(np.array([True, False])),
            g("shape_of", x),
            g.constant(np.array([7, 4])),
        ),
        (N, 4),
    ),
    "cast": (
        lambda g, x: g("cast", g("cast", g("shape_of", x), dtype="int32"), dtype="int64"),
        (N, 4),
    ),
}


@pytest.mark.parametrize("name", SHAPES)
def test_shape_arithmetic_becomes_an_attribute(name: str) -> None:
    make, expected = SHAPES[name]
    g = Builder()
    x = g.input("x", tensor("float32", N, 4))
    if name == "constant":
        x = g.input("y", tensor("float32", 12))
    g("reshape", x, make(g, x))
    node = g.build().nodes[-1]
    assert (node.inputs, node.attrs.shape) == ((x,), expected)


def test_a_symbol_that_no_input_binds_stays_an_operand() -> None:
    """The type still says what is known."""
    g = Builder()
    x = g.input("x", X)
    found = g("nonzero", x)
    y = g("reshape", g("transpose", found), g("shape_of", found))
    node = g.build(y).nodes[-1]
    assert len(node.inputs) == 2
    assert node.attrs.shape is None
    assert y.type == TensorType(DType.INT64, found.shape)
    data = np.eye(2, 3, dtype=np.float32)
    assert evaluate(verify(g.build(y)), [data])[0].shape == (2, 2)


def test_values_that_are_too_large_are_not_followed() -> None:
    g = Builder()
    x = g.input("x", tensor("float32", 1025))
    sizes = g("full", g.constant(np.array(1)), shape=[1025])
    assert len(g.call("split", x, sizes)) == 1025
    assert g.build().nodes[-1].attrs.sizes is None


def test_operands_of_floats_become_attributes() -> None:
    g = Builder()
    x = g.input("x", X)
    g("clip", x, g.constant(np.float32(0)), g.constant(np.float32(6)))
    node = g.build().nodes[-1]
    assert (node.inputs, node.attrs.a_min, node.attrs.a_max) == ((x,), 0.0, 6.0)


def test_trailing_absent_operands_are_left_out() -> None:
    g = Builder()
    x, high = g.input("x", X), g.input("high", tensor("float32"))
    g("clip", x, None, None)
    g("clip", x, None, high)
    assert [node.inputs for node in g.build().nodes] == [(x,), (x, None, high)]


def call(op: str, *types: TensorType, **attrs: Any) -> tuple[Value, ...]:
    g = Builder()
    inputs = [g.input("x", type_) for type_ in types]
    g.location = PLACE
    return g.call(op, *inputs, **attrs)


ATTRIBUTE_ERRORS: list[tuple[str, dict[str, Any], str]] = [
    ("sum", {"axis": 1}, "unknown attribute 'axis'"),
    ("sum", {"axes": [0.5]}, "attribute 'axes' cannot be [0.5]: a whole number is wanted"),
    ("sum", {"axes": "01"}, "attribute 'axes' cannot be '01': a list is wanted"),
    ("sum", {"axes": 1}, "attribute 'axes' cannot be 1: a list is wanted"),
    ("sum", {"keepdims": 2}, "attribute 'keepdims' cannot be 2: true or false is wanted"),
    ("cast", {}, "attribute 'dtype' is missing"),
    ("cast", {"dtype": "float31"}, "'float31' is not a valid DType"),
    ("nn.leaky_relu", {"alpha": "a"}, "attribute 'alpha' cannot be 'a': a number is wanted"),
    ("nn.leaky_relu", {"alpha": [1, 2]}, "attribute 'alpha' cannot be [1, 2]: a number is wanted"),
    ("nn.pad", {"pad_width": [0] * 4, "mode": 3}, "attribute 'mode' cannot be 3"),
    ("composite", {"body": 3}, "attribute 'body' cannot be 3: a Graph is wanted"),
]


@pytest.mark.parametrize(("op", "attrs", "message"), ATTRIBUTE_ERRORS)
def test_attribute_errors(op: str, attrs: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError) as caught:
        call(op, X, **attrs)
    assert message in caught.value.message
    assert caught.value.location == PLACE


def test_unknown_attribute_lists_the_known_ones() -> None:
    with pytest.raises(UserError) as caught:
        call("sum", X, axis=1)
    assert caught.value.hint == "known attributes: axes, keepdims, noop_with_empty_axes"
    with pytest.raises(UserError) as caught:
        call("exp", X, axis=1)
    assert caught.value.hint == "known attributes: none"


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("nn.conv2", "did you mean 'nn.conv2d'"),
        ("relu", "did you mean 'nn.relu'"),
        ("concatenat", "did you mean 'concatenate'"),
        ("xyzzy", ""),
    ],
)
def test_unknown_operator(name: str, hint: str) -> None:
    with pytest.raises(UserError) as caught:
        call(name, X)
    assert caught.value.message == f"there is no operator named '{name}'"
    assert caught.value.hint.startswith(hint)


TYPE_ERRORS: list[tuple[str, tuple[TensorType, ...], dict[str, Any], str]] = [
    ("abs", (), {}, "abs wants at least 1 operands, has 0"),
    ("abs", (X, X), {}, "abs takes 1 operands, has 2"),
    ("add", (X, tensor("float64", 2, 3)), {}, "add: dtypes differ: float32, float64"),
    ("add", (X, tensor("float32", 2)), {}, "add: extents 3 and 2 do not broadcast"),
    ("logical_not", (X,), {}, "logical_not: wants bool operands, not float32"),
    ("sum", (X,), {"axes": [2]}, "sum: axis 2 is out of range for rank 2"),
    ("reshape", (X,), {"shape": [7]}, "reshape: 6 elements do not fill [7]"),
    ("nn.dense", (X, tensor("float32", 4, 2)), {}, "nn.dense: extents to sum over differ: 3 and 2"),
]


@pytest.mark.parametrize(("op", "types", "attrs", "message"), TYPE_ERRORS)
def test_type_errors(
    op: str, types: tuple[TensorType, ...], attrs: dict[str, Any], message: str
) -> None:
    with pytest.raises(TypeRuleError) as caught:
        call(op, *types, **attrs)
    assert caught.value.message.startswith(message)
    assert caught.value.location == PLACE


def test_an_error_leaves_the_builder_as_it_was() -> None:
    g = Builder()
    x = g.input("x", X)
    with pytest.raises(TypeRuleError):
        g("logical_not", x)
    assert len(g) == 0
    assert g("exp", x).name == "exp"


def test_a_single_number_is_absorbed_as_a_list_of_one() -> None:
    """Some converters write axes without an axis of their own."""
    build = Builder()
    x = build.input("x", TensorType(DType.FLOAT32, (3,)))
    axis = build("constant", value=np.array(1))
    y = build("expand_dims", x, axis)
    assert y.tensor.shape == (3, 1)
    node = build.producer(y)
    assert node is not None
    assert node.inputs == (x,)

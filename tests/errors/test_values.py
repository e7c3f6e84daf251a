"""Values that cannot be: NaN, infinities, zeros and positions out of range.

Where import knows the value it refuses the model; where only the run does, the run is refused.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import onnx
import pytest
from tests.frontends.onnx.small_models import (
    FLOAT,
    INT64,
    STRING,
    it,
    model,
    node,
    refused,
    tensor,
    value,
)

from graft.base.errors import EvaluationError, Location, ModelError, TypeRuleError, UserError
from graft.frontends.onnx.importer import import_model
from graft.ir.evaluate import evaluate

IMAGE = [value("x", FLOAT, [1, 1, 2, 2])]
X = np.zeros((2, 3), np.float32)


@pytest.mark.parametrize("scale", [math.nan, 0.0, -1.0])
def test_scales(scale: float) -> None:
    scales = np.array([1, 1, scale, 1], np.float32)
    fixed = model(it("Resize", ["x", "", "s"]), IMAGE, weights=[tensor("s", scales)])
    refused(lambda: fixed, TypeRuleError, f"scales have to be positive: [1.0, 1.0, {scale}", "it")
    late = model(it("Resize", ["x", "", "s"]), [*IMAGE, value("s", FLOAT, [4])])
    with pytest.raises(UserError, match="scales have to be positive") as caught:
        evaluate(import_model(late), [np.zeros((1, 1, 2, 2), np.float32), scales])
    assert caught.value.location is not None


def test_infinite_scales() -> None:
    scales = np.array([1, 1, math.inf, 1], np.float32)
    fixed = model(it("Resize", ["x", "", "s"]), IMAGE, weights=[tensor("s", scales)])
    refused(lambda: fixed, TypeRuleError, "scales have to be finite: [1.0, 1.0, inf, 1.0]", "it")


def test_scales_that_make_infinite_extents() -> None:
    scales = np.array([1, 1, 3e38, 1], np.float32)
    fixed = model(it("Resize", ["x", "", "s"]), IMAGE, weights=[tensor("s", scales)])
    refused(lambda: fixed, TypeRuleError, "is no extent", "it")


@pytest.mark.parametrize("limit", [math.nan, math.inf, -math.inf])
def test_ranges_without_an_end(limit: float) -> None:
    made = [tensor("a", 0, np.float32), tensor("c", 1, np.float32)]
    fixed = model(it("Range", ["a", "b", "c"]), weights=[*made, tensor("b", np.float32(limit))])
    message = f"from 0.0 to {limit} in steps of 1.0 is no finite range"
    refused(lambda: fixed, ModelError, message, "it")
    late = model(it("Range", ["a", "b", "c"]), [value("b", FLOAT, [])], weights=made)
    with pytest.raises(EvaluationError, match=message) as caught:
        evaluate(import_model(late), [np.array(limit, np.float32)])
    assert caught.value.location is not None


def test_negative_repetitions() -> None:
    fixed = model(it("Tile", ["x", "r"]), weights=[tensor("r", [-2, -2])])
    refused(lambda: fixed, TypeRuleError, "a negative number of repetitions in [-2, -2]", "it")
    late = model(it("Tile", ["x", "r"]), [value("x"), value("r", INT64, [2])])
    message = r"tile|\[-2, -2\] are no repetitions for 2 axes"
    with pytest.raises(EvaluationError, match=message) as caught:
        evaluate(import_model(late), [X, np.array([-2, -2])])
    assert caught.value.location is not None


@pytest.mark.parametrize("number", [math.nan, math.inf, -math.inf])
def test_shapes_made_of_no_numbers(number: float) -> None:
    """NaN and infinity become extents that no tensor has."""
    cast = node("Cast", "f", "s", to=INT64)
    number_and_two = tensor("f", [number, 2], np.float32)
    fixed = model([cast, it("Reshape", ["x", "s"])], weights=[number_and_two])
    with pytest.raises(UserError) as caught:
        evaluate(import_model(fixed), [X])
    assert caught.value.location is not None
    assert caught.value.location.node == "it"
    late = model([cast, it("ConstantOfShape", ["s"])], [value("f", FLOAT, [2])])
    with pytest.raises(EvaluationError):
        evaluate(import_model(late), [np.array([number, 2], np.float32)])


STEPS = [
    (["Range", "a", "b", "c"], {"a": 0, "b": 5, "c": 0}, "the step is 0"),
    (["Slice", "x", "a", "b", "c", "c"], {"a": [0], "b": [1], "c": [0]}, "a stride is 0"),
]


@pytest.mark.parametrize(("words", "weights", "message"), STEPS, ids=["Range", "Slice"])
def test_steps_of_zero(words: list[str], weights: dict[str, Any], message: str) -> None:
    made = [tensor(name, numbers) for name, numbers in weights.items()]
    fixed = model(it(words[0], words[1:]), weights=made)
    refused(lambda: fixed, TypeRuleError, message, "it")
    shape = np.shape(weights["c"])
    late = model(it(words[0], words[1:]), [value("x"), value("c", INT64, shape)], weights=made[:2])
    with pytest.raises(EvaluationError) as caught:
        evaluate(import_model(late), [X, np.zeros(shape, np.int64)])
    assert caught.value.location is not None


def test_ends_beyond_all_numbers_are_cut() -> None:
    """Exporters write the largest integers for "to the end"."""
    numbers = {"b": [2**63 - 1], "e": [-(2**63)], "a": [0], "s": [-1]}
    made = [tensor(name, number) for name, number in numbers.items()]
    graph = import_model(model(it("Slice", ["x", *numbers]), weights=made))
    x = np.arange(6, dtype=np.float32).reshape(2, 3)
    assert evaluate(graph, [x])[0].tolist() == x[::-1].tolist()


REFUSED_ON_IMPORT: dict[str, tuple[onnx.ModelProto, type[UserError], str]] = {
    "LRN of nothing": (model(it("LRN", size=0), IMAGE), TypeRuleError, "size is 0"),
    "LRN of less": (model(it("LRN", size=-5), IMAGE), TypeRuleError, "size is -5"),
    "DepthToSpace": (
        model(it("DepthToSpace", blocksize=0), IMAGE),
        TypeRuleError,
        "block_size is 0",
    ),
    "OneHot": (
        model(
            it("OneHot", ["x", "d", "v"]),
            [value("x", INT64)],
            weights=[tensor("d", -4), tensor("v", [0.0, 1.0])],
        ),
        TypeRuleError,
        "the depth is -4",
    ),
    "CumSum": (
        model(it("CumSum", ["x", "a"]), weights=[tensor("a", 7)]),
        TypeRuleError,
        "axis 7 is out of range for rank 2",
    ),
    "ArgMax of a scalar": (
        model(it("ArgMax", axis=0), [value("x", FLOAT, [])]),
        TypeRuleError,
        "axis 0 is out of range for rank 0",
    ),
    "LSTM": (
        model(
            it("LSTM", ["x", "w", "r"], hidden_size=-1),
            [value("x", FLOAT, [5, 2, 4])],
            weights=[tensor("w", np.zeros((1, 12, 4), np.float32)),
                     tensor("r", np.zeros((1, 12, 3), np.float32))],
        ),
        ModelError,
        "hidden_size is -1, but the recurrent weight is for 3",
    ),
    "QuantizeLinear": (
        model(
            it("QuantizeLinear", ["x", "s", "z"]),
            weights=[tensor("s", 1, np.float32), tensor("z", 0, np.float32)],
        ),
        TypeRuleError,
        "cannot quantize to float32",
    ),
}  # fmt: skip


@pytest.mark.parametrize(
    ("proto", "error", "message"), REFUSED_ON_IMPORT.values(), ids=REFUSED_ON_IMPORT
)
def test_refused_on_import(proto: onnx.ModelProto, error: type[UserError], message: str) -> None:
    refused(lambda: proto, error, message, "it")


BEYOND = tensor("i", np.full((2, 3), 99))
REFUSED_ON_RUNNING: dict[str, tuple[onnx.ModelProto, Any, str]] = {
    "Gather": (
        model(it("Gather", ["x", "i"]), weights=[BEYOND]),
        X,
        "index 99 is out of range for axis 0 of extent 2",
    ),
    "GatherND": (
        model(it("GatherND", ["x", "i"]), weights=[tensor("i", [[99]])]),
        X,
        "index 99 is out of range for axis 0 of extent 2",
    ),
    "ScatterElements": (
        model(it("ScatterElements", ["x", "i", "x"]), weights=[BEYOND]),
        X,
        "index 99 is out of range for axis 0 of extent 2",
    ),
    "ArgMax of nothing": (
        model(it("ArgMax", axis=0), [value("x", FLOAT, [0])]),
        np.zeros(0, np.float32),
        "argmax along axis 0, which is empty",
    ),
    "ConstantOfShape": (
        model(it("ConstantOfShape"), [value("x", INT64, [2])]),
        np.array([-1, 2]),
        "negative",
    ),
    "MaxUnpool": (
        model(
            it("MaxUnpool", ["x", "i"], kernel_shape=[2, 2]),
            IMAGE,
            weights=[tensor("i", np.full((1, 1, 2, 2), 999))],
        ),
        np.zeros((1, 1, 2, 2), np.float32),
        "index 999",
    ),
}


@pytest.mark.parametrize(
    ("proto", "data", "message"), REFUSED_ON_RUNNING.values(), ids=REFUSED_ON_RUNNING
)
def test_refused_on_running(proto: onnx.ModelProto, data: Any, message: str) -> None:
    graph = import_model(proto)
    with pytest.raises(EvaluationError) as caught:
        evaluate(graph, [data])
    assert message in caught.value.message
    assert caught.value.location is not None
    assert caught.value.location.node == "it"


@pytest.mark.parametrize(
    ("feeds", "message"),
    [
        ([], "bad takes 1 inputs, has 0"),
        ([X, X], "bad takes 1 inputs, has 2"),
        ([X[:1]], "%x is declared float32[2, 3] but is float32[1, 3]"),
        ([X[0]], "%x is declared float32[2, 3] but is float32[3]"),
        ([X.astype(np.float64)], "%x is declared float32[2, 3] but is float64[2, 3]"),
        ([X.tolist()], "%x is declared float32[2, 3] but is a list"),
        ([None], "%x is declared float32[2, 3] but is a NoneType"),
    ],
)
def test_inputs_that_do_not_fit(feeds: list[Any], message: str) -> None:
    graph = import_model(model(it("Relu")))
    with pytest.raises(EvaluationError) as caught:
        evaluate(graph, feeds)
    assert message in caught.value.message
    assert caught.value.location == Location("<ModelProto>", "bad", "graph")


@pytest.mark.parametrize("words", [[1, 2], ["a", None], [b"a", "b"]])
def test_words_that_are_none(words: list[Any]) -> None:
    graph = import_model(model(it("StringNormalizer"), [value("x", STRING, [2])]))
    with pytest.raises(EvaluationError, match="not a string") as caught:
        evaluate(graph, [np.array(words, object)])
    assert caught.value.location is not None


def test_shapes_that_only_the_run_knows() -> None:
    """The type rule is asked again, so that the message is the one that import would give."""
    inputs = [value("x", FLOAT, ["a", "b"]), value("z", FLOAT, ["c", "d"])]
    graph = import_model(model(it("MatMul", ["x", "z"]), inputs))
    with pytest.raises(EvaluationError, match="extents to sum over differ: 3 and 2") as caught:
        evaluate(graph, [X, X])
    assert caught.value.location is not None
    assert caught.value.location.node == "it"


def test_one_symbol_is_one_extent() -> None:
    graph = import_model(model(it("Relu"), [value("x", FLOAT, ["n", "n"])]))
    with pytest.raises(EvaluationError, match=r"float32\[2, 3\] \(with n = 2\)"):
        evaluate(graph, [X])

"""Models that break ONNX's rules where ONNX Runtime puts up with it: imported, with a warning."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx.helper import make_opsetid
from tests.frontends.onnx.small_models import (
    FLOAT,
    MINE,
    function,
    it,
    model,
    node,
    tensor,
    untyped,
    value,
)

import graft
from graft.base.errors import GraftError, ModelError, ModelWarning
from graft.cli.main import main
from graft.frontends.onnx.importer import import_model
from graft.ir.evaluate import evaluate

X = np.array([[-1.0, 0.5, 2.0], [3.0, -4.0, 0.0]], np.float32)


def misspelt() -> onnx.ModelProto:
    first = node("LeakyRelu", "x", "a", alpha=0.5, alhpa=0.9)
    return model([first, it("LeakyRelu", ["a"], alpha=0.5, alhpa=0.9)])


def unknown_to_function() -> onnx.ModelProto:
    negate = function("Negate", [node("Neg", "a", "b")])
    return model(it("Negate", domain="my", extra=1), opsets=MINE, functions=[negate])


def declared(*shape: int) -> Callable[[], onnx.ModelProto]:
    return lambda: model(it("Relu"), outputs=[value("y", FLOAT, shape)])


def declared_within() -> onnx.ModelProto:
    made = model([node("Relu", "x", "a"), it("Neg", ["a"])])
    made.graph.value_info.append(value("a", FLOAT, (6,)))
    return made


def imported_twice() -> onnx.ModelProto:
    made = model(it("Clip", ["x"], min=0.0), opsets={"": 18})
    made.opset_import.append(make_opsetid("ai.onnx", 6))
    return made


def not_imported() -> onnx.ModelProto:
    return model(it("Binarizer", domain="ai.onnx.ml", threshold=0.0))


def weights_of_one_name() -> onnx.ModelProto:
    weights = [tensor("w", [9.0], np.float32), tensor("w", [2.0], np.float32)]
    return model(it("Mul", ["x", "w"]), weights=weights)


def constants_of_one_name() -> onnx.ModelProto:
    nodes = [
        node("Constant", "", "c", value=tensor("", [7.0], np.float32)),
        node("Mul", "x c", "y"),
        it("Constant", [], ["c"], value=tensor("", [2.0], np.float32)),
    ]
    return model(nodes, weights=[tensor("c", [9.0], np.float32)])


def without_results() -> onnx.ModelProto:
    return model([it("If", [], []), node("Relu", "x", "y")])


def normalized(shape: Sequence[int], perm: Sequence[int]) -> onnx.ModelProto:
    """A batch normalisation of x in another shape, with parameters for x's columns."""
    nodes = [
        node("Reshape", "x shape", "a"),
        node("Transpose", "a", "b", perm=list(perm)),
        node("BatchNormalization", "b scale bias mean variance", "c", epsilon=0.0),
        node("Reshape", "c back", "y"),
    ]
    nodes[2].name = "it"
    back = X.shape if tuple(perm) == tuple(range(len(perm))) else X.shape[::-1]
    weights = [tensor("shape", shape, np.int64), tensor("back", back, np.int64)]
    weights += [
        tensor(name, numbers, np.float32)
        for name, numbers in zip(("scale", "bias", "mean", "variance"), PARAMETERS, strict=True)
    ]
    return model(nodes, weights=weights, opsets={"": 14})


def excess_coefficients() -> onnx.ModelProto:
    attributes = {"coefficients": [1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0], "targets": 2}
    node_ = it("LinearRegressor", domain="ai.onnx.ml", **attributes)
    return model(node_, opsets={"": 18, "ai.onnx.ml": 1})


def sparse_value() -> onnx.ModelProto:
    """A sparse tensor in the attribute for dense ones."""
    sparse = onnx.helper.make_sparse_tensor(
        tensor("", [2.0, 5.0], np.float32), tensor("", [1, 3], np.int64), [2, 3]
    )
    attribute = onnx.helper.make_attribute("value", sparse)
    constant = it("Constant", [], ["c"])
    constant.attribute.append(attribute)
    return model([constant, node("Add", "x c", "y")])


# Scale, bias, mean and variance of three columns.
PARAMETERS = np.array([[1, 2, 0.5], [0, 1, -1], [3, 0, 2], [4, 1, 16]], np.float32)


def leaky(x: np.ndarray) -> np.ndarray:
    return np.where(x < 0, x * np.float32(0.5), x)


# What makes the model, what the warning says, and what the model means.
CASES = {
    "attribute": (
        misspelt,
        "LeakyRelu of opset 18 has no 'alhpa'; it is ignored (node 'LeakyRelu_0' (LeakyRelu)"
        " in <ModelProto>, and 1 more)",
        leaky(leaky(X)),
    ),
    "attribute of a function": (
        unknown_to_function,
        "the function 'Negate' has no 'extra'; it is ignored (node 'it' (Negate) in <ModelProto>)",
        -X,
    ),
    "output's shape": (
        declared(3, 2),
        "declared float32[3, 2], but computed as float32[2, 3]; the computed one counts"
        " (node 'y' (output) in <ModelProto>)",
        np.maximum(X, 0),
    ),
    "output's rank": (
        declared(6),
        "declared float32[6], but computed as float32[2, 3]; the computed one counts"
        " (node 'y' (output) in <ModelProto>)",
        np.maximum(X, 0),
    ),
    "rank within": (
        declared_within,
        "'a' is declared with rank 1, but is float32[2, 3]; the computed one counts"
        " (node 'Relu_0' (Relu) in <ModelProto>)",
        -np.maximum(X, 0),
    ),
    "imported twice": (
        imported_twice,
        "opsets 18 and 6 are both imported; the latter counts (in <ModelProto>)",
        np.maximum(X, 0),
    ),
    "not imported": (
        not_imported,
        "the model imports no opset of domain 'ai.onnx.ml'; opset 5 is taken"
        " (node 'it' (Binarizer) in <ModelProto>)",
        (X > 0).astype(np.float32),
    ),
    "weights of one name": (
        weights_of_one_name,
        "initialiser 'w' is given twice; the latest counts (in <ModelProto>)",
        X * 2,
    ),
    "constants of one name": (
        constants_of_one_name,
        "'c' is defined twice; the latest counts (node 'c' (Constant) in <ModelProto>, and 1 more)",
        X * 2,
    ),
    "listed twice": (
        lambda: model(it("Relu"), outputs=[untyped("y"), untyped("y")]),
        "the output 'y' is listed twice; the second one is called 'y_1'"
        " (node 'y' (output) in <ModelProto>)",
        np.maximum(X, 0),
    ),
    "no results": (
        without_results,
        "a node has no results; it is left out (node 'it' (If) in <ModelProto>)",
        np.maximum(X, 0),
    ),
    "channels elsewhere": (
        lambda: normalized((2, 1, 1, 3), (0, 1, 2, 3)),
        "there are parameters for 3 channels, but axis 1 has 1; axis 3 is normalised, the only one"
        " that they fit (node 'it' (BatchNormalization) in <ModelProto>)",
        (X - PARAMETERS[2]) / np.sqrt(PARAMETERS[3]) * PARAMETERS[0] + PARAMETERS[1],
    ),
    "channels in front": (
        lambda: normalized((2, 3), (1, 0)),
        "there are parameters for 3 channels, but axis 1 has 2; axis 0 is normalised, the only one"
        " that they fit (node 'it' (BatchNormalization) in <ModelProto>)",
        ((X - PARAMETERS[2]) / np.sqrt(PARAMETERS[3]) * PARAMETERS[0] + PARAMETERS[1]).T,
    ),
    "coefficients": (
        excess_coefficients,
        "8 coefficients are more than 2 rows of 3; the first 6 count"
        " (node 'it' (LinearRegressor) in <ModelProto>)",
        X @ np.array([[1, 4], [2, 5], [3, 6]], np.float32),
    ),
    "constant's type": (
        sparse_value,
        "attribute 'value' of Constant has a wrong type; it is read as 'sparse_value'"
        " (node 'it' (Constant) in <ModelProto>)",
        X + np.array([[0, 2, 0], [5, 0, 0]], np.float32),
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_it_is_taken_with_one_warning(name: str) -> None:
    make, message, expected = CASES[name]
    with pytest.warns(ModelWarning) as caught:
        graph = import_model(make())
    assert [str(warning.message) for warning in caught] == [message]
    assert caught[0].filename == __file__
    np.testing.assert_array_equal(evaluate(graph, [X])[0], expected)


@pytest.mark.parametrize("name", CASES)
def test_it_is_refused_if_strict(name: str) -> None:
    with pytest.raises(GraftError):
        import_model(CASES[name][0](), strict=True)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: model(it("Relu"), outputs=[value("y", onnx.TensorProto.INT64)]), "int64"),
        (lambda: model([node("Relu", "x", "y"), it("Neg")]), "'y' is defined twice"),
        (lambda: model(it("Relu", domain="elsewhere")), "no opset of domain 'elsewhere'"),
        (lambda: model(it("Relu", ["x", "x"])), "takes 1 operand"),
    ],
)
def test_what_onnx_runtime_refuses_stays_an_error(
    make: Callable[[], onnx.ModelProto], message: str
) -> None:
    with pytest.raises(ModelError, match=message):
        import_model(make())


def test_compile_warns_its_caller_or_refuses() -> None:
    with pytest.warns(ModelWarning, match="alhpa") as caught:
        module = graft.compile(misspelt())
    assert caught[0].filename == __file__
    np.testing.assert_array_equal(module.run(None, {"x": X})[0], leaky(leaky(X)))
    with pytest.raises(ModelError, match="alhpa"):
        graft.compile(misspelt(), strict_import=True)


@pytest.mark.parametrize("command", ["inspect", "run", "compile", "explain", "bench", "check"])
def test_commands_warn_or_refuse(
    command: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "model.onnx"
    path.write_bytes(misspelt().SerializeToString())
    if command in ("inspect", "run"):
        assert main([command, str(path)]) == 0
        assert "graft: warning: LeakyRelu of opset 18 has no 'alhpa'" in capsys.readouterr().err
    others = {"compile": ["--emit", "graph"], "explain": ["--target", "simnpu"]}.get(command, [])
    assert main([command, str(path), "--strict-import", *others]) == 1
    output = capsys.readouterr()
    assert "has no 'alhpa'" in output.err + output.out


def test_a_dim_whose_name_is_a_sum_is_that_sum() -> None:
    """Also where the input that has it stands before those that tell the numbers."""
    inputs = [value("m", FLOAT, ["past + new"]), value("a", FLOAT, ["past"])]
    inputs.append(value("x", FLOAT, ["new"]))
    joined = node("Concat", "a x", "c", axis=0)
    proto = model([joined, it("Add", ["c", "m"])], inputs)
    assert str(import_model(proto).inputs[0].type) == "float32[new + past]"
    data = {name: np.ones(n, np.float32) for name, n in (("m", 5), ("a", 2), ("x", 3))}
    for target in ("host", "reference"):
        module = graft.compile(proto, target=target)
        np.testing.assert_array_equal(module.run(None, data)[0], np.full(5, 2, np.float32))
        with pytest.raises(GraftError, match="4"):
            module.run(None, {**data, "m": np.ones(4, np.float32)})


@pytest.mark.parametrize("name", ["past + other", "2", "+", "a b", "n/2"])
def test_other_names_of_dims_are_names(name: str) -> None:
    graph = import_model(model(it("Relu"), [value("x", FLOAT, ["past", name])]))
    assert graph.input_symbols == {"past", name}


def reshape(*extents: str) -> onnx.ModelProto:
    text = f"""<ir_version: 8, opset_import: ["": 17]>
    g (float[2, 3] x, float[n] other) => (float y)
    {{ n = Shape (other)  two = Constant <value_ints = [2]> ()
      four = Constant <value_ints = [4]> ()  rest = Constant <value_ints = [-1]> ()
      s = Concat <axis = 0> ({", ".join(extents)})  y = Reshape (x, s) }}"""
    made = onnx.parser.parse_model(text)
    made.graph.output[0].ClearField("type")
    return made


@pytest.mark.parametrize("target", ["host", "reference"])
def test_an_extent_that_the_data_determine_is_that_number(target: str) -> None:
    """ONNX Runtime fuses such a shape into -1, and then takes any number for the dim."""
    proto = reshape("two", "n")
    with pytest.warns(ModelWarning, match=r"fill \[2, n\] only if n is 3; it is taken for that"):
        module = graft.compile(proto, target=target)
    session = onnxruntime.InferenceSession(proto.SerializeToString())
    for other in (X[0], X[0, :2]):
        feeds = {"x": X, "other": other}
        np.testing.assert_array_equal(module.run(None, feeds)[0], session.run(None, feeds)[0])


def test_strictly_it_is_checked_when_it_runs() -> None:
    module = graft.compile(reshape("two", "n"), strict_import=True)
    assert module.run(None, {"x": X, "other": X[0]})[0].shape == (2, 3)
    with pytest.raises(GraftError, match="6 elements do not fill"):
        module.run(None, {"x": X, "other": X[0, :2]})


@pytest.mark.parametrize("extents", [("four", "n"), ("n", "n"), ("two", "n", "rest")])
def test_other_extents_are_not_guessed(extents: Sequence[str]) -> None:
    """Where no number fits, where several extents are open, and where -1 makes all fit."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        import_model(reshape(*extents))


@pytest.mark.parametrize("keepdims", [-1, 0, 1, 2])
@pytest.mark.parametrize("op_type", ["ReduceMax", "ArgMax"])
def test_only_a_keepdims_of_one_keeps_dims(op_type: str, keepdims: int) -> None:
    axes = {"axes": [1]} if op_type == "ReduceMax" else {"axis": 1}
    proto = model(it(op_type, keepdims=keepdims, **axes), outputs=[untyped("y")], opsets={"": 13})
    proto = onnx.shape_inference.infer_shapes(proto)
    shape = tuple(dim.dim_value for dim in proto.graph.output[0].type.tensor_type.shape.dim)
    assert evaluate(import_model(proto), [X])[0].shape == shape


@pytest.mark.parametrize("noop", [-1, 0, 1, 2])
def test_only_a_noop_with_empty_axes_of_one_is_a_noop(noop: int) -> None:
    proto = model(it("ReduceMax", noop_with_empty_axes=noop), outputs=[untyped("y")])
    assert evaluate(import_model(proto), [X])[0].shape == (X.shape if noop == 1 else (1, 1))


@pytest.mark.parametrize("given", [{"bias": np.nan}, {"bias": 1e38}, {"lambd": np.inf}])
def test_integers_do_not_shrink_by_what_is_no_integer(given: dict[str, float]) -> None:
    proto = model(it("Shrink", **given), [value("x", onnx.TensorProto.INT8, [2])])
    with pytest.raises(ModelError, match="do not fit data of int8"):
        import_model(proto)
    import_model(model(it("Shrink", **given)))  # of floats

"""Requests that NumPy or the system would answer in their own words: Graft answers first."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import graft
from graft import onnx_backend
from graft.base.errors import GraftError, UnsupportedError, UserError

X = np.ones((2, 3), np.float32)
FLOAT, INT64, STRING, BOOL = (
    TensorProto.FLOAT,
    TensorProto.INT64,
    TensorProto.STRING,
    TensorProto.BOOL,
)


def model(
    kind: str,
    inputs: dict[str, tuple[int, list[int | str]]],
    weights: dict[str, Any],
    order: str,
    type_: int = FLOAT,
    opset: int = 20,
    **attributes: Any,
) -> onnx.ModelProto:
    node = helper.make_node(kind, order.split(","), ["y"], name=f"the_{kind}", **attributes)
    graph = helper.make_graph(
        [node],
        "foreign",
        [helper.make_tensor_value_info(name, *info) for name, info in inputs.items()],
        [helper.make_tensor_value_info("y", type_, None)],
        [numpy_helper.from_array(np.asarray(array), name) for name, array in weights.items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=9)


def sine() -> graft.Module:
    return graft.compile(model("Sin", {"x": (FLOAT, [2, 3])}, {}, "x"))


LARGE: dict[str, onnx.ModelProto] = {
    "Range": model(
        "Range", {}, {"a": np.int64(0), "b": np.int64(2**60), "c": np.int64(1)}, "a,b,c", INT64
    ),
    "Conv": model(
        "Conv",
        {"x": (FLOAT, [1, 1, 4, 4])},
        {"w": np.ones((1, 1, 3, 3), np.float32)},
        "x,w",
        pads=[2**30] * 4,
    ),
    "Pad": model("Pad", {"x": (FLOAT, [4])}, {"p": np.array([2**40, 0])}, "x,p"),
    "Expand": model("Expand", {"x": (FLOAT, [1])}, {"s": np.array([2**40, 2**40])}, "x,s"),
    "ConstantOfShape": model("ConstantOfShape", {}, {"s": np.array([2**50])}, "s"),
    "Resize": model(
        "Resize", {"x": (FLOAT, [1, 1, 4, 4])}, {"s": np.array([1, 1, 2**30, 2**30])}, "x,,,s"
    ),
    "MatMul": model("MatMul", {"x": (FLOAT, [2**21, 1]), "z": (FLOAT, [1, 2**21])}, {}, "x,z"),
}


@pytest.mark.parametrize("kind", LARGE)
def test_tensors_larger_than_memory(kind: str) -> None:
    with pytest.raises(UnsupportedError, match="more than this machine's memory") as error:
        graft.compile(LARGE[kind])
    assert f"the_{kind}" in str(error.value)
    assert error.value.hint


def test_concatenations_of_concatenations_larger_than_memory() -> None:
    names = ["x", *(f"v{number}" for number in range(30))]
    nodes = [
        helper.make_node("Concat", [before] * 10, [name], name=name, axis=0)
        for before, name in pairwise(names)
    ]
    x = helper.make_tensor_value_info("x", FLOAT, [2])
    y = helper.make_tensor_value_info(names[-1], FLOAT, None)
    graph = helper.make_graph(nodes, "towers", [x], [y])
    opsets = [helper.make_opsetid("", 17)]
    with pytest.raises(UnsupportedError, match="more than this machine's memory"):
        graft.compile(helper.make_model(graph, opset_imports=opsets, ir_version=8))


@pytest.mark.parametrize(
    ("kind", "feeds", "type_"),
    [
        ("Range", {"b": np.int64(2**60)}, INT64),
        ("Expand", {"x": np.ones(1, np.float32), "s": np.array([2**40, 2**40])}, FLOAT),
        ("Tile", {"x": np.ones(1, np.float32), "r": np.array([2**60])}, FLOAT),
        ("Tile", {"x": np.ones(1, np.float32), "r": np.array([-1])}, FLOAT),
        ("ConstantOfShape", {"s": np.array([-3])}, FLOAT),
        ("Reshape", {"x": np.ones(6, np.float32), "s": np.array([-2, 3])}, FLOAT),
    ],
)
def test_sizes_that_only_data_tell(kind: str, feeds: dict[str, Any], type_: int) -> None:
    types = {
        name: (INT64 if np.asarray(array).dtype == np.int64 else FLOAT, list(np.shape(array)))
        for name, array in feeds.items()
    }
    weights = {"a": np.int64(0), "c": np.int64(1)} if kind == "Range" else {}
    order = "a,b,c" if kind == "Range" else ",".join(feeds)
    module = graft.compile(model(kind, types, weights, order, type_))
    with pytest.raises(GraftError):
        module.run(None, feeds)


def test_more_axes_than_arrays_have() -> None:
    with pytest.raises(UnsupportedError, match="70 axes"):
        graft.compile(model("Sin", {"x": (FLOAT, [1] * 70)}, {}, "x"))
    with pytest.raises(UnsupportedError, match="70 axes") as error:
        graft.compile(model("Reshape", {"x": (FLOAT, [1])}, {"s": np.ones(70, np.int64)}, "x,s"))
    assert "the_Reshape" in str(error.value)


@pytest.mark.parametrize("feeds", [None, [X], X, 3, "x"])
def test_feeds_that_name_no_inputs(feeds: Any) -> None:
    module = sine()
    for call in (lambda: module.run(None, feeds), lambda: module.bind(feeds)):
        with pytest.raises(UserError, match="given by name"):
            call()


def test_feeds_of_saved_modules_that_name_no_inputs(tmp_path: Any) -> None:
    path = tmp_path / "sine.graft"
    sine().save(path)
    with pytest.raises(UserError, match="given by name"):
        graft.load(path).run(None, [X])


@pytest.mark.parametrize("names", [3, "y", "yy"])
def test_output_names_that_are_no_list(names: Any) -> None:
    with pytest.raises(UserError, match="output names are None or a list"):
        sine().run(names, {"x": X})


@pytest.mark.parametrize("names", [["q"], [["y"]], [None], ["y", "q"]])
def test_output_names_that_do_not_exist(names: Any) -> None:
    with pytest.raises(UserError, match="there is no output"):
        sine().run(names, {"x": X})


@pytest.mark.parametrize(
    "data",
    [
        np.array([[1, None, 2]] * 2, object),
        [[1.0], [1.0, 2.0]],
        None,
        "text",
        np.float32(3),
        np.zeros((2, 3), [("a", "f4")]),
        np.zeros((2, 3), "M8[s]"),
        np.zeros((2, 3), np.complex64),
    ],
)
def test_feeds_of_other_types(data: Any) -> None:
    with pytest.raises(UserError, match="input 'x'"):
        sine().run(None, {"x": data})


@pytest.mark.parametrize(
    "data", [X.astype(">f4"), np.ones((2, 6), np.float32)[:, ::2], X.T.copy().T, X[::-1, ::-1]]
)
def test_any_strides_and_byte_order(data: Any) -> None:
    (result,) = sine().run(None, {"x": data})
    np.testing.assert_allclose(result, np.sin(X), rtol=1e-6)


@pytest.mark.parametrize("threads", [0, -1, 20_000, 1.5, "4"])
def test_threads_that_no_machine_runs(threads: Any) -> None:
    with pytest.raises(UserError, match="threads="):
        graft.compile(model("Sin", {"x": (FLOAT, [2, 3])}, {}, "x"), threads=threads)


@pytest.mark.parametrize("target", [3, [3], None])
def test_targets_that_are_no_names(target: Any) -> None:
    with pytest.raises(UserError, match="target="):
        graft.compile(model("Sin", {"x": (FLOAT, [2, 3])}, {}, "x"), target=target)


@pytest.mark.parametrize("inputs", [3, [], [X, X], None])
def test_inputs_of_the_onnx_backend(inputs: Any) -> None:
    prepared = onnx_backend.prepare(model("Sin", {"x": (FLOAT, [2, 3])}, {}, "x"))
    with pytest.raises(UserError, match="inputs are a list"):
        prepared.run(inputs)


def _regex(pattern: str) -> Callable[[str], bool]:
    made = model("RegexFullMatch", {"x": (STRING, ["n"])}, {}, "x", BOOL, pattern=pattern)
    module = graft.compile(made)
    return lambda text: bool(module.run(None, {"x": np.array([text], object)})[0][0])


@pytest.mark.parametrize("pattern", ["(a+)+b", "(a|a)*b", "(a*)*(a*)*b", "(.*)*b"])
def test_patterns_take_linear_time(pattern: str) -> None:
    matches = _regex(pattern)
    assert not matches("a" * 2000)
    assert matches("a" * 70 + "b")


def test_patterns_that_are_too_large() -> None:
    with pytest.raises(UserError, match="too large"):
        _regex("((a{100}){100}){100}")("a")


def test_sizes_beyond_64_bits() -> None:
    """Whatever a file says, programs hold 64-bit words."""
    padded = model(
        "AveragePool",
        {"x": (FLOAT, ["n", 1, "n", 3])},
        {},
        "x",
        kernel_shape=[1, 1],
        pads=[0, 0, 2**62, 0],
    )
    with pytest.raises(UnsupportedError, match="does not fit 64 bits"):
        graft.compile(padded).run(None, {"x": np.ones((2, 1, 2, 3), np.float32)})

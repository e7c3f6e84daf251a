"""Flows of native programs and lookups: the short way gives what the ordinary one gives."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper

import graft
from graft.base.errors import EvaluationError, GraftError, UserError
from graft.runtime.dispatch import Dispatcher

NAMES = ["low", "middle", "high"]


def model(outputs: tuple[str, ...] = ("label", "maps", "shifted")) -> onnx.ModelProto:
    """Numbers and categories in; labels as strings, scores as maps, and plain numbers out."""

    def ml(name: str, inputs: list[str], result: str, **attributes: Any) -> onnx.NodeProto:
        return helper.make_node(name, inputs, [result], domain="ai.onnx.ml", **attributes)

    nodes = [
        helper.make_node("Add", ["x", "w"], ["shifted"]),
        ml(
            "LabelEncoder",
            ["categories"],
            "codes",
            keys_strings=["a", "b", "c"],
            values_floats=[0.5, 1.5, -2.5],
            default_float=-1.0,
        ),
        helper.make_node("Mul", ["shifted", "codes"], ["scores"]),
        helper.make_node("ArgMax", ["scores"], ["best"], axis=1, keepdims=0),
        ml("LabelEncoder", ["best"], "label", keys_int64s=[0, 1, 2], values_strings=NAMES),
        ml("ZipMap", ["scores"], "maps", classlabels_strings=NAMES),
    ]
    maps = helper.make_map_type_proto(
        TensorProto.STRING, helper.make_tensor_type_proto(TensorProto.FLOAT, [])
    )
    types = {
        "label": helper.make_tensor_type_proto(TensorProto.STRING, ["n"]),
        "maps": helper.make_sequence_type_proto(maps),
        "shifted": helper.make_tensor_type_proto(TensorProto.FLOAT, ["n", 3]),
    }
    graph = helper.make_graph(
        nodes,
        "flow",
        [
            helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", 3]),
            helper.make_tensor_value_info("categories", TensorProto.STRING, ["n", 3]),
        ],
        [helper.make_value_info(name, types[name]) for name in outputs],
        [numpy_helper.from_array(np.array([1, 2, -3], np.float32), "w")],
    )
    opsets = [helper.make_opsetid("", 18), helper.make_opsetid("ai.onnx.ml", 3)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=9)


def feeds(rows: int, columns: int = 3) -> dict[str, Any]:
    random = np.random.default_rng(rows)
    categories = random.choice(np.array(["a", "b", "c", "?"], object), (rows, columns))
    return {"x": random.normal(size=(rows, 3)).astype(np.float32), "categories": categories}


def dispatcher_of(module: graft.Module) -> Dispatcher:
    assert module.dispatcher is not None
    return module.dispatcher


@pytest.fixture(scope="module")
def module() -> graft.Module:
    return graft.compile(model(), threads=1, strict=True)


def test_lookups_leave_one_native_program(module: graft.Module) -> None:
    """What reads only inputs runs before it, not in its midst."""
    kinds = [type(step).__name__ for step in module.program.body.instructions]
    assert kinds == ["ListOp", "Segment", "ListOp", "ListOp"]


def test_the_placement_says_what_is_done_in_python(module: graft.Module) -> None:
    assert sorted(module.placement.python.values()) == [
        "rows are packed into maps",
        "strings are looked up in a table",
        "strings are looked up in a table",
    ]
    assert str(module.placement).endswith(" nodes (3 in Python)")
    assert module.placement.reasons == {}


@pytest.mark.parametrize("rows", [1, 2, 37, 100])
def test_all_ways_give_what_onnxruntime_gives(module: graft.Module, rows: int) -> None:
    data = feeds(rows)
    peer = onnxruntime.InferenceSession(
        model().SerializeToString(), providers=["CPUExecutionProvider"]
    )
    label, maps, shifted = peer.run(None, data)
    for _ in range(3):
        found = module.run(None, data)
        assert found[0].dtype == object
        assert found[0].tolist() == label.tolist()
        assert found[1] == maps
        np.testing.assert_array_equal(found[2], shifted, strict=True)
    assert dispatcher_of(module).run(data) is not None
    assert module.run(["maps"], data) == [maps]


def test_no_rows(module: graft.Module) -> None:
    data = feeds(0)
    for _ in range(3):
        label, maps, shifted = module.run(None, data)
        assert (label.shape, maps, shifted.shape) == ((0,), [], (0, 3))


def test_loaded_models_take_the_short_way(module: graft.Module, tmp_path: Path) -> None:
    module.save(tmp_path / "model.graft")
    loaded, data = graft.load(tmp_path / "model.graft", threads=1), feeds(5)
    for _ in range(3):
        found, expected = loaded.run(None, data), module.run(None, data)
        assert found[0].tolist() == expected[0].tolist()
        assert found[1] == expected[1]
    assert loaded.dispatcher.run(data) is not None  # type: ignore[union-attr]


def test_arrays_for_results_and_bound_feeds(module: graft.Module) -> None:
    data = feeds(4)
    expected, home = module.run(None, data), np.empty((4, 3), np.float32)
    bound = module.bind(data, {"shifted": home})
    for _ in range(3):
        home[:] = 0
        assert bound()[2] is home
        np.testing.assert_array_equal(home, expected[2])


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"categories": feeds(3)["categories"]}, "is wanted"),
        ({"categories": feeds(4, columns=2)["categories"]}, "wants string"),
        ({"categories": np.zeros((4, 3), np.int64)}, "wants string"),
    ],
)
def test_wrong_strings_are_refused_every_time(
    module: graft.Module, changed: dict[str, Any], message: str
) -> None:
    for _ in range(3):
        with pytest.raises(GraftError, match=message):
            module.run(None, feeds(4) | changed)


def test_an_unknown_category_is_refused_every_time() -> None:
    """By the ordinary way, which knows the node."""
    node = helper.make_node(
        "OneHotEncoder",
        ["x"],
        ["y"],
        name="it",
        domain="ai.onnx.ml",
        cats_strings=["a", "b"],
        zeros=0,
    )
    graph = helper.make_graph(
        [node],
        "strict",
        [helper.make_tensor_value_info("x", TensorProto.STRING, ["n"])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["n", 2])],
    )
    opsets = [helper.make_opsetid("", 18), helper.make_opsetid("ai.onnx.ml", 3)]
    strict = graft.compile(helper.make_model(graph, opset_imports=opsets, ir_version=9))
    good, bad = (np.array(one, object) for one in (["a", "b"], ["a", "c"]))
    for _ in range(3):
        assert strict.run(None, {"x": good})[0].tolist() == [[1, 0], [0, 1]]
        with pytest.raises((EvaluationError, UserError), match="'c'"):
            strict.run(None, {"x": bad})
    assert dispatcher_of(strict).run({"x": good}) is not None


def test_strings_that_nobody_looks_up_take_the_ordinary_way() -> None:
    graph = helper.make_graph(
        [helper.make_node("Identity", ["x"], ["y"])],
        "strings",
        [helper.make_tensor_value_info("x", TensorProto.STRING, ["n"])],
        [helper.make_tensor_value_info("y", TensorProto.STRING, ["n"])],
    )
    opsets = [helper.make_opsetid("", 18)]
    plain = graft.compile(helper.make_model(graph, opset_imports=opsets, ir_version=9))
    x = np.array(["a", "b"], object)
    for _ in range(3):
        assert plain.run(None, {"x": x})[0].tolist() == ["a", "b"]

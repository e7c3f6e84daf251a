"""Extents that files leave open: which of them are one and the same."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from onnx import TensorProto, helper

import graft
from graft.base.errors import UserError


def module(*shape: str | int | None) -> graft.Module:
    values = [helper.make_tensor_value_info(name, TensorProto.FLOAT, shape) for name in "xy"]
    graph = helper.make_graph([helper.make_node("Neg", ["x"], ["y"])], "g", values[:1], values[1:])
    opsets = [helper.make_opsetid("", 17)]
    return graft.compile(helper.make_model(graph, opset_imports=opsets, ir_version=8))


@pytest.mark.parametrize(
    "shape",
    [("?", "?"), (None, None), (-1, -1), ("n", "?"), ("a", "b"), ("a-b", "a_b")],
)
def test_extents_without_a_common_name_are_independent(shape: tuple[str | int | None, ...]) -> None:
    compiled = module(*shape)
    for extents in ((2, 3), (4, 4), (1, 0)):
        x = np.ones(extents, np.float32)
        np.testing.assert_array_equal(compiled.run(None, {"x": x})[0], -x)


@pytest.mark.parametrize("shape", [("n + 1", "n"), ("n", "n + 1"), ("n + m", "n", "m")])
def test_extents_that_follow_from_others_are_checked(shape: tuple[str, ...]) -> None:
    compiled = module(*shape)
    fits = [{"n": 3, "m": 2, "n + 1": 4, "n + m": 5}[name] for name in shape]
    x = np.ones(fits, np.float32)
    np.testing.assert_array_equal(compiled.run(None, {"x": x})[0], -x)
    with pytest.raises(UserError, match="where"):
        compiled.run(None, {"x": np.ones([2, *fits[1:]], np.float32)})
    with pytest.raises(UserError, match="where"):
        compiled.run(None, {"x": np.ones([*fits[:-1], 9], np.float32)})


def test_extents_that_follow_from_those_of_other_inputs_are_checked() -> None:
    shapes = {"x": ("n + 1", "m"), "y": ("m + 1", "n")}
    values = [
        helper.make_tensor_value_info(name, TensorProto.FLOAT, shape)
        for name, shape in (*shapes.items(), ("p", None), ("q", None))
    ]
    nodes = [helper.make_node("Neg", [a], [b]) for a, b in ("xp", "yq")]
    graph = helper.make_graph(nodes, "g", values[:2], values[2:])
    opsets = [helper.make_opsetid("", 17)]
    compiled = graft.compile(helper.make_model(graph, opset_imports=opsets, ir_version=8))
    x, y = np.ones((4, 5), np.float32), np.ones((6, 3), np.float32)
    np.testing.assert_array_equal(compiled.run(None, {"x": x, "y": y})[1], -y)
    with pytest.raises(UserError, match="'x' has the shape"):
        compiled.run(None, {"x": x[:2], "y": y})
    with pytest.raises(UserError, match="'y' has the shape"):
        compiled.run(None, {"x": x, "y": y[:2]})


def test_extents_of_one_name_are_one() -> None:
    with pytest.raises(UserError, match=r"\[2, 3\] where \[n, n\]"):
        module("n", "n").run(None, {"x": np.ones((2, 3), np.float32)})


@pytest.mark.parametrize("name", ["past + 1", "a-b", "batch size", 'é"x', "1x", "max", "min(n, 3)"])
def test_extents_are_called_what_the_model_calls_them(name: str, tmp_path: Path) -> None:
    compiled = module(name, 3)
    compiled.save(tmp_path / "net.graft")
    x = np.ones((5, 3), np.float32)
    for one in (compiled, graft.load(tmp_path / "net.graft")):
        assert one.get_inputs()[0].shape == [name, 3]
        np.testing.assert_array_equal(one.run(None, {"x": x})[0], -x)

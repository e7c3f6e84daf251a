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
    [("?", "?"), (None, None), (-1, -1), ("n", "?"), ("a", "b"), ("a-b", "a_b"), ("n + 1", "n")],
)
def test_extents_without_a_common_name_are_independent(shape: tuple[str | int | None, ...]) -> None:
    compiled = module(*shape)
    for extents in ((2, 3), (4, 4), (1, 0)):
        x = np.ones(extents, np.float32)
        np.testing.assert_array_equal(compiled.run(None, {"x": x})[0], -x)


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

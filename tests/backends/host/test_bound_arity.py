"""Concatenations of many tensors and splits into many."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

import graft
from graft.backends.host.passes import bound_arity as passes
from graft.backends.host.passes.bound_arity import MOST_TENSORS, bound_arity
from graft.frontends.onnx.importer import import_model


def model(count: int, columns: int | str = 3) -> onnx.ModelProto:
    """A tensor split into rows, and put together in the opposite order."""
    rows = [f"row{number}" for number in range(count)]
    nodes = [helper.make_node("Split", ["x"], rows, axis=0)]
    sines = [helper.make_node("Neg", [row], [f"{row}_sine"]) for row in rows]
    results = [node.output[0] for node in reversed(sines)]
    nodes += [*sines, helper.make_node("Concat", results, ["y"], axis=0)]
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, [count, columns])
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, None)
    opsets = [helper.make_opsetid("", 17)]
    return helper.make_model(
        helper.make_graph(nodes, "rows", [x], [y]), opset_imports=opsets, ir_version=8
    )


@pytest.mark.parametrize("count", [2, MOST_TENSORS, MOST_TENSORS + 1, 2 * MOST_TENSORS + 5])
def test_results_are_the_same(count: int) -> None:
    check(count, 3)


@pytest.mark.parametrize("count", [2, 9])
def test_results_of_any_width_are_the_same(count: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """With a lower bound: each tensor has a kernel of its own, which takes its time."""
    monkeypatch.setattr(passes, "MOST_TENSORS", 4)
    check(count, "n")


def check(count: int, columns: int | str) -> None:
    x = np.arange(count * 3, dtype=np.float32).reshape(count, 3)
    (found,) = graft.compile(model(count, columns)).run(None, {"x": x})
    np.testing.assert_array_equal(found, -x[::-1])


def test_no_node_has_many_tensors() -> None:
    graph = bound_arity(import_model(model(MOST_TENSORS**2 + 1)))
    for node in graph.nodes:
        assert len(node.args) <= MOST_TENSORS
        assert len(node.outputs) <= MOST_TENSORS


def test_few_tensors_stay_as_they_are() -> None:
    graph = import_model(model(MOST_TENSORS))
    assert bound_arity(graph) is graph

"""Models in which names are missing, given twice or go round in circles; and odd names."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from tests.frontends.onnx.small_models import (
    BOOL,
    FLOAT,
    MINE,
    Mistake,
    function,
    graph,
    it,
    model,
    node,
    refused,
    tensor,
    untyped,
    value,
)

from graft.base.errors import ModelError
from graft.frontends.onnx.importer import import_model
from graft.ir.evaluate import evaluate


def cycle_through_a_branch() -> onnx.ModelProto:
    branch = graph([node("Relu", "y", "o")], "o")
    return model(it("If", ["c"], then_branch=branch, else_branch=branch), [value("c", BOOL, [])])


def shadowing_branch() -> onnx.ModelProto:
    shadow, other = graph([node("Relu", "x", "x")], "x"), graph([node("Relu", "x", "o")], "o")
    inputs = [value("x"), value("c", BOOL, [])]
    return model(it("If", ["c"], then_branch=shadow, else_branch=other), inputs)


WEIGHT = tensor("w", [1, 2, 3], np.float32)
NAMES: dict[str, Mistake] = {
    "missing weight": (
        lambda: model(it("Add", ["x", "w"])),
        ModelError,
        "'w' is neither an input, an initialiser nor any node's result",
        "it",
    ),
    "missing output": (
        lambda: model(it("Relu", outputs=["z"])),
        ModelError,
        "the output 'y' is defined nowhere",
        "",
    ),
    "output without a name": (
        lambda: model(it("Relu"), outputs=[untyped("")]),
        ModelError,
        "the output '' is defined nowhere",
        "",
    ),
    "cycle": (
        lambda: model(
            [it("Add", ["x", "b"], ["a"]), node("Relu", "a", "b"), node("Relu", "b", "y")]
        ),
        ModelError,
        "the nodes form a cycle",
        "it",
    ),
    "cycle of one": (lambda: model(it("Add", ["x", "y"])), ModelError, "'y' is neither", "it"),
    "cycle through a branch": (
        cycle_through_a_branch,
        ModelError,
        "'y' is neither an input",
        "it/then_branch/Relu_0",
    ),
    "cycle in a function": (
        lambda: model(
            it("f", domain="my"),
            opsets=MINE,
            functions=[function("f", [node("Add", "a c", "b"), node("Relu", "b", "c")])],
        ),
        ModelError,
        "the nodes form a cycle",
        "b",
    ),
    "input redefined": (
        lambda: model(it("Relu", outputs=["x"]), outputs=[untyped("x")]),
        ModelError,
        "'x' is defined twice",
        "it",
    ),
    "result redefined": (
        lambda: model([node("Relu", "x", "y"), it("Neg")]),
        ModelError,
        "'y' is defined twice",
        "it",
    ),
    "result redefined at once": (
        lambda: model(it("Split", outputs=["y", "y"], axis=0)),
        ModelError,
        "'y' is defined twice",
        "it",
    ),
    "result redefined in a branch": (
        shadowing_branch,
        ModelError,
        "'x' is defined twice",
        "it/then_branch/Relu_0",
    ),
    "input twice": (
        lambda: model(it("Relu"), inputs=[value("x"), value("x")]),
        ModelError,
        "the input 'x' is declared twice",
        "",
    ),
    "initialiser twice": (
        lambda: model(it("Add", ["x", "w"]), weights=[tensor("w", [1.0]), tensor("w", [2.0])]),
        ModelError,
        "initialiser 'w' is given twice",
        "",
    ),
    "result named like an initialiser": (
        lambda: model(it("Relu", outputs=["w"]), outputs=[untyped("w")], weights=[WEIGHT]),
        ModelError,
        "'w' is defined twice",
        "it",
    ),
    "input with a default, twice": (
        lambda: model(it("Relu"), [value("x"), *[value("w", shape=[3])] * 2], weights=[WEIGHT]),
        ModelError,
        "the input 'w' is declared twice",
        "",
    ),
    "input without a type": (
        lambda: model(it("Relu"), inputs=[untyped("x")]),
        ModelError,
        "a type is missing",
        "x",
    ),
    "input without a dtype": (
        lambda: model(it("Relu"), inputs=[value("x", 0)]),
        ModelError,
        "an element type is missing",
        "x",
    ),
}


@pytest.mark.parametrize("mistake", NAMES.values(), ids=NAMES)
def test_names(mistake: Mistake) -> None:
    refused(*mistake)


ODD_NAMES = ["a b", "%y", '"', "\n", "😀", "1", "{", "none", "->", " ", "n" * 5000]


@pytest.mark.parametrize("name", ODD_NAMES, ids=ascii)
def test_odd_names_are_no_mistake(name: str) -> None:
    shape = [value("x", FLOAT, [name, 3])]
    graph_ = import_model(model(it("Relu", outputs=[name]), shape, [untyped(name)]))
    assert graph_.output_names == (name,)
    assert evaluate(graph_, [-np.ones((2, 3), np.float32)])[0].tolist() == [[0] * 3] * 2


def test_order_of_nodes_does_not_matter() -> None:
    """A chain of 5,000 nodes, last one first."""
    count = 5000
    chain = [node("Neg", f"t{i}" if i else "x", f"t{i + 1}") for i in range(count)][::-1]
    graph_ = import_model(model(chain, outputs=[untyped(f"t{count}")]))
    x = np.ones((2, 3), np.float32)
    assert evaluate(graph_, [x])[0].tolist() == x.tolist()

"""Graphs for some sizes: they mean the same there, and what followed from sizes is constant."""

from __future__ import annotations

import numpy as np
import onnx.parser
import pytest

from graft.base.dims import symbol
from graft.base.dtypes import Array
from graft.base.errors import UserError
from graft.frontends.onnx.importer import import_model
from graft.ir.builder import Builder
from graft.ir.evaluate import evaluate
from graft.ir.graph import Graph
from graft.ir.types import tensor
from graft.ir.verify import verify
from graft.passes.bind_sizes import bind_sizes
from graft.passes.pipeline import optimize

HEAD = '<ir_version: 10, opset_import: ["" : 21]>'

# The branch that is taken, the shape of the result and the turns of the loop depend on the batch.
DECIDED = """
    net (float[batch, 6] x) => (float[batch, m] y, float[batch, 6] z, int64[2] s) {
        s = Shape (x)
        zero = Constant <value = int64 {0}> ()
        four = Constant <value = int64 {4}> ()
        first = Gather (s, zero)
        large = Greater (first, four)
        y = If (large) <
            then_branch = yes () => (float[a, b] t) { t = Concat <axis = 1> (x, x) },
            else_branch = no () => (float[c, d] e) { e = Neg (x) }
        >
        go = Constant <value = bool {1}> ()
        z = Loop (first, go, x) <
            body = turn (int64 i, bool c_in, float[batch, 6] v) => (bool c_out, float[batch, 6] w) {
                c_out = Identity (c_in)
                w = Add (v, x)
            }
        >
    }
"""


def numbers(*shape: int) -> Array:
    return np.random.default_rng(len(shape)).standard_normal(shape).astype(np.float32)


def ops(graph: Graph) -> list[str]:
    return [node.op.name for node in graph.walk()]


@pytest.mark.parametrize("batch", [1, 4, 5, 9])
def test_decisions_on_sizes_are_made(batch: int) -> None:
    graph = optimize(import_model(onnx.parser.parse_model(HEAD + DECIDED)))
    assert "if" in ops(graph)
    bound = optimize(bind_sizes(graph, {"batch": batch}))
    assert "if" not in ops(bound)
    assert bound.input_symbols == frozenset()
    assert [node.op.name for node in bound.nodes].count("loop") == 1
    (loop,) = (node for node in bound.nodes if node.op.name == "loop")
    for value in (*loop.attrs.body.inputs, *loop.attrs.body.outputs):
        assert value.tensor.is_static
    assert bound.outputs[0].shape == (batch, 12 if batch > 4 else 6)
    x = numbers(batch, 6)
    for found, wanted in zip(evaluate(bound, [x]), evaluate(graph, [x]), strict=True):
        np.testing.assert_array_equal(found, wanted)


def test_other_symbols_stay() -> None:
    build = Builder()
    x = build.input("x", tensor("float32", symbol("n"), symbol("m"), 2 * symbol("n")))
    y = build("reshape", x, shape=(symbol("n") * symbol("m"), -1))
    graph = build.build(y)
    bound = bind_sizes(graph, {"n": 3})
    assert bound.inputs[0].shape == (3, symbol("m"), 6)
    assert bound.outputs[0].shape is not None
    assert bound.outputs[0].shape[0] == 3 * symbol("m")
    assert bound.input_symbols == {"m"}
    assert graph.input_symbols == {"n", "m"}  # the old graph is what it was
    verify(bound)
    x_array = numbers(3, 5, 6)
    assert evaluate(bound, [x_array])[0].shape == (15, 6)
    assert bind_sizes(graph, {}) is graph


def test_sizes_that_the_model_cannot_have() -> None:
    build = Builder()
    x = build.input("x", tensor("float32", symbol("n"), 4))
    y = build.input("y", tensor("float32", symbol("n") - 3, 4))
    z = build.input("z", tensor("float32", 5, 4))
    graph = build.build(build("add", x, z), y)
    with pytest.raises(UserError, match=r"the model cannot have n=2: %y would be .*\[-1, 4\]"):
        bind_sizes(graph, {"n": 2})
    with pytest.raises(UserError, match=r"the model cannot have n=4: .*4 and 5"):
        bind_sizes(graph, {"n": 4})
    assert bind_sizes(graph, {"n": 5}).outputs[0].shape == (5, 4)

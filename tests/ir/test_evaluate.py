"""The evaluator: binds symbols, checks every value against its type, says where it fails."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

import graft.ops  # noqa: F401  (registers the operators)
from graft.base.dims import symbol
from graft.base.errors import EvaluationError, GraftError, InternalError, Location
from graft.ir.attrs import Attrs
from graft.ir.builder import Builder
from graft.ir.evaluate import evaluate
from graft.ir.graph import Graph, Node, Value
from graft.ir.op import Op, parse_operands
from graft.ir.parser import from_text
from graft.ir.types import tensor
from graft.ir.verify import verify

N = symbol("n")


def zeros(*shape: int) -> np.ndarray[Any, Any]:
    return np.zeros(shape, np.float32)


def graph(body: str, inputs: str = "%x: float32[2, 3]", result: str = "%y") -> Graph:
    location = ' at Node "layer/1" in "model.onnx"'
    node = f"  {body}{location}\n" if body else ""
    return verify(from_text(f"graph @g({inputs}) {{\n{node}  return {result}\n}}"))


ABS = "%y: float32[2, 3] = abs(%x)"
# what the graph is, what it is given, the message
BAD_INPUTS: dict[str, tuple[Graph, Sequence[Any], str]] = {
    "too few": (graph(ABS), [], "g takes 1 inputs, has 0"),
    "too many": (graph(ABS), [zeros(2, 3)] * 2, "g takes 1 inputs, has 2"),
    "dtype": (
        graph(ABS),
        [np.zeros((2, 3))],
        "%x is declared float32[2, 3] but is float64[2, 3]",
    ),
    "extent": (graph(ABS), [zeros(3, 2)], "%x is declared float32[2, 3] but is float32[3, 2]"),
    "rank": (graph(ABS), [zeros(6)], "%x is declared float32[2, 3] but is float32[6]"),
    "a list": (graph(ABS), [[1.0]], "%x is declared float32[2, 3] but is a list"),
    "None": (graph(ABS), [None], "%x is declared float32[2, 3] but is a NoneType"),
    "one symbol, two extents": (
        graph("%y: float32[n] = add(%x, %z)", "%x: float32[n], %z: float32[n]"),
        [zeros(2), zeros(3)],
        "%z is declared float32[n] but is float32[3] (with n = 2)",
    ),
    "an expression that does not come out": (
        graph("%y: float32[n] = abs(%x)", "%x: float32[n], %z: float32[2*n + 1]"),
        [zeros(2), zeros(4)],
        "%z is declared float32[2*n + 1] but is float32[4] (with n = 2)",
    ),
    "an array for a sequence": (
        graph("%y: int64[] = sequence.length(%x)", "%x: sequence<float32[2]>"),
        [zeros(2)],
        "%x is declared sequence<float32[2]> but is a ndarray",
    ),
    "an element of another extent": (
        graph("%y: int64[] = sequence.length(%x)", "%x: sequence<float32[2, ?]>"),
        [[zeros(2, 5), zeros(2, 0), zeros(3, 5)]],
        "%x is declared sequence<float32[2, ?]>, but its element 2 is float32[3, 5]",
    ),
    "an element of another dtype": (
        graph("%y: int64[] = sequence.length(%x)", "%x: sequence<float32[*]>"),
        [[zeros(), np.zeros(2)]],
        "%x is declared sequence<float32[*]>, but its element 1 is float64[2]",
    ),
}


@pytest.mark.parametrize("name", BAD_INPUTS)
def test_bad_inputs(name: str) -> None:
    given, inputs, message = BAD_INPUTS[name]
    with pytest.raises(EvaluationError) as caught:
        evaluate(given, inputs)
    assert caught.value.message == message


TAKE = graph("%y: float32[1, 3] = take(%x, %i)", "%x: float32[2, 3], %i: int64[1]")
RESHAPE = graph("%y: float32[a, b] = reshape(%x, %s)", "%x: float32[n], %s: int64[2]")
SUM = graph("%y: float32[*] = add(%x, %z)", "%x: float32[*], %z: float32[*]")
LARGE = graph(
    "%y: float32[n, 1000000, 1000000] = broadcast_to(%x) {shape=[`n`, 1000000, 1000000]}",
    "%x: float32[n, 1, 1]",
)
FAILURES: dict[str, tuple[Graph, Sequence[Any], str]] = {
    "index": (
        TAKE,
        [zeros(2, 3), np.array([2])],
        "index 2 is out of range for axis 0 of extent 2",
    ),
    "elements": (RESHAPE, [zeros(5), np.array([2, 3])], "5 elements do not fill [2, 3]"),
    "extents": (SUM, [zeros(2), zeros(3)], "add: extents 2 and 3 do not broadcast"),
    "size": (LARGE, [zeros(9, 1, 1)], "broadcast_to would make %y"),
}


@pytest.mark.parametrize("name", FAILURES)
def test_failures_name_the_node(name: str) -> None:
    given, inputs, message = FAILURES[name]
    with pytest.raises(GraftError) as caught:
        evaluate(given, inputs)
    assert message in caught.value.message
    assert caught.value.location == Location("model.onnx", "layer/1", "Node")
    assert not isinstance(caught.value, InternalError)


def test_a_failure_in_a_branch_names_the_node_inside() -> None:
    text = """graph @g(%c: bool[], %x: float32[2], %i: int64[1]) {
      %y: float32[1] = if(%c, %x, %i) {then_branch=graph @t(%a: float32[2], %j: int64[1]) {
        %z: float32[1] = take(%a, %j) at Gather "inner"
        return %z
      }, else_branch=graph @e(%a: float32[2], %j: int64[1]) {
        %z: float32[1] = take(%a, %j)
        return %z
      }} at If "outer"
      return %y
    }"""
    with pytest.raises(EvaluationError) as caught:
        evaluate(verify(from_text(text)), [np.array(True), zeros(2), np.array([5])])
    assert caught.value.location is not None
    assert caught.value.location.node == "inner"
    assert caught.value.hint == "indices go from -2 to 1"


def operator(evaluate_: Any, outputs: int = 1) -> Op:
    """An operator that claims to keep the type of its operand."""
    return Op("test.op", parse_operands("x"), lambda a, x: x, evaluate_, outputs=outputs)


# A meaning that breaks its operator's promise is Graft's mistake, not the user's.
BROKEN: list[tuple[Any, str]] = [
    (lambda a, x: x.astype(np.float64), "%y is declared float32[2, 3] but is float64[2, 3]"),
    (lambda a, x: x[:1], "%y is declared float32[2, 3] but is float32[1, 3]"),
    (lambda a, x: (x, x), "test.op gave 2 results"),
    (lambda a, x: None, "%y is declared float32[2, 3] but is a NoneType"),
]


@pytest.mark.parametrize(("meaning", "message"), BROKEN)
def test_a_meaning_that_contradicts_the_type(meaning: Any, message: str) -> None:
    x, y = Value("x", tensor("float32", 2, 3)), Value("y", tensor("float32", 2, 3))
    location = Location("model.onnx", "layer/1")
    node = Node(operator(meaning), (x,), Attrs(), (y,), location)
    with pytest.raises(InternalError) as caught:
        evaluate(Graph("g", (x,), (node,), (y,)), [zeros(2, 3)])
    assert caught.value.message == message
    assert caught.value.location == location


@pytest.mark.parametrize("extent", [0, 1, 5])
def test_symbols_in_attributes_are_bound_by_the_inputs(extent: int) -> None:
    given = graph("%y: float32[2*n, 3] = reshape(%x) {shape=[`2*n`, 3]}", "%x: float32[n, 6]")
    (found,) = evaluate(given, [np.arange(extent * 6, dtype=np.float32).reshape(extent, 6)])
    assert found.shape == (2 * extent, 3)


def test_symbols_of_results_are_bound_where_they_are_first_seen() -> None:
    given = verify(
        from_text(
            """graph @g(%x: float32[2, 3]) {
              %a: int64[2, k] = nonzero(%x)
              %b: int64[2, k] = negative(%a)
              %c: int64[2, 2*k] = concatenate(%a, %b) {axis=1}
              return %c
            }"""
        )
    )
    (found,) = evaluate(given, [np.eye(2, 3, dtype=np.float32)])
    assert found.shape == (2, 4)


def test_outputs_that_are_inputs_or_given_twice() -> None:
    g = Builder()
    x = g.input("x", tensor("float32", 2))
    y = g("negative", x)
    data = np.array([1, -0.0], np.float32)
    first, second, third = evaluate(g.build(y, x, y), [data])
    np.testing.assert_array_equal(second, data)
    assert first is third


def test_values_are_dropped_after_their_last_reader() -> None:
    g = Builder()
    x = g.input("x", tensor("float32", 2))
    y = g("exp", x)
    z = g("add", y, y)
    unread = g("abs", z)
    graph_ = g.build(z)
    assert graph_.last_reads == ((x,), (y,), (unread,))


def test_revised_results_are_what_later_nodes_read() -> None:
    g = Builder()
    x = g.input("x", tensor("float32", 2))
    given = g.build(*g.call("topk", g("negative", x), k=1))
    seen: list[tuple[str, int]] = []

    def revise(node: Node, results: Sequence[Any]) -> list[Any]:
        seen.append((node.op.name, len(results)))
        return [result + 1 for result in results]

    values, positions = evaluate(given, [zeros(2)], revise)
    assert seen == [("negative", 1), ("topk", 2)]
    assert values.tolist() == [2]
    assert positions.tolist() == [1]


def test_arithmetic_warns_of_nothing() -> None:
    """Division by zero and overflow are results, not warnings."""
    given = graph("%y: float32[2] = divide(%x, %z)", "%x: float32[2], %z: float32[2]")
    (found,) = evaluate(given, [np.array([1, 0], np.float32), zeros(2)])
    np.testing.assert_array_equal(found, [np.inf, np.nan])

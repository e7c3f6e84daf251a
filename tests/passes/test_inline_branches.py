"""An `if` on a constant becomes the branch that is taken, with names and symbols of its own."""

from __future__ import annotations

import numpy as np
import pytest
from tests.passes.checking import data_for, graph_of, node_of, operators, run_pass

from graft.base.dims import symbol
from graft.ir.builder import Builder, FreshSymbols
from graft.ir.graph import Graph, Value
from graft.ir.parser import from_text
from graft.ir.types import tensor
from graft.ir.verify import verify
from graft.passes.inline_branches import inline_branches

X = tensor("float32", 2, 3)


def branch(op: str, name: str = "branch") -> Graph:
    g = Builder(name)
    a = g.input("a", X)
    return g.build(g(op, a))


@pytest.mark.parametrize("shape", [(), (1,), (1, 1)])
@pytest.mark.parametrize(("condition", "taken"), [(True, "abs"), (False, "negative")])
def test_taken(condition: bool, taken: str, shape: tuple[int, ...]) -> None:
    def build(g: Builder, x: Value) -> Value:
        on = g.constant(np.full(shape, condition))
        bodies = {"then_branch": branch("abs"), "else_branch": branch("negative")}
        return g("exp", g("if", on, x, **bodies))

    after = run_pass(inline_branches, graph_of(build, X))
    assert operators(after) == [taken, "exp"]


def test_a_condition_that_is_not_constant_stays() -> None:
    graph = graph_of(
        lambda g, x, on: g("if", on, x, then_branch=branch("abs"), else_branch=branch("exp")),
        X,
        tensor("bool"),
    )
    assert inline_branches(graph) is graph


def test_a_branch_that_gives_back_its_operand() -> None:
    g = Builder("same")
    same = g.build(g.input("a", X))

    def build(g: Builder, x: Value) -> Value:
        on = g.constant(np.array(True))
        return g("if", on, x, then_branch=same, else_branch=branch("exp"), out="chosen")

    after = run_pass(inline_branches, graph_of(build, X))
    assert after.outputs == after.inputs
    assert after.output_names == ("chosen",)


def test_names_that_clash() -> None:
    """Both graphs call a value `%exp`, and the branch is taken twice."""
    body = branch("exp")

    def build(g: Builder, x: Value) -> Value:
        on = g.constant(np.array(True))
        y = g("exp", x)
        for _ in range(2):
            y = g("if", on, y, then_branch=body, else_branch=branch("abs"))
        return g("add", y, g("exp", x))

    after = run_pass(inline_branches, graph_of(build, X))
    assert operators(after) == ["exp", "exp", "exp", "exp", "add"]
    names = [node.output.name for node in after.nodes]
    assert len(set(names)) == len(names)


def nested(inner_condition: bool) -> Graph:
    g = Builder("outer")
    a = g.input("a", X)
    on = g.constant(np.array(inner_condition))
    return g.build(g("if", on, a, then_branch=branch("abs"), else_branch=branch("exp")))


def test_branches_within_branches() -> None:
    def build(g: Builder, x: Value, on: Value) -> Value:
        bodies = {"then_branch": nested(True), "else_branch": nested(False)}
        return g("if", on, x, **bodies)

    graph = graph_of(build, X, tensor("bool"))
    after = run_pass(inline_branches, graph)
    bodies = [operators(body) for _, body in node_of(after, "if").graphs()]
    assert bodies == [["abs"], ["exp"]]
    whole = graph_of(
        lambda g, x: g(
            "if", g.constant(np.array(True)), x, then_branch=nested(True), else_branch=nested(False)
        ),
        X,
    )
    assert operators(run_pass(inline_branches, whole)) == ["abs"]


def found_in(symbols: FreshSymbols | None = None) -> Graph:
    """A branch with an extent of its own, `d0` where it is built alone."""
    g = Builder("found", symbols)
    a = g.input("a", X)
    return g.build(g("nonzero", a))


def test_symbols_of_the_branch_become_fresh_ones() -> None:
    """The outer graph has a `d0` too, which is another extent."""

    def build(g: Builder, x: Value) -> tuple[Value, Value]:
        outer = g("nonzero", g("nn.relu", x))
        on = g.constant(np.array(True))
        bodies = {"then_branch": found_in(), "else_branch": found_in()}
        return g("if", on, x, **bodies), outer

    graph = graph_of(build, X)
    inner, outer = (value.shape for value in run_pass(inline_branches, graph).outputs)
    assert inner is not None
    assert outer is not None
    assert outer[1] == symbol("d0")
    assert inner[1] != outer[1]


@pytest.mark.parametrize("extents", [{"n": 2, "m": 3}, {"n": 5, "m": 1}])
def test_symbols_of_the_branchs_inputs_mean_the_operands_extents(extents: dict[str, int]) -> None:
    """The branch calls its operand's rows `m`, which outside is something else."""
    text = """graph @main(%x: float32[n, 4], %y: float32[m]) {
      %on: bool[] = constant() {value=dense<bool[]: true>}
      %z: float32[n, 2, 2] = if(%on, %x) {then_branch=graph @yes(%a: float32[m, 4]) {
        %b: float32[m, 2, 2] = reshape(%a) {shape=[`m`, 2, 2]}
        return %b
      }, else_branch=graph @no(%a: float32[k, 4]) {
        %b: float32[k, 2, 2] = reshape(%a) {shape=[`k`, 2, 2]}
        return %b
      }}
      %w: float32[n, 2, 2] = negative(%z)
      return %w, %y
    }"""
    graph = verify(from_text(text))
    after = run_pass(inline_branches, graph, data_for(graph, extents))
    assert operators(after) == ["reshape", "negative"]


def test_symbols_that_the_outer_graph_does_not_bind() -> None:
    """The operand's rows are known from data only, so no attribute outside may name them."""
    text = """graph @main(%x: float32[3, 4]) {
      %on: bool[] = constant() {value=dense<bool[]: false>}
      %found: int64[2, d0] = nonzero(%x)
      %z: int64[d0, 2] = if(%on, %found) {then_branch=graph @yes(%a: int64[2, k]) {
        %b: int64[k, 2] = transpose(%a)
        return %b
      }, else_branch=graph @no(%a: int64[2, k]) {
        %b: int64[k, 2] = reshape(%a) {shape=[`k`, 2]}
        return %b
      }}
      return %z
    }"""
    graph = verify(from_text(text))
    run_pass(inline_branches, graph)


def test_several_results_and_captures() -> None:
    def two(first: str, second: str) -> Graph:
        g = Builder("two")
        a, b = g.input("a", X), g.input("b", X)
        return g.build(g(first, a, b), g(second, b))

    def build(g: Builder, x: Value, y: Value) -> tuple[Value, ...]:
        on = g.constant(np.array(False))
        bodies = {"then_branch": two("add", "exp"), "else_branch": two("subtract", "abs")}
        return g.call("if", on, x, y, **bodies)

    after = run_pass(inline_branches, graph_of(build, X, X))
    assert operators(after) == ["subtract", "abs"]

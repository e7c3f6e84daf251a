"""Dead code goes, also in nested graphs; nothing else changes."""

from __future__ import annotations

import numpy as np
from tests.passes.checking import graph_of, node_of, operators, run_pass

from graft.ir.builder import Builder
from graft.ir.graph import Value
from graft.ir.types import tensor
from graft.passes.eliminate_dead_code import eliminate_dead_code

X = tensor("float32", 2, 3)


def test_unread_chain_goes() -> None:
    def build(g: Builder, x: Value) -> Value:
        g("exp", g("negative", x))
        return g("abs", x)

    assert operators(run_pass(eliminate_dead_code, graph_of(build, X))) == ["abs"]


def test_node_with_one_needed_result_stays_whole() -> None:
    def build(g: Builder, x: Value) -> Value:
        return g.call("topk", x, k=2)[1]

    graph = graph_of(build, X)
    assert eliminate_dead_code(graph) is graph


def test_graph_without_dead_code_is_the_same_object() -> None:
    graph = graph_of(lambda g, x: g("abs", g("negative", x)), X)
    assert eliminate_dead_code(graph) is graph


def test_inputs_stay_though_nobody_reads_them() -> None:
    graph = graph_of(lambda g, x, y: x, X, X)
    assert run_pass(eliminate_dead_code, graph).inputs == graph.inputs


def test_random_numbers_that_nobody_reads_go() -> None:
    def build(g: Builder, x: Value) -> Value:
        g("random.normal", shape=(2,))
        return x

    assert operators(run_pass(eliminate_dead_code, graph_of(build, X))) == []


def test_dead_code_in_a_branch() -> None:
    def branch(name: str, op: str) -> object:
        g = Builder(name)
        a = g.input("a", X)
        g("exp", a)
        return g.build(g(op, a))

    def build(g: Builder, x: Value, on: Value) -> Value:
        bodies = {"then_branch": branch("yes", "abs"), "else_branch": branch("no", "negative")}
        return g("if", on, x, **bodies)

    graph = graph_of(build, X, tensor("bool"))
    after = run_pass(eliminate_dead_code, graph, [np.ones((2, 3), np.float32), np.array(True)])
    bodies = dict(node_of(after, "if").graphs())
    assert {name: operators(body) for name, body in bodies.items()} == {
        "then_branch": ["abs"],
        "else_branch": ["negative"],
    }

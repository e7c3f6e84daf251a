"""The rewrite driver: fixpoints, order, names, termination."""

from __future__ import annotations

import logging

import numpy as np
import pytest

import graft.ops  # noqa: F401
from graft.base.errors import InternalError
from graft.ir.builder import Builder
from graft.ir.evaluate import evaluate
from graft.ir.graph import Value
from graft.ir.types import tensor
from graft.ir.verify import verify
from graft.rewrite.driver import Site, apply_rules
from graft.rewrite.pattern import is_op, op
from graft.rewrite.rule import Refusal, Replacement, RuleSet

DOUBLES = RuleSet("doubles")


@DOUBLES.rule(lambda x: op.negative(op.negative(x)))
def double_negation(site: Site, x: Value) -> Replacement:
    return x


@DOUBLES.rule(lambda x: x + x)
def doubled(site: Site, x: Value) -> Replacement:
    return site.emit("multiply", x, site.constant(np.array(2, x.dtype.numpy)))


def _x(g: Builder) -> Value:
    return g.input("x", tensor("float32", 2, 3))


def test_nested_pairs_cancel() -> None:
    g = Builder()
    value = _x(g)
    for _ in range(7):
        value = g("negative", value)
    result = apply_rules(g.build(value), DOUBLES)
    assert [node.op.name for node in result.nodes] == ["negative"]
    verify(result)


def test_result_keeps_name_and_meaning() -> None:
    g = Builder()
    x = _x(g)
    y = g("add", x, x, out="y")
    graph = g.build(g("exp", y))
    result = apply_rules(graph, DOUBLES)
    assert [node.op.name for node in result.nodes] == ["constant", "multiply", "exp"]
    assert result.nodes[1].output.name == "y"
    data = np.arange(6, dtype=np.float32).reshape(2, 3)
    np.testing.assert_array_equal(evaluate(verify(result), [data]), evaluate(graph, [data]))


def test_output_that_is_replaced_by_an_input() -> None:
    g = Builder()
    x = _x(g)
    result = apply_rules(g.build(g("negative", g("negative", x)), names=["y"]), DOUBLES)
    assert (result.nodes, result.outputs, result.output_names) == ((), (x,), ("y",))


def test_graph_without_matches_is_the_same_object() -> None:
    g = Builder()
    graph = g.build(g("exp", _x(g)))
    assert apply_rules(graph, DOUBLES) is graph


def test_shared_value_is_not_lost() -> None:
    g = Builder()
    x = _x(g)
    inner = g("negative", x)
    graph = g.build(g("negative", inner), inner)
    result = verify(apply_rules(graph, DOUBLES))
    assert len(result.nodes) == 1
    assert result.outputs[0] is x


def test_rules_that_loop_are_an_error() -> None:
    swaps = RuleSet("swaps")

    @swaps.rule(is_op("exp"))
    def to_log(site: Site) -> Replacement:
        return site.emit("log", *site.node.args)

    @swaps.rule(is_op("log"))
    def to_exp(site: Site) -> Replacement:
        return site.emit("exp", *site.node.args)

    g = Builder()
    with pytest.raises(InternalError, match=r"'swaps' do not come to an end.*'to_log'"):
        apply_rules(g.build(g("exp", _x(g))), swaps)


def test_refusal_leaves_the_graph_alone() -> None:
    rules = RuleSet("refusing")

    @rules.rule(is_op("exp"))
    def never(site: Site) -> Replacement:
        return Refusal("not today")

    g = Builder()
    graph = g.build(g("exp", _x(g)))
    assert apply_rules(graph, rules) is graph


def test_replacement_of_another_type_is_an_internal_error() -> None:
    rules = RuleSet("wrong")

    @rules.rule(is_op("exp"))
    def shorter(site: Site) -> Replacement:
        return site.constant(np.zeros(3, np.float32))

    g = Builder()
    with pytest.raises(InternalError, match="rule 'shorter' replaces"):
        apply_rules(g.build(g("exp", _x(g))), rules)


def test_two_rules_of_one_name() -> None:
    rules = RuleSet("twice")
    rules.rule(is_op("exp"))(double_negation)
    with pytest.raises(InternalError, match="two rules of 'twice' are named 'double_negation'"):
        rules.rule(is_op("log"))(double_negation)


def test_refusals_are_logged_with_their_reason(caplog: pytest.LogCaptureFixture) -> None:
    rules = RuleSet("shy")

    @rules.rule(lambda x: op.abs(x))
    def never(site: Site, x: Value) -> Replacement:
        return Refusal("it is Monday")

    g = Builder()
    graph = g.build(g("abs", _x(g), out="y"))
    with caplog.at_level(logging.DEBUG, logger="graft.rewrite.driver"):
        assert apply_rules(graph, rules) is graph
    assert caplog.messages == ["shy: never refuses %y: it is Monday"]

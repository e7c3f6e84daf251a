"""Matching patterns against graphs: what matches, what is bound, and why something does not."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

import graft.ops  # noqa: F401  (registers the operators)
from graft.base.dims import symbol
from graft.base.dtypes import Array
from graft.ir.builder import Builder
from graft.ir.graph import Value
from graft.ir.literal import Literal
from graft.ir.types import tensor
from graft.rewrite.match import Match, Mismatch, all_are, match, matches
from graft.rewrite.pattern import (
    Pattern,
    is_constant,
    is_op,
    is_tuple,
    is_tuple_get_item,
    op,
    wildcard,
)

X, Y, Z = wildcard("x"), wildcard("y"), wildcard("z")
Make = Callable[[Builder, Value, Value], Value]


def found(pattern: Pattern, make: Make) -> Match | Mismatch:
    """Match against what `make` builds from two inputs."""
    g = Builder()
    inputs = g.input("a", tensor("float32", 2, 3)), g.input("b", tensor("float32", 2, 3))
    root = make(g, *inputs)
    return match(pattern, root, g.build(root).producers.get)


def two(g: Builder, value: float = 2.0) -> Value:
    return g.constant(np.float32(value))


MATCHES: dict[str, tuple[Pattern, Make]] = {
    "wildcard": (X, lambda g, a, b: a),
    "operator": (is_op("exp"), lambda g, a, b: g("exp", a)),
    "one of several": (is_op("log", "exp")(X), lambda g, a, b: g("exp", a)),
    "operands": (X - Y, lambda g, a, b: g("subtract", a, b)),
    "the same twice": (X - X, lambda g, a, b: g("subtract", a, a)),
    "commuted": (op.exp(X) + Y, lambda g, a, b: g("add", a, g("exp", b))),
    "commuted deep down": (
        (op.exp(X) + Y) * (op.log(Z) + X),
        lambda g, a, b: g("multiply", g("add", a, g("log", b)), g("add", g("exp", a), g("abs", b))),
    ),
    "number": (X * 2, lambda g, a, b: g("multiply", two(g), a)),
    "rounded number": (X * 2**0.5, lambda g, a, b: g("multiply", a, two(g, 1.41421))),
    "many equal numbers": (
        X * 2,
        lambda g, a, b: g("multiply", a, g.constant(np.full((2, 3), 2, np.float32))),
    ),
    "constant": (X + is_constant(), lambda g, a, b: g("add", a, two(g, 7))),
    "either": ((X**2) | (X * X), lambda g, a, b: g("multiply", a, a)),
    "attribute": (
        op.sum(X, keepdims=True),
        lambda g, a, b: g("sum", a, axes=[0], keepdims=True),
    ),
    "attribute as a list": (
        is_op("sum").has_attr(axes=[0, 1]),
        lambda g, a, b: g("sum", a, axes=(0, 1)),
    ),
    "dtype": (X.has_dtype("float32", "float64"), lambda g, a, b: a),
    "shape": (X.has_shape(None, 3), lambda g, a, b: a),
    "test": (X.where(lambda value: value.name == "a", "is not a"), lambda g, a, b: a),
    "tuple": (
        is_op("concatenate")(is_tuple([X, Y, X])),
        lambda g, a, b: g("concatenate", a, b, a),
    ),
    "second result": (
        is_tuple_get_item(is_op("topk")(X), 1),
        lambda g, a, b: g.call("topk", a, k=1)[1],
    ),
    "type": (X.has_type(tensor("float32", 2, 3)), lambda g, a, b: a),
    "each operand": (
        is_op("concatenate").each(op.exp(X) | op.log(X)),
        lambda g, a, b: g("concatenate", g("exp", a), g("log", b), g("exp", b)),
    ),
    "each of one operand": (
        is_op("concatenate").each(op.exp(X)),
        lambda g, a, b: g("concatenate", g("exp", a)),
    ),
    "each, with attributes": (
        is_op("concatenate").each(X, axis=1),
        lambda g, a, b: g("concatenate", a, b, axis=1),
    ),
    "dominated directly": (
        is_op("abs").dominates(is_op("exp")),
        lambda g, a, b: g("abs", g("exp", a)),
    ),
    "dominated by way of others": (
        is_op("abs").dominates(is_op("exp"), is_op("negative", "tanh")),
        lambda g, a, b: g("abs", g("negative", g("tanh", g("exp", a)))),
    ),
    "dominated by way of anything": (
        is_op("abs").dominates(is_op("exp")),
        lambda g, a, b: g("abs", g("negative", g("log", g("exp", a)))),
    ),
    "beside the way": (
        is_op("add").dominates(is_op("exp"), is_op("multiply")),
        lambda g, a, b: g("add", g("multiply", g("exp", a), g("log", b)), b),
    ),
    "optional, there": (
        op.nn.relu(is_op("exp")(X).optional(lambda e: op.negative(e))),
        lambda g, a, b: g("nn.relu", g("negative", g("exp", a))),
    ),
    "optional, not there": (
        op.nn.relu(is_op("exp")(X).optional(lambda e: op.negative(e))),
        lambda g, a, b: g("nn.relu", g("exp", a)),
    ),
}


@pytest.mark.parametrize("name", MATCHES)
def test_matches(name: str) -> None:
    pattern, make = MATCHES[name]
    assert isinstance(found(pattern, make), Match)


# The value named is the one at which the furthest attempt failed.
MISMATCHES: dict[str, tuple[Pattern, Make, str]] = {
    "input": (is_op("exp"), lambda g, a, b: a, "%a: is an input, not exp"),
    "operator": (is_op("exp", "log"), lambda g, a, b: g("abs", a), "%abs: is abs, not exp or log"),
    "deeper": (
        op.nn.relu(op.exp(X)),
        lambda g, a, b: g("nn.relu", g("abs", a)),
        "%abs: is abs, not exp",
    ),
    "not the same": (X - X, lambda g, a, b: g("subtract", a, b), "%b: is not %a again"),
    "order": (X - 2, lambda g, a, b: g("subtract", two(g), a), "%a: is not a constant"),
    "number": (
        X * 2,
        lambda g, a, b: g("multiply", a, two(g, 2.001)),
        "%const: is not the constant 2",
    ),
    "operand count": (
        is_op("concatenate")(X, Y),
        lambda g, a, b: g("concatenate", a),
        "%concatenate: has 1 operands, not 2",
    ),
    "attribute": (
        is_op("sum")(X).has_attr(keepdims=True),
        lambda g, a, b: g("sum", a),
        "%sum: keepdims is False, not True",
    ),
    "attribute in a call": (
        op.sum(X, axes=(1,)),
        lambda g, a, b: g("sum", a, axes=[0]),
        "%sum: axes is (0,), not (1,)",
    ),
    "attribute of an input": (X.has_attr(axis=1), lambda g, a, b: a, "%a: is an input"),
    "dtype": (
        X.has_dtype("int8", "uint8"),
        lambda g, a, b: a,
        "%a: is float32, not int8 or uint8",
    ),
    "rank": (X.has_shape(None), lambda g, a, b: a, "%a: is float32[2, 3], not of rank 1"),
    "shape": (
        X.has_shape(2, 4),
        lambda g, a, b: a,
        "%a: is float32[2, 3], not of shape [2, 4]",
    ),
    "test": (X.where(lambda value: False, "is too slow"), lambda g, a, b: a, "%a: is too slow"),
    "type": (
        X.has_type(tensor("float32", 2, 4)),
        lambda g, a, b: a,
        "%a: is float32[2, 3], not float32[2, 4]",
    ),
    "one operand of each": (
        is_op("concatenate").each(op.exp(X)),
        lambda g, a, b: g("concatenate", g("exp", a), g("log", b)),
        "%log: is log, not exp",
    ),
    "not dominated": (
        is_op("abs").dominates(is_op("exp"), is_op("negative")),
        lambda g, a, b: g("abs", g("negative", g("tanh", g("exp", a)))),
        "%tanh: is tanh, not exp",
    ),
    "dominated by nothing": (
        is_op("abs").dominates(is_op("exp"), is_op("negative")),
        lambda g, a, b: g("abs", g("negative", b)),
        "%b: is an input, not exp",
    ),
    "another way around": (
        is_op("add").dominates(is_op("exp"), is_op("negative")),
        lambda g, a, b: (e := g("exp", a)) and g("add", g("negative", e), g("tanh", e)),
        "%tanh: is tanh, not negative",
    ),
    "first result": (
        is_tuple_get_item(is_op("topk")(X), 0),
        lambda g, a, b: g.call("topk", a, k=1)[1],
        "%topk_1: is not result 0 of topk",
    ),
}


@pytest.mark.parametrize("name", MISMATCHES)
def test_mismatches_say_why(name: str) -> None:
    pattern, make, reason = MISMATCHES[name]
    result = found(pattern, make)
    assert isinstance(result, Mismatch)
    assert str(result) == reason


def test_the_reason_is_that_of_the_longest_attempt() -> None:
    pattern = op.nn.relu(op.exp(op.abs(X)) | op.negative(X))
    result = found(pattern, lambda g, a, b: g("nn.relu", g("exp", g("log", a))))
    assert str(result) == "%log: is log, not abs"


def test_what_is_bound_and_covered() -> None:
    inner = op.exp(X)
    pattern = inner + Y

    def make(g: Builder, a: Value, b: Value) -> Value:
        return g("add", b, g("exp", a))

    result = found(pattern, make)
    assert isinstance(result, Match)
    assert (result[X].name, result[Y].name, result[inner].name) == ("a", "b", "exp")
    assert [node.op.name for node in result.nodes] == ["add", "exp"]
    assert result.root.name == "add"


def test_a_shared_node_is_covered_once() -> None:
    result = found(op.exp(X) * op.exp(X), lambda g, a, b: g("multiply", *[g("exp", a)] * 2))
    assert isinstance(result, Match)
    assert [node.op.name for node in result.nodes] == ["multiply", "exp"]


def names_of(result: Match | Mismatch) -> list[str]:
    assert isinstance(result, Match)
    return [node.output.name for node in result.nodes]


def test_all_ways_from_the_dominator_are_covered() -> None:
    """A diamond: both ways from exp lead to the sum, and what is added beside them is not in."""

    def make(g: Builder, a: Value, b: Value) -> Value:
        top = g("exp", a)
        return g("add", g("negative", g("tanh", top)), g("multiply", top, g("log", b)))

    pattern = is_op("add").dominates(is_op("exp"), is_op("negative", "tanh", "multiply"))
    found_nodes = names_of(found(pattern, make))
    assert sorted(found_nodes) == ["add", "exp", "multiply", "negative", "tanh"]


def test_the_nearest_dominator_comes_first_and_further_ones_follow() -> None:
    g = Builder()
    a = g.input("a", tensor("float32", 2, 3))
    root = g("abs", g("exp", g("negative", g("exp", a))))
    pattern = is_op("abs").dominates(is_op("exp"), is_op("exp", "negative"))
    every = matches(pattern, root, g.build(root).producers.get)
    assert [len(one.nodes) for one in every] == [2, 4]


def test_a_dominator_matches_as_a_pattern_of_its_own() -> None:
    """Parent, path and child may each be more than one node, and share wildcards with the rest."""
    pattern = op.nn.relu(op.negative(Y)).dominates(op.exp(op.abs(X)), op.tanh(wildcard())) + X

    def make(g: Builder, inner: Value, other: Value) -> Value:
        top = g("exp", g("abs", inner))
        return g("add", g("nn.relu", g("negative", g("tanh", g("tanh", top)))), other)

    same = found(pattern, lambda g, a, b: make(g, a, a))
    assert sorted(names_of(same)) == [
        "abs",
        "add",
        "exp",
        "negative",
        "relu",
        "tanh",
        "tanh_1",
    ]
    assert isinstance(same, Match)
    assert same[X].name == "a"
    assert isinstance(found(pattern, lambda g, a, b: make(g, a, b)), Mismatch)


def test_wildcards_stand_for_something_else_in_each_operand() -> None:
    """But what was bound before stays bound."""
    pattern = op.subtract(Y, is_op("concatenate").each(op.add(X, Y)))

    def make(g: Builder, first: Value, second: Value) -> Value:
        row = g.input("row", tensor("float32", 3))
        summands = row if first is second else g("abs", row)
        parts = g("add", g("exp", first), row), g("add", g("log", first), summands)
        return g("subtract", row, g("concatenate", *parts))

    assert isinstance(found(pattern, lambda g, a, b: make(g, a, a)), Match)
    assert isinstance(found(pattern, lambda g, a, b: make(g, a, b)), Mismatch)


def test_failed_alternatives_leave_nothing_behind() -> None:
    """The first order of the operands binds x before it fails."""
    pattern = op.exp(X) + op.log(op.exp(X))

    def make(g: Builder, a: Value, b: Value) -> Value:
        return g("add", g("log", g("exp", b)), g("exp", b))

    result = found(pattern, make)
    assert isinstance(result, Match)
    assert result[X].name == "b"


def test_patterns_that_share_a_part() -> None:
    """One pattern object stands for one value, wherever it is used."""
    shared = op.exp(X)
    pattern = shared * op.tanh(shared)
    same = found(pattern, lambda g, a, b: (e := g("exp", a)) and g("multiply", e, g("tanh", e)))
    assert isinstance(same, Match)
    other = found(pattern, lambda g, a, b: g("multiply", g("exp", a), g("tanh", g("exp", a))))
    assert isinstance(other, Mismatch)


def test_symbolic_extents_match_no_number() -> None:
    g = Builder()
    x = g.input("x", tensor("float32", symbol("n"), 3))
    assert isinstance(match(X.has_shape(None, 3), x, lambda v: None), Match)
    assert isinstance(match(X.has_shape(2, 3), x, lambda v: None), Mismatch)


# array, number, whether all elements are about the number
NUMBERS = [
    (np.float32(1), 1, True),
    (np.full((2, 3), 0.5), 0.5, True),
    (np.array([0.5, 0.5, 0.6]), 0.5, False),
    (np.array([0.5, 0.6, 0.5]), 0.5, False),
    (np.float16(0.7071), 0.5**0.5, True),
    (np.float32(0.7), 0.5**0.5, False),
    (np.float32(1.0001), 1, False),  # whole numbers are meant exactly
    (np.float32(-0.0), 0, True),
    (np.float32(1e-30), 0, False),
    (np.float32(np.nan), 0, False),
    (np.float32(np.inf), 1, False),
    (np.int64(2**62), 2**62, True),
    (np.array([], np.float32), 1, False),
    (np.array(["1"], object), 1, False),
    (np.array([1 + 0j]), 1, False),
    (np.array([True]), 1, True),
]


@pytest.mark.parametrize(("array", "number", "expected"), NUMBERS)
def test_numbers(array: Array, number: float, expected: bool) -> None:
    assert all_are(Literal(np.asarray(array)), number) is expected

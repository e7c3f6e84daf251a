"""The pattern language: combinators, arithmetic, formulas."""

from __future__ import annotations

import pytest

from graft.base.errors import InternalError
from graft.rewrite.pattern import (
    AttrsAre,
    ConstantIs,
    Constrained,
    Either,
    OpIs,
    Pattern,
    ResultOf,
    Wildcard,
    formula,
    is_constant,
    is_op,
    is_tuple,
    is_tuple_get_item,
    op,
    wildcard,
)
from graft.rewrite.rule import RuleSet, merged, root_operators

X, Y = wildcard("x"), wildcard("y")

ARITHMETIC: list[tuple[Pattern, str, tuple[object, object]]] = [
    (X + Y, "add", (X, Y)),
    (X + 1, "add", (X, 1)),
    (1 + X, "add", (1, X)),
    (X - Y, "subtract", (X, Y)),
    (2 - X, "subtract", (2, X)),
    (X * 0.5, "multiply", (X, 0.5)),
    (0.5 * X, "multiply", (0.5, X)),
    (X / Y, "divide", (X, Y)),
    (1 / X, "divide", (1, X)),
    (X**2, "power", (X, 2)),
]


@pytest.mark.parametrize(("pattern", "name", "operands"), ARITHMETIC)
def test_arithmetic(pattern: Pattern, name: str, operands: tuple[object, object]) -> None:
    assert isinstance(pattern, OpIs)
    assert pattern.names == (name,)
    assert pattern.args is not None
    for found, wanted in zip(pattern.args, operands, strict=True):
        if isinstance(wanted, Pattern):
            assert found is wanted
        else:
            assert isinstance(found, ConstantIs)
            assert found.number == wanted


def test_negation() -> None:
    pattern = -X
    assert isinstance(pattern, OpIs)
    assert (pattern.names, pattern.args) == (("negative",), (X,))


def test_operators_by_name() -> None:
    pattern = op.nn.softmax(X, axis=-1)
    assert (pattern.names, pattern.args, pattern.attrs) == (("nn.softmax",), (X,), (("axis", -1),))
    assert op.where(X, Y, 0).names == ("where",)
    with pytest.raises(AttributeError):
        _ = op.__wrapped__


def test_operands_left_open() -> None:
    assert is_op("exp").args is None
    assert is_op("exp", "log")(X).names == ("exp", "log")


def test_patterns_are_the_same_only_if_they_are_one_object() -> None:
    assert wildcard("x") != wildcard("x")
    assert len({wildcard(), wildcard(), X, X}) == 3


def test_alternatives() -> None:
    either = X | Y
    assert isinstance(either, Either)
    assert either.alternatives == (X, Y)


def test_optional_prefers_what_is_wrapped() -> None:
    conv = is_op("nn.conv2d")(X, Y)
    pattern = conv.optional(lambda inner: is_op("nn.bias_add")(inner, wildcard()))
    assert isinstance(pattern, Either)
    wrapped, plain = pattern.alternatives
    assert plain is conv
    assert isinstance(wrapped, OpIs)
    assert wrapped.args is not None
    assert wrapped.args[0] is conv


def test_constraints_by_mapping_and_by_name() -> None:
    pattern = is_op("sum").has_attr({"axes": (0,)}, keepdims=True)
    assert isinstance(pattern, Constrained)
    assert pattern.constraint == AttrsAre((("axes", (0,)), ("keepdims", True)))


def test_tuples_stand_for_their_fields() -> None:
    pattern = is_op("concatenate")(is_tuple([X, Y]))
    assert pattern.args == (X, Y)


def test_one_of_several_results() -> None:
    pattern = is_tuple_get_item(is_op("topk")(X), 1)
    assert isinstance(pattern, ResultOf)
    assert pattern.index == 1
    with pytest.raises(TypeError, match="wants an is_op pattern"):
        is_tuple_get_item(wildcard(), 0)


def test_formula_names_its_wildcards() -> None:
    found = formula(lambda x, scale: op.erf(x * scale) + x)
    assert found.names == ("x", "scale")
    assert isinstance(found.wildcards["x"], Wildcard)
    assert isinstance(found.pattern, OpIs)
    assert found.pattern.args is not None
    assert found.pattern.args[1] is found.wildcards["x"]


ROOTS: list[tuple[Pattern, tuple[str, ...]]] = [
    (is_op("exp", "log"), ("exp", "log")),
    (is_op("exp")(X) | is_op("abs"), ("exp", "abs")),
    (is_op("exp").has_dtype("float32"), ("exp",)),
    (is_tuple_get_item(is_op("split"), 1), ("split",)),
    (is_op("abs").dominates(is_op("exp")), ("abs",)),
    (is_op("concatenate").each(X), ("concatenate",)),
]


@pytest.mark.parametrize(("pattern", "names"), ROOTS)
def test_where_a_rule_can_start(pattern: Pattern, names: tuple[str, ...]) -> None:
    assert root_operators(pattern) == names


@pytest.mark.parametrize("pattern", [X, is_constant(1), X | is_op("exp")])
def test_a_rule_cannot_start_anywhere(pattern: Pattern) -> None:
    with pytest.raises(InternalError, match="a rule cannot start at a"):
        root_operators(pattern)


def test_rules_of_several_sets() -> None:
    first, second = RuleSet("first"), RuleSet("second")
    first.rule(is_op("exp"))(lambda site: site.node.args[0])
    second.rule(lambda x: op.log(x) | op.exp(x))(lambda site, x: x)
    both = merged("both", (first, second))
    index = both.by_root()
    assert [len(index[name]) for name in ("exp", "log")] == [2, 1]
    assert both.name == "both"

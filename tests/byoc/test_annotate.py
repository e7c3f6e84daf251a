"""Tables, predicates and pins."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from tests.byoc.fakes import Fake, chain, conv_relu

from graft.base.errors import BackendError, Location, UserError
from graft.byoc.annotate import (
    Pins,
    ask,
    entry,
    fits,
    predicate_of,
    register_op_attr,
    register_pattern_table,
    tables_of,
    unregister,
)
from graft.rewrite.pattern import OpIs, formula, is_op, op, wildcard
from graft.rewrite.rule import Refusal


@pytest.fixture(autouse=True)
def forget() -> Iterator[None]:
    yield
    unregister("fake")


def _relu() -> OpIs:
    return is_op("nn.relu")(wildcard())


LINES = {
    "name first": ("relu", _relu()),
    "pattern first": (_relu(), "relu"),
    "function": ("relu", _relu),
    "function first": (_relu, "relu"),
    "formula": ("relu", formula(lambda x: op.nn.relu(x))),
    "formula function": ("relu", lambda x: op.nn.relu(x)),
    "with a check": ("relu", _relu(), lambda match: True),
}


@pytest.mark.parametrize("form", LINES)
def test_lines_of_tables(form: str) -> None:
    made = entry(LINES[form])
    assert made.name == "relu"
    assert isinstance(made.formula.pattern, OpIs)
    assert made.formula.pattern.names == ("nn.relu",)
    assert (made.check is not None) == (form == "with a check")


def test_parameters_are_named_wildcards() -> None:
    made = entry(("scaled", lambda x, scale: op.exp(x * scale)))
    assert set(made.formula.wildcards) == {"x", "scale"}


@pytest.mark.parametrize("line", [("relu",), ("a", "b"), (_relu(), _relu()), ("a", 3)])
def test_what_is_no_line(line: tuple[object, ...]) -> None:
    with pytest.raises(UserError, match=r"is no line of a pattern table|is no pattern"):
        entry(line)


def test_registered_tables_come_after_the_backends_own() -> None:
    backend = Fake(patterns=[("own", is_op("exp"))])
    register_pattern_table("fake", [("more", is_op("log"))])
    register_pattern_table("other", [("not ours", is_op("abs"))])
    try:
        assert [line.name for line in tables_of(backend)] == ["own", "more"]
    finally:
        unregister("other")


def test_predicates() -> None:
    @register_op_attr("nn.relu", "codegen.fake")
    def relu(_node: object) -> bool:
        return True

    assert predicate_of("fake", "nn.relu") is relu
    assert predicate_of("fake", "exp") is None
    assert predicate_of("other", "nn.relu") is None
    unregister("fake")
    assert predicate_of("fake", "nn.relu") is None


@pytest.mark.parametrize("attr", ["fake", "codegen.", "target.fake", ""])
def test_an_attribute_that_names_no_backend(attr: str) -> None:
    with pytest.raises(UserError, match="names no backend"):
        register_op_attr("nn.relu", attr)


def test_a_misspelt_operator() -> None:
    with pytest.raises(UserError, match=r"nn\.reul"):
        register_op_attr("nn.reul", "codegen.fake")


def test_verdicts() -> None:
    refusal = Refusal("too slow")
    node = conv_relu().nodes[-1]

    def answer(verdict: Any) -> Refusal | None:
        return ask(lambda _node: verdict, node, "the check of x", node)

    assert answer(refusal) is refusal
    assert answer(True) is None
    assert answer(None) is None
    assert answer(np.False_) is not None
    assert str(answer(False)) == "the check of x says no"
    with pytest.raises(BackendError, match="neither None nor a Refusal for %relu"):
        answer("we do not do that")


def test_pins() -> None:
    graph = chain("exp", "nn.relu")
    exp, relu = graph.nodes
    pins = Pins.parse(["exp=fake", "re*=!fake"])
    assert pins.verdict(exp, "fake") is None
    assert str(pins.verdict(exp, "host")) == "the pin 'exp=fake' keeps it off host"
    assert str(pins.verdict(relu, "fake")) == "the pin 're*=!fake' keeps it off fake"
    assert pins.verdict(relu, "host") is None
    assert pins.verdict(relu, "other") is None


def test_pins_know_onnx_names() -> None:
    node = replace(chain("exp").nodes[0], location=Location(node="layer4/act"))
    assert fits(node, "layer4/*")
    assert fits(node, "exp")
    assert not fits(node, "layer3/*")


def test_names_with_equals_signs() -> None:
    (pin,) = Pins.parse(["a=b=host"]).pins
    assert (pin.glob, pin.backend, pin.forbidden) == ("a=b", "host", False)
    assert str(pin) == "a=b=host"


@pytest.mark.parametrize("text", ["", "host", "=host", "a=", "a=!"])
def test_pins_that_cannot_be_read(text: str) -> None:
    with pytest.raises(UserError, match="cannot be read"):
        Pins.parse([text])


def test_pins_that_fit_nothing() -> None:
    graph = conv_relu()
    pins = Pins.parse(["relu=host", "rleu=host"])
    assert [str(pin) for pin in pins.unused(graph.nodes)] == ["rleu=host"]

"""The operator reference: it is up to date, and it has something to say about every operator."""

from __future__ import annotations

import pytest
from benchmarks.operator_examples import EXAMPLES

from benchmarks import operators
from graft.ops import OPS


def test_the_page_is_up_to_date() -> None:
    written = operators.PAGE.read_text(encoding="utf-8")
    assert operators.page() == written, "run `python -m benchmarks.operators --write`"


@pytest.mark.parametrize("name", OPS)
def test_every_operator_has_a_meaning_in_a_line(name: str) -> None:
    summary = OPS.get(name).summary
    assert summary
    assert "\n" not in summary
    assert not summary.endswith(".")
    assert operators.family(name) in operators.FAMILIES


def test_examples_are_of_operators() -> None:
    assert set(EXAMPLES) <= set(OPS)


def test_onnx_operators_that_become_one() -> None:
    found = operators.onnx_sources()
    assert found["nn.conv2d"] == ["Conv"]
    assert found["argmax"][0] == "ArgMax"
    assert found["random.normal"][0] == "RandomNormal"
    assert found["add"][:2] == ["Add", "Sum"]
    assert "region" not in found

"""How errors read: what is wrong, where, and what to do about it."""

from __future__ import annotations

import pytest

from graft.base.errors import ModelError, Place

PLACES = [
    (None, "no"),
    (Place(), "no"),
    (Place("m.onnx"), "no\n  in m.onnx"),
    (Place("m.onnx", "conv1"), "no\n  at node 'conv1' in m.onnx"),
    (Place("m.onnx", "conv1", "Conv"), "no\n  at node 'conv1' (Conv) in m.onnx"),
    (Place("", "conv1", "Conv"), "no\n  at node 'conv1' (Conv)"),
]


@pytest.mark.parametrize(("place", "text"), PLACES)
def test_places(place: Place | None, text: str) -> None:
    assert str(ModelError("no", place)) == text
    assert str(ModelError("no", place, "yes")) == f"{text}\n  hint: yes"


def test_the_first_place_counts() -> None:
    error = ModelError("no").at(None).at(Place("a", "inner")).at(Place("a", "outer"))
    assert error.place == Place("a", "inner")

"""How errors read: what is wrong, where, and what to do about it."""

from __future__ import annotations

from typing import Any

import pytest

from graft.base.errors import GraftWarning, Location, ModelError, warn_user
from graft.base.names import LONGEST_LINE

PLACES = [
    (None, "no"),
    (Location(), "no"),
    (Location("m.onnx"), "no\n  in m.onnx"),
    (Location("m.onnx", "conv1"), "no\n  at node 'conv1' in m.onnx"),
    (Location("m.onnx", "conv1", "Conv"), "no\n  at node 'conv1' (Conv) in m.onnx"),
    (Location("", "conv1", "Conv"), "no\n  at node 'conv1' (Conv)"),
]


@pytest.mark.parametrize(("location", "text"), PLACES)
def test_places(location: Location | None, text: str) -> None:
    assert str(ModelError("no", location)) == text
    assert str(ModelError("no", location, "yes")) == f"{text}\n  hint: yes"


def test_the_first_place_counts() -> None:
    error = ModelError("no").at(None).at(Location("a", "inner")).at(Location("a", "outer"))
    assert error.location == Location("a", "inner")


def test_names_in_messages_neither_break_lines_nor_drive_terminals() -> None:
    location = Location("a\x1b.onnx", "b\nc", "d\u202e")
    error = ModelError("no 'x\n  hint: y'", location, "z\x07", details=["first\r", "second"])
    assert str(error).split("\n") == [
        r"no 'x\n  hint: y'",
        r"  first\r",
        "  second",
        r"  at node 'b\nc' (d\u202e) in a\u001b.onnx",
        r"  hint: z\u0007",
    ]
    assert error.message == "no 'x\n  hint: y'"  # for programs


def test_an_error_within_another_message_is_one_line() -> None:
    error = ModelError("no", Location("m.onnx"), "yes")
    assert f"because: {error}" == "because: no; in m.onnx; hint: yes"


def test_long_messages_are_shortened() -> None:
    text = str(ModelError(f"begin {'x' * 100_000} end"))
    assert len(text) == LONGEST_LINE
    assert text.startswith("begin x")
    assert text.endswith("x end")


def test_warnings_are_at_the_line_of_the_user() -> None:
    names: dict[str, Any] = {"__name__": "graft.deep", "warn": warn_user, "Kind": GraftWarning}
    exec("def deeper(n): return deeper(n - 1) if n else warn('x', Kind)", names)
    with pytest.warns(GraftWarning, match="x") as caught:
        names["deeper"](7)
    assert caught[0].filename == __file__

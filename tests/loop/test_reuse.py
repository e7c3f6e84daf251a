"""Values that are at hand are not loaded again."""

from __future__ import annotations

import numpy as np

from graft.loop.interpret import interpret
from graft.loop.ir import Function
from graft.loop.parse import from_text
from graft.loop.print import to_text
from graft.loop.reuse import reuse_values
from graft.loop.verify import verify

HEAD = "kernel kernel(x: float32[4, 4], y: float32[4, 4], z: float32[4, 4]) {\n"
COLUMN = "x[ramp(0, 1, 4), 0]"
MASK = "ramp(0, 1, 4) < 3:int64x4"


def reused(*statements: str) -> str:
    """The text of some statements, which compute the same as before."""
    function = from_text(HEAD + "\n".join(statements) + "\n}\n")
    changed = verify(Function("kernel", function.parameters, reuse_values(function.body)))
    results = []
    for one in (function, changed):
        arrays = {name: np.arange(16, dtype=np.float32).reshape(4, 4) + 1 for name in "xyz"}
        interpret(one, arrays)
        results.append(arrays)
    for name in "xyz":
        np.testing.assert_array_equal(results[0][name], results[1][name])
    return to_text(changed)


def test_what_was_just_stored_is_not_loaded() -> None:
    text = reused("y[0, 1] = x[0, 0] * 2.0", "z[0, 0] = y[0, 1] + 1.0")
    assert "y[0, 1] = value" in text
    assert "z[0, 0] = value + 1.0" in text


def test_masked_stores_are_forwarded_to_the_same_lanes_alone() -> None:
    row, other = "y[0, ramp(0, 1, 4)]", "z[0, ramp(0, 1, 4)]"
    store = f"{row} = x[0, ramp(0, 1, 4)] where {MASK}"
    assert f"{other} = value where" in reused(store, f"{other} = {row} where {MASK}")
    inside = f"select({MASK}, {row}, 0.0:float32x4)"
    assert f"select({MASK}, value," in reused(store, f"{other} = {inside}")
    assert f"{other} = {row}" in reused(store, f"{other} = {row}")  # other lanes are of before


def test_vectors_are_gathered_once() -> None:
    first, second = "y[0, ramp(0, 1, 4)]", "z[0, ramp(0, 1, 4)]"
    text = reused(f"{first} = {COLUMN} + 1.0:float32x4", f"{second} = {COLUMN} * {COLUMN}")
    assert text.count(COLUMN) == 1
    text = reused(
        f"{first} = select({MASK}, {COLUMN}, 1.0:float32x4)", f"{second} = {COLUMN} where {MASK}"
    )
    assert text.count(COLUMN) == 1


def test_what_is_written_in_between_is_gathered_again() -> None:
    first, second = "y[0, ramp(0, 1, 4)]", "z[0, ramp(0, 1, 4)]"
    text = reused(f"{first} = {COLUMN}", "x[2, 0] = 9.0", f"{second} = {COLUMN}")
    assert text.count(COLUMN) == 2
    text = reused(f"{first} = {COLUMN} where {MASK}", f"{second} = {COLUMN}")
    assert text.count(COLUMN) == 2  # in other lanes
    contiguous = "x[0, ramp(0, 1, 4)]"
    text = reused(f"{first} = {contiguous}", f"{second} = {contiguous}")
    assert text.count(contiguous) == 2  # a load is as good as a name

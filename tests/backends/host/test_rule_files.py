"""Models whose sizes follow from numbers that are data, as files, which hold formulas for sizes."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from tests.backends.host.test_flow import both, numbers
from tests.runtime.kernels import said_by

import graft
from graft.base.dtypes import Array
from graft.base.errors import UserError
from graft.program.instructions import SizeFunction

X = "float[n, 4] x, int64[2] a, int64[2] b"
CASES = {
    "slice": ("part = Slice (x, a, b)", (0, -3), (3, 4)),
    "slice again": ("part = Slice (x, a, b)", (-2, 1), (100, 0)),
    "expand": (
        "y = Concat <axis = 0> (b, a) row = ReduceSum (x) part = Expand (row, y)",
        (3, 2),
        (1, 5),
    ),
    "tile": ("part = Tile (x, a)", (2, 3), (0, 0)),
    "reshape": ("part = Reshape (x, a)", (4, -1), (0, 0)),
    "range": (
        """zero = Constant <value = int64 {0}> () one = Constant <value = int64 {1}> ()
           s = Gather (a, zero) e = Gather (b, zero) d = Gather (b, one)
           r = Range (s, e, d) part = Cast <to = 1> (r)""",
        (2, 0),
        (20, 3),
    ),
    "pad": ("y = Concat <axis = 0> (a, b) part = Pad (x, y)", (1, 0), (0, 2)),
}


def feeds(case: str, rows: int = 5) -> dict[str, Array]:
    _, a, b = CASES[case]
    return {"x": numbers(rows, 4) / np.float32(9), "a": np.array(a), "b": np.array(b)}


def model(case: str) -> str:
    extents = {"expand": "p, q, r, s", "range": "p"}.get(case, "p, q")
    return f"net ({X}) => (float[{extents}] z) {{ {CASES[case][0]} z = Exp (part) }}"


@pytest.mark.parametrize("case", CASES)
def test_files_hold_rules_for_sizes(case: str, tmp_path: Path) -> None:
    host, reference = both(model(case))
    host.save(tmp_path / "m.graft")
    session = graft.load(tmp_path / "m.graft")
    assert any(isinstance(step, SizeFunction) for step in session.program.instructions)
    for rows in (5, 3):
        given = feeds(case, rows)
        if case == "reshape":
            given["a"] = np.array([-1, rows])
        (wanted,) = reference.run(None, given)
        for one in (host, session):
            (found,) = one.run(None, given)
            assert found.shape == wanted.shape
            np.testing.assert_allclose(found, wanted, rtol=1e-6)


def test_what_a_rule_refuses_is_refused_by_the_file_too(tmp_path: Path) -> None:
    host, _ = both(model("reshape"))
    host.save(tmp_path / "m.graft")
    for one in (host, graft.load(tmp_path / "m.graft")):
        with pytest.raises(
            UserError, match=r"elements do not fill \[3, 7\] \(with n = 5\)"
        ) as error:
            one.run(None, {**feeds("reshape"), "a": np.array([3, 7])})
        assert error.value.location is not None


def test_files_with_size_functions_run_without_the_compiler(tmp_path: Path) -> None:
    host, _ = both(model("slice"))
    host.save(tmp_path / "m.graft")
    script = f"""
import sys
import numpy as np
import graft
session = graft.load({str(tmp_path / "m.graft")!r})
given = {{"x": np.zeros((5, 4), np.float32), "a": np.array([0, 1]), "b": np.array([2, 4])}}
compiler = {{"llvmlite", "onnx", "graft.ir", "graft.ops"}}
print(session.run(None, given)[0].shape, compiler & {{*sys.modules}} or "alone")
"""
    assert said_by(script) == "(2, 3) alone\n"


@pytest.mark.parametrize("case", ["slice", "range"])
def test_sizes_follow_numbers_that_change(case: str) -> None:
    host, reference = both(model(case))
    for rows, shift in ((5, 0), (5, 1), (5, 1), (4, 1), (5, 0)):
        given = feeds(case, rows)
        given["a"] = given["a"] + shift
        np.testing.assert_allclose(
            host.run(None, given)[0], reference.run(None, given)[0], rtol=1e-5, strict=True
        )

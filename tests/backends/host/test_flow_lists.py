"""Flows on lists of tensors, as files: the steps on them come back, bad ones are refused."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx.parser
import pytest
from tests.backends.host.test_flow import HEAD, agree, both, numbers
from tests.backends.host.test_flow_files import elsewhere, rewritten, saved

import graft
from graft.base.errors import EvaluationError
from graft.program.instructions import Evaluate, ListOp
from graft.runtime.artifact import load as load_artifact
from graft.runtime.container import ArtifactError

# Parts of a list in a loop that takes another one each turn and leaves some out.
LISTS = """
    net (float[n, 4] x, int64[] first) => (float[m, 4] y, int64[] count, float[k, 4] z) {
        two = Constant <value = int64 {2}> ()
        parts = SplitToSequence <axis = 0> (x, two)
        count = SequenceLength (parts)
        true = Constant <value = bool {1}> ()
        kept = SequenceEmpty <dtype = 1> ()
        all = Loop (count, true, kept) <body = turn
            (int64 i, bool go, seq(float[q, 4]) have) => (bool again, seq(float[q, 4]) more) {
                part = SequenceAt (parts, i)
                twice = Add (part, part)
                more = SequenceInsert (have, twice, first)
                again = Identity (go)
            }>
        y = ConcatFromSequence <axis = 0> (all)
        less = SequenceErase (parts, first)
        z = ConcatFromSequence <axis = 0> (less)
    }
"""


def test_files_run_without_the_compiler(tmp_path: Path) -> None:
    module = graft.compile(onnx.parser.parse_model(HEAD + LISTS), strict=True, threads=2)
    kinds = [type(step) for step in module.program.body.instructions]
    assert ListOp in kinds
    assert Evaluate not in kinds
    elsewhere(module, [{"x": numbers(n, 4), "first": np.array(0)} for n in (5, 4)], tmp_path)


@pytest.mark.parametrize(
    ("split", "attrs", "wanted"),
    [
        ("int64 {2}", "", [2, 2, 1]),
        ("int64[3] {0, 4, 1}", "", [0, 4, 1]),
        (None, "<keepdims = 0>", [None] * 5),
        (None, "<keepdims = 1>", [1] * 5),
    ],
)
def test_parts_of_every_kind(
    split: str | None, attrs: str, wanted: list[int | None], tmp_path: Path
) -> None:
    given = "" if split is None else f"size = Constant <value = {split}> ()"
    text = f"""
        net (float[n, 2] x) => (seq(float[]) parts, int64[] count) {{
            {given}
            parts = SplitToSequence {attrs} (x{"" if split is None else ", size"})
            count = SequenceLength (parts)
        }}
    """
    data = numbers(5, 2)
    module = graft.compile(onnx.parser.parse_model(HEAD + text), strict=True)
    module.save(tmp_path / "m.graft")
    for one in (module, graft.load(tmp_path / "m.graft")):
        parts, count = one.run(None, {"x": data})
        assert count == len(wanted)
        assert [part.shape for part in parts] == [(2,) if n is None else (n, 2) for n in wanted]
        np.testing.assert_array_equal(np.concatenate([p.reshape(-1, 2) for p in parts]), data)


def test_optional_values(tmp_path: Path) -> None:
    text = """
        net (optional(float[3]) x) => (bool[] there) { there = OptionalHasElement (x) }
    """
    saved(text, tmp_path / "m.graft")
    session = graft.load(tmp_path / "m.graft")
    assert session.run(None, {"x": numbers(3)}) == [True]
    assert session.run(None, {"x": None}) == [False]


def test_lists_that_do_not_fit_are_refused_as_by_the_compiler(tmp_path: Path) -> None:
    module = graft.compile(onnx.parser.parse_model(HEAD + LISTS), strict=True)
    module.save(tmp_path / "m.graft")
    session = graft.load(tmp_path / "m.graft")
    feeds = {"x": numbers(5, 4), "first": np.array(9)}
    messages = set()
    for one in (module, session):
        with pytest.raises(EvaluationError, match="position 9 is outside a sequence of 3") as found:
            one.run(None, feeds)
        messages.add(found.value.message)
    assert len(messages) == 1


@pytest.mark.parametrize(
    "change",
    [
        {"body.1.0.operation": "sequence.sort"},
        {"body.1.0.outputs": []},
        {"body.1.0.axis": None, "body.1.0.chunk": "1 +"},
        {"body.1.0.inputs": [99, None, None]},
    ],
)
def test_contradictory_steps_on_lists_are_refused(
    change: dict[str, object], tmp_path: Path
) -> None:
    text = """
        net (float[n] x, int64[] place) => (float[1] y) {
            parts = SplitToSequence (x)
            y = SequenceAt (parts, place)
        }
    """
    image = saved(text, tmp_path / "m.graft").read_bytes()
    rewritten(tmp_path / "m.graft", image, change)
    with pytest.raises(ArtifactError, match="this file contradicts itself"):
        load_artifact(tmp_path / "changed.graft")


def test_parts_stay_what_they_are_while_their_source_goes() -> None:
    """The memory of a split tensor is used again as soon as nobody else needs the tensor."""
    text = """
        net (float[n, 4] x, int64 turns) => (float[m, 4] y, float[k] sums) {
            square = Mul (x, x)
            parts = SplitToSequence <axis = 0, keepdims = 1> (square)
            y, sums = Loop (turns, "", x) <
                body = one (int64 i, bool c, float[p, 4] v)
                        => (bool d, float[q, 4] w, float s) {
                    d = Identity (c)
                    two = Constant <value = int64 {2}> ()
                    index = Sub (two, i)
                    part = SequenceAt (parts, index)
                    w = Concat <axis = 0> (v, part)
                    s = ReduceSum <keepdims = 0> (w)
                }
            >
        }
    """
    pair = both(text)
    for rows in (3, 40, 3):
        agree(pair, x=numbers(rows, 4, seed=rows), turns=np.array(3))

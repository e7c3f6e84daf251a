"""Files of models with nodes on the reference evaluator: they come back as they were, and say what
they need."""

from __future__ import annotations

import json
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx.parser
import pytest
from tests.backends.host.test_flow import HEAD, numbers
from tests.runtime.kernels import said_by

import graft
from graft.backends.reference.runtime import ReferenceRuntime
from graft.base.errors import ReferenceWarning, UserError
from graft.module import Module
from graft.runtime.artifact import load as load_artifact
from graft.runtime.container import ArtifactError, Section, read, write

STRINGS = np.array([["b", "a"], ["b", "ä\0"]], object)
IMAGE = np.abs(numbers(1, 1, 4, 4))
# Of dropout, which has no native code; nothing is dropped.
DROPOUT = "<float ratio = {0}, bool training = {1}>"

CASES: dict[str, tuple[str, list[Mapping[str, Any]]]] = {
    "one static program": (
        f"""net (float[1, 1, 4, 4] x) => (float[1, 1, 4, 4] z) {DROPOUT} {{
            e = Exp (x)
            u = Dropout (e, ratio, training)
            z = Add (u, x)
        }}""",
        [{"x": IMAGE}],
    ),
    "strings of any size": (
        """net (string[n, m] s) => (string[n, m] t, bool[n, m] e, float[n, m] y) {
            c = Constant <value_strings = ["x"]> ()
            t = StringConcat (s, c)
            e = Equal (t, s)
            f = Cast <to = 1> (e)
            y = Exp (f)
        }""",
        [{"s": STRINGS}, {"s": STRINGS[:0]}, {"s": STRINGS[:1].astype(str)}],
    ),
    "loop": (
        """net (int64 turns, bool go, string[1] s, float[3] x) => (string[1] t, float[3] y) {
            t, y = Loop (turns, go, s, x) <body = step (int64 i, bool c, string[1] a, float[3] v)
                => (bool d, string[1] b, float[3] w) {
                d = Identity (c)
                b = StringConcat (a, a)
                w = Exp (v)
            }>
        }""",
        [
            {
                "turns": np.array(n),
                "go": np.array(True),
                "s": np.array(["ab"], object),
                "x": numbers(3),
            }
            for n in (0, 1, 3)
        ],
    ),
    "if": (
        """net (bool c, string[n] s, float[3] x) => (string[n] t, float[3] y) {
            t, y = If (c) <
                then_branch = yes () => (string[n] a, float[3] p) {
                    a = StringConcat (s, s)
                    p = Exp (x)
                },
                else_branch = no () => (string[n] b, float[3] q) {
                    b = Identity (s)
                    q = Neg (x)
                }>
        }""",
        [{"c": np.array(c), "s": STRINGS[:, 0], "x": numbers(3)} for c in (True, False)],
    ),
    "scan": (
        f"""net (float[2] start, float[n, 3] x) => (float[2] last, float[n, 3] u) {DROPOUT} {{
            last, u = Scan <num_scan_inputs = 1, body = step (float[2] s, float[3] p)
                => (float[2] t, float[3] w) {{
                t = Exp (s)
                w = Dropout (p, ratio, training)
            }}> (start, x)
        }}""",
        [{"start": numbers(2), "x": numbers(n, 3)} for n in (1, 3)],
    ),
    "a size that only strings tell": (
        """net (string[n] s) => (float[n] y, string[n] t) {
            shape = Shape (s)
            zero = ConstantOfShape (shape)
            y = Cos (zero)
            t = StringConcat (s, s)
        }""",
        [{"s": STRINGS[:, 0]}, {"s": STRINGS[:0, 0]}],
    ),
    "sequences and optionals": (
        """net (string[n] s, optional(string[n]) o, float[2] x) => (seq(string[n]) q, bool h,
            float[2] y) {
            t = StringConcat (s, s)
            q = SequenceConstruct (s, t)
            h = OptionalHasElement (o)
            y = Exp (x)
        }""",
        [{"s": STRINGS[0], "o": o, "x": numbers(2)} for o in (None, STRINGS[0])],
    ),
}


def same(first: Any, second: Any) -> bool:
    """Whether two results are equal, whatever they are.

    NumPy's products depend in their last bits on where operands lie."""
    if isinstance(first, list):
        return len(first) == len(second) and all(map(same, first, second))
    if isinstance(first, dict) or first is None:
        return bool(first == second)
    one, other = np.asarray(first), np.asarray(second)
    if (one.dtype, one.shape) != (other.dtype, other.shape):
        return False
    if one.dtype == object:
        return bool(one.tolist() == other.tolist())
    if one.dtype.kind in "fc":
        return np.allclose(one, other, rtol=1e-6, atol=1e-9, equal_nan=True)
    return one.tobytes() == other.tobytes()


def compiled(text: str, **options: Any) -> Module:
    return graft.compile(onnx.parser.parse_model(HEAD + text), **options)


def saved(module: Module, path: Path) -> Path:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ReferenceWarning)
        module.save(path)
    return path


@pytest.mark.parametrize("target", ["host", "reference"])
@pytest.mark.parametrize("name", CASES)
def test_files_give_the_same(name: str, target: str, tmp_path: Path) -> None:
    text, runs = CASES[name]
    module = compiled(text, target=target)
    assert module.placement.reasons
    session = graft.load(saved(module, tmp_path / "m.graft"))
    assert str(session.placement) == str(module.placement)
    for one, other in zip(session.get_inputs(), module.get_inputs(), strict=True):
        assert (one.name, one.type) == (other.name, other.type)
    for feeds in runs:
        assert all(map(same, session.run(None, feeds), module.run(None, feeds)))


BATCH = f"""
    net (float[BATCH, 1, 4, 4] x) => (float[BATCH, 1, 4, 4] z) {DROPOUT} {{
        r = Relu (x)
        u = Dropout (r, ratio, training)
        z = Add (u, x)
    }}
"""


def test_variants_have_their_own(tmp_path: Path) -> None:
    module = compiled(BATCH.replace("BATCH", "n"), shapes={"n": [2]})
    session = graft.load(saved(module, tmp_path / "m.graft"))
    for n in (1, 2, 3):
        feeds = {"x": np.concatenate([IMAGE] * n)}
        assert all(map(same, session.run(None, feeds), module.run(None, feeds)))


def test_beside_regions_of_other_backends(tmp_path: Path) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        options: dict[str, Any] = {"pins": ["*=simnpu"], "fallback": "host"}
        module = compiled(BATCH.replace("BATCH", "1"), target="simnpu", **options)
        session = graft.load(saved(module, tmp_path / "m.graft"))
    assert {"simnpu", "reference"} <= session.placement.nodes.keys()
    feeds = {"x": IMAGE}
    assert all(map(same, session.run(None, feeds), module.run(None, feeds)))


CONCATENATION = "net (string[n] s) => (string[n] t) { t = StringConcat (s, s) }"


def test_whoever_saves_is_told(tmp_path: Path) -> None:
    with pytest.warns(ReferenceWarning, match=r"1 node runs .* the operators string\.concat"):
        compiled(CONCATENATION).save(tmp_path / "m.graft")
    artifact = load_artifact(tmp_path / "m.graft")
    assert artifact.operators == ("string.concat",)
    assert graft.load(tmp_path / "m.graft").placement.nodes == {"reference": 1}


def test_another_version_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = saved(compiled(CONCATENATION), tmp_path / "m.graft")
    monkeypatch.setattr(ReferenceRuntime, "version", "9.9")
    with pytest.raises(UserError, match=r"operators string\.concat as Graft .* has them, and 9\.9"):
        graft.load(path)


def test_missing_operators_are_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = saved(compiled(CONCATENATION), tmp_path / "m.graft")
    monkeypatch.setattr(ReferenceRuntime, "missing", lambda _self, names: list(names))
    with pytest.raises(UserError, match=r"and string\.concat are not among those installed here"):
        graft.load(path)


def test_neither_llvm_nor_onnx_is_needed(tmp_path: Path) -> None:
    path = saved(compiled(CONCATENATION), tmp_path / "m.graft")
    script = f"""
import sys
import numpy as np
import graft
session = graft.load({str(path)!r})
(result,) = session.run(None, {{"s": np.array(["ab"])}})
rooms = {{"llvmlite", "onnx", "graft.compiler", "graft.llvm", "graft.frontends"}}
print(result.tolist(), rooms & {{*sys.modules}} or "alone")
"""
    assert said_by(script) == "['abab'] alone\n"


@pytest.mark.parametrize("text", ["", "graph @x() {", "graph @x() { return }"])
def test_graphs_that_make_no_sense_are_refused(text: str, tmp_path: Path) -> None:
    path = saved(compiled(CONCATENATION), tmp_path / "m.graft")
    container = read(path)
    header = json.loads(json.dumps(container.header))
    header["body"][1][0]["graph"][0] = text
    pieces = [Section(name, [view]) for name, view in container.sections.items()]
    write(tmp_path / "n.graft", header, pieces)
    with pytest.raises(ArtifactError, match="contradicts itself"):
        graft.load(tmp_path / "n.graft")

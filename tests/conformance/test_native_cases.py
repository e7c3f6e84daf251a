"""ONNX's backend cases on the host, with native code alone: the record says which, and how many.

`docs/results/conformance.json` names the cases that need the evaluator. A case that is not among
them and needs it fails here, and so does one that is among them and does not: the page that is
rendered from it stays true.
"""

from __future__ import annotations

import functools
import json
from pathlib import Path
from typing import Any

import onnx
import pytest
from benchmarks.conformance import why_not
from benchmarks.pages import RESULTS, ROOT
from tests.conformance.cases import Case, OnHost, all_cases, listed


@functools.cache
def recorded() -> Any:
    return json.loads((ROOT / RESULTS / "conformance.json").read_text(encoding="utf-8"))["data"]


def on_the_evaluator() -> set[str]:
    """The cases that the record says have no native code."""
    return set(recorded()["native"])


def cases() -> list[Case]:
    """Those that pass on the reference."""
    return [case for case in all_cases(OnHost) if case.name not in listed()]


def test_the_record_has_all_cases() -> None:
    if recorded()["onnx"] != onnx.__version__:
        pytest.skip("the record was made with another version of onnx, which has other cases")
    assert recorded()["cases"] == len(all_cases())
    assert recorded()["passed"] == len(cases())
    assert on_the_evaluator() <= {case.name for case in cases()}


@pytest.mark.full
@pytest.mark.parametrize("case", cases(), ids=lambda case: case.name)
def test_native(case: Case, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ONNX_HOME", str(tmp_path))
    reason = why_not(case)
    if case.name in on_the_evaluator():
        assert reason, (
            "it has native code now, which `python -m benchmarks conformance` writes down"
        )
    else:
        assert not reason

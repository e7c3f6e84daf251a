"""ONNX's backend cases on the host, with native code alone: the page says which, and how many.

`docs/conformance.md` names the cases that need the evaluator. A case that is not among them and
needs it fails here, and so does one that is among them and does not: the page stays true.
"""

from __future__ import annotations

import functools
import re
from pathlib import Path

import onnx
import pytest
from tests.conformance.cases import Case, OnHost, all_cases, listed

from conformance import DOCUMENT, why_not


@functools.cache
def page() -> str:
    return DOCUMENT.read_text(encoding="utf-8")


@functools.cache
def on_the_evaluator() -> frozenset[str]:
    """The cases that the page says have no native code."""
    part = page().partition("The others run on the host")[2].partition("An operator's cases")[0]
    return frozenset(re.findall(r"`(test_\w+)`", part))


def cases() -> list[Case]:
    """Those that pass on the reference."""
    return [case for case in all_cases(OnHost) if case.name not in listed()]


def test_the_page_counts_what_it_names() -> None:
    if f"of onnx {onnx.__version__}," not in page():
        pytest.skip("the page was made with another version of onnx, which has other cases")
    passed = re.search(r"\*\*(\d+) of (\d+) cases pass on the reference", page())
    native = re.search(r"\*\*(\d+) of these (\d+) pass on the host with native code", page())
    assert passed is not None
    assert native is not None
    total = len(cases())
    assert [int(one) for one in passed.groups()] == [total, len(all_cases())]
    assert [int(one) for one in native.groups()] == [total - len(on_the_evaluator()), total]
    assert on_the_evaluator() <= {case.name for case in cases()}


@pytest.mark.full
@pytest.mark.parametrize("case", cases(), ids=lambda case: case.name)
def test_native(case: Case, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ONNX_HOME", str(tmp_path))
    reason = why_not(case)
    if case.name in on_the_evaluator():
        assert reason, "it has native code now, which `python tools/conformance.py` writes down"
    else:
        assert not reason

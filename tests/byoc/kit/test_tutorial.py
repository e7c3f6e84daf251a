"""The tutorial's backend is as small as it says, and conforms."""

from __future__ import annotations

import io
import tokenize
from pathlib import Path
from typing import Any

from tests.test_docs import fences

from graft.byoc.kit import conformance

PAGE = Path(__file__).resolve().parents[3] / "docs" / "tutorial" / "04-write-a-backend.md"
_NO_CODE = (tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT)


def code_lines(text: str) -> int:
    """Lines that are neither blank nor comments; docstrings count."""
    lines: set[int] = set()
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type not in (*_NO_CODE, tokenize.ENDMARKER):
            lines |= set(range(token.start[0], token.end[0] + 1))
    return len(lines)


def test_the_backend_of_the_tutorial() -> None:
    whole = next(fence for fence in fences(PAGE.read_text("utf-8")) if fence.info == "python")
    assert 20 < code_lines(whole.text) <= 60
    names: dict[str, Any] = {}
    exec(compile(whole.text, str(PAGE), "exec"), names)
    for seed in range(3):
        conformance(names["Engine"](), examples=40, seed=seed).assert_ok()

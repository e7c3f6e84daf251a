"""The backends of the tutorial and of the how-tos are as small as they say, and conform."""

from __future__ import annotations

import io
import re
import tokenize
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from _pytest.mark import ParameterSet
from tests.test_docs import Fence, fences

from graft.byoc.contract import Backend
from graft.byoc.discover import unregister_backend
from graft.byoc.kit import conformance

DOCS = Path(__file__).resolve().parents[3] / "docs"
PAGE = DOCS / "tutorial" / "04-write-a-backend.md"
WRONG = ("class Careless", "class Crashing", "class Hasty")  # what they are there to show
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


def _how_tos() -> Iterator[ParameterSet]:
    for fence in fences((DOCS / "backend-howto.md").read_text("utf-8")):
        if fence.info == "python" and not any(name in fence.text for name in WRONG):
            yield pytest.param(fence, id=str(fence.line))


@pytest.mark.parametrize("fence", list(_how_tos()))
def test_the_backends_of_the_how_tos(fence: Fence) -> None:
    definition = re.split(r"^(?:model = |for kind )", fence.text, flags=re.MULTILINE)[0]
    names: dict[str, Any] = {"__name__": "howto"}
    assert code_lines(definition) <= 60
    exec(compile(definition, "backend-howto.md", "exec"), names)
    (kind,) = (
        one
        for one in names.values()
        if isinstance(one, type) and issubclass(one, Backend) and one.__module__ == "howto"
    )
    try:
        conformance(kind(), examples=10).assert_ok()
    finally:
        unregister_backend(kind.name)

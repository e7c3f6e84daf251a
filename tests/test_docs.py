"""The documentation's Python runs.

In goes every Markdown page; out comes a failure for each page whose fences are malformed or whose
snippets don't run. A page's ```python snippets are one program, run top to bottom in a directory of
its own from which `models/` can be reached. ```python no-run only has to compile.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import textwrap
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
PAGES = sorted([*ROOT.glob("README.md"), *ROOT.glob("docs/**/*.md")])
TIME_LIMIT_SECONDS = 600

every_page = pytest.mark.parametrize(
    "page", [pytest.param(page, id=page.relative_to(ROOT).as_posix()) for page in PAGES]
)


@dataclass(frozen=True)
class Fence:
    """A fenced block: what its opening line says, the number of that line, and its text."""

    info: str
    line: int
    text: str

    def padded(self) -> str:
        """The text behind as many empty lines as make its line numbers those of the page."""
        return "\n" * self.line + self.text


def fences(text: str) -> list[Fence]:
    """All fenced blocks of a page; an open one at its end is an error."""
    found = []
    opening: re.Match[str] | None = None
    start = 0
    body: list[str] = []
    for number, line in enumerate(text.split("\n"), start=1):
        if opening is None:
            opening = re.fullmatch(r" *(`{3,})([^`]*)", line)
            start, body = number, []
        elif re.fullmatch(rf" *{opening[1]}`* *", line):
            found.append(Fence(opening[2].strip(), start, textwrap.dedent("\n".join(body))))
            opening = None
        else:
            body.append(line)
    if opening is not None:
        raise ValueError(f"line {start}: the fence is never closed")
    return found


def program(blocks: list[Fence]) -> str:
    """The blocks as one program in which every line has the number it has on the page."""
    lines: list[str] = []
    for block in blocks:
        lines += [""] * (block.line - len(lines)) + block.text.split("\n")
    return "\n".join(lines) + "\n"


@every_page
def test_snippets_compile(page: Path) -> None:
    for fence in fences(page.read_text(encoding="utf-8")):
        if fence.info.split(" ")[0].lower() in ("python", "py"):
            where = f"{page.name}:{fence.line}"
            assert fence.info in ("python", "python no-run"), f"{where}: '{fence.info}'"
            compile(fence.padded(), str(page), "exec")


@every_page
def test_snippets_run(page: Path, tmp_path: Path) -> None:
    blocks = [f for f in fences(page.read_text(encoding="utf-8")) if f.info == "python"]
    (tmp_path / "models").symlink_to(ROOT / "models", target_is_directory=True)
    # A process of its own, since snippets may register things; named so that a traceback
    # points at the page.
    script = tmp_path / f"{page.name}.py"
    script.write_text(program(blocks), encoding="utf-8")
    outcome = subprocess.run(
        [sys.executable, script.name],
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": str(ROOT / "src")},
        capture_output=True,
        text=True,
        timeout=TIME_LIMIT_SECONDS,
        check=False,
    )
    if outcome.returncode != 0:
        pytest.fail(f"{page.relative_to(ROOT)}:\n{outcome.stdout}{outcome.stderr}", pytrace=False)


def test_fences_are_found_wherever_markdown_allows_them() -> None:
    text = "a\n```python\nx = 1\n```\n- b\n  ````python no-run\n  ```\n  ````\n```\n```\n"
    assert fences(text) == [
        Fence("python", 2, "x = 1"),
        Fence("python no-run", 6, "```"),
        Fence("", 9, ""),
    ]
    assert program(fences(text)[:1]) == "\n\nx = 1\n"


def test_an_unclosed_fence_is_an_error() -> None:
    with pytest.raises(ValueError, match="line 2: the fence is never closed"):
        fences("a\n```python\nx = 1\n")

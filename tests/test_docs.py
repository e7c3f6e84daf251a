"""The documentation's Python runs.

In goes every Markdown page; out comes a failure for each page whose fences are malformed or whose
snippets do not run. A ```python snippet is a program, run as a file of its own in a fresh process,
in a directory from which `models/` can be reached. ```python continued goes on where the program
above it ends, and is run with that; one that is a whole script all the same, since it uses nothing
but what it defines or imports, is run by itself, too. ```python no-run only has to compile.
`LONG` pages are run by `make test-full` alone.
"""

from __future__ import annotations

import ast
import builtins
import os
import re
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from _pytest.mark import ParameterSet

ROOT = Path(__file__).resolve().parent.parent
PAGES = sorted([*ROOT.glob("README.md"), *ROOT.glob("docs/**/*.md")])
TIME_LIMIT_SECONDS = 600
INFOS = ("python", "python continued", "python no-run")
# Pages whose programs take whole networks through the compiler, ten seconds and more each.
LONG = ("docs/quantization.md", "docs/walkthrough.md")

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


def programs(blocks: list[Fence]) -> list[list[Fence]]:
    """The blocks that make up each file that somebody may want to run."""
    found: list[list[Fence]] = []
    alone: list[list[Fence]] = []
    for block in blocks:
        if block.info == "python":
            found.append([block])
        elif block.info == "python continued":
            found[-1].append(block)
            if not unbound(block.text):
                alone.append([block])
    return found + alone


def unbound(text: str) -> set[str]:
    """Names that a program reads and neither defines nor imports anywhere."""
    read: set[str] = set()
    bound = set(dir(builtins))
    for node in ast.walk(ast.parse(text)):
        match node:
            case ast.Name(id=name, ctx=ast.Load()):
                read.add(name)
            case ast.Name(id=name) | ast.arg(arg=name):
                bound.add(name)
            case ast.FunctionDef(name=name) | ast.ClassDef(name=name):
                bound.add(name)
            case ast.alias():
                bound.add((node.asname or node.name).split(".")[0])
            case ast.ExceptHandler(name=str(name)):
                bound.add(name)
    return read - bound


def program(blocks: list[Fence]) -> str:
    """The blocks as one program in which every line has the number it has on the page."""
    lines: list[str] = []
    for block in blocks:
        lines += [""] * (block.line - len(lines)) + block.text.split("\n")
    return "\n".join(lines) + "\n"


@every_page
def test_snippets_compile(page: Path) -> None:
    started = False
    for fence in fences(page.read_text(encoding="utf-8")):
        if fence.info.split(" ")[0].lower() in ("python", "py"):
            where = f"{page.name}:{fence.line}"
            assert fence.info in INFOS, f"{where}: '{fence.info}'"
            assert started or fence.info != INFOS[1], f"{where}: there is nothing to continue"
            started |= fence.info == INFOS[0]
            compile(fence.padded(), str(page), "exec")


def _every_program() -> Iterator[ParameterSet]:
    for page in PAGES:
        name = page.relative_to(ROOT).as_posix()
        marks = pytest.mark.full if name in LONG else ()
        for blocks in programs(fences(page.read_text(encoding="utf-8"))):
            yield pytest.param(page, blocks, id=f"{name}:{blocks[0].line}", marks=marks)


@pytest.mark.usefixtures("one_core")
@pytest.mark.parametrize(("page", "blocks"), list(_every_program()))
def test_snippets_run(page: Path, blocks: list[Fence], tmp_path: Path) -> None:
    (tmp_path / "models").symlink_to(ROOT / "models", target_is_directory=True)
    # Named so that a traceback points at the page.
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


def test_programs_of_a_page() -> None:
    own, more, whole = (
        Fence("python", 1, "x = 1"),
        Fence("python continued", 4, "print(x)"),
        Fence("python continued", 7, "import os as o\ntry: o.sep\nexcept OSError as e: print(e)"),
    )
    assert programs([own, more, whole, own]) == [[own, more, whole], [own], [whole]]
    assert unbound("def f(a): return a + b\nclass C(D): pass") == {"b", "D"}

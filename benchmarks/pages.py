"""Where measured numbers go: a page's name, a marker and text in; the page with that text out.

A page has pairs of comments, `<!-- marker: start -->` and `<!-- marker: end -->`, between which
everything is generated. Pages are the project's own, or copies of them in build/bench/.
"""

from __future__ import annotations

import shutil
import textwrap
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PREVIEW = ROOT / "build" / "bench"
MODELS = ROOT / "models"
RESULTS = Path("docs/results")
DOCUMENT = Path("docs/benchmarks.md")
README = Path("README.md")
WIDTH = 100


class PageError(Exception):
    """A page that lacks the place for what is to be written."""


@dataclass(frozen=True, slots=True)
class Pages:
    """The project's pages, or copies of them."""

    folder: Path

    def path(self, name: Path) -> Path:
        """Where a file of the project is, or its copy."""
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        return path

    def replace(self, name: Path, marker: str, lines: Iterable[str]) -> None:
        """Put lines between a page's markers; without a marker they are the page."""
        path = self.path(name)
        text = "\n".join(lines)
        if not marker:
            path.write_text(f"{text}\n", encoding="utf-8")
            return
        page = ROOT / name
        if not path.exists() or path.stat().st_mtime < page.stat().st_mtime:
            shutil.copyfile(page, path)  # a copy of an older page may lack markers
        path.write_text(replaced(path.read_text(encoding="utf-8"), marker, text), encoding="utf-8")


def replaced(text: str, marker: str, new: str) -> str:
    """A page's text with something new between the markers."""
    before, after = _around(text, marker)
    return f"{before}\n{new.strip()}\n{after}"


def between(text: str, marker: str) -> str:
    """What stands between the markers of a page."""
    before, after = _around(text, marker)
    return text[len(before) : len(text) - len(after)].strip()


def _around(text: str, marker: str) -> tuple[str, str]:
    """A page up to the end of the first comment, and from the beginning of the second one."""
    start, end = (f"<!-- {marker}: {which} -->" for which in ("start", "end"))
    if text.count(start) != 1 or text.count(end) != 1 or text.index(start) > text.index(end):
        raise PageError(f"the page lacks a single pair of {start} and {end}")
    before, _, rest = text.partition(start)
    return before + start, end + rest.partition(end)[2]


def heading(title: str) -> list[str]:
    """A section's title, with the space around it."""
    return ["", f"## {title}", ""]


def table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    """A Markdown table whose first column is text and whose others are numbers."""
    return _table(header, rows, ["---", *["---:"] * (len(header) - 1)])


def text_table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    """A Markdown table of text."""
    return _table(header, rows, ["---"] * len(header))


def _table(header: Sequence[str], rows: Iterable[Sequence[str]], rule: Sequence[str]) -> list[str]:
    return [
        "| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |"
        for line in (header, rule, *rows)
    ]


def paragraph(text: str) -> list[str]:
    """Text in lines of a width to read."""
    return textwrap.wrap(text, WIDTH, break_long_words=False, break_on_hyphens=False)


def item(text: str) -> list[str]:
    """The same as an item of a list."""
    return textwrap.wrap(
        f"- {text}", WIDTH, subsequent_indent="  ", break_long_words=False, break_on_hyphens=False
    )

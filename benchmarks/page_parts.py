"""Parts of the pages that benchmarks write: titles and rows in, lines of Markdown out."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence


def section(title: str) -> Iterator[str]:
    yield ""
    yield f"## {title}"
    yield ""


def markdown_table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> Iterator[str]:
    for row in (header, ["---"] * len(header), *rows):
        yield "| " + " | ".join(cell.replace("|", "/") for cell in row) + " |"

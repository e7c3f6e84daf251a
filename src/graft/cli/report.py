"""Rendering of results on a terminal and as JSON.

A report is a series of blocks: lines, tables, sections of them. Rich lays them out when they are
printed. On a terminal, or with $COLUMNS, tables and lines fit the width: columns of text are
wrapped, those of numbers are not, and a table with too many columns shows its rows as records. In a
pipe or file a row is one line.
"""

from __future__ import annotations

import io
import json
import math
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Union

from graft.base.dims import AnyDim, IndexExpr, symbols_of
from graft.base.names import LONGEST_LINE, printable
from graft.base.quantities import counted, number
from graft.cli.terminal import HEADER, TITLE, UNLIMITED, console, styled

# `graft run` of a compiled file imports this module without the compiler.
if TYPE_CHECKING:
    from rich.console import Console, ConsoleOptions, RenderableType, RenderResult
    from rich.table import Table

    from graft.ir.graph import Graph
    from graft.passes.pipeline import PassReport

WIDTH = 100  # of paragraphs, however wide the terminal is
INDENT = "  "
_GAP = 2  # between the columns of a table
_LEAST_CELL = 12  # columns that text is wrapped to before a table is shown as records
_LONGEST_EXPRESSION = 56
_LONGEST_CELL = 200  # of a column with others behind it


@dataclass(frozen=True, slots=True)
class Line:
    """A line, with a hanging indent if it is wrapped; `most` columns at most."""

    text: str
    style: str = ""
    most: int = UNLIMITED
    wraps: bool = True  # not commands, which users copy

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        from rich.text import Text

        shown = styled(self.text, self.style)
        indent = len(self.text) - len(self.text.lstrip(" "))
        width = min(options.max_width, self.most)
        if not self.wraps or shown.cell_len <= width or width <= indent + len(INDENT):
            shown.no_wrap, shown.overflow = True, "ignore"
            yield shown
            return
        lines = shown[indent:].wrap(console, width - indent - len(INDENT), overflow="fold")
        for position, line in enumerate(lines):
            line.rstrip()
            yield Text(" " * (indent + len(INDENT) * (position > 0))).append_text(line)


@dataclass(frozen=True, slots=True)
class Rows:
    """Rows under a header, if any; columns at the positions `right` hold numbers."""

    rows: Sequence[Sequence[Cell]]
    header: Sequence[str]
    right: frozenset[int]

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        is_limited = options.max_width < UNLIMITED // 2
        if is_limited and self.header and self._least_width(console, options) > options.max_width:
            yield self._records()
        else:
            yield self._table()

    def _table(self) -> Table:
        from rich.table import Table

        table = Table(
            box=None, padding=(0, _GAP, 0, 0), pad_edge=False, show_header=bool(self.header)
        )
        for position in range(len(self.rows[0])):
            title = printable(self.header[position]) if self.header else ""
            is_number = position in self.right
            table.add_column(
                title,
                justify="right" if is_number else "left",
                no_wrap=is_number,
                overflow="ellipsis" if is_number else "fold",
                header_style=HEADER,
            )
        for row in self.rows:
            table.add_row(*self._shown(row))
        return table

    def _shown(self, row: Sequence[Cell]) -> Iterator[RenderableType]:
        """The cells of a row; only the last one may be long."""
        for position, cell in enumerate(row):
            longest = LONGEST_LINE if position == len(row) - 1 else _LONGEST_CELL
            yield styled(cell, "", longest) if isinstance(cell, str) else cell

    def _least_width(self, console: Console, options: ConsoleOptions) -> int:
        """The width below which the table would be hard to read: numbers are not wrapped, and text
        has room for a few characters."""
        from rich.measure import Measurement

        total = 0
        for position, column in enumerate(zip(self.header, *self.rows, strict=True)):
            sizes = [Measurement.get(console, options, cell) for cell in self._shown(column)]
            whole = max(size.maximum for size in sizes)
            if position not in self.right:
                is_text = all(isinstance(cell, str) for cell in column)
                whole = min(whole, _LEAST_CELL if is_text else max(size.minimum for size in sizes))
            total += whole + _GAP * (position > 0)
        return total

    def _records(self) -> Rows:
        """All rows below each other, with a line per cell."""
        cells: list[tuple[Cell, Cell]] = []
        for row in self.rows:
            pairs = zip(self.header, row, strict=True)
            shown = [(styled(title, HEADER), cell) for title, cell in pairs if cell]
            cells += [("", ""), *shown] if cells else shown
        return Rows(cells, (), frozenset())


@dataclass(frozen=True, slots=True)
class Indented:
    """A block further to the right."""

    block: Block

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        from rich.segment import Segment

        narrower = options.update_width(max(options.max_width - len(INDENT), 1))
        rendered = console.render(_renderable(self.block), narrower)
        for line in Segment.split_lines(rendered):
            yield Segment(INDENT)
            yield from line
            yield Segment.line()


@dataclass(frozen=True, slots=True)
class Histogram:
    """Names with their counts in as many columns as fit, column by column."""

    counts: Sequence[tuple[str, str]]

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        from rich.columns import Columns

        names = [styled(name, "", _LONGEST_CELL) for name, _ in self.counts]
        widest = max(name.cell_len for name in names)
        longest = max(len(count) for _, count in self.counts)
        for name, (_, count) in zip(names, self.counts, strict=True):
            name.pad_right(widest - name.cell_len)
            name.append(f"{'':{_GAP}}{count:>{longest}}")
        columns = Columns(names, padding=(0, 2 * _GAP), column_first=True)
        yield from console.render(
            columns, options.update_width(min(options.max_width, WIDTH - len(INDENT)))
        )


Cell = Union[str, "RenderableType"]
Block = str | Line | Rows | Indented | Histogram


def _renderable(block: Block) -> RenderableType:
    return Line(block) if isinstance(block, str) else block


def section(title: str, blocks: Iterable[Block]) -> list[Block]:
    """A title with indented blocks under it and an empty line before it."""
    return ["", Line(title, TITLE), *map(Indented, blocks)]


def paragraph(text: str) -> Line:
    """Prose of a section: lines of at most `WIDTH` columns on any terminal."""
    return Line(text, most=WIDTH - len(INDENT))


def table(
    rows: Iterable[Sequence[Cell]], header: Sequence[str] = (), right: Iterable[int] = ()
) -> list[Block]:
    """Rows as aligned columns, those in `right` aligned to the right; empty without rows."""
    cells = list(rows)
    return [Rows(cells, header, frozenset(right))] if cells else []


def histogram(counts: Mapping[str, int]) -> list[Block]:
    """Names with their counts, most frequent first, in as many columns as fit."""
    ordered = sorted(counts.items(), key=lambda item: (-item[1], item[0]))
    return [Histogram([(name, number(count)) for name, count in ordered])] if ordered else ["none"]


def dim_text(dim: AnyDim) -> str:
    """A dim, abbreviated if it is a long expression."""
    if isinstance(dim, int):
        return number(dim)
    if not isinstance(dim, IndexExpr):
        return "known only from data"
    text = str(dim)
    if len(text) <= _LONGEST_EXPRESSION:
        return text
    constant = next((factor for monomial, factor in dim.terms if not monomial), 0)
    return f"{number(constant)} + terms in {len(symbols_of(dim))} dynamic dims"


def dim_json(dim: AnyDim) -> int | str | None:
    """An integer, an expression as text, or None if it depends on data."""
    if isinstance(dim, int):
        return dim
    return str(dim) if isinstance(dim, IndexExpr) else None


def figure(value: float | None) -> str:
    """A measured number in a table."""
    return "-" if value is None else f"{value:.5g}"


def error_text(value: float) -> str:
    """An error in a table, by its order of magnitude."""
    return "0" if value == 0 else f"{value:.2e}"


def graph_size(graph: Graph) -> str:
    """The number of nodes of a graph, and of constants among them."""
    constants = sum(node.op.name == "constant" for node in graph.nodes)
    note = f" ({number(constants)} of them constants)" if constants else ""
    return f"{counted(len(graph.nodes), 'node')}{note}"


def rows_text(rows: int) -> str:
    """How a region runs on symbolic rows; empty if it does not run in blocks of them."""
    return f"in blocks of {counted(rows, 'row')}" if rows else ""


def pass_line(report: PassReport) -> str:
    """The effect of a pass."""
    if report.changed:
        effect = f"{report.nodes_before:>6} -> {report.nodes_after:<6} nodes"
    else:
        effect = f"{'no change':>16}{'':6}"
    return f"{report.name:<34}{effect}{report.seconds * 1000:10.1f} ms"


def print_lines(blocks: Iterable[Block]) -> None:
    """Print blocks to standard output, laid out for it."""
    print("\n".join(_render(blocks, console(sys.stdout))), flush=True)


def print_result(as_json: bool, facts: Mapping[str, Any], blocks: Iterable[Block]) -> None:
    """Print a result, as JSON or as text."""
    if as_json:
        print_json(facts)
    else:
        print_lines(blocks)


def print_verbatim(lines: Iterable[str]) -> None:
    """Print lines to standard output without wrapping: they are for programs, too."""
    print("\n".join(printable(line, LONGEST_LINE) for line in lines), flush=True)


def lines_of(blocks: Iterable[Block]) -> list[str]:
    """Blocks as lines of a file."""
    return _render(blocks, console(io.StringIO()))


def _render(blocks: Iterable[Block], target: Console) -> list[str]:
    """Lines without trailing blanks, which fill columns.

    Rich does not print by itself, since a closed pipe is handled by the command line."""
    with target.capture() as captured:
        for block in blocks:
            target.print(_renderable(block), crop=False)
    return [line.rstrip(" ") for line in captured.get().removesuffix("\n").split("\n")]


def print_json(facts: Mapping[str, Any]) -> None:
    """Print one JSON object; numbers that JSON lacks become strings."""
    text = json.dumps(_plain(facts), indent=2, allow_nan=False)
    print("\n".join(map(printable, text.split("\n"))))


def _plain(fact: Any) -> Any:
    if isinstance(fact, Mapping):
        return {str(key): _plain(value) for key, value in fact.items()}
    if isinstance(fact, list | tuple):
        return [_plain(item) for item in fact]
    if isinstance(fact, float) and not math.isfinite(fact):
        return str(fact)
    return fact

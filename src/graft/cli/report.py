"""How results look on a terminal and as JSON: facts in, aligned text out."""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from graft.base.dims import AnyDim, IndexExpr, symbols_of
from graft.base.names import LONGEST_LINE, printable

if TYPE_CHECKING:  # what runs compiled files reports, too, and has no compiler
    from graft.ir.graph import Graph
    from graft.passes.pipeline import PassReport

WIDTH = 80
INDENT = "  "
_LONGEST_EXPRESSION = 56
_LONGEST_CELL = 200  # of a column with others behind it


def section(title: str, lines: Iterable[str]) -> list[str]:
    """A title with indented lines under it and an empty line before it."""
    return ["", title, *(f"{INDENT}{line}".rstrip() for line in lines)]


def table(
    rows: Iterable[Sequence[str]], header: Sequence[str] = (), right: Iterable[int] = ()
) -> list[str]:
    """Rows as aligned columns; those numbered in `right` are aligned to the right."""
    cells = [_cells(row) for row in ([header] if header else [])] + [_cells(row) for row in rows]
    if not cells:
        return []
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    numbers = set(right)
    return [
        "  ".join(
            cell.rjust(width) if position in numbers else cell.ljust(width)
            for position, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in cells
    ]


def _cells(row: Sequence[str]) -> list[str]:
    """A row of a table as it is shown: only the last cell may be long."""
    first = [printable(cell, _LONGEST_CELL) for cell in row[:-1]]
    return [*first, *(printable(cell, LONGEST_LINE) for cell in row[-1:])]


def histogram(counts: Mapping[str, int]) -> list[str]:
    """Names with their counts, most frequent first, in as many columns as fit."""
    ordered = [
        (printable(name, _LONGEST_CELL), count)
        for name, count in sorted(counts.items(), key=lambda item: (-item[1], item[0]))
    ]
    if not ordered:
        return ["none"]
    name_width = max(len(name) for name, _ in ordered)
    count_width = max(len(number(count)) for count in counts.values())
    cells = [f"{name:<{name_width}}  {number(count):>{count_width}}" for name, count in ordered]
    gap = 4
    width = len(cells[0]) + gap
    columns = max(1, (WIDTH - len(INDENT) + gap) // width)
    height = -(-len(cells) // columns)
    return [
        (" " * gap).join(cells[position] for position in range(row, len(cells), height))
        for row in range(height)
    ]


def number(value: int) -> str:
    """With separators between thousands."""
    return f"{value:,}"


def size_text(count: int) -> str:
    """A number of bytes for people."""
    if count < 1000:
        return f"{count} B"
    exponent = min(int(math.log10(count)) // 3, 6)
    scaled = f"{count / 1000**exponent:.3g}"
    if scaled == "1e+03":
        scaled, exponent = "1", exponent + 1
    return f"{scaled} {' kMGTPE'[exponent]}B"


def dim_text(dim: AnyDim) -> str:
    """A number of operations, in short where it is a long expression."""
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
    """An integer, an expression as text, or None where only the data decide."""
    if isinstance(dim, int):
        return dim
    return str(dim) if isinstance(dim, IndexExpr) else None


def figure(value: float | None) -> str:
    """A measured number in a table."""
    return "-" if value is None else f"{value:.5g}"


def error_text(value: float) -> str:
    """An error in a table: its size is what matters."""
    return "0" if value == 0 else f"{value:.2e}"


def seconds_text(seconds: float) -> str:
    """A duration for people."""
    return f"{seconds * 1000:.3g} ms" if seconds < 0.9995 else f"{seconds:.3g} s"


def graph_size(graph: Graph) -> str:
    """How large a graph is, constants told apart."""
    constants = sum(node.op.name == "constant" for node in graph.nodes)
    note = f" ({number(constants)} of them constants)" if constants else ""
    return f"{counted(len(graph.nodes), 'node')}{note}"


def counted(count: int, noun: str, plural: str = "") -> str:
    """`1 node`, `2 nodes`."""
    return f"{number(count)} {noun if count == 1 else plural or noun + 's'}"


def pass_line(report: PassReport) -> str:
    """What one pass did."""
    if report.changed:
        effect = f"{report.nodes_before:>6} -> {report.nodes_after:<6} nodes"
    else:
        effect = f"{'no change':>16}{'':6}"
    return f"{report.name:<34}{effect}{report.seconds * 1000:10.1f} ms"


def print_lines(lines: Iterable[str]) -> None:
    """Print lines to standard output at once, each as one line whatever is in it."""
    print("\n".join(printable(line, LONGEST_LINE) for line in lines), flush=True)


def print_note(kind: str, message: object) -> None:
    """Print a line for people on standard error, beside what the command prints."""
    print(printable(f"graft: {kind}: {message}", LONGEST_LINE), file=sys.stderr)


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

"""Where text goes: a stream in; how wide it is and whether it takes colours, out.

Rich knows terminals: their width, $COLUMNS, $NO_COLOR, $FORCE_COLOR and $TERM. It is imported when
something is to be laid out or coloured: `--version`, `--json` and errors in a pipe do without.
"""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING, TextIO

from graft.base.names import LONGEST_LINE, printable

if TYPE_CHECKING:
    from rich.console import Console
    from rich.text import Text

TITLE, HEADER, GOOD, BAD, WARNING = "bold", "cyan", "green", "bold red", "yellow"
_LEAST_WIDTH = 20  # a terminal with less, or none at all, is taken to have this many columns
UNLIMITED = 1_000_000  # columns of what is no terminal
_MARKS = {"error": BAD, "internal error": BAD, "warning": WARNING}


def console(stream: TextIO) -> Console:
    """What lays text out for a stream, and knows whether that takes colours."""
    from rich.console import Console

    is_limited = stream.isatty() or os.environ.get("COLUMNS", "").isdigit()
    width = None if is_limited else UNLIMITED
    made = Console(file=stream, width=width, markup=False, emoji=False, highlight=False)
    made.width = max(made.width, _LEAST_WIDTH)
    return made


def styled(text: str, style: str, most: int = LONGEST_LINE) -> Text:
    """Text in a colour, where there are colours."""
    from rich.text import Text

    return Text(printable(text, most), style)


def print_note(kind: str, message: object) -> None:
    """Print a line for people on standard error, beside what the command prints."""
    print(f"{mark(kind)} {printable(str(message), LONGEST_LINE)}", file=sys.stderr)


def mark(kind: str) -> str:
    """How a message on standard error begins."""
    text = f"graft: {kind}:"
    if not sys.stderr.isatty() and not os.environ.get("FORCE_COLOR"):
        return text  # without waiting for Rich
    target = console(sys.stderr)
    with target.capture() as captured:
        target.print(styled(text, _MARKS.get(kind, "")), end="")
    return captured.get()

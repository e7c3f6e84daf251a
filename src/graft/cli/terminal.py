"""The terminal: its width and colours, and progress and messages on standard error.

Rich handles width, $COLUMNS, $NO_COLOR, $FORCE_COLOR and $TERM. It is imported when something is
laid out or coloured, not for `--version`, `--json` and errors in a pipe.

Work that takes more than a second shows its stage and share: on a terminal as a line that is
updated and removed at the end; elsewhere as one line per stage, at most one a second.
"""

from __future__ import annotations

import os
import sys
import threading
import time
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TextIO

from graft.base.errors import GraftWarning
from graft.base.names import LONGEST_LINE, printable
from graft.base.progress import Progress, Stage

if TYPE_CHECKING:
    from rich.console import Console, RenderableType
    from rich.live import Live
    from rich.text import Text

TITLE, HEADER, GOOD, BAD, WARNING = "bold", "cyan", "green", "bold red", "yellow"
_LEAST_WIDTH = 20  # columns assumed for narrower terminals
UNLIMITED = 1_000_000  # columns of what is no terminal
_MARKS = {"error": BAD, "internal error": BAD, "warning": WARNING}


def console(stream: TextIO) -> Console:
    """A Rich console for a stream."""
    from rich.console import Console

    is_limited = stream.isatty() or os.environ.get("COLUMNS", "").isdigit()
    width = None if is_limited else UNLIMITED
    rich_console = Console(file=stream, width=width, markup=False, emoji=False, highlight=False)
    rich_console.width = max(rich_console.width, _LEAST_WIDTH)
    return rich_console


def styled(text: str, style: str, most: int = LONGEST_LINE) -> Text:
    """Text in a style, if the stream has colours."""
    from rich.text import Text

    return Text(printable(text, most), style)


def print_note(kind: str, message: object) -> None:
    """Print a message on standard error."""
    print(f"{mark(kind)} {printable(str(message), LONGEST_LINE)}", file=sys.stderr)


def mark(kind: str) -> str:
    """The beginning of a message on standard error."""
    text = f"graft: {kind}:"
    if not sys.stderr.isatty() and not os.environ.get("FORCE_COLOR"):
        return text  # importing Rich takes time
    target = console(sys.stderr)
    with target.capture() as captured:
        target.print(styled(text, _MARKS.get(kind, "")), end="")
    return captured.get()


QUIET_SECONDS = 1.0  # before the first line, and between lines
_REFRESH_SECONDS = 0.1
_BAR_WIDTH, _WIDTH_WITH_BAR = 20, 80  # columns; narrower terminals have the share in words


@dataclass
class _Work:
    """A task with its start and current stage."""

    label: str
    stage: Stage = field(default_factory=lambda: Stage(""))
    start: float = field(default_factory=time.monotonic)

    def report(self, stage: Stage) -> None:
        self.stage = stage

    def text(self, part: str) -> str:
        """One line about the task; `part` describes the stage."""
        return printable(f"{self.label}: {part}" if part else self.label, LONGEST_LINE)


@contextmanager
def status(label: str) -> Iterator[Progress]:
    """Show progress while the block runs and reports its stages."""
    work, done = _Work(label), threading.Event()
    show = _show_line if _is_live(sys.stderr) else _print_stages
    shower = threading.Thread(target=show, args=(work, sys.stderr, done), daemon=True)
    shower.start()
    try:
        yield work.report
    finally:
        done.set()
        shower.join()


def _is_live(stream: TextIO) -> bool:
    """Whether a stream is a terminal that can update a line."""
    return stream.isatty() and os.environ.get("TERM", "").lower() not in ("dumb", "unknown")


def _print_stages(work: _Work, stream: TextIO, done: threading.Event) -> None:
    last = None
    with suppress(OSError, ValueError):  # the stream may be closed
        while not done.wait(QUIET_SECONDS):
            if work.stage.name != last:
                last = work.stage.name
                print(f"graft: {work.text(work.stage.heading)}", file=stream, flush=True)


def _show_line(work: _Work, stream: TextIO, done: threading.Event) -> None:
    if done.wait(QUIET_SECONDS):
        return
    with suppress(OSError, ValueError), _live(work, stream) as live:
        while not done.wait(_REFRESH_SECONDS):
            live.refresh()


def _live(work: _Work, stream: TextIO) -> Live:
    """A line that is updated and finally removed."""
    from rich.console import Console
    from rich.live import Live
    from rich.progress_bar import ProgressBar
    from rich.spinner import Spinner
    from rich.table import Table

    class Terminal(Console):
        """A console that does not hide the cursor: a killed process could not restore it."""

        def show_cursor(self, show: bool = True) -> bool:
            return False

    terminal = Terminal(file=stream)
    spinner = Spinner("line")  # ASCII, for all encodings

    def line() -> Table:
        stage = work.stage
        cells: list[RenderableType] = [spinner, styled(work.text(str(stage)), "")]
        if stage.steps and terminal.width >= _WIDTH_WITH_BAR:
            cells.append(ProgressBar(stage.steps, stage.step, width=_BAR_WIDTH))
        cells.append(styled(f"{time.monotonic() - work.start:.0f} s", ""))
        grid = Table.grid(padding=(0, 1), expand=True)
        for number in range(len(cells)):
            grid.add_column(no_wrap=True, overflow="ellipsis", ratio=1 if number == 1 else None)
        grid.add_row(*cells)
        return grid

    return Live(
        console=terminal,
        get_renderable=line,
        auto_refresh=False,
        transient=True,
        redirect_stdout=False,  # which may be a pipe
        redirect_stderr=False,
    )


@contextmanager
def spoken_warnings() -> Iterator[None]:
    """Show warnings after the work is done, below its status line."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", GraftWarning)
        yield
    for item in caught:
        warnings.warn_explicit(item.message, item.category, item.filename, item.lineno)

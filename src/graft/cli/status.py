"""What is said on standard error: one line on what is going on, for whatever takes more than a
second and where that is a terminal; and warnings about backends.
"""

from __future__ import annotations

import os
import shutil
import sys
import threading
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TextIO

from graft.base.errors import GraftWarning
from graft.base.names import printable

SECONDS_BETWEEN = 1.0

_CLEAR_LINE = "\r\x1b[K"


@contextmanager
def status(label: str) -> Iterator[Callable[[str], None]]:
    """Show the label and the seconds passed while the block runs; the block may add to the label
    what exactly it is at."""
    stream = sys.stderr
    labels = [label]
    tell = lambda text: labels.append(f"{label}: {text}")  # noqa: E731
    if not stream.isatty() or os.environ.get("TERM") == "dumb":
        yield tell
        return
    done = threading.Event()
    ticker = threading.Thread(target=_tick, args=(labels, stream, done), daemon=True)
    ticker.start()
    try:
        yield tell
    finally:
        done.set()
        ticker.join()


def _tick(labels: Sequence[str], stream: TextIO, done: threading.Event) -> None:
    start = time.monotonic()
    shown = False
    while not done.wait(SECONDS_BETWEEN):
        text = f"{labels[-1]} ... {time.monotonic() - start:.0f} s"
        width = shutil.get_terminal_size().columns - 1
        stream.write(_CLEAR_LINE + printable(text)[:width])
        stream.flush()
        shown = True
    if shown:
        stream.write(_CLEAR_LINE)
        stream.flush()


@contextmanager
def spoken_warnings() -> Iterator[None]:
    """Say what went otherwise than asked once the work is done, below the line of its status."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", GraftWarning)
        yield
    for item in caught:
        warnings.warn_explicit(item.message, item.category, item.filename, item.lineno)

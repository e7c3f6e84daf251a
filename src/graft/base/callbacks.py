"""Errors in a backend author's code: an exception in, whose it is and the author's line out.

Backends are Python of their authors' that the compiler calls: predicates, cost models, code
generators. What they raise says little to a user and, deep in the compiler's traceback, little to
the author, so that it is attributed: to the backend, the callback, the node that it was asked
about, and the line of the author's file in which it happened.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

from graft.base.errors import BackendError, CrashedError, InternalError, Location
from graft.base.names import LONGEST_LINE, shortened

_GRAFT = "graft"
_GRAFTED = "graft.backends"  # written against the same contract as everybody's

_HINT = (
    "this is code of the backend's: mend it, or leave the backend out of the targets"
    " (--debug shows the traceback)"
)


@contextmanager
def author_code(
    what: str,
    callback: Callable[..., Any],
    subject: str = "",
    location: Location | None = None,
) -> Iterator[None]:
    """Raise what `callback` raises as a `BackendError` that says whose mistake it is.

    `what` is the callback in words; `subject` and `location` say which node it is asked about.
    Missed deadlines and crashes of another process are no mistake of some line: they pass."""
    try:
        yield
    except (BackendError, CrashedError, InternalError, TimeoutError):
        raise
    except (Exception, SystemExit) as error:
        raise author_error(what, callback, error, subject, location) from error


def author_error(
    what: str,
    callback: Callable[..., Any],
    error: BaseException,
    subject: str = "",
    location: Location | None = None,
) -> BackendError:
    """What `callback` raised, as an error that says whose mistake it is."""
    where = author_line(error) or _definition(callback)
    return BackendError(f"{what} raised {_sentence(error, subject, where)}", location, _HINT)


def described(error: BaseException, subject: str = "") -> str:
    """An exception of an author's code in a line, with what the code was called for and its line
    if there are such."""
    if isinstance(error, BackendError):
        return error.message
    return _sentence(error, subject, author_line(error))


def _sentence(error: BaseException, subject: str, where: str) -> str:
    about = f" for {subject}" if subject else ""
    at = f", at {where}" if where else ""
    return f"{_said(error)}{about}{at}"


def author_line(error: BaseException) -> str:
    """`file.py:41`: the last line of the author's code on the way to an exception, or nothing.

    The author's is the package of the first frame that is neither Graft's nor the standard
    library's. What that calls (NumPy, a driver) may be where the exception was raised, and is not
    where it was caused."""
    frames: list[tuple[FrameType, int]] = []
    step = error.__traceback__
    while step is not None:
        frames.append((step.tb_frame, step.tb_lineno))
        step = step.tb_next
    owned = [(_package(frame), frame, line) for frame, line in frames]
    owner = next((package for package, _, _ in owned if _is_author(package)), None)
    own = [(frame, line) for package, frame, line in owned if package == owner]
    if owner is None or not own:
        return ""
    frame, line = own[-1]
    return f"{_shown(frame.f_code.co_filename)}:{line}"


def _package(frame: FrameType) -> str:
    name = str(frame.f_globals.get("__name__", ""))
    return _GRAFTED if name.startswith(f"{_GRAFTED}.") else name.partition(".")[0]


def _is_author(package: str) -> bool:
    return package != _GRAFT and package not in sys.stdlib_module_names


def _definition(callback: Callable[..., Any]) -> str:
    """Where a callback is written, for errors of the call itself; nothing if that is not in the
    author's code."""
    function = inspect.unwrap(getattr(callback, "__func__", callback))
    code = getattr(function, "__code__", None)
    module = str(getattr(function, "__module__", ""))
    if code is None or (module.partition(".")[0] == _GRAFT and not module.startswith(_GRAFTED)):
        return ""
    return f"{_shown(code.co_filename)}:{code.co_firstlineno}"


def _shown(file: str) -> str:
    """A path from the working directory where it is below that, and in full elsewhere."""
    path = Path(file)
    try:
        here = Path.cwd()
    except OSError:  # the folder has been removed meanwhile
        return file
    return str(path.relative_to(here)) if path.is_relative_to(here) else file


def _said(error: BaseException) -> str:
    text, name = text_of(error), type(error).__name__
    return shortened(f"{name}: {text}", LONGEST_LINE) if text else name


def text_of(error: BaseException) -> str:
    """The message of an exception, shortened; foreign exceptions may even fail to print."""
    try:
        return shortened(f"{error}", LONGEST_LINE)
    except Exception:  # noqa: BLE001
        return "its message cannot be read"

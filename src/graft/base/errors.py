"""Errors with source locations.

A mistake of the user's (a bad file, a wrong shape, an unknown operator) is a `UserError`; a broken
promise inside Graft is an `InternalError`. Both say what is wrong, where (a `Location`), and, where
there is one, what to do about it (`hint`). The command line prints the former without a traceback.
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from types import FrameType

from graft.base.names import LONGEST_LINE, printable


@dataclass(frozen=True, slots=True)
class Location:
    """Where something comes from: the source file, the node in it, and that node's kind.

    The fields are as the model has them; the text is fit to be shown."""

    source: str = ""
    node: str = ""
    kind: str = ""

    def __str__(self) -> str:
        node = f"node '{self.node}'" if self.node else ""
        kind = f"({self.kind})" if self.kind else ""
        source = f"in {self.source}" if self.source else ""
        return printable(" ".join(part for part in (node, kind, source) if part), LONGEST_LINE)


class GraftError(Exception):
    """Base of all errors that Graft raises on purpose.

    Names of a model get into messages, so a message is one line whatever is in it: what else there
    is to show are `details`, a line each."""

    def __init__(
        self,
        message: str,
        location: Location | None = None,
        hint: str = "",
        details: Sequence[str] = (),
    ) -> None:
        super().__init__(message)
        self.message = message
        self.location = location
        self.hint = hint
        self.details = tuple(details)

    @property
    def lines(self) -> list[str]:
        """Message, details, location and hint, as they are shown."""
        lines = [self.message, *(f"  {detail}" for detail in self.details)]
        if self.location is not None and str(self.location):
            lines.append(f"  at {self.location}" if self.location.node else f"  {self.location}")
        if self.hint:
            lines.append(f"  hint: {self.hint}")
        return [printable(line, LONGEST_LINE) for line in lines]

    def __str__(self) -> str:
        return "\n".join(self.lines)

    def __format__(self, spec: str) -> str:
        """As a part of another message: on one line."""
        return format("; ".join(line.strip() for line in self.lines), spec)

    def at(self, location: Location | None) -> GraftError:
        """Set the location unless the error has one already; return the error, to be re-raised."""
        if self.location is None:
            self.location = location
        return self


class UserError(GraftError):
    """Something the user can put right."""


class ModelError(UserError):
    """A model file that is damaged, contradicts itself or breaks the ONNX rules."""


class UnsupportedError(UserError):
    """A valid request that Graft does not (yet) serve."""


class TypeRuleError(UserError):
    """Operands whose types do not fit the operator."""


class ParseError(UserError):
    """Graft text that does not follow the grammar."""


class EvaluationError(UserError):
    """A graph that cannot be run on the values it was given."""


class BackendError(UserError):
    """Code of a backend's author raised: `base/callbacks.py` says which, and in which line."""


class CrashedError(Exception):
    """The process that ran code of a backend died."""


class GraftWarning(UserWarning):
    """Something that went otherwise than asked, and that a user should know of."""


class ModelWarning(GraftWarning):
    """A model that breaks ONNX's rules in a way that is put up with."""


class ReferenceWarning(GraftWarning):
    """A saved model that needs the reference evaluator where it is loaded."""


class InternalError(GraftError):
    """A broken promise inside Graft: please report it."""


def warn_user(message: str, category: type[GraftWarning]) -> None:
    """Warn at the line outside of Graft that led here, however deep in Graft this is."""
    frame = _user_frame()
    names = frame.f_globals
    warnings.warn_explicit(
        message,
        category,
        frame.f_code.co_filename,
        frame.f_lineno,
        names.get("__name__"),
        names.setdefault("__warningregistry__", {}),
    )


def _user_frame() -> FrameType:
    """The innermost frame that is neither Graft's nor the standard library's; where there is none
    (a command, a thread pool), the outermost."""
    frame = sys._getframe(1)
    while frame.f_back is not None:
        package = str(frame.f_globals.get("__name__", "")).partition(".")[0]
        if package == "__main__" or package not in _NOT_THE_USERS:
            break
        frame = frame.f_back
    return frame


_NOT_THE_USERS = frozenset(("graft", *sys.stdlib_module_names))

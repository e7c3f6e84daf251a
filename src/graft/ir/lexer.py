"""Text -> tokens, for the graph parser; one at a time, so that large texts stay cheap."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import NamedTuple, TypeVar

from graft.base.errors import GraftError, ParseError

T = TypeVar("T")

_TOKEN = re.compile(
    r"""
    (?:\s+|//[^\n]*)*
    (?: (?P<value>%(?:[A-Za-z0-9_./]+|"(?:[^"\\]|\\.)*"))
      | (?P<reference>@(?:[A-Za-z0-9_./]+|"(?:[^"\\]|\\.)*"))
      | (?P<string>"(?:[^"\\]|\\.)*")
      | (?P<dim>`(?:[^`"]|"(?:[^"\\]|\\.)*")*`)
      | (?P<tensor>[a-z][a-z0-9_]*\[(?:[^\]"]|"(?:[^"\\]|\\.)*")*\])
      | (?P<number>-?(?:inf|nan)\b|[-+]?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?)
      | (?P<word>[A-Za-z_][A-Za-z0-9_.]*)
      | (?P<mark>[()\[\]{}<>,=:])
      | (?P<end>\Z)
    )
    """,
    re.VERBOSE,
)
_BLANK = re.compile(r"(?:\s+|//[^\n]*)*")


class Token(NamedTuple):
    kind: str
    text: str
    offset: int


def error_at(text: str, offset: int, message: str, details: Sequence[str] = ()) -> ParseError:
    """A parse error with line, column and, below other details, the line itself."""
    line = text.count("\n", 0, offset) + 1
    start = text.rfind("\n", 0, offset) + 1
    end = text.find("\n", offset)
    source = text[start : end if end >= 0 else len(text)]
    column = offset - start + 1
    shown = (*(detail.strip() for detail in details), source.strip()[:120])
    return ParseError(f"line {line}, column {column}: {message}", details=shown)


class Cursor:
    """A position in a text: `ahead` is the token that comes next."""

    def __init__(self, text: str) -> None:
        self.text = text
        self._match = _TOKEN.match
        self._offset = 0
        self.ahead = self._scan()

    def _scan(self) -> Token:
        found = self._match(self.text, self._offset)
        if found is None:
            blank = _BLANK.match(self.text, self._offset)
            offset = blank.end() if blank else self._offset
            raise error_at(self.text, offset, f"unexpected character {self.text[offset]!r}")
        self._offset = found.end()
        kind = found.lastgroup or ""
        return Token(kind, found[kind], found.start(kind))

    def error(
        self, message: str, token: Token | None = None, details: Sequence[str] = ()
    ) -> ParseError:
        """An error at a token, by default the next one."""
        return error_at(self.text, (token or self.ahead).offset, message, details)

    def next(self) -> Token:
        """Step over a token; the end stays ahead for ever."""
        token = self.ahead
        if token.kind != "end":
            self.ahead = self._scan()
        return token

    def accept(self, text: str) -> bool:
        """Step over the token where it is this one."""
        if self.ahead.text == text:
            self.next()
            return True
        return False

    def expect(self, text: str) -> None:
        if not self.accept(text):
            raise self.error(f"'{text}' is wanted, not '{self.ahead.text}'")

    def expect_kind(self, kind: str, wanted: str) -> Token:
        if self.ahead.kind != kind:
            raise self.error(f"{wanted} is wanted, not '{self.ahead.text}'")
        return self.next()

    def guarded(self, action: Callable[[], T], token: Token) -> T:
        """Run an action whose failure is a mistake in the text at that token."""
        try:
            return action()
        except GraftError as error:
            raise self.error(error.message, token, error.lines[1:]) from None
        except ValueError as error:
            raise self.error(str(error), token) from None

"""Text -> tokens, one at a time: what the parsers of graphs, loops and dims stand on.

A language is one regular expression: what may stand between tokens, then a named group per kind of
token, among them `end` at the end of the text and, last, `stray` for any other character.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import NamedTuple, TypeVar

from graft.base.errors import GraftError, ParseError

T = TypeVar("T")


class Token(NamedTuple):
    """A token of some kind, and where it begins."""

    kind: str
    text: str
    offset: int


class Cursor:
    """A position in a text: `ahead` is the token that comes next."""

    def __init__(self, text: str, language: re.Pattern[str]) -> None:
        self.text = text
        self._match = language.match
        self._end = 0
        self.ahead = Token("", "", 0)
        self.next()

    def next(self) -> Token:
        """Step over a token; the end stays ahead for ever."""
        token = self.ahead
        if token.kind == "end":
            return token
        match = self._match(self.text, self._end)
        assert match is not None
        kind = match.lastgroup or ""
        self._end = match.end()
        self.ahead = Token(kind, match[kind], match.start(kind))
        if kind == "stray":
            raise self.error(f"unexpected character {self.ahead.text!r}")
        return token

    def accept(self, text: str) -> bool:
        """Step over the token where it is this word or mark."""
        if self.ahead.text != text or self.ahead.kind in ("string", "end"):
            return False
        self.next()
        return True

    def expect(self, text: str) -> None:
        """Step over a word or mark that has to be there."""
        if not self.accept(text):
            raise self.expected(f"'{text}'")

    def expect_kind(self, kind: str, what: str) -> Token:
        """Step over a token of a kind, which is `what` in words."""
        if self.ahead.kind != kind:
            raise self.expected(what)
        return self.next()

    def separated(self, item: Callable[[], T], closing: str) -> list[T]:
        """Items with commas between them, and what closes the list."""
        items: list[T] = []
        while not self.accept(closing):
            if items:
                self.expect(",")
            items.append(item())
        return items

    def expected(self, what: str, token: Token | None = None) -> ParseError:
        """An error at a token, by default the next one, in the place of something else."""
        actual = token or self.ahead
        shown = "the end" if actual.kind == "end" else f"'{actual.text}'"
        return self.error(f"expected {what}, found {shown}", token)

    def error(
        self, message: str, token: Token | None = None, details: Sequence[str] = ()
    ) -> ParseError:
        """An error with line, column and, below other details, the line itself."""
        text, offset = self.text, (token or self.ahead).offset
        line = text.count("\n", 0, offset) + 1
        start = text.rfind("\n", 0, offset) + 1
        source = text[start:].partition("\n")[0].strip()[:120]
        shown = (*(detail.strip() for detail in details), source)
        return ParseError(f"line {line}, column {offset - start + 1}: {message}", details=shown)

    def guarded(self, action: Callable[[], T], token: Token) -> T:
        """Run an action whose failure is a mistake in the text at that token."""
        try:
            return action()
        except GraftError as error:
            raise self.error(error.message, token, error.lines[1:]) from None
        except ValueError as error:
            raise self.error(str(error), token) from None

"""Text -> tokens, for the graph parser. Tokens carry their offset for error messages."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import NamedTuple, TypeVar

from graft.base.errors import GraftError, ParseError

T = TypeVar("T")

_TOKEN = re.compile(
    r"""
      (?P<space>(?:\s+|//[^\n]*)+)
    | (?P<value>%(?:[A-Za-z0-9_./]+|"(?:[^"\\]|\\.)*"))
    | (?P<reference>@(?:[A-Za-z0-9_./]+|"(?:[^"\\]|\\.)*"))
    | (?P<string>"(?:[^"\\]|\\.)*")
    | (?P<dim>`[^`]*`)
    | (?P<tensor>[a-z][a-z0-9_]*\[[^\]]*\])
    | (?P<number>-?(?:inf|nan)\b|[-+]?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?)
    | (?P<word>[A-Za-z_][A-Za-z0-9_.]*)
    | (?P<mark>[()\[\]{}<>,=:])
    """,
    re.VERBOSE,
)


class Token(NamedTuple):
    kind: str
    text: str
    offset: int


def tokenize(text: str) -> list[Token]:
    """All tokens of a text, with an `end` token behind them."""
    tokens: list[Token] = []
    position = 0
    add = tokens.append
    for match in _TOKEN.finditer(text):
        if match.start() != position:
            break
        position = match.end()
        kind = match.lastgroup or ""
        if kind != "space":
            add(Token(kind, match.group(), match.start()))
    if position != len(text):
        raise error_at(text, position, f"unexpected character {text[position]!r}")
    add(Token("end", "", len(text)))
    return tokens


def error_at(text: str, offset: int, message: str) -> ParseError:
    """A parse error with line, column and the line itself."""
    line = text.count("\n", 0, offset) + 1
    start = text.rfind("\n", 0, offset) + 1
    end = text.find("\n", offset)
    source = text[start : end if end >= 0 else len(text)]
    column = offset - start + 1
    return ParseError(f"line {line}, column {column}: {message}\n  {source.strip()[:120]}")


class Cursor:
    """A position among the tokens of a text."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.tokens = tokenize(text)
        self.position = 0

    def error(self, message: str, token: Token | None = None) -> ParseError:
        """An error at a token, by default the next one."""
        return error_at(self.text, (token or self.tokens[self.position]).offset, message)

    def next(self) -> Token:
        token = self.tokens[self.position]
        self.position += token.kind != "end"
        return token

    def accept(self, text: str) -> bool:
        """Step over the token where it is this one."""
        if self.tokens[self.position].text == text:
            self.position += 1
            return True
        return False

    def expect(self, text: str) -> None:
        if not self.accept(text):
            raise self.error(f"'{text}' is wanted, not '{self.tokens[self.position].text}'")

    def expect_kind(self, kind: str, wanted: str) -> Token:
        token = self.tokens[self.position]
        if token.kind != kind:
            raise self.error(f"{wanted} is wanted, not '{token.text}'")
        return self.next()

    def guarded(self, action: Callable[[], T], token: Token) -> T:
        """Run an action whose failure is a mistake in the text at that token."""
        try:
            return action()
        except (GraftError, ValueError) as error:
            raise self.error(str(error), token) from None

"""Text -> tokens, for the graph parser. Tokens carry their offset for error messages."""

from __future__ import annotations

import re
from typing import NamedTuple

from graft.base.errors import ParseError

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

"""Loop text, token by token: what the parser stands on.

Text enters; words, marks and numbers are taken from its front one after the other, and whatever
does not fit is an error with line and column.
"""

from __future__ import annotations

import re
from typing import NamedTuple

from graft.base.dtypes import DType
from graft.base.errors import ParseError
from graft.loop.print import RESERVED

_TOKEN = re.compile(
    r"""(?:\s|\#[^\n]*)*(?:
        (?P<number>[0-9]+\.[0-9]*(?:e[-+]?[0-9]+)?|[0-9]+e[-+]?[0-9]+|[0-9]+)
       |(?P<name>[A-Za-z_][A-Za-z0-9_.]*)
       |(?P<string>"(?:[^"\\]|\\.)*")
       |(?P<mark>\+:|\+=|//|<<|>>|[=!<>]=|[-+*/%&|^<>=(){}\[\],:])
       |(?P<end>$))""",
    re.VERBOSE,
)
_TYPE = re.compile(r"(.+?)(?:x([0-9]+))?")
DTYPES = {dtype.value for dtype in DType}


class _Token(NamedTuple):
    kind: str
    text: str
    start: int


def _tokens(text: str) -> list[_Token]:
    tokens: list[_Token] = []
    position = 0
    while not tokens or tokens[-1].kind != "end":
        match = _TOKEN.match(text, position)
        if match is None or match.lastgroup is None:
            rest = text[position:]
            raise _error(text, position + len(rest) - len(rest.lstrip()), "stray character")
        tokens.append(_Token(match.lastgroup, match[match.lastgroup], match.start(match.lastgroup)))
        position = match.end()
    return tokens


def _error(text: str, position: int, message: str) -> ParseError:
    line = text.count("\n", 0, position) + 1
    column = position - (text.rfind("\n", 0, position) + 1) + 1
    return ParseError(f"line {line}, column {column}: {message}")


class Reader:
    """The tokens and the position among them."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._tokens = _tokens(text)
        self._position = 0

    @property
    def next(self) -> _Token:
        return self._tokens[self._position]

    def fail(self, message: str) -> ParseError:
        return _error(self._text, self.next.start, message)

    def take(self) -> str:
        token = self.next
        self._position += token.kind != "end"
        return token.text

    def accept(self, text: str) -> bool:
        """Take the token if it is this word or mark."""
        if self.next.text != text or self.next.kind in ("string", "end"):
            return False
        self.take()
        return True

    def expect(self, text: str) -> None:
        if not self.accept(text):
            raise self.fail(f"expected '{text}', found {self._found()}")

    def expect_end(self) -> None:
        if self.next.kind != "end":
            raise self.fail(f"expected the end, found {self._found()}")

    def of_kind(self, kind: str, what: str) -> str:
        if self.next.kind != kind:
            raise self.fail(f"expected {what}, found {self._found()}")
        return self.take()

    def _found(self) -> str:
        return f"'{self.next.text}'" if self.next.kind != "end" else "the end"

    def new_name(self) -> str:
        if self.next.text in RESERVED:
            raise self.fail(f"'{self.next.text}' is a reserved word")
        return self.of_kind("name", "a name")

    def integer(self) -> int:
        sign = -1 if self.accept("-") else 1
        return sign * int(self.of_kind("number", "an integer"))

    def type(self) -> tuple[DType, int]:
        match = _TYPE.fullmatch(self.next.text)
        if match is None or match[1] not in DTYPES:
            raise self.fail(f"expected a dtype, found {self._found()}")
        self.take()
        return DType(match[1]), int(match[2] or 1)

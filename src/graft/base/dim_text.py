"""Reading the small arithmetic language of dimensions, which `polynomials` writes.

Text enters and a value leaves. The parser knows no dimension: it builds values with the functions
it is handed and with Python's operators, so that `dims` can stand on this module and not in a
circle with it.

    sum     = product {("+" | "-") product}
    product = unary {("*" | "//" | "%") unary}
    unary   = "-" unary | integer | symbol | function "(" sum {"," sum} ")" | "(" sum ")"
    symbol  = name | double-quoted string with JSON's backslash escapes
"""

from __future__ import annotations

import json
import operator
import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

from graft.base.errors import ParseError

_TOKEN = re.compile(
    r"""\s*(?:(?P<number>[0-9]+)
           |(?P<name>[A-Za-z_][A-Za-z0-9_.]*)
           |(?P<string>"(?:[^"\\]|\\.)*")
           |(?P<mark>//|[-+*%(),])
           |(?P<end>$))""",
    re.VERBOSE | re.DOTALL,
)
_OPERATORS: dict[str, tuple[int, Callable[[Any, Any], Any]]] = {
    "+": (1, operator.add),
    "-": (1, operator.sub),
    "*": (2, operator.mul),
    "//": (2, operator.floordiv),
    "%": (2, operator.mod),
}


def parse_arithmetic(
    text: str, symbol: Callable[[str], Any], functions: Mapping[str, Callable[..., Any]]
) -> Any:
    """The value of `text`, with names turned into values by `symbol` and calls by `functions`."""
    try:
        return _Parser(text, symbol, functions).whole()
    except RecursionError:
        raise ParseError("the dimension is nested too deeply to be read") from None
    except ZeroDivisionError:
        raise ParseError(f"the dimension '{text}' divides by zero") from None


class _Token(NamedTuple):
    kind: str
    text: str
    column: int


def _tokens(text: str) -> Iterator[_Token]:
    position = 0
    while True:
        match = _TOKEN.match(text, position)
        if match is None or match.lastgroup is None:
            column = position + len(text[position:]) - len(text[position:].lstrip()) + 1
            raise ParseError(
                f"cannot read the dimension '{text}': stray character at column {column}",
                hint="a symbol with an unusual name goes in double quotes",
            )
        kind = match.lastgroup
        yield _Token(kind, match.group(kind), match.start(kind) + 1)
        if kind == "end":
            return
        position = match.end()


class _Parser:
    """Precedence climbing over a list of tokens; `_next` is the one not yet taken."""

    def __init__(
        self,
        text: str,
        symbol: Callable[[str], Any],
        functions: Mapping[str, Callable[..., Any]],
    ) -> None:
        self._text = text
        self._symbol = symbol
        self._functions = functions
        self._tokens = _tokens(text)
        self._next = next(self._tokens)

    def whole(self) -> Any:
        value = self._sum()
        if self._next.kind != "end":
            raise self._expected("an operator")
        return value

    def _expected(self, what: str) -> ParseError:
        found = f"'{self._next.text}'" if self._next.kind != "end" else "the end"
        return ParseError(
            f"cannot read the dimension '{self._text}': "
            f"expected {what} at column {self._next.column}, found {found}"
        )

    def _take(self) -> _Token:
        token = self._next
        self._next = next(self._tokens)
        return token

    def _take_mark(self, mark: str) -> None:
        if self._next.text != mark:
            raise self._expected(f"'{mark}'")
        self._take()

    def _sum(self, lowest: int = 1) -> Any:
        value = self._unary()
        while self._next.text in _OPERATORS and _OPERATORS[self._next.text][0] >= lowest:
            precedence, apply = _OPERATORS[self._take().text]
            value = apply(value, self._sum(precedence + 1))
        return value

    def _unary(self) -> Any:
        token = self._next
        if token.kind == "end" or (token.kind == "mark" and token.text not in ("-", "(")):
            raise self._expected("a number, a symbol or '('")
        self._take()
        if token.kind in ("number", "string"):
            return self._literal(token)
        if token.kind == "name":
            return self._call(token) if self._next.text == "(" else self._symbol(token.text)
        if token.text == "-":
            return -self._unary()
        value = self._sum()
        self._take_mark(")")
        return value

    def _literal(self, token: _Token) -> Any:
        try:
            return int(token.text) if token.kind == "number" else self._symbol(_name(token.text))
        except ValueError as error:
            raise ParseError(f"cannot read the dimension '{self._text}': {error}") from error

    def _call(self, token: _Token) -> Any:
        if token.text not in self._functions:
            known = ", ".join(self._functions)
            raise ParseError(
                f"cannot read the dimension '{self._text}': no function '{token.text}'",
                hint=f"the functions are {known}",
            )
        self._take_mark("(")
        arguments = [self._sum()]
        while self._next.text == ",":
            self._take()
            arguments.append(self._sum())
        self._take_mark(")")
        return self._functions[token.text](*arguments)


def _name(literal: str) -> str:
    name: str = json.loads(literal)
    return name

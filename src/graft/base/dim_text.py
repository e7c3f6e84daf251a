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
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from graft.base.errors import ParseError
from graft.base.lexer import Cursor, Token

_LANGUAGE = re.compile(
    r"""\s*(?:(?P<number>[0-9]+)
           |(?P<name>[A-Za-z_][A-Za-z0-9_.]*)
           |(?P<string>"(?:[^"\\]|\\.)*")
           |(?P<mark>//|[-+*%(),])
           |(?P<end>\Z)
           |(?P<stray>.))""",
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


class _Parser(Cursor):
    """A precedence-climbing parser."""

    def __init__(
        self,
        text: str,
        symbol: Callable[[str], Any],
        functions: Mapping[str, Callable[..., Any]],
    ) -> None:
        self._symbol = symbol
        self._functions = functions
        super().__init__(text, _LANGUAGE)

    def error(
        self, message: str, token: Token | None = None, details: Sequence[str] = ()
    ) -> ParseError:
        """An error on one line: dims stand within other messages."""
        column = (token or self.ahead).offset + 1
        hint = "a symbol with an unusual name goes in double quotes"
        return ParseError(
            f"cannot read the dimension '{self.text}': {message} at column {column}",
            hint=hint if self.ahead.kind == "stray" else "",
        )

    def whole(self) -> Any:
        value = self._sum()
        self.expect_kind("end", "an operator")
        return value

    def _sum(self, lowest: int = 1) -> Any:
        value = self._unary()
        while self.ahead.text in _OPERATORS and _OPERATORS[self.ahead.text][0] >= lowest:
            precedence, apply = _OPERATORS[self.next().text]
            value = apply(value, self._sum(precedence + 1))
        return value

    def _unary(self) -> Any:
        token = self.ahead
        if token.kind == "end" or (token.kind == "mark" and token.text not in ("-", "(")):
            raise self.expected("a number, a symbol or '('")
        self.next()
        if token.kind in ("number", "string"):
            return self._literal(token)
        if token.kind == "name":
            return self._call(token) if self.accept("(") else self._symbol(token.text)
        if token.text == "-":
            return -self._unary()
        value = self._sum()
        self.expect(")")
        return value

    def _literal(self, token: Token) -> Any:
        try:
            if token.kind == "number":
                return int(token.text)
            return self._symbol(json.loads(token.text))
        except ValueError as error:
            raise ParseError(f"cannot read the dimension '{self.text}': {error}") from error

    def _call(self, token: Token) -> Any:
        if token.text not in self._functions:
            names = ", ".join(self._functions)
            raise ParseError(
                f"cannot read the dimension '{self.text}': no function '{token.text}'",
                hint=f"the functions are {names}",
            )
        arguments = [self._sum()]
        while self.accept(","):
            arguments.append(self._sum())
        self.expect(")")
        return self._functions[token.text](*arguments)

r"""RE2 patterns -> Python patterns: the syntax that ONNX's RegexFullMatch is written in.

In goes a pattern in RE2's syntax, out comes what tells whether a whole string matches it. The way
leads over Python's `re`, and what the two read differently is rewritten: in RE2 the classes
`\d \w \s` and the boundary `\b` are ASCII only, `$` is the end of the text alone, and
`[[:alpha:]]`, `\z`, `\Q...\E`, `\x{1F600}` and `(?<name>...)` exist. What RE2 does not have
(look-around, backreferences) is refused, and so is what `re` cannot express (Unicode classes such
as `\pL`, flags in mid-pattern). Only the syntax is `re`'s: it tries alternatives one by one, which
may take exponential time, so an automaton does the matching (`strings_automaton`), as in RE2.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import lru_cache

from graft.base.errors import UnsupportedError, UserError
from graft.ops.strings_automaton import Automaton

_POSIX = {
    "alnum": "0-9A-Za-z",
    "alpha": "A-Za-z",
    "ascii": r"\x00-\x7f",
    "blank": r"\t ",
    "cntrl": r"\x00-\x1f\x7f",
    "digit": "0-9",
    "graph": "!-~",
    "lower": "a-z",
    "print": " -~",
    "punct": r"!-/:-@\[-`{-~",
    "space": r"\t\n\v\f\r ",
    "upper": "A-Z",
    "word": "0-9A-Za-z_",
    "xdigit": "0-9A-Fa-f",
}
_ASCII = {"d": "0-9", "w": "0-9A-Za-z_", "s": r"\t\n\f\r "}

_ESCAPE = r"\\x\{[0-9A-Fa-f]+\}|\\0[0-7]{0,2}|\\[1-7][0-7]{2}|\\."
_TOKENS = re.compile(
    rf"""
      \\Q(?P<quoted>.*?)(?:\\E|\Z)
    | (?P<escape>{_ESCAPE})
    | (?P<set>\[\^?\]?(?:\[:\^?[a-z]+:\]|\\.|[^\]\\])*\])
    | (?P<named>\(\?P?<(?=[A-Za-z_]))
    | (?P<foreign>\(\?(?:<?[=!]|[>(\#]|P[=>])|(?:[*+?]|\{{[0-9]+(?:,[0-9]*)?\}})\+)
    | (?P<end>\$)
    | (?P<plain>.)
    """,
    re.VERBOSE | re.DOTALL,
)
_SET_TOKENS = re.compile(
    rf"(?P<escape>{_ESCAPE})|\[:(?P<negated>\^?)(?P<posix>[a-z]+):\]|(?P<plain>.)", re.DOTALL
)
_MULTILINE = re.compile(r"\(\?[a-zA-Z]*m")


@lru_cache(maxsize=256)
def compile_re2(pattern: str) -> Automaton:
    """The compiled pattern; one that is malformed or not served is a `UserError`."""
    translated = "".join(_translated(pattern))
    try:
        return Automaton(translated)
    except (re.error, OverflowError, RecursionError) as error:
        raise UserError(f"'{pattern}' is not a regular expression: {error}") from None


def _translated(pattern: str) -> Iterator[str]:
    end = "$" if _MULTILINE.search(pattern) else r"\Z"
    for token in _TOKENS.finditer(pattern):
        if token["quoted"] is not None:
            yield re.escape(token["quoted"])
        elif token["escape"]:
            yield _escape(token["escape"], pattern)
        elif token["set"]:
            yield _set(token["set"], pattern)
        elif token["named"]:
            yield "(?P<"
        elif token["foreign"]:
            raise _not_in_re2(token["foreign"], pattern)
        else:
            yield end if token["end"] else token["plain"]


def _escape(text: str, pattern: str) -> str:
    """An escape outside a set."""
    letter = text[1]
    if letter.lower() in _ASCII:
        inside = _ASCII[letter.lower()]
        return f"[{inside}]" if letter.islower() else f"[^{inside}]"
    if letter in "bB":
        return f"(?a:{text})"
    return r"\Z" if letter == "z" else _character(text, pattern)


def _character(text: str, pattern: str) -> str:
    """An escape that stands for one character, or that only `re` or only RE2 has."""
    if text.startswith(r"\x{"):
        code = int(text[3:-1], 16)
        if code > 0x10FFFF:
            raise UserError(f"'{pattern}' is not a regular expression: {text} is no character")
        return re.escape(chr(code))
    if text[1] in "pPC":
        message = f"'{text}...' in the regular expression '{pattern}' is not served"
        raise UnsupportedError(message, hint="list the characters, as in [a-zA-Z]")
    if text[1] == "Z" or (text[1] in "123456789" and len(text) == 2):
        raise _not_in_re2(text, pattern)
    return text


def _set(text: str, pattern: str) -> str:
    """A set in brackets. A negated class in it makes the whole set read `\\D \\W \\S` as ASCII."""
    start = 2 if text.startswith("[^") else 1
    body = list(_SET_TOKENS.finditer(text, start, len(text) - 1))
    parts = [_set_piece(token, pattern) for token in body]
    result = f"{text[:start]}{''.join(parts)}]"
    negated = any(token["escape"] in (r"\D", r"\W", r"\S") for token in body)
    return f"(?a:{result})" if negated else result


def _set_piece(token: re.Match[str], pattern: str) -> str:
    if token["posix"]:
        if token["posix"] not in _POSIX:
            raise UserError(f"'{pattern}' is not a regular expression: {token.group()} is unknown")
        if token["negated"]:
            message = f"{token.group()} in the regular expression '{pattern}' is not served"
            raise UnsupportedError(message, hint="list the characters that are meant")
        return _POSIX[token["posix"]]
    if token["plain"]:
        return re.escape(token["plain"]) if token["plain"] in "[&~|" else token["plain"]
    text = token["escape"]
    return _ASCII[text[1]] if text[1] in _ASCII else _character(text, pattern)


def _not_in_re2(text: str, pattern: str) -> UserError:
    return UserError(
        f"'{pattern}' is not a regular expression: RE2 has no '{text}'",
        hint="look-around, backreferences and possessive repetition are not part of RE2",
    )

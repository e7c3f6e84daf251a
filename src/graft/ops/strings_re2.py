r"""Regular expressions in RE2's syntax, which ONNX's RegexFullMatch uses, in linear time.

A pattern enters; an automaton that matches strings leaves. Python's `re` parses the pattern, after
what the two read differently has been rewritten: in RE2 the classes `\d \w \s` and the boundary
`\b` are ASCII only, `$` is the end of the text alone, and `[[:alpha:]]`, `\z`, `\Q...\E`,
`\x{1F600}` and `(?<name>...)` exist. What RE2 does not have (look-around, backreferences) is
refused, and so is what `re` cannot express (Unicode classes such as `\pL`, flags in mid-pattern).

The parsed pattern becomes a nondeterministic automaton, all of whose states are followed at once
(Thompson 1968). `re`'s own matcher backtracks, which for `(a+)+b` takes time exponential in the
length. Sets of states and their successors are cached, so that most characters cost one lookup.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import lru_cache
from re import _compiler, _parser  # type: ignore[attr-defined]
from typing import Any

from graft.base.errors import UnsupportedError, UserError

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
    translated = "".join(_translate(pattern))
    try:
        return Automaton(translated)
    except (re.error, OverflowError, RecursionError) as error:
        raise UserError(f"'{pattern}' is not a regular expression: {error}") from None


def _translate(pattern: str) -> Iterator[str]:
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
    """Translate an escape outside a set."""
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


# States of an automaton; RE2 has a like limit, of memory.
MOST_STATES = 20_000
# How many sets of states are remembered before all are forgotten.
_MOST_REMEMBERED = 4096
# Flags of which only one holds: whose letters and digits are meant.
_ALPHABETS = int(re.ASCII | re.UNICODE | re.LOCALE)
_States = frozenset[int]


@dataclass(eq=False)
class _State:
    """Moves to `next` on what `test` matches: one character, or a place between two."""

    test: re.Pattern[str] | None = None
    consumes: bool = False
    next: list[int] = field(default_factory=list)


class Automaton:
    """A compiled pattern."""

    def __init__(self, pattern: str) -> None:
        parsed = _parser.parse(pattern)
        self._pattern = pattern
        self._states = [_State()]  # the first is where a match ends
        self._tests: dict[str, re.Pattern[str]] = {}
        self._start = self._sequence(parsed, parsed.state.flags, 0)
        self._has_places = any(state.test and not state.consumes for state in self._states)
        self._moves: dict[tuple[_States, str], _States] = {}

    def matches(self, text: str) -> bool:
        """Whether all of the text matches."""
        states = self._closure([self._start], text, 0)
        for position in range(len(text)):
            states = self._following(states, text, position)
            if not states:
                return False
        return 0 in states

    def search(self, text: str, start: int = 0) -> tuple[int, int] | None:
        """The first match from `start` on, and of those that begin there the longest."""
        for begin in range(start, len(text) + 1):
            end = self._longest(text, begin)
            if end is not None:
                return begin, end
        return None

    def _longest(self, text: str, begin: int) -> int | None:
        """Where the longest match that begins at a place ends."""
        states = self._closure([self._start], text, begin)
        result = begin if 0 in states else None
        for position in range(begin, len(text)):
            states = self._following(states, text, position)
            if not states:
                break
            if 0 in states:
                result = position + 1
        return result

    def _following(self, states: _States, text: str, position: int) -> _States:
        """The states after a character."""
        key = (states, text[position])
        following = None if self._has_places else self._moves.get(key)
        if following is None:
            following = self._step(states, text, position)
            if len(self._moves) >= _MOST_REMEMBERED:
                self._moves.clear()
            self._moves[key] = following
        return following

    def _step(self, states: _States, text: str, position: int) -> _States:
        moved = [
            target
            for state in states
            if (one := self._states[state]).consumes
            and one.test is not None
            and one.test.match(text, position)
            for target in one.next
        ]
        return self._closure(moved, text, position + 1)

    def _closure(self, states: list[int], text: str, position: int) -> _States:
        """The states that are reached without a further character."""
        reached: set[int] = set()
        waiting = list(states)
        while waiting:
            number = waiting.pop()
            if number in reached:
                continue
            reached.add(number)
            state = self._states[number]
            if not state.consumes and (state.test is None or state.test.match(text, position)):
                waiting += state.next
        return frozenset(reached)

    def _add(self, state: _State) -> int:
        if len(self._states) >= MOST_STATES:
            raise UserError(
                f"the regular expression '{self._pattern[:80]}' is too large",
                hint="repeat less: {n,m} stands for m copies",
            )
        self._states.append(state)
        return len(self._states) - 1

    def _sequence(self, items: Any, flags: int, after: int) -> int:
        """States for items one after the other, leading to `after`; gives the first."""
        for item in reversed(list(items)):
            after = self._item(item, flags, after)
        return after

    def _item(self, item: tuple[Any, Any], flags: int, after: int) -> int:
        kind, value = item
        match str(kind):
            case "SUBPATTERN":
                _, added, removed, inner = value
                own_flags = flags & ~_ALPHABETS if added & _ALPHABETS else flags
                return self._sequence(inner, (own_flags | added) & ~removed, after)
            case "BRANCH":
                starts = [self._sequence(one, flags, after) for one in value[1]]
                return self._add(_State(next=starts))
            case "MAX_REPEAT" | "MIN_REPEAT":
                least, most, inner = value
                return self._repeat(least, most, inner, flags, after)
            case "AT":
                return self._add(_State(self._test(item, flags), False, [after]))
            case "LITERAL" | "NOT_LITERAL" | "ANY" | "IN" | "RANGE" | "CATEGORY":
                return self._add(_State(self._test(item, flags), True, [after]))
        raise UserError(f"'{self._pattern}' has what RE2 has not: {kind}")

    def _repeat(self, least: int, most: Any, inner: Any, flags: int, after: int) -> int:
        if most is _parser.MAXREPEAT:
            start = self._add(_State())
            loop = self._sequence(inner, flags, start)
            self._states[start].next = [loop, after]
        else:
            start = after
            for _ in range(most - least):
                start = self._add(_State(next=[self._sequence(inner, flags, start), after]))
        for _ in range(least):
            start = self._sequence(inner, flags, start)
        return start

    def _test(self, item: tuple[Any, Any], flags: int) -> re.Pattern[str]:
        """What `re` makes of one item alone, under the flags that hold for it."""
        key = f"{item} {flags}"
        if key not in self._tests:
            single = _parser.SubPattern(_parser.State(), [item])
            self._tests[key] = _compiler.compile(single, flags)
        return self._tests[key]

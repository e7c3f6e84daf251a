"""Whether a string matches a regular expression, in time linear in its length.

A pattern in the syntax of Python's `re` enters, parsed by `re` itself; it becomes a
nondeterministic automaton, all of whose states are followed at once (Thompson 1968). `re`'s own
matcher tries one way after the other instead, which for `(a+)+b` takes time exponential in the
length. Sets of states and their successors are remembered, so that most characters cost one lookup.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from re import _compiler, _parser  # type: ignore[attr-defined]
from typing import Any

from graft.base.errors import UserError

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
        self._has_places = any(one.test and not one.consumes for one in self._states)
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
                kept = flags & ~_ALPHABETS if added & _ALPHABETS else flags
                return self._sequence(inner, (kept | added) & ~removed, after)
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

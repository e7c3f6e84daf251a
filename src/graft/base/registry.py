"""Registries: name -> object tables filled by decorators and definitions."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterator
from typing import Generic, TypeVar

from graft.base.errors import InternalError, UserError

T = TypeVar("T")


class Registry(Generic[T]):
    """Entries of one kind by name; a duplicate name is an error."""

    def __init__(self, kind: str) -> None:
        self._kind = kind
        self._entries: dict[str, T] = {}

    def add(self, name: str, entry: T) -> T:
        if name in self._entries:
            raise InternalError(f"two {self._kind}s are named '{name}'")
        self._entries[name] = entry
        return entry

    def entry(self, *names: str) -> Callable[[T], T]:
        """A decorator that adds what it decorates under these names."""

        def register(entry: T) -> T:
            for name in names:
                self.add(name, entry)
            return entry

        return register

    def get(self, name: str) -> T:
        try:
            return self._entries[name]
        except KeyError:
            close = difflib.get_close_matches(name, self._entries, n=3)
            hint = f"did you mean {' or '.join(repr(c) for c in close)}?" if close else ""
            raise UserError(f"there is no {self._kind} named '{name}'", hint=hint) from None

    def __contains__(self, name: str) -> bool:
        return name in self._entries

    def __iter__(self) -> Iterator[str]:
        return iter(sorted(self._entries))

    def __len__(self) -> int:
        return len(self._entries)

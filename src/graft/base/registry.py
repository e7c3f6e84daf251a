"""A name-to-thing table filled by decorators and definitions; a duplicate is an error.

Entries may be defined in modules that are not imported yet and that the registry's own module must
not import: `load` imports them on the first lookup that fails."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterator
from typing import Generic, TypeVar

from graft.base.errors import InternalError, UserError

T = TypeVar("T")


class Registry(Generic[T]):
    """Things of one kind by name."""

    def __init__(self, kind: str, load: Callable[[], object] = lambda: None) -> None:
        self._kind = kind
        self._load = load
        self._entries: dict[str, T] = {}

    def add(self, name: str, entry: T) -> T:
        if name in self._entries:
            raise InternalError(f"two {self._kind}s are named '{name}'")
        self._entries[name] = entry
        return entry

    def get(self, name: str) -> T:
        if name not in self._entries:
            self._load()
        try:
            return self._entries[name]
        except KeyError:
            close = difflib.get_close_matches(name, self._entries, n=3)
            hint = f"did you mean {' or '.join(repr(c) for c in close)}?" if close else ""
            raise UserError(f"there is no {self._kind} named '{name}'", hint=hint) from None

    def __contains__(self, name: str) -> bool:
        self._load()
        return name in self._entries

    def __iter__(self) -> Iterator[str]:
        self._load()
        return iter(sorted(self._entries))

    def __len__(self) -> int:
        self._load()
        return len(self._entries)

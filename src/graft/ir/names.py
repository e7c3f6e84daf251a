"""Fresh names for values and symbols, each handed out once."""

from __future__ import annotations

import itertools
from collections.abc import Iterable

from graft.base.dims import IndexExpr, symbol


class FreshNames:
    """Names of values within one graph."""

    def __init__(self, reserved: Iterable[str] = ()) -> None:
        self._reserved = set(reserved)
        self._counters: dict[str, int] = {}

    def __contains__(self, name: str) -> bool:
        return name in self._reserved

    def reserve(self, *names: str) -> None:
        """Reserve names, so that they are not handed out."""
        self._reserved.update(names)

    def __call__(self, stem: str) -> str:
        """The stem, with a number behind it where it is reserved."""
        name = stem
        while name in self._reserved:
            number = self._counters.get(stem, 0) + 1
            self._counters[stem] = number
            name = f"{stem}_{number}"
        self._reserved.add(name)
        return name


class FreshSymbols:
    """Names for extents that only the data decide; shared by a graph and its nested graphs."""

    def __init__(self, prefix: str = "d", reserved: Iterable[str] = ()) -> None:
        self._prefix = prefix
        self._numbers = itertools.count()
        self._reserved = set(reserved)

    def reserve(self, names: Iterable[str]) -> None:
        """Reserve names, so that they are not handed out."""
        self._reserved.update(names)

    def __call__(self) -> IndexExpr:
        while (name := f"{self._prefix}{next(self._numbers)}") in self._reserved:
            pass
        return symbol(name)

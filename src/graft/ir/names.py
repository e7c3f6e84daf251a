"""Fresh names for values and symbols, none of them given twice."""

from __future__ import annotations

import itertools
from collections.abc import Iterable

from graft.base.dims import IndexExpr, symbol


class FreshNames:
    """Names of values within one graph."""

    def __init__(self, taken: Iterable[str] = ()) -> None:
        self._taken = set(taken)
        self._counters: dict[str, int] = {}

    def __contains__(self, name: str) -> bool:
        return name in self._taken

    def reserve(self, *names: str) -> None:
        """Keep names from being given."""
        self._taken.update(names)

    def __call__(self, wanted: str) -> str:
        """`wanted`, or with a number behind it where that is taken."""
        name = wanted
        while name in self._taken:
            number = self._counters.get(wanted, 0) + 1
            self._counters[wanted] = number
            name = f"{wanted}_{number}"
        self._taken.add(name)
        return name


class FreshSymbols:
    """Names for extents that only the data decide; shared by a graph and its nested graphs."""

    def __init__(self, prefix: str = "d", taken: Iterable[str] = ()) -> None:
        self._prefix = prefix
        self._numbers = itertools.count()
        self._taken = set(taken)

    def reserve(self, names: Iterable[str]) -> None:
        """Keep names from being given."""
        self._taken.update(names)

    def __call__(self) -> IndexExpr:
        while (name := f"{self._prefix}{next(self._numbers)}") in self._taken:
            pass
        return symbol(name)

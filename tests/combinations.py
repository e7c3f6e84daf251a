"""Which combinations of parameters a short run tries.

Tests that are parametrised more than once and marked `each_value` try, in a short run, only so many
combinations that every value occurs in one of them. The others are marked `full`.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator
from typing import Any

import pytest


def leave_to_full_runs(items: Iterable[pytest.Item]) -> None:
    """Mark the combinations that a short run leaves out."""
    functions: dict[str, list[pytest.Function]] = {}
    for item in items:
        if isinstance(item, pytest.Function) and item.get_closest_marker("each_value"):
            functions.setdefault(item.nodeid.partition("[")[0], []).append(item)
    for name, cases in functions.items():
        shuffled = list(cases)
        random.Random(name).shuffle(shuffled)  # else most would have the first value of the others
        occurred: set[Any] = set()
        for case in shuffled:
            if occurred.issuperset(_values(case)):
                case.add_marker(pytest.mark.full)
            occurred.update(_values(case))


def _values(case: pytest.Function) -> Iterator[Any]:
    """What each of the decorators contributes to a case; equal for equal values."""
    params = case.callspec.params
    for mark in case.iter_markers("parametrize"):
        names = mark.args[0]
        names = names.replace(",", " ").split() if isinstance(names, str) else names
        # A value is the same object in all cases that have it.
        yield tuple((name, id(params[name])) for name in names)

"""Times of a compiled graph's steps by the values that they make."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np

from graft.byoc.contract import Cost, Source
from graft.byoc.measure import WATCH, calm

_PROFILES = 9  # runs that a profile is at least the median of
_PROFILE_SECONDS = 1.5  # neighbours come and go faster than that


def by_value(times: Sequence[tuple[str, float]]) -> dict[str, float]:
    """The times of steps, each with the value that it makes, by value; a step that runs again
    counts again.

    Steps that only bring tensors into another layout make none, and count for the step after."""
    found: dict[str, float] = {}
    waiting = 0.0
    for name, seconds in times:
        waiting += float(seconds)
        if name:
            found[name] = found.get(name, 0.0) + waiting
            waiting = 0.0
    return found


def median_costs(run: Callable[[], Mapping[str, float]]) -> dict[str, Cost]:
    """Median cost per value over several profiled runs. Steps skipped in a run (an untaken branch)
    count as zero."""
    runs = WATCH.measured(lambda: calm(run, _PROFILES, _PROFILE_SECONDS))
    names = dict.fromkeys(name for one in runs for name in one)
    medians = {name: float(np.median([one.get(name, 0.0) for one in runs])) for name in names}
    return {name: Cost(seconds, Source.MEASURED) for name, seconds in medians.items()}

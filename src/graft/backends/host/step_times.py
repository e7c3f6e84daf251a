"""Steps of compiled graphs by the values that they make: what each takes, and what it is called."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np

from graft.byoc.contract import Cost, Source
from graft.byoc.measure import WATCH, calm

_PROFILES = 9  # runs that a profile is at least the median of
_PROFILE_SECONDS = 1.5  # neighbours come and go faster than that


def by_value(seconds: Sequence[float], makes: Sequence[str]) -> dict[str, float]:
    """The times of steps by the values that they make.

    Steps that only bring tensors into another layout count for the step after them."""
    found: dict[str, float] = {}
    waiting = 0.0
    for taken, name in zip(seconds, makes, strict=True):
        waiting += float(taken)
        if name:
            found[name] = waiting
            waiting = 0.0
    return found


def labels_by_value(labels: Sequence[str], makes: Sequence[str]) -> dict[str, str]:
    """The labels of steps by the values that they make; relayouts make none."""
    return {name: label for label, name in zip(labels, makes, strict=True) if name}


def median_costs(run: Callable[[], Mapping[str, float]]) -> dict[str, Cost]:
    """The median over several runs; what a run did not come to took it no time."""
    runs = WATCH.measured(lambda: calm(run, _PROFILES, _PROFILE_SECONDS))
    names = dict.fromkeys(name for one in runs for name in one)
    medians = {name: float(np.median([one.get(name, 0.0) for one in runs])) for name in names}
    return {name: Cost(seconds, Source.MEASURED) for name, seconds in medians.items()}

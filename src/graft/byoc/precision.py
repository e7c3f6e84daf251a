"""The exact choice of precisions: times and errors of units in, the precision of each out.

Placement's own problem (`problem.py`) with a site per precision: minimise the time of all units,
plus what values cost that are read in several forms, subject to a limit on the sum of squared
relative errors, which is how independent errors add up. A value that several units read is a node
of its own, which writes it in one form for nothing; every further form is a conversion.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from graft.byoc.choose import choose
from graft.byoc.problem import Flow, Option, Problem, Site, site_of

FLOAT = "float32"
TIME_LIMIT = 10.0  # seconds; a network has some hundreds of units, which take a fraction of one


@dataclass(frozen=True, slots=True)
class UnitOption:
    """A unit in one precision: its time, and the squared error that it adds to the outputs."""

    seconds: float
    error: float = 0.0


# What a unit may be, by precision; the first is what it is anyway, without an error.
UnitCosts = Mapping[str, UnitOption]


@dataclass(frozen=True, slots=True)
class SharedValue:
    """A value that several units read: `seconds` are spent on every conversion between float and
    another form."""

    readers: tuple[int, ...]
    seconds: float


@dataclass(frozen=True, slots=True)
class Choice:
    """The precision of each unit, the predicted time and squared error; no choice within the same
    limit takes less than `bound` seconds."""

    precisions: tuple[str, ...]
    seconds: float
    error: float
    bound: float

    @property
    def changed(self) -> frozenset[int]:
        """The units by number that are not what they are anyway."""
        return frozenset(n for n, one in enumerate(self.precisions) if one != FLOAT)


def choose_precisions(
    units: Sequence[UnitCosts], shared: Sequence[SharedValue], limit: float
) -> Choice:
    """The fastest choice with a squared error of at most `limit`."""
    if not units:
        return Choice((), 0.0, 0.0, 0.0)
    problem = problem_of(units, shared, limit)
    solved = choose(problem, time_limit=TIME_LIMIT)
    sites = site_of(problem, solved.options)
    first = len(shared)
    precisions = tuple(problem.sites[site].name for site in sites[first:])
    known = seconds_of(units, shared, precisions), error_of(units, precisions)
    return Choice(precisions, *known, solved.bound)


def problem_of(units: Sequence[UnitCosts], shared: Sequence[SharedValue], limit: float) -> Problem:
    """Shared values first, then units; a site per precision, each with a form of its own."""
    names = list(dict.fromkeys((FLOAT, *(name for unit in units for name in unit))))
    sites = tuple(Site(name, form=number) for number, name in enumerate(names))
    options = []
    for number, value in enumerate(shared):
        read = {name for reader in value.readers for name in units[reader]}
        options += [Option(names.index(name), (number,), 0.0) for name in names if name in read]
    for number, unit in enumerate(units, len(shared)):
        options += [
            Option(names.index(name), (number,), one.seconds, error=one.error)
            for name, one in unit.items()
            if one.error <= limit
        ]
    flows = []
    for number, value in enumerate(shared):
        readers = tuple(len(shared) + reader for reader in value.readers)
        price = (0.0, *(value.seconds for _ in names[1:]))
        flows.append(Flow(number, readers, price, price))
    count = len(shared) + len(units)
    return Problem(sites, count, tuple(options), tuple(flows), error_limit=limit)


def uniform(units: Sequence[UnitCosts], shared: Sequence[SharedValue], precision: str) -> Choice:
    """Every unit that can be in one precision, which says nothing of other choices."""
    precisions = tuple(precision if precision in unit else FLOAT for unit in units)
    known = seconds_of(units, shared, precisions), error_of(units, precisions)
    return Choice(precisions, *known, -math.inf)


def error_of(units: Sequence[UnitCosts], precisions: Sequence[str]) -> float:
    """The predicted squared error of a choice."""
    return sum(unit[one].error for unit, one in zip(units, precisions, strict=True))


def seconds_of(
    units: Sequence[UnitCosts], shared: Sequence[SharedValue], precisions: Sequence[str]
) -> float:
    """The predicted time of a choice; of two narrow forms, one is made of the other by way of
    float."""
    total = sum(unit[one].seconds for unit, one in zip(units, precisions, strict=True))
    for value in shared:
        forms = {precisions[reader] for reader in value.readers}
        if len(forms) > 1:
            total += value.seconds * (len(forms) - (FLOAT in forms))
    return total


def pareto_front(
    units: Sequence[UnitCosts], shared: Sequence[SharedValue], limits: Sequence[float]
) -> list[Choice]:
    """The choices for some limits that no other is better than in both time and error."""
    choices = sorted(
        (choose_precisions(units, shared, limit) for limit in limits),
        key=lambda choice: (choice.error, choice.seconds),
    )
    front: list[Choice] = []
    for choice in choices:
        if not front or choice.seconds < front[-1].seconds:
            front.append(choice)
    return front

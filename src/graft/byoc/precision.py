"""The exact choice of precisions: times and errors of units in, which of them are integer out.

Minimise the time of all units, plus what values cost that are needed both as bytes and as floats,
subject to a limit on the sum of squared relative errors, which is how independent errors add up. As
a mixed-integer programme, like placement: a knapsack whose items share values.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass

from graft.byoc.milp import CONSTANT, Programme

TIME_LIMIT = 10.0  # seconds; a network has some hundreds of units, which take a fraction of one
_UNIT = 1e-6  # of time, so that numbers are of the order of 1


@dataclass(frozen=True, slots=True)
class UnitCosts:
    """What a unit takes in float and on integers, and the squared error that it adds as integer."""

    float_seconds: float
    integer_seconds: float
    error: float


@dataclass(frozen=True, slots=True)
class SharedValue:
    """A value that several units read: `seconds` are spent where not all of them read it in the
    same form."""

    readers: tuple[int, ...]
    seconds: float


@dataclass(frozen=True, slots=True)
class Choice:
    """The integer units by number, the predicted time and squared error; no choice within the same
    limit takes less than `bound` seconds."""

    integer: frozenset[int]
    seconds: float
    error: float
    bound: float


def choose_precisions(
    units: Sequence[UnitCosts], shared: Sequence[SharedValue], limit: float
) -> Choice:
    """The fastest choice with a squared error of at most `limit`."""
    programme = Programme()
    variables = []
    budget = {CONSTANT: 1.0}
    for unit in units:
        gain = unit.integer_seconds - unit.float_seconds
        allowed = unit.error <= limit
        variable = programme.variable(gain / _UNIT, integer=True, upper=float(allowed))
        variables.append(variable)
        if allowed and unit.error > 0:
            budget[variable] = -unit.error / limit
    programme.at_least_zero(budget)
    for value in shared:
        some = programme.variable()
        both = programme.variable(value.seconds / _UNIT)
        for reader in value.readers:
            programme.at_least_zero({some: 1.0, variables[reader]: -1.0})
            programme.at_least_zero({both: 1.0, some: -1.0, variables[reader]: 1.0})
    floats = sum(unit.float_seconds for unit in units)
    solved = programme.solve(TIME_LIMIT)
    values = solved.values or [0.0] * len(variables)
    integer = frozenset(n for n, variable in enumerate(variables) if values[variable] > 0.5)
    if error_of(units, integer) > limit * (1 + 1e-6):  # beyond the solver's tolerance
        integer = frozenset()
    return Choice(
        integer,
        seconds_of(units, shared, integer),
        error_of(units, integer),
        floats + solved.bound * _UNIT,
    )


def all_integer(units: Sequence[UnitCosts], shared: Sequence[SharedValue]) -> Choice:
    """Every unit on integers, which says nothing of other choices."""
    whole = frozenset(range(len(units)))
    return Choice(whole, seconds_of(units, shared, whole), error_of(units, whole), -math.inf)


def error_of(units: Sequence[UnitCosts], integer: Collection[int]) -> float:
    """The predicted squared error of a choice."""
    return sum(units[number].error for number in integer)


def seconds_of(
    units: Sequence[UnitCosts], shared: Sequence[SharedValue], integer: Collection[int]
) -> float:
    """The predicted time of a choice."""
    each = (u.integer_seconds if n in integer else u.float_seconds for n, u in enumerate(units))
    mixed = (v for v in shared if 0 < sum(r in integer for r in v.readers) < len(v.readers))
    return sum(each) + sum(value.seconds for value in mixed)


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

"""The exact choice of precisions: times and errors of units in, the precision of each out.

It is a placement problem (`problem.py`) with a site per precision: minimise the time of all units
and conversions, subject to a limit on the sum of squared relative errors (independent errors add up
in squares). A value that several units read is a node of its own, which is free in one form; every
further form is a conversion.

With accelerators, the whole graph is placed, and the host's precisions are additional sites, so
that each unit gets a pair of a backend and a precision.

Times of units come from times of kernels (`unit_seconds`). A kernel may compute several units, as
for inverted residuals: its time is that of the last one, and does not tell what another precision
of one of them would gain.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from graft.byoc.choose import choose
from graft.byoc.contract import Cost
from graft.byoc.problem import Flow, Option, Problem, Site, site_of
from graft.byoc.sizes import node_work
from graft.ir.graph import Graph
from graft.quantize.units import Unit

FLOAT = "float32"
TIME_LIMIT = 10.0  # seconds; a network has some hundreds of units, which take a fraction of one


@dataclass(frozen=True, slots=True)
class UnitOption:
    """A unit in one precision: its time, and the squared error that it adds to the outputs."""

    seconds: float
    error: float = 0.0


# The options of a unit by precision; the first is its current one, without an error.
UnitCosts = Mapping[str, UnitOption]


@dataclass(frozen=True, slots=True)
class SharedValue:
    """A value that several units read; every conversion between float and another form takes
    `seconds`."""

    readers: tuple[int, ...]
    seconds: float


@dataclass(frozen=True, slots=True)
class Choice:
    """The precision of each unit, the predicted time and squared error, and a lower bound on the
    time of any choice within the same limit."""

    precisions: tuple[str, ...]
    seconds: float
    error: float
    bound: float

    @property
    def changed(self) -> frozenset[int]:
        """The numbers of units in another precision than float."""
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
    totals = seconds_of(units, shared, precisions), error_of(units, precisions)
    return Choice(precisions, *totals, solved.bound)


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


@dataclass(frozen=True)
class PlacedUnits:
    """Units within the placement of a whole graph: their nodes by number, and the host's rate at
    which values are converted, in bytes per second."""

    placement: Problem
    nodes: tuple[tuple[int, ...], ...]
    rate: float

    def choose(self, units: Sequence[UnitCosts], limit: float) -> Choice:
        """The best precisions together with the placement; units that another backend runs stay in
        float."""
        problem = self.problem(units, limit)
        solved = choose(problem, time_limit=TIME_LIMIT)
        sites, first = site_of(problem, solved.options), len(self.placement.sites)
        own = [sites[nodes[0]] for nodes in self.nodes]
        precisions = tuple(problem.sites[s].name if s >= first else FLOAT for s in own)
        error = sum(problem.options[option].error for option in solved.options)
        return Choice(precisions, solved.seconds, error, solved.bound)

    def problem(self, units: Sequence[UnitCosts], limit: float) -> Problem:
        """The placement with one more site per precision of the host, each with its own form."""
        plain = self.placement
        names = list(dict.fromkeys(name for unit in units for name in unit if name != FLOAT))
        forms = max(len(flow.bring) for flow in plain.flows) if plain.flows else 1
        narrow = [Site(name, form=forms + number) for number, name in enumerate(names)]
        options = [
            Option(len(plain.sites) + names.index(name), nodes, one.seconds, error=one.error)
            for nodes, unit in zip(self.nodes, units, strict=True)
            for name, one in unit.items()
            if name != FLOAT and one.error <= limit
        ]
        flows = []
        for flow in plain.flows:
            missing = forms - len(flow.bring)
            price = (flow.bytes_in(0) / self.rate,) * len(names)
            flows.append(
                replace(
                    flow,
                    bring=(*flow.bring, *(0.0,) * missing, *price),
                    fetch=(*flow.fetch, *(0.0,) * missing, *price),
                    sizes=(*flow.sizes, *(0,) * (missing + len(names))) if flow.sizes else (),
                )
            )
        return replace(
            plain,
            sites=(*plain.sites, *narrow),
            options=(*plain.options, *options),
            flows=tuple(flows),
            error_limit=limit,
        )


def uniform(units: Sequence[UnitCosts], shared: Sequence[SharedValue], precision: str) -> Choice:
    """The choice of one precision for all units that may have it; its bound is minus infinity."""
    precisions = tuple(precision if precision in unit else FLOAT for unit in units)
    totals = seconds_of(units, shared, precisions), error_of(units, precisions)
    return Choice(precisions, *totals, -math.inf)


def error_of(units: Sequence[UnitCosts], precisions: Sequence[str]) -> float:
    """The predicted squared error of a choice."""
    return sum(unit[one].error for unit, one in zip(units, precisions, strict=True))


def seconds_of(
    units: Sequence[UnitCosts], shared: Sequence[SharedValue], precisions: Sequence[str]
) -> float:
    """The predicted time of a choice; one narrow form is converted to another by way of float."""
    total = sum(unit[one].seconds for unit, one in zip(units, precisions, strict=True))
    for value in shared:
        forms = {precisions[reader] for reader in value.readers}
        if len(forms) > 1:
            total += value.seconds * (len(forms) - (FLOAT in forms))
    return total


def slowed(costs: Sequence[UnitCosts], choice: Choice, speedup: float) -> list[UnitCosts]:
    """The costs with narrow precisions slowed down by the factor between the predicted and the
    measured speed-up of a choice."""
    floats = sum(one[FLOAT].seconds for one in costs)
    factor = max(floats / max(choice.seconds, 1e-12) / speedup, 1.05)
    return [
        {
            name: one if name == FLOAT else replace(one, seconds=one.seconds * factor)
            for name, one in cost.items()
        }
        for cost in costs
    ]


def pareto_front(choose_within: Callable[[float], Choice], limits: Sequence[float]) -> list[Choice]:
    """The Pareto front, in time and error, of the choices within some limits."""
    choices = sorted(map(choose_within, limits), key=lambda choice: (choice.error, choice.seconds))
    front: list[Choice] = []
    for choice in choices:
        if not front or choice.seconds < front[-1].seconds:
            front.append(choice)
    return front


# Suffixes of the values that replace a node's value in other precisions.
_ENDINGS = ("", "_quantized", "_rounded", "_scores", "_scaled", "_shares", "_shares_quantized")


def unit_seconds(
    graph: Graph, units: Sequence[Unit], costs: Mapping[str, Cost]
) -> tuple[list[float], list[tuple[int, int]]]:
    """The time of each unit of a graph, and pairs of units of which the first is computed in the
    kernel of the second. Units of one kernel share its time in proportion to their operations;
    units without a kernel take 0."""
    seconds = [_own_seconds(unit, costs) for unit in units]
    fused = _fused_pairs(graph, units, seconds)
    kernels: dict[int, list[int]] = {}
    for position in range(len(units)):
        kernels.setdefault(_end(fused, position), []).append(position)
    for last, members in kernels.items():
        works = {member: _operations(units[member]) for member in members}
        whole, total = seconds[last], max(sum(works.values()), 1)
        if len(members) > 1:
            for member in members:
                seconds[member] = whole * works[member] / total
    return seconds, sorted(fused.items())


def _own_seconds(unit: Unit, costs: Mapping[str, Cost]) -> float:
    """The time of the kernels that make a unit's values."""
    names = {f"{node.output.name}{ending}" for node in unit.nodes for ending in _ENDINGS}
    return sum(costs[name].seconds for name in names if name in costs)


def _fused_pairs(graph: Graph, units: Sequence[Unit], seconds: Sequence[float]) -> dict[int, int]:
    """By unit without a time, the unit that alone reads its result."""
    readers = {unit.anchor: position for position, unit in enumerate(units)}
    pairs = {}
    for position, unit in enumerate(units):
        users = graph.users.get(unit.output, [])
        if not seconds[position] and len(users) == 1 and users[0] in readers:
            pairs[position] = readers[users[0]]
    ends = {position for position in pairs.values() if position not in pairs}
    timed = {position for position in ends if seconds[position]}
    return {one: after for one, after in pairs.items() if _end(pairs, one) in timed}


def _end(pairs: Mapping[int, int], position: int) -> int:
    while position in pairs:
        position = pairs[position]
    return position


def _operations(unit: Unit) -> int:
    work = node_work(unit.anchor)
    return work.macs + work.flops

"""Sensitivity of a plan: a partition in; the cheapest alternative assignments, and how much cheaper
launches or transfers would have to be for another plan to win, out.

Alternatives are priced exactly, by solving the problem again with the moved nodes fixed; only the
few that look cheapest, within a time limit.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from graft.byoc.choose import choose
from graft.byoc.partition import Partition
from graft.byoc.plan import node_names
from graft.byoc.problem import (
    HOST,
    Choice,
    Problem,
    accelerator_regions,
    bill,
    repriced,
    site_of,
    transfer,
)

MOST_FLIPS = 10
_TOTAL_SECONDS = 4.0  # for all flips
_FLIP_SECONDS = 1.0  # for one
_MOST_PER_KIND = 5  # moves to accelerators, of regions, and of nodes to the host
NOTHING = 1e-12


@dataclass(frozen=True, slots=True)
class Flip:
    """Nodes moved to another backend, and how much more the best such plan costs.

    `region` is the label of a region that moves as a whole; `proven`: no plan with the nodes there
    is cheaper. `extra_seconds` below 0 means cheaper by the prices of parts; the chosen plan was
    faster when its regions were measured as a whole."""

    nodes: tuple[str, ...]
    region: str
    origin: str
    backend: str
    extra_seconds: float
    proven: bool


@dataclass(frozen=True, slots=True)
class Hint:
    """A quantity of a backend with the threshold below which another plan wins.

    That plan has `regions` regions, and would save `saved` seconds if the quantity were 0."""

    backend: str
    quantity: str  # "launch", in seconds; or "transfer", as a share of the current time
    now: float
    threshold: float
    regions: int
    saved: float


def flips(partition: Partition) -> list[Flip]:
    """The cheapest alternative assignments, cheapest first."""
    problem = partition.placement.problem
    names = node_names(partition.candidates.graph)
    here = site_of(problem, partition.choice.options)
    deadline = time.monotonic() + _TOTAL_SECONDS
    result = []
    for label, nodes, site in _worth_a_look(problem, partition.choice, here)[:MOST_FLIPS]:
        left = min(_FLIP_SECONDS, deadline - time.monotonic())
        other = _solved_with(problem, nodes, site, left) if left > 0 else None
        if other is not None:
            result.append(
                Flip(
                    nodes=tuple(names[partition.candidates.nodes[node]] for node in nodes),
                    region=label,
                    origin=problem.sites[here[nodes[0]]].name,
                    backend=problem.sites[site].name,
                    extra_seconds=other.seconds - partition.choice.seconds,
                    proven=other.proven,
                )
            )
    return _distinct(sorted(result, key=lambda flip: (flip.extra_seconds, len(flip.nodes))))


def _distinct(ranked: Sequence[Flip]) -> list[Flip]:
    """Flips without those that move the same nodes and more, at the same price."""
    result: list[Flip] = []
    for flip in ranked:
        if not any(
            set(other.nodes) <= set(flip.nodes)
            and other.backend == flip.backend
            and math.isclose(other.extra_seconds, flip.extra_seconds, rel_tol=1e-6)
            for other in result
        ):
            result.append(flip)
    return result


_Move = tuple[str, tuple[int, ...], int]  # label of a region or "", nodes, site


def _worth_a_look(problem: Problem, choice: Choice, here: Sequence[int]) -> list[_Move]:
    """Moves that look cheap: some to accelerators, some regions, some nodes to the host."""
    kinds: dict[bool, list[tuple[float, _Move]]] = {True: [], False: []}
    seen: set[tuple[int, ...]] = set()
    for price, nodes, site in sorted(_guesses(problem, choice, here)):
        if nodes not in seen:
            seen.add(nodes)
            kinds[site == HOST].append((price, ("", nodes, site)))
    regions = sorted(_whole_regions(problem, choice, here))
    ranked = [kinds[False], regions, kinds[True]]
    return [move for kind in ranked for _, move in kind[:_MOST_PER_KIND]]


def _guesses(
    problem: Problem, choice: Choice, here: Sequence[int]
) -> Iterator[tuple[float, tuple[int, ...], int]]:
    """Options on sites where none of their nodes is, with an estimate of their extra cost."""
    share = _shares(problem, choice)
    touching = problem.touching
    for option in problem.options:
        if any(here[node] == option.site for node in option.nodes):
            continue
        flows = {number for node in option.nodes for number in touching[node]}
        moved = list(here)
        for node in option.nodes:
            moved[node] = option.site
        price = option.seconds - sum(share[node] for node in option.nodes)
        for number in flows:
            flow = problem.flows[number]
            price += transfer(problem, flow, moved) - transfer(problem, flow, here)
        if not _has_neighbour(problem, flows, here, option.site):
            price += problem.sites[option.site].launch
        yield price, option.nodes, option.site


def _whole_regions(
    problem: Problem, choice: Choice, here: Sequence[int]
) -> Iterator[tuple[float, _Move]]:
    """Regions that the host has options for, by what moving them there saves."""
    away = accelerator_regions(problem, choice).values()
    share = _shares(problem, choice)
    for number, nodes in enumerate(away):
        price = sum(problem.host_seconds[node] - share[node] for node in nodes)
        if len(nodes) > 1 and math.isfinite(price):
            yield price, (f"{problem.sites[here[nodes[0]]].name}_{number}", nodes, HOST)


def _shares(problem: Problem, choice: Choice) -> list[float]:
    """The current time of each node: an equal share of its option's."""
    share = [0.0] * problem.nodes
    for number in choice.options:
        option = problem.options[number]
        for node in option.nodes:
            share[node] = option.seconds / len(option.nodes)
    return share


def _has_neighbour(problem: Problem, flows: set[int], here: Sequence[int], site: int) -> bool:
    """Whether a node that shares a value with the moved ones is there already."""
    return any(here[node] == site for number in flows for node in problem.flows[number].ends)


def _solved_with(
    problem: Problem, nodes: Sequence[int], site: int, seconds: float
) -> Choice | None:
    """The best choice with the nodes on that site; None where none was found."""
    fixed = set(nodes)
    options = tuple(o for o in problem.options if o.site == site or fixed.isdisjoint(o.nodes))
    try:
        return choose(replace(problem, options=options), time_limit=seconds)
    except ValueError:
        return None


def hints(partition: Partition) -> list[Hint]:
    """How much cheaper launches and transfers of each backend would have to be."""
    problem = partition.placement.problem
    result = []
    for name in dict.fromkeys(site.name for site in problem.sites[1:]):
        own = [number for number, site in enumerate(problem.sites) if site.name == name]
        cheap_launch = _with_free_launches(problem, own)
        cheap_transfer = _with_free_transfers(problem, own)
        for quantity, changed in (("launch", cheap_launch), ("transfer", cheap_transfer)):
            hint = _hint(partition, own[0], quantity, changed)
            if hint is not None:
                result.append(hint)
    return result


def _with_free_launches(problem: Problem, own: Sequence[int]) -> Problem:
    sites = [
        replace(site, launch=0.0) if number in own else site
        for number, site in enumerate(problem.sites)
    ]
    return replace(problem, sites=tuple(sites))


def _with_free_transfers(problem: Problem, own: Sequence[int]) -> Problem:
    forms = {problem.sites[number].form for number in own}

    def free(times: tuple[float, ...]) -> tuple[float, ...]:
        return tuple(0.0 if number in forms else t for number, t in enumerate(times))

    flows = tuple(replace(f, bring=free(f.bring), fetch=free(f.fetch)) for f in problem.flows)
    return replace(problem, flows=flows)


def _hint(partition: Partition, site: int, quantity: str, changed: Problem) -> Hint | None:
    """The threshold below which the plan that wins with the quantity at 0 beats the chosen one.

    Both prices are linear in the quantity; below their intersection the other plan is cheaper."""
    problem, choice = partition.placement.problem, partition.choice
    try:
        other = choose(changed, [repriced(changed, choice)], _FLIP_SECONDS)
    except ValueError:
        return None
    floor = bill(changed, choice.options, choice.stages).total
    gained = floor - other.seconds  # with the quantity at nothing
    if gained <= max(NOTHING, 1e-6 * choice.seconds):
        return None
    dearer = bill(problem, other.options, other.stages).total - choice.seconds  # as it is now
    if dearer <= NOTHING:
        return None
    threshold = gained / (gained + dearer)
    own = len(accelerator_regions(problem, other))
    now = problem.sites[site].launch if quantity == "launch" else 1.0
    name = problem.sites[site].name
    return Hint(name, quantity, now, now * threshold, own, choice.seconds - other.seconds)

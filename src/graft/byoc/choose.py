"""Exact placement: a problem in, the cheapest choice out, with a bound that says how good it is.

First without stages: a node's site alone is decided, and the launches on a site are at least as
many as the stretches there on any path through the graph. Mostly the cover found so can be
scheduled with just these launches, and is proven best. Where it cannot, stages are decided, too, in
a number of rounds (a stage per site). A plan that needs more than R rounds has at least R regions
on accelerators, so it costs at least the price without any launches plus R of the cheapest ones;
once that is more than the best plan known, R rounds are enough.
"""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace

from graft.byoc.model import Model
from graft.byoc.problem import HOST, Choice, Problem, bill, cycle_among
from graft.byoc.schedule import schedule

TIME_LIMIT = 10.0
_CLOSE = 1e-7  # relative difference that counts as none


def choose(
    problem: Problem, known: Sequence[Choice] = (), time_limit: float = TIME_LIMIT
) -> Choice:
    """The cheapest choice that can be found in the time; `known` are choices to begin with."""
    if not problem.nodes:
        return Choice((), (), 0.0, 0.0, "exact")
    if not all(problem.covering):
        raise ValueError(f"node {problem.covering.index(())} has no option")
    deadline = time.monotonic() + time_limit
    best = min(known, key=lambda choice: choice.seconds, default=None)
    loose = _solve(problem, 0, deadline)
    best, bound = _cheaper(best, loose.choice), loose.bound
    if best is None or bound < best.seconds * (1 - _CLOSE):
        best, bound = _in_rounds(problem, best, loose, deadline)
    if best is None:
        raise ValueError("no placement was found: capacities or the time limit are too small")
    # prices are never negative, so that nothing is a bound even where time was too short for one
    return replace(best, bound=max(0.0, min(bound, best.seconds)), method="exact")


@dataclass(frozen=True)
class _Found:
    choice: Choice | None
    bound: float


def _in_rounds(
    problem: Problem, best: Choice | None, loose: _Found, deadline: float
) -> tuple[Choice | None, float]:
    """Decide the stages, too, with more and more rounds until more cannot help."""
    launch = min((site.launch for site in problem.sites[1:]), default=0.0)
    floor = loose.bound if launch <= 0.0 else _without_launches(problem, deadline)
    most = 1 + sum(_is_eligible(problem, node) for node in range(problem.nodes))
    rounds = min(most, 2 if best is None else 2 + max(best.stages) // len(problem.sites))
    bound = loose.bound
    while True:
        found = _solve(problem, rounds, deadline)
        best = _cheaper(best, found.choice)
        beyond = math.inf if rounds >= most else floor + rounds * launch
        bound = max(bound, min(found.bound, beyond))
        enough = best is not None and beyond >= best.seconds * (1 - _CLOSE)
        if enough or rounds >= most or time.monotonic() >= deadline:
            return best, bound
        rounds = min(most, _rounds_needed(best, floor, launch, rounds))


def _cheaper(one: Choice | None, other: Choice | None) -> Choice | None:
    if one is None or other is None:
        return one or other
    return other if other.seconds < one.seconds else one


def _rounds_needed(best: Choice | None, floor: float, launch: float, rounds: int) -> int:
    """How many rounds are worth a try next; at most twice as many, for they cost time."""
    if best is None or launch <= 0.0:
        return 2 * rounds
    return min(2 * rounds, max(rounds + 1, math.ceil((best.seconds - floor) / launch)))


def _is_eligible(problem: Problem, node: int) -> bool:
    return any(problem.options[o].site != HOST for o in problem.covering[node])


def _without_launches(problem: Problem, deadline: float) -> float:
    """A bound: what a cover and its transfers cost if regions were for nothing."""
    sites = tuple(replace(site, launch=0.0, capacity=None) for site in problem.sites)
    return max(0.0, _solve(replace(problem, sites=sites), 0, deadline).bound)


def _solve(problem: Problem, rounds: int, deadline: float) -> _Found:
    """The best choice within a number of rounds; 0 leaves the order to the scheduler."""
    model = Model(problem, rounds)
    if model.positions is None:
        return _Found(None, math.inf)
    bound = -math.inf
    while True:
        solved = model.programme.solve(deadline - time.monotonic())
        bound = max(bound, solved.bound * model.unit)
        if solved.values is None:
            return _Found(None, bound)
        options, stages = model.read(solved.values)
        circle = cycle_among(problem, options)
        if not circle:
            return _Found(_choice(problem, options, stages if rounds else None), bound)
        if time.monotonic() >= deadline:
            return _Found(None, bound)
        model.forbid(circle)


def _choice(
    problem: Problem, options: tuple[int, ...], stages: tuple[int, ...] | None
) -> Choice | None:
    stages = stages or schedule(problem, options)
    if stages is None:
        return None
    return Choice(options, stages, bill(problem, options, stages).total)

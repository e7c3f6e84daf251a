"""Exact placement: a problem in, the cheapest choice out, with a bound that says how good it is.

First without stages: a node's site alone is decided, and the launches on a site are at least as
many as the stretches there on any path through the graph. Mostly the cover found so can be
scheduled with just these launches, and is proven best. Where it cannot, stages are decided, too, in
a number of rounds (a stage per site). A plan that needs more than R rounds has at least R regions
on accelerators, so it costs at least the price without any launches plus R of the cheapest ones;
once that is more than the best plan known, R rounds are enough.

Constants are within each device's memory by rows of their own. What values need there (`memory.py`)
is computed for the solver's answer; one that needs too much is cut off, with all others that put
the same values there at once, and the programme is solved again.
"""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace

from graft.byoc.memory import Peak, in_words, overfull
from graft.byoc.model import Model
from graft.byoc.problem import HOST, Choice, Problem, bill, cycle_among
from graft.byoc.schedule import schedule

TIME_LIMIT = 10.0
_CLOSE = 1e-7  # relative difference that counts as none
_REASON_SECONDS = 2.0  # to find out why there is no placement
_REPAIR_SHARE, _MOST_REPAIRS = 0.5, 100  # of the time, to find one within memory to begin with


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
    start = loose.choice or _repaired(problem, deadline)
    found = replace(loose, choice=_cheaper(best, start))
    if found.choice is None or found.bound < found.choice.seconds * (1 - _CLOSE):
        found = _in_rounds(problem, found, deadline)
    best, bound = found.choice, found.bound
    if best is None:
        raise ValueError(f"no placement was found: {_why_none(problem)}")
    # prices are never negative, so that nothing is a bound even where time was too short for one
    return replace(best, bound=max(0.0, min(bound, best.seconds)), method="exact")


@dataclass(frozen=True)
class _Found:
    choice: Choice | None
    bound: float


def _in_rounds(problem: Problem, loose: _Found, deadline: float) -> _Found:
    """Decide the stages, too, with more and more rounds until more cannot help."""
    launch = min((site.launch for site in problem.sites[1:]), default=0.0)
    floor = loose.bound if launch <= 0.0 else _without_launches(problem, deadline)
    most = 1 + sum(_is_eligible(problem, node) for node in range(problem.nodes))
    best, bound = loose.choice, loose.bound
    rounds = min(most, 2 if best is None else 2 + max(best.stages) // len(problem.sites))
    limits: _Limits = []
    while True:
        found = _solve(problem, rounds, deadline, limits)
        best = _cheaper(best, found.choice)
        beyond = math.inf if rounds >= most else floor + rounds * launch
        bound = max(bound, min(found.bound, beyond))
        enough = best is not None and beyond >= best.seconds * (1 - _CLOSE)
        if enough or rounds >= most or time.monotonic() >= deadline:
            return _Found(best, bound)
        rounds = min(most, _rounds_needed(best, floor, launch, rounds))


def _repaired(problem: Problem, deadline: float) -> Choice | None:
    """A choice to begin with where memory is short: the cheapest in whatever order, again and again
    without the node that puts most into a memory that is too small. No bound comes of it."""
    until = time.monotonic() + _REPAIR_SHARE * (deadline - time.monotonic())
    kept = list(range(len(problem.options)))
    for _ in range(_MOST_REPAIRS):
        left = replace(_roomy(problem), options=tuple(problem.options[o] for o in kept))
        cheapest = _solve(left, 0, until).choice if all(left.covering) else None
        if cheapest is None:
            return None
        options = tuple(kept[o] for o in cheapest.options)
        stages = schedule(problem, options) or cheapest.stages
        excess = overfull(problem, options, stages)
        if excess is None:
            return Choice(options, stages, bill(problem, options, stages).total)
        moved = _largest(problem, excess, options, kept)
        if moved is None:
            return None
        here = {o for o in problem.covering[moved] if problem.options[o].site in excess.space.sites}
        kept = [o for o in kept if o not in here]
    return None


def _largest(
    problem: Problem, peak: Peak, options: Sequence[int], kept: Sequence[int]
) -> int | None:
    """The node that puts most into a memory, of those that could run elsewhere."""
    sites = peak.space.sites
    away = (problem.options[o] for o in kept if problem.options[o].site not in sites)
    elsewhere = {node for option in away for node in option.nodes}
    sizes = {
        node: problem.held_by([node])
        for o in options
        for node in problem.options[o].nodes
        if problem.options[o].site in sites and node in elsewhere
    }
    for held in peak.values:
        for node in sizes:
            sizes[node] += held.size if held.flow in problem.touching[node] else 0
    return max(sizes, key=sizes.__getitem__, default=None)


def _why_none(problem: Problem) -> str:
    """What would be in the memory of a device that is too small, if there were no limits."""
    found = _solve(_roomy(problem), 0, time.monotonic() + _REASON_SECONDS).choice
    peak = None if found is None else overfull(problem, found.options, found.stages)
    if peak is None:
        return "memory or the time limit is too small"
    return f"memory is too small; without limits it would hold {in_words(problem, peak)}"


def _roomy(problem: Problem) -> Problem:
    sites = tuple(replace(site, capacity=None) for site in problem.sites)
    return replace(problem, sites=sites)


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
    sites = tuple(replace(site, launch=0.0) for site in _roomy(problem).sites)
    return max(0.0, _solve(replace(problem, sites=sites), 0, deadline).bound)


_Limits = list[tuple[Peak, tuple[int, ...]]]  # choices that need too much memory, by their stages


def _solve(problem: Problem, rounds: int, deadline: float, limits: _Limits | None = None) -> _Found:
    """The best choice within a number of rounds; 0 leaves the order to the scheduler. `limits` have
    been found before, and get more."""
    model = Model(problem, rounds)
    if model.positions is None:
        return _Found(None, math.inf)
    limits = [] if limits is None else limits
    for peak, where in limits:
        model.limit(peak, where)
    bound = -math.inf
    while True:
        solved = model.programme.solve(deadline - time.monotonic())
        bound = max(bound, solved.bound * model.unit)
        if solved.values is None:
            return _Found(None, bound)
        options, stages = model.read(solved.values)
        circle = cycle_among(problem, options)
        excess = overfull(problem, options, stages) if rounds and not circle else None
        if not circle and excess is None:
            return _Found(_choice(problem, options, stages if rounds else None), bound)
        if time.monotonic() >= deadline:
            return _Found(None, bound)
        if excess is not None:
            limits.append((excess, stages))
            model.limit(excess, stages)
        else:
            model.forbid(circle)


def _choice(
    problem: Problem, options: tuple[int, ...], stages: tuple[int, ...] | None
) -> Choice | None:
    stages = stages or schedule(problem, options)
    if stages is None or overfull(problem, options, stages) is not None:
        return None
    return Choice(options, stages, bill(problem, options, stages).total)

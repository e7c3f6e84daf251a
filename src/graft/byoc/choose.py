"""Exact placement: a problem in, the cheapest choice out, with a proven bound.

First only sites are decided, not the order of regions (`_solve_sites`). The launches on a site are
then at least the regions there on any path through the graph, and memory is limited by cuts that
hold in any order (`memory_cuts.py`). Usually the solution can be scheduled with just these launches
and within memory, which proves it optimal.

Otherwise stages are decided, too, in a number of rounds with a stage per site. A plan that needs
more than R rounds has at least R regions on accelerators, and costs at least the price without
launches plus R times the cheapest launch; once that exceeds the best plan so far, R rounds are
enough.
"""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace

from graft.byoc.greedy import fitted, priced
from graft.byoc.memory import Peak, in_words, overflows, overfull
from graft.byoc.memory_cuts import RegionCuts, StageCuts
from graft.byoc.model import Model
from graft.byoc.problem import HOST, Choice, Problem, cycle_among, unlimited
from graft.byoc.schedule import schedule_apart

TIME_LIMIT = 10.0
_CLOSE = 1e-7  # relative tolerance
_REASON_SECONDS = 2.0  # to find the reason why there is no placement


def choose(
    problem: Problem, starts: Sequence[Choice] = (), time_limit: float = TIME_LIMIT
) -> Choice:
    """The cheapest choice found within the time limit; `starts` are choices to begin with."""
    if not problem.nodes:
        return Choice((), (), 0.0, 0.0, "exact")
    if not all(problem.covering):
        raise ValueError(f"node {problem.covering.index(())} has no option")
    deadline = time.monotonic() + time_limit
    overflow: _Overflow = []
    result = _solve_sites(problem, deadline, overflow)
    result = replace(result, choice=_cheapest(result.choice, *starts))
    if not result.is_proven:
        result = _solve_in_rounds(problem, result, deadline, overflow)
    if result.choice is None:
        raise ValueError(f"no placement was found: {_why_none(problem)}")
    # prices are not negative, so 0 is a bound if the solver found none in time
    bound = max(0.0, min(result.bound, result.choice.seconds))
    return replace(result.choice, bound=bound, method="exact")


@dataclass(frozen=True)
class _Result:
    choice: Choice | None
    bound: float  # no choice is cheaper

    @property
    def is_proven(self) -> bool:
        return self.choice is not None and self.bound >= self.choice.seconds * (1 - _CLOSE)


_Overflow = list[
    tuple[Peak, tuple[int, ...]]
]  # regions that are too large, and the stages of all nodes


def _solve_sites(problem: Problem, deadline: float, overflow: _Overflow) -> _Result:
    """The best sites, in the order that the scheduler finds; the bound holds for any order. Regions
    that had to be excluded are appended to `overflow`."""
    model = Model(problem, 0)
    cuts, roomy = RegionCuts(model), unlimited(problem)
    best: Choice | None = None
    bound = -math.inf
    while True:
        solution = model.programme.solve(deadline - time.monotonic())
        bound = max(bound, solution.bound * model.unit)
        if solution.values is None:
            return _Result(best, bound)
        options, _ = model.read(solution.values)
        circle = cycle_among(problem, options)
        if circle:
            model.forbid(circle)
        else:
            stages = schedule_apart(roomy, options, model.read_splits(solution.values))
            peaks = [] if stages is None else overflows(problem, options, stages)
            if stages is None or not peaks:
                return _Result(_cheapest(best, priced(problem, options, stages)), bound)
            if best is None:
                best = _spacious(problem, peaks, deadline)
            best = _cheapest(best, fitted(problem, options))
            excluded = [(peak, stages) for peak in peaks if cuts.add(peak, stages)]
            if not excluded:
                return _Result(best, bound)
            overflow += excluded
        if time.monotonic() >= deadline or _Result(best, bound).is_proven:
            return _Result(best, bound)


def _spacious(problem: Problem, peaks: Sequence[Peak], deadline: float) -> Choice | None:
    """A first choice: the best one whose constants leave as much memory as the largest region
    currently needs for everything else."""
    model = Model(problem, 0)
    for peak in peaks:
        room = (peak.space.capacity or 0) - (peak.total - peak.constants)
        if room >= 0:
            model.limit_constants(peak.space, room)
    solution = model.programme.solve(deadline - time.monotonic())
    return fitted(problem, model.read(solution.values)[0]) if solution.values else None


def _solve_in_rounds(
    problem: Problem, start: _Result, deadline: float, overflow: _Overflow
) -> _Result:
    """Decide stages, too, in more and more rounds until more cannot help."""
    launch = min((site.launch for site in problem.sites[1:]), default=0.0)
    floor = start.bound if launch <= 0.0 else _bound_without_launches(problem, deadline)
    most = 1 + sum(
        any(problem.options[o].site != HOST for o in covering) for covering in problem.covering
    )
    best, bound = start.choice, start.bound
    rounds = min(most, 2 if best is None else 2 + max(best.stages) // len(problem.sites))
    staged: _Overflow = []
    while True:
        result = _solve_stages(problem, rounds, deadline, overflow, staged)
        best = _cheapest(best, result.choice)
        beyond = math.inf if rounds >= most else floor + rounds * launch
        bound = max(bound, min(result.bound, beyond))
        is_enough = best is not None and beyond >= best.seconds * (1 - _CLOSE)
        if is_enough or rounds >= most or time.monotonic() >= deadline:
            return _Result(best, bound)
        rounds = min(most, _next_rounds(best, floor, launch, rounds))


def _solve_stages(
    problem: Problem, rounds: int, deadline: float, overflow: _Overflow, staged: _Overflow
) -> _Result:
    """The best choice within a number of rounds. The regions in `overflow` are excluded in any
    order, those in `staged` at their stages; both are extended."""
    model = Model(problem, rounds)
    if not model.positions:
        return _Result(None, math.inf)
    region_cuts, stage_cuts = RegionCuts(model), StageCuts(model)
    for peak, stages in overflow:
        region_cuts.add(peak, stages)
    for peak, stages in staged:
        stage_cuts.add(peak, stages)
    bound = -math.inf
    while True:
        solution = model.programme.solve(deadline - time.monotonic())
        bound = max(bound, solution.bound * model.unit)
        if solution.values is None:
            return _Result(None, bound)
        options, stages = model.read(solution.values)
        circle = cycle_among(problem, options)
        peaks = [] if circle else overflows(problem, options, stages)
        if not circle and not peaks:
            return _Result(priced(problem, options, stages), bound)
        if time.monotonic() >= deadline:
            return _Result(None, bound)
        if circle:
            model.forbid(circle)
        for peak in peaks:
            (overflow if region_cuts.add(peak, stages) else staged).append((peak, stages))
            stage_cuts.add(peak, stages)


def _why_none(problem: Problem) -> str:
    """The contents of the device memory that is too small, if there were no limits."""
    until = time.monotonic() + _REASON_SECONDS
    choice = _solve_sites(unlimited(problem), until, []).choice
    peak = None if choice is None else overfull(problem, choice.options, choice.stages)
    if peak is None:
        return "memory or the time limit is too small"
    return f"memory is too small; without limits it would hold {in_words(problem, peak)}"


def _cheapest(*choices: Choice | None) -> Choice | None:
    real = (choice for choice in choices if choice is not None)
    return min(real, key=lambda choice: choice.seconds, default=None)


def _next_rounds(best: Choice | None, floor: float, launch: float, rounds: int) -> int:
    """The next number of rounds to try; at most twice as many, since rounds cost time."""
    if best is None or launch <= 0.0:
        return 2 * rounds
    return min(2 * rounds, max(rounds + 1, math.ceil((best.seconds - floor) / launch)))


def _bound_without_launches(problem: Problem, deadline: float) -> float:
    """A lower bound: the price of a cover and its transfers without launches."""
    sites = tuple(replace(site, launch=0.0) for site in unlimited(problem).sites)
    return max(0.0, _solve_sites(replace(problem, sites=sites), deadline, []).bound)

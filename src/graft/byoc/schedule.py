"""Stages for chosen options: an order of regions with few launches.

Always first everything that the host can do, which costs no launch, then on one accelerator
everything that can run there in one go. With one accelerator and enough memory no order has fewer
launches; with several, each is tried as the next and the best of a bounded number of orders kept. A
region that is too large for its device's memory is cut short; whether all that stays there between
regions fits is another question (`memory.py`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

from graft.byoc.memory import region_bytes
from graft.byoc.problem import HOST, Problem

_MOST_STATES = 64  # orders that are kept side by side


@dataclass(frozen=True)
class _Jobs:
    """Options with what each waits for."""

    problem: Problem
    options: Sequence[int]

    @cached_property
    def waits(self) -> dict[int, frozenset[int]]:
        owner = {n: o for o in self.options for n in self.problem.options[o].nodes}
        found: dict[int, set[int]] = {option: set() for option in self.options}
        for before, after in self.problem.edges:
            if owner[before] != owner[after]:
                found[owner[after]].add(owner[before])
        return {option: frozenset(sources) for option, sources in found.items()}

    @cached_property
    def users(self) -> dict[int, list[int]]:
        found: dict[int, list[int]] = {option: [] for option in self.options}
        for option, sources in self.waits.items():
            for source in sources:
                found[source].append(option)
        return found

    def site(self, option: int) -> int:
        return self.problem.options[option].site

    @cached_property
    def held(self) -> dict[int, int]:
        """Bytes of constants on each site."""
        found: dict[int, int] = {}
        for option in self.options:
            own = self.problem.held_by(self.problem.options[option].nodes)
            found[self.site(option)] = found.get(self.site(option), 0) + own
        return found

    def fitting(self, region: Sequence[int], site: int) -> int:
        """How many options of a region, in their order, fit the memory of the site."""
        capacity = self.problem.sites[site].capacity
        if capacity is None or not region:
            return len(region)
        room = capacity - self.held.get(site, 0)
        fits, too_many = 0, len(region) + 1
        middle = len(region)
        while too_many - fits > 1:
            if region_bytes(self.problem, region[:middle]) <= room:
                fits = middle
            else:
                too_many = middle
            middle = (fits + too_many) // 2
        return fits


@dataclass(frozen=True)
class _State:
    """What has run, what is ready, and in which regions so far."""

    missing: dict[int, int]  # option -> how many of its sources have not run
    ready: frozenset[int]
    regions: tuple[tuple[int, ...], ...]
    price: float


def schedule(problem: Problem, options: Sequence[int]) -> tuple[int, ...] | None:
    """Each node's stage; None where options wait for each other or one alone does not fit."""
    jobs = _Jobs(problem, options)
    missing = {option: len(sources) for option, sources in jobs.waits.items()}
    ready = frozenset(option for option, count in missing.items() if not count)
    states = [_advanced(jobs, _State(missing, ready, (), 0.0), HOST)]
    while states and any(state.ready for state in states):
        ended = [state for state in states if not state.ready]
        following = [
            _advanced(jobs, _advanced(jobs, state, site), HOST)
            for state in states
            for site in sorted({jobs.site(option) for option in state.ready})
        ]
        moved = [state for state in following if state.regions]
        states = sorted(ended + _distinct(moved), key=_rank)[:_MOST_STATES]
        if ended and states[0] in ended:
            break
    best = states[0] if states else None
    if best is None or sum(map(len, best.regions)) < len(options):
        return None
    return _stages(jobs, best)


def _rank(state: _State) -> tuple[float, int]:
    return state.price, len(state.missing)


def _distinct(states: Sequence[_State]) -> list[_State]:
    """Of states that have run the same, the cheapest; further ones at equal price come first."""
    found: dict[frozenset[int], _State] = {}
    for state in sorted(states, key=_rank):
        found.setdefault(frozenset(state.missing), state)
    return list(found.values())


def _advanced(jobs: _Jobs, state: _State, site: int) -> _State:
    """Run in one region everything that the site can, as far as its memory goes."""
    region = _runnable(jobs, state, site)
    region = region[: jobs.fitting(region, site)]
    if not region:
        alone = site != HOST and any(jobs.site(option) == site for option in state.ready)
        return _State({}, frozenset(), (), float("inf")) if alone else state
    missing, ready = dict(state.missing), set(state.ready)
    for option in region:
        ready.discard(option)
        del missing[option]
        for user in jobs.users[option]:
            missing[user] -= 1
            if not missing[user]:
                ready.add(user)
    price = state.price + (jobs.problem.sites[site].launch if site != HOST else 0.0)
    return _State(missing, frozenset(ready), (*state.regions, tuple(region)), price)


def _runnable(jobs: _Jobs, state: _State, site: int) -> list[int]:
    """Everything that can run on a site without another, in an order in which it can."""
    missing: dict[int, int] = {}
    region: list[int] = []
    stack = sorted((o for o in state.ready if jobs.site(o) == site), reverse=True)
    while stack:
        option = stack.pop()
        region.append(option)
        for user in jobs.users[option]:
            missing[user] = missing.get(user, state.missing[user]) - 1
            if not missing[user] and jobs.site(user) == site:
                stack.append(user)
    return region


def _stages(jobs: _Jobs, state: _State) -> tuple[int, ...]:
    """Stage numbers whose remainder tells the site."""
    count = len(jobs.problem.sites)
    stages = [0] * jobs.problem.nodes
    stage = -1
    for region in state.regions:
        site = jobs.site(region[0])
        stage += 1 + (site - stage - 1) % count
        for option in region:
            for node in jobs.problem.options[option].nodes:
                stages[node] = stage
    return tuple(stages)

"""Stages for chosen options: an order of regions with few launches.

First everything that the host can run, which costs no launch, then everything that can run on one
accelerator in one region, and so on. With one accelerator and enough memory no order has fewer
launches; with several, each is tried as the next, and the best of a bounded number of orders kept.
A region that exceeds its device's memory is cut short; values that stay in memory between regions
are checked elsewhere (`memory.py`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from graft.byoc.memory import region_bytes
from graft.byoc.problem import HOST, Problem

_MOST_STATES = 64  # partial orders in the beam


@dataclass(frozen=True)
class _Jobs:
    """Options that have to run together, with their dependencies."""

    problem: Problem
    members: Sequence[tuple[int, ...]]  # options of each job
    apart: frozenset[tuple[int, int]] = frozenset()  # jobs that must not share a region

    @cached_property
    def waits(self) -> dict[int, frozenset[int]]:
        owner = self.owner
        sources: dict[int, set[int]] = {job: set() for job in range(len(self.members))}
        for before, after in self.problem.edges:
            if owner[before] != owner[after]:
                sources[owner[after]].add(owner[before])
        return {job: frozenset(own) for job, own in sources.items()}

    @cached_property
    def owner(self) -> dict[int, int]:
        """The job of each node."""
        options = ((job, option) for job, own in enumerate(self.members) for option in own)
        return {n: job for job, option in options for n in self.problem.options[option].nodes}

    @cached_property
    def users(self) -> dict[int, list[int]]:
        users: dict[int, list[int]] = {job: [] for job in self.waits}
        for job, sources in self.waits.items():
            for source in sources:
                users[source].append(job)
        return users

    def site(self, job: int) -> int:
        return self.problem.options[self.members[job][0]].site

    def options(self, region: Sequence[int]) -> list[int]:
        return [option for job in region for option in self.members[job]]

    @cached_property
    def held(self) -> dict[int, int]:
        """Bytes of constants on each site."""
        sizes: dict[int, int] = {}
        for node, job in self.owner.items():
            sizes[self.site(job)] = sizes.get(self.site(job), 0) + self.problem.held_by([node])
        return sizes

    def fitting(self, region: Sequence[int], site: int) -> int:
        """The number of jobs of a region, in order, that fit the memory of the site."""
        capacity = self.problem.sites[site].capacity
        if capacity is None or not region:
            return len(region)
        room = capacity - self.held.get(site, 0)
        fits, too_many = 0, len(region) + 1
        middle = len(region)
        while too_many - fits > 1:
            if region_bytes(self.problem, self.options(region[:middle])) <= room:
                fits = middle
            else:
                too_many = middle
            middle = (fits + too_many) // 2
        return fits


@dataclass(frozen=True)
class _State:
    """A partial order: the regions so far, and the jobs that are ready."""

    missing: dict[int, int]  # job -> how many of its sources have not run
    ready: frozenset[int]
    regions: tuple[tuple[int, ...], ...]
    price: float


def schedule(problem: Problem, options: Sequence[int]) -> tuple[int, ...] | None:
    """Each node's stage; None if options wait for each other, or one alone exceeds memory."""
    return _scheduled(_Jobs(problem, [(option,) for option in options]))


def schedule_apart(
    problem: Problem, options: Sequence[int], splits: Mapping[tuple[int, int], bool]
) -> tuple[int, ...] | None:
    """The same with a decision for some edges whether they cross regions."""
    owner = {node: option for option in options for node in problem.options[option].nodes}
    group = {option: option for option in options}  # the first one of those that stay together

    def first(option: int) -> int:
        while group[option] != option:
            option = group[option]
        return option

    for (before, after), is_split in splits.items():
        if not is_split:
            one, other = sorted((first(owner[before]), first(owner[after])))
            group[other] = one
    members: dict[int, list[int]] = {}
    for option in options:
        members.setdefault(first(option), []).append(option)
    number = {option: job for job, own in enumerate(members.values()) for option in own}
    apart = (edge for edge, is_split in splits.items() if is_split)
    pairs = frozenset((number[owner[a]], number[owner[b]]) for a, b in apart)
    return _scheduled(_Jobs(problem, [tuple(own) for own in members.values()], pairs))


def _scheduled(jobs: _Jobs) -> tuple[int, ...] | None:
    missing = {job: len(sources) for job, sources in jobs.waits.items()}
    ready = frozenset(job for job, count in missing.items() if not count)
    states = [_advance(jobs, _State(missing, ready, (), 0.0), HOST)]
    while states and any(state.ready for state in states):
        finished = [state for state in states if not state.ready]
        following = [
            _advance(jobs, _advance(jobs, state, site), HOST)
            for state in states
            for site in sorted({jobs.site(job) for job in state.ready})
        ]
        moved = [state for state in following if state.regions]
        states = sorted(finished + _distinct(moved), key=_rank)[:_MOST_STATES]
        if finished and states[0] in finished:
            break
    best = states[0] if states else None
    if best is None or sum(map(len, best.regions)) < len(jobs.members):
        return None
    return _stages(jobs, best)


def _rank(state: _State) -> tuple[float, int]:
    return state.price, len(state.missing)


def _distinct(states: Sequence[_State]) -> list[_State]:
    """Of states that have run the same jobs, the cheapest."""
    result: dict[frozenset[int], _State] = {}
    for state in sorted(states, key=_rank):
        result.setdefault(frozenset(state.missing), state)
    return list(result.values())


def _advance(jobs: _Jobs, state: _State, site: int) -> _State:
    """Run everything that the site can in one region, as far as its memory allows."""
    region = _runnable(jobs, state, site)
    region = region[: jobs.fitting(region, site)]
    if not region:
        alone = site != HOST and any(jobs.site(job) == site for job in state.ready)
        return _State({}, frozenset(), (), float("inf")) if alone else state
    missing, ready = dict(state.missing), set(state.ready)
    for job in region:
        ready.discard(job)
        del missing[job]
        for user in jobs.users[job]:
            missing[user] -= 1
            if not missing[user]:
                ready.add(user)
    price = state.price + (jobs.problem.sites[site].launch if site != HOST else 0.0)
    return _State(missing, frozenset(ready), (*state.regions, tuple(region)), price)


def _runnable(jobs: _Jobs, state: _State, site: int) -> list[int]:
    """The jobs that can run on a site without another, in a possible order."""
    missing: dict[int, int] = {}
    later: set[int] = set()
    region: list[int] = []
    stack = sorted((job for job in state.ready if jobs.site(job) == site), reverse=True)
    while stack:
        job = stack.pop()
        region.append(job)
        for user in jobs.users[job]:
            missing[user] = missing.get(user, state.missing[user]) - 1
            if (job, user) in jobs.apart:
                later.add(user)
            if not missing[user] and user not in later and jobs.site(user) == site:
                stack.append(user)
    return region


def _stages(jobs: _Jobs, state: _State) -> tuple[int, ...]:
    """Stage numbers; modulo the number of sites, a stage is its site."""
    count = len(jobs.problem.sites)
    stages = [0] * jobs.problem.nodes
    stage = -1
    for region in state.regions:
        site = jobs.site(region[0])
        stage += 1 + (site - stage - 1) % count
        for option in jobs.options(region):
            for node in jobs.problem.options[option].nodes:
                stages[node] = stage
    return tuple(stages)

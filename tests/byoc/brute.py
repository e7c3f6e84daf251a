"""Placement by trying everything: the oracle of the exact optimiser, for small problems."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cache
from itertools import combinations

from graft.byoc.problem import HOST, Option, Problem, is_inaccurate, site_of, transfers


def covers(problem: Problem) -> Iterator[tuple[int, ...]]:
    """All ways to cover every node exactly once."""

    def extend(taken: frozenset[int], chosen: tuple[int, ...]) -> Iterator[tuple[int, ...]]:
        node = next((n for n in range(problem.nodes) if n not in taken), None)
        if node is None:
            yield tuple(sorted(chosen))
            return
        for number in problem.covering[node]:
            nodes = problem.options[number].nodes
            if not taken & set(nodes):
                yield from extend(taken | set(nodes), (*chosen, number))

    yield from extend(frozenset(), ())


def cheapest(problem: Problem) -> float:
    """The price of the best solution; infinite where there is none."""
    best = float("inf")
    accurate = (cover for cover in covers(problem) if not is_inaccurate(problem, cover))
    priced = ((_without_launches(problem, cover), cover) for cover in accurate)
    for price, cover in sorted(priced):
        if price >= best:
            break
        best = min(best, price + fewest_launches(problem, cover))
    return best


def _without_launches(problem: Problem, cover: tuple[int, ...]) -> float:
    execution = sum(problem.options[number].seconds for number in cover)
    return execution + transfers(problem, site_of(problem, cover))


def fewest_launches(problem: Problem, cover: tuple[int, ...]) -> float:
    """Run regions one after the other, every set of options that can run next on one site, as long
    as no device holds more than it has."""
    jobs = [problem.options[number] for number in cover]
    owner = {node: index for index, job in enumerate(jobs) for node in job.nodes}
    needs = [
        {owner[before] for before, after in problem.edges if owner[after] == index} - {index}
        for index in range(len(jobs))
    ]
    if all(site.capacity is None for site in problem.sites):
        return _one_by_one(problem, jobs, needs)
    memory = _Memory(problem, cover)

    @cache
    def best(done: frozenset[int]) -> float:
        if len(done) == len(jobs):
            return 0.0
        found = float("inf")
        for site, target in enumerate(problem.sites):
            able = [i for i, job in enumerate(jobs) if i not in done and job.site == site]
            for region in _subsets(able):
                if any(not needs[index] <= done | region for index in region):
                    continue
                if site == HOST or memory.fits(done, region, site):
                    launch = 0.0 if site == HOST else target.launch
                    found = min(found, launch + best(done | region))
        return found

    return best(frozenset())


def _one_by_one(problem: Problem, jobs: Sequence[Option], needs: Sequence[set[int]]) -> float:
    """Where memory does not matter: neighbours on one site share a region."""

    @cache
    def best(done: frozenset[int], last: int) -> float:
        found = 0.0 if len(done) == len(jobs) else float("inf")
        for index, job in enumerate(jobs):
            if index not in done and needs[index] <= done:
                is_free = job.site in (last, HOST)
                launch = 0.0 if is_free else problem.sites[job.site].launch
                found = min(found, launch + best(done | {index}, job.site))
        return found

    return best(frozenset(), -1)


def _subsets(items: Sequence[int]) -> Iterator[frozenset[int]]:
    for count in range(1, len(items) + 1):
        yield from map(frozenset, combinations(items, count))


class _Memory:
    """What devices hold, region by region, from the definition: step by step, tensor by tensor."""

    def __init__(self, problem: Problem, cover: tuple[int, ...]) -> None:
        self.problem, self.cover = problem, cover
        self.site = site_of(problem, cover)
        self.owner = {n: i for i, o in enumerate(cover) for n in problem.options[o].nodes}

    def fits(self, done: frozenset[int], region: frozenset[int], site: int) -> bool:
        """Whether what is there while a region runs is within the memory of its site."""
        target = self.problem.sites[site]
        mates = [
            number
            for number, other in enumerate(self.problem.sites)
            if number == site or (target.space and other.space == target.space)
        ]
        limits = [self.problem.sites[mate].capacity for mate in mates]
        limit = min((one for one in limits if one is not None), default=None)
        if limit is None:
            return True
        total = self.inside(region, site) + sum(self.border(done, region, mates))
        if self.problem.held:
            own = (node for node, where in enumerate(self.site) if where in mates)
            total += sum(self.problem.held[node] for node in own)
        return total <= limit

    def border(
        self, done: frozenset[int], region: frozenset[int], mates: Sequence[int]
    ) -> Iterator[int]:
        """Bytes of each value in a memory while a region runs, but for those inside of it."""
        sites = self.problem.sites
        own_site = self.site[self.problem.options[self.cover[min(region)]].nodes[0]]
        stays = bool(sites[own_site].space)
        for flow in self.problem.flows:
            for form in {sites[mate].form for mate in mates}:

                def here(node: int, form: int = form) -> bool:
                    return self.site[node] in mates and sites[self.site[node]].form == form

                maker = flow.producer
                made = maker is not None and here(maker)
                when = [self.owner[node] for node in flow.consumers if here(node)]
                before = any(index in done for index in when)
                now = any(index in region for index in when)
                later = any(index not in done and index not in region for index in when)
                made_now = made and maker is not None and self.owner[maker] in region
                made_before = made and maker is not None and self.owner[maker] in done
                goes_out = flow.leaves or any(
                    self.owner[node] not in region for node in flow.consumers
                )
                if made_now:
                    is_there = goes_out
                elif not stays:
                    is_there = now
                elif made:
                    is_there = made_before and (now or later)
                else:
                    is_there = now or (before and later)
                if is_there:
                    yield flow.sizes[form]

    def inside(self, region: frozenset[int], site: int) -> int:
        """The most that a region holds of its own, node by node, and its workspace."""
        form = self.problem.sites[site].form
        nodes = sorted(node for node, index in self.owner.items() if index in region)
        largest = 0
        for step in nodes:
            alive = 0
            for flow in self.problem.flows:
                ends = (flow.producer, *flow.consumers)
                if flow.producer is None or flow.leaves or not set(ends) <= set(nodes):
                    continue
                if flow.producer <= step <= max(flow.consumers, default=flow.producer):
                    alive += flow.sizes[form]
            largest = max(largest, alive)
        return largest + max(self.problem.options[self.cover[i]].workspace for i in region)

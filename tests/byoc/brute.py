"""Placement by trying everything: the oracle of the exact optimiser, for small problems."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache

from graft.byoc.problem import HOST, Problem, site_of, transfers


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
    priced = ((_without_launches(problem, cover), cover) for cover in covers(problem))
    for price, cover in sorted(priced):
        if price >= best:
            break
        best = min(best, price + fewest_launches(problem, cover))
    return best


def _without_launches(problem: Problem, cover: tuple[int, ...]) -> float:
    execution = sum(problem.options[number].seconds for number in cover)
    return execution + transfers(problem, site_of(problem, cover))


def fewest_launches(problem: Problem, cover: tuple[int, ...]) -> float:
    """Run options one after the other in every order; neighbours on one site share a region."""
    needs = [
        {
            other
            for before, after in problem.edges
            if after in problem.options[number].nodes
            for other, candidate in enumerate(cover)
            if before in problem.options[candidate].nodes and candidate != number
        }
        for number in cover
    ]

    held = dict.fromkeys(range(len(problem.sites)), 0)
    for number in cover:
        option = problem.options[number]
        held[option.site] += sum(problem.held[n] for n in option.nodes) if problem.held else 0

    @cache
    def best(done: frozenset[int], site: int, room: int) -> float:
        if len(done) == len(cover):
            return 0.0
        found = float("inf")
        for index, number in enumerate(cover):
            if index in done or not needs[index] <= done:
                continue
            option = problem.options[number]
            needed = sum(problem.memory[n] for n in option.nodes)
            target = problem.sites[option.site]
            capacity = target.capacity if target.capacity is not None else 1 << 62
            capacity -= held[option.site]
            after = done | {index}
            if option.site == site and needed <= room:
                found = min(found, best(after, site, room - needed))
            if needed <= capacity:
                launch = 0.0 if option.site == HOST else target.launch
                found = min(found, launch + best(after, option.site, capacity - needed))
        return found

    return best(frozenset(), -1, 0)

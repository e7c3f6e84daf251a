"""What others do, on the same problem: everything to the accelerators, by priority, then prune.

Nodes go to the first accelerator that can run them; neighbours on one accelerator merge into
regions as large as convexity and memory allow; regions with little work go back to the host. Pieces
that alone are too large for a device's memory, or that would wait for each other, are not taken.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from graft.byoc.memory import overfull, region_bytes
from graft.byoc.problem import HOST, Choice, Problem, bill, cycle_among, site_of
from graft.byoc.schedule import schedule


def host_only(problem: Problem) -> Choice | None:
    """Everything on the host; None where it cannot run everything (pins)."""
    options = _covered(problem, {}, [HOST])
    if options is None:
        return None
    stages = (0,) * problem.nodes
    return _priced(problem, options, stages, "host-only")


def greedy(problem: Problem) -> Choice | None:
    """All that accelerators can run to them, the first that can, the largest pieces first."""
    order = [*range(1, len(problem.sites)), HOST]
    options = _covered(problem, {}, order)
    if options is None:
        return None
    return _staged(problem, options, "greedy") or _less(problem, options)


def _less(problem: Problem, options: Sequence[int]) -> Choice | None:
    """The first part of what accelerators were to run, as much as their memory has room for."""
    away = [number for number in options if problem.options[number].site != HOST]
    best: Choice | None = None
    fits, too_many = 0, len(away)
    while fits < too_many:
        middle = (fits + too_many) // 2
        kept = {node: o for o in away[:middle] for node in problem.options[o].nodes}
        part = _covered(problem, kept, [HOST])
        found = None if part is None else _staged(problem, part, "greedy")
        if found is None:
            too_many = middle
        else:
            best, fits = found, middle + 1
    return best


def pruned(problem: Problem, start: Choice, keeps: Callable[[Sequence[int]], bool]) -> Choice:
    """Regions that are not worth keeping, judged by their nodes, go back to the host."""
    sites = site_of(problem, start.options)
    regions: dict[int, list[int]] = {}
    for node, stage in enumerate(start.stages):
        regions.setdefault(stage, []).append(node)
    dropped = {
        node
        for nodes in regions.values()
        if sites[nodes[0]] != HOST and not keeps(nodes)
        for node in nodes
    }
    kept = {
        node: number
        for number in start.options
        if problem.options[number].site != HOST
        for node in problem.options[number].nodes
        if node not in dropped
    }
    options = _covered(problem, kept, [HOST])
    found = None if options is None else _staged(problem, options, "greedy+prune")
    return found or replace(start, method="greedy+prune")


def _covered(
    problem: Problem, kept: dict[int, int], sites: Sequence[int]
) -> tuple[int, ...] | None:
    """Cover all nodes, site by site, larger options first; `kept` is what is covered already."""
    banned: set[int] = set()
    while True:
        options = _first_fit(problem, kept, sites, banned)
        circle = () if options is None else cycle_among(problem, options)
        loose = [number for number in circle if number not in kept.values()]
        if not loose:
            return None if circle else options
        banned.add(max(loose, key=lambda number: len(problem.options[number].nodes)))


def _first_fit(
    problem: Problem, kept: dict[int, int], sites: Sequence[int], banned: set[int]
) -> tuple[int, ...] | None:
    owner = dict(kept)
    for site in sites:
        offers = [
            number
            for number, option in enumerate(problem.options)
            if option.site == site and number not in banned
        ]
        offers.sort(key=lambda n: (-len(problem.options[n].nodes), problem.options[n].nodes))
        capacity = problem.sites[site].capacity
        held = problem.held_by(n for n, o in kept.items() if problem.options[o].site == site)
        largest = 0
        for number in offers:
            nodes = problem.options[number].nodes
            if any(node in owner for node in nodes):
                continue
            more = held + problem.held_by(nodes)
            most = 0 if capacity is None else max(largest, region_bytes(problem, [number]))
            if capacity is None or more + most <= capacity:
                held, largest = more, most
                owner.update(dict.fromkeys(nodes, number))
    if len(owner) < problem.nodes:
        return None
    return tuple(sorted(set(owner.values())))


def _staged(problem: Problem, options: tuple[int, ...], method: str) -> Choice | None:
    stages = schedule(problem, options)
    if stages is None or overfull(problem, options, stages) is not None:
        return None
    return _priced(problem, options, stages, method)


def _priced(
    problem: Problem, options: tuple[int, ...], stages: tuple[int, ...], method: str
) -> Choice:
    return Choice(options, stages, bill(problem, options, stages).total, 0.0, method)

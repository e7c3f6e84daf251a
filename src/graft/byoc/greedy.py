"""The greedy baseline of the BYOC paper: offload by priority, merge, then prune.

Nodes go to the first accelerator that can run them; neighbours on one accelerator merge into
regions as large as convexity and memory allow; regions with little work return to the host. Options
that exceed a device's memory by themselves, or would wait for each other, are not chosen.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

from graft.byoc.memory import Peak, overfull, region_bytes
from graft.byoc.problem import (
    HOST,
    Choice,
    Problem,
    bill,
    cycle_among,
    is_inaccurate,
    site_of,
    unlimited,
)
from graft.byoc.schedule import schedule

_MOST_REPAIRS = 50


def host_only(problem: Problem) -> Choice | None:
    """Everything on the host; None if pins do not allow that."""
    options = _cover_sites(problem, {}, [HOST])
    if options is None:
        return None
    return priced(problem, options, (0,) * problem.nodes, "host-only")


def greedy(problem: Problem) -> Choice | None:
    """As much as possible on accelerators, the first that can, the largest options first."""
    order = [*range(1, len(problem.sites)), HOST]
    options = _cover_sites(problem, {}, order)
    if options is None:
        return None
    return fitted(problem, options, "greedy")


def fitted(problem: Problem, options: tuple[int, ...], method: str = "") -> Choice | None:
    """The choice of these options in an order with few launches. While a device's memory is
    exceeded, the options that save least per byte return to the host."""
    for _ in range(_MOST_REPAIRS):
        stages = schedule(problem, options) or schedule(unlimited(problem), options)
        if stages is None:
            return None
        peak = overfull(problem, options, stages)
        if peak is None:
            return priced(problem, options, stages, method)
        dropped = set(_least_valuable(problem, options, peak))
        away = [o for o in options if problem.options[o].site != HOST and o not in dropped]
        kept = {node: o for o in away for node in problem.options[o].nodes}
        rest = _cover_sites(problem, kept, [HOST]) if dropped else None
        if rest is None:
            return None
        options = rest
    return None


def _least_valuable(problem: Problem, options: Sequence[int], peak: Peak) -> Iterator[int]:
    """Options that together hold as many bytes as a memory lacks."""
    sizes = {problem.flows[buffer.flow].producer: buffer.size for buffer in peak.values}
    ranked = []
    for number in options:
        option = problem.options[number]
        if option.site in peak.space.sites:
            buffer = problem.held_by(option.nodes) + sum(sizes.get(n, 0) for n in option.nodes)
            saved = sum(problem.host_seconds[node] for node in option.nodes) - option.seconds
            if buffer and math.isfinite(saved):
                ranked.append((saved / buffer, number, buffer))
    excess = peak.total - (peak.space.capacity or 0)
    for _, number, buffer in sorted(ranked):
        if excess <= 0:
            return
        excess -= buffer
        yield number


def pruned(problem: Problem, start: Choice, keeps: Callable[[Sequence[int]], bool]) -> Choice:
    """The choice without regions that `keeps` rejects; their nodes return to the host."""
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
    options = _cover_sites(problem, kept, [HOST])
    stages = None if options is None else schedule(problem, options)
    result = None if options is None else priced(problem, options, stages, "greedy+prune")
    return result or replace(start, method="greedy+prune")


def _cover_sites(
    problem: Problem, kept: dict[int, int], sites: Sequence[int]
) -> tuple[int, ...] | None:
    """Cover all nodes, site by site, larger options first; `kept` are nodes covered already."""
    banned: set[int] = set()
    while True:
        options = _first_fit(problem, kept, sites, banned)
        circle = () if options is None else cycle_among(problem, options)
        loose = [number for number in circle if number not in kept.values()]
        if not loose:
            return None if circle else options
        banned.add(max(loose, key=lambda number: len(problem.options[number].nodes)))


def _first_fit(
    problem: Problem, options: dict[int, int], sites: Sequence[int], banned: set[int]
) -> tuple[int, ...] | None:
    owner = dict(options)
    for site in sites:
        offers = [
            number
            for number, option in enumerate(problem.options)
            if option.site == site and number not in banned
        ]
        offers.sort(key=lambda n: (-len(problem.options[n].nodes), problem.options[n].nodes))
        capacity = problem.sites[site].capacity
        constants = problem.held_by(
            n for n, o in options.items() if problem.options[o].site == site
        )
        largest = 0
        for number in offers:
            nodes = problem.options[number].nodes
            if any(node in owner for node in nodes):
                continue
            more = constants + problem.held_by(nodes)
            most = 0 if capacity is None else max(largest, region_bytes(problem, [number]))
            if capacity is None or more + most <= capacity:
                constants, largest = more, most
                owner.update(dict.fromkeys(nodes, number))
    if len(owner) < problem.nodes:
        return None
    return tuple(sorted(set(owner.values())))


def priced(
    problem: Problem, options: tuple[int, ...], stages: tuple[int, ...] | None, method: str = ""
) -> Choice | None:
    """The choice with its price; None without stages, or where memory or the error limit is too
    small."""
    if stages is None or overfull(problem, options, stages) is not None:
        return None
    if is_inaccurate(problem, options):
        return None
    return Choice(options, stages, bill(problem, options, stages).total, 0.0, method)

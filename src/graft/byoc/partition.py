"""Partitioning, top to bottom: a graph and backends in, a plan and all that led to it out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from graft.base.errors import UserError
from graft.byoc.annotate import NO_PINS, Pins
from graft.byoc.candidates import Candidate, Candidates, find_candidates
from graft.byoc.choose import TIME_LIMIT, choose
from graft.byoc.contract import HOME, Backend, Cost
from graft.byoc.greedy import greedy, host_only, pruned
from graft.byoc.measure import UnrunnableError, timed_region_of
from graft.byoc.place import Placement, placement_of
from graft.byoc.plan import Plan, plan_from
from graft.byoc.price import Pricing, price_all, refined
from graft.byoc.problem import HOST, Bill, Choice, bill, site_of
from graft.byoc.region import region_graph
from graft.byoc.sizes import node_work
from graft.ir.graph import Graph, Node

# The paper's threshold for a region to be worth offloading: multiply-accumulates.
FEWEST_MACS = 2_000_000
_MOST_REFINEMENTS = 3


@dataclass(frozen=True)
class PartitionOptions:
    """What a user may ask of partitioning."""

    pins: Pins = NO_PINS
    time_limit: float = TIME_LIMIT
    fewest_macs: int = FEWEST_MACS


@dataclass(frozen=True)
class Partition:
    """The plan, and what explains it."""

    plan: Plan
    placement: Placement
    choice: Choice
    alternatives: Mapping[str, Choice] = field(default_factory=dict)

    @property
    def found(self) -> Candidates:
        return self.placement.found

    def bill(self) -> Bill:
        return bill(self.placement.problem, self.choice.options, self.choice.stages)


def partition(
    graph: Graph, backends: Sequence[Backend], pricing: Pricing, options: PartitionOptions
) -> Partition:
    """Find candidates, price them, choose; then price what was chosen as a whole and choose again,
    until the choice stays the same."""
    found = find_candidates(graph, backends, options.pins)
    unused = options.pins.unused(found.nodes)
    if unused:
        raise UserError(f"the pin '{unused[0]}' fits no node of the model")
    prices = price_all(found, backends, pricing)
    seen: set[tuple[int, ...]] = set()
    while True:
        placement = placement_of(found, prices, backends)
        alternatives = other_choices(placement, options)
        choice = _chosen(placement, alternatives, options)
        if choice.options in seen or len(seen) == _MOST_REFINEMENTS:
            break
        seen.add(choice.options)
        better = _refined_prices(placement, choice, prices, pricing)
        if better is None:
            break
        prices = better
    plan = _plan(placement, choice, alternatives)
    return Partition(plan, placement, choice, alternatives)


def _chosen(
    placement: Placement, alternatives: Mapping[str, Choice], options: PartitionOptions
) -> Choice:
    try:
        return choose(placement.problem, list(alternatives.values()), options.time_limit)
    except ValueError as error:
        raise UserError(f"the model cannot be placed: {error}", hint="loosen the pins") from None


def other_choices(placement: Placement, options: PartitionOptions) -> dict[str, Choice]:
    """What simpler schemes would do, to be priced beside the exact one."""
    problem = placement.problem
    nodes = placement.found.nodes
    macs = [node_work(node).macs for node in nodes]
    found = {"host-only": host_only(problem), "greedy": greedy(problem)}
    if found["greedy"] is not None:
        found["greedy+prune"] = pruned(
            problem,
            found["greedy"],
            lambda region: sum(macs[node] for node in region) >= options.fewest_macs,
        )
    return {name: choice for name, choice in found.items() if choice is not None}


def regions(placement: Placement, choice: Choice) -> list[tuple[str, list[Node], list[int]]]:
    """The accelerators' regions of a choice in order: backend, nodes, options."""
    problem = placement.problem
    sites = site_of(problem, choice.options)
    owner = {node: o for o in choice.options for node in problem.options[o].nodes}
    found = []
    for numbers in bill(problem, choice.options, choice.stages).regions.values():
        site = sites[numbers[0]]
        if site != HOST:
            nodes = [placement.found.nodes[number] for number in numbers]
            options = list(dict.fromkeys(owner[number] for number in numbers))
            found.append((problem.sites[site].name, nodes, options))
    return found


def _refined_prices(
    placement: Placement, choice: Choice, prices: Mapping[Candidate, Cost], pricing: Pricing
) -> dict[Candidate, Cost] | None:
    """Prices that agree with the time which the chosen regions take as a whole."""
    by_name = {backend.name: backend for backend in placement.backends}
    whole: dict[tuple[Candidate, ...], float] = {}
    for name, nodes, options in regions(placement, choice):
        if len(options) > 1:
            region = region_graph(nodes, placement.found.graph)
            try:
                cost = timed_region_of(by_name[name], region, pricing.store)
            except UnrunnableError as error:
                pricing.report(f"{name} does not run a region as a whole: {error}")
                continue
            if cost is not None:
                members = tuple(placement.priced[option].candidate for option in options)
                whole[members] = cost.seconds
    return refined(prices, whole) if whole else None


def plan_of(found: Partition, alternative: str) -> Plan:
    """The plan of one of the other choices."""
    return _plan(found.placement, found.alternatives[alternative], found.alternatives)


def _plan(placement: Placement, choice: Choice, alternatives: Mapping[str, Choice]) -> Plan:
    versions = {backend.name: backend.version for backend in placement.backends}
    planned = []
    for name, nodes, options in regions(placement, choice):
        seconds = sum(placement.priced[option].cost.seconds for option in options)
        sources = {placement.priced[option].cost.source.value for option in options}
        planned.append((name, nodes, seconds, "+".join(sorted(sources))))
    plan = plan_from(placement.found.graph, versions, planned)
    return replace(
        plan,
        predicted=choice.seconds,
        bound=choice.bound,
        method=choice.method,
        alternatives={name: other.seconds for name, other in alternatives.items()},
    )


def is_host_only(plan: Plan) -> bool:
    """Whether nothing leaves the host."""
    return all(region.backend == HOME for region in plan.regions)

"""Partitioning, top to bottom: a graph and backends in, a plan with all its reasons out."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial

from graft.base.errors import UserError, warn_user
from graft.base.progress import Stage
from graft.byoc.annotate import NO_PINS, Pins
from graft.byoc.candidates import Candidate, Candidates, Refused, find_candidates
from graft.byoc.choose import TIME_LIMIT, choose
from graft.byoc.contract import HOST_BACKEND, Backend, Cost, Source
from graft.byoc.greedy import greedy, host_only, pruned
from graft.byoc.measure import UnrunnableError, timed_region_of
from graft.byoc.place import Placement, placement_of, too_large
from graft.byoc.plan import Plan, plan_from
from graft.byoc.price import Pricing, declared_price, price, price_all, refined
from graft.byoc.problem import Choice, accelerator_regions, bill, repriced, site_of
from graft.byoc.row_blocks import with_row_blocks
from graft.byoc.scopes import all_nodes
from graft.byoc.sizes import node_work
from graft.ir.graph import Graph, Node
from graft.runtime.regions import RegionWarning

# The paper's threshold for a region to be worth offloading: multiply-accumulates.
FEWEST_MACS = 2_000_000
# The method of a plan that is the best of a limited number of candidates.
LIMITED = "limited"
_MOST_REFINEMENTS = 3


@dataclass(frozen=True)
class PartitionOptions:
    """The user's options; `releases` lets the host run nodes that are pinned to a backend that
    cannot run them."""

    pins: Pins = NO_PINS
    releases: bool = False
    time_limit: float = TIME_LIMIT


@dataclass(frozen=True)
class Partition:
    """The plan, and what explains it."""

    plan: Plan
    placement: Placement
    choice: Choice
    alternatives: Mapping[str, Choice] = field(default_factory=dict)

    @property
    def candidates(self) -> Candidates:
        return self.placement.candidates


def partition(
    graph: Graph, backends: Sequence[Backend], pricing: Pricing, options: PartitionOptions
) -> Partition:
    """Find candidates, price them, choose; then measure the chosen regions as a whole and choose
    again until the choice is stable. The plan is the choice that is cheapest by the times of whole
    regions."""
    result, prices = _priced(graph, backends, pricing, options)
    if result.limits_hit:
        warn_user(_limited(result.limits_hit), RegionWarning)
    wholes = _Wholes(placement_of(result, prices, backends, pricing.host.limits), pricing)
    alternatives = other_choices(wholes.placement)
    choice, choices = _settled(wholes, prices, alternatives, options)
    best = min((choice, *choices, *alternatives.values()), key=wholes.seconds)
    placement = wholes.priced(wholes.refined(prices, best))
    # the bound has to hold at the prices that the plan shows
    starts = repriced(placement.problem, best)
    bound = min(_chosen(placement, [starts], options).bound, starts.seconds)
    method = LIMITED if result.limits_hit else choice.method
    final = replace(starts, bound=bound, method=method)
    others = {
        name: replace(other, seconds=wholes.seconds(other))
        for name, other in alternatives.items()
        if math.isfinite(wholes.seconds(other))
    }
    return Partition(_plan(placement, final, others), placement, final, others)


def _priced(
    graph: Graph, backends: Sequence[Backend], pricing: Pricing, options: PartitionOptions
) -> tuple[Candidates, Mapping[Candidate, Cost]]:
    """Candidates and their prices, such that every node can run somewhere."""
    pins, names = options.pins, [backend.name for backend in backends]
    _check_pins(pins, all_nodes(graph), names)
    while True:
        result = find_candidates(graph, backends, pins, pricing.in_place)
        result = with_row_blocks(result, backends, pins, partial(_block_seconds, result, pricing))
        prices = price_all(result, backends, pricing)
        oversized = too_large(result, prices.costs, backends)
        costs = {one: cost for one, cost in prices.costs.items() if one not in oversized}
        result = _with_refusals(result, oversized)
        covered = {node for candidate in costs for node in candidate.nodes}
        left = [node for node in result.nodes if node not in covered]
        if not left:
            return result, costs
        why = why_unplaced(left[0], result, {**prices.failures, **oversized}, names, pins)
        message = f"%{left[0].output.name} ({left[0].op.name}): {why}"
        if not options.releases:
            raise UserError(
                f"nothing can run {message}",
                hint="loosen the pins; fallback='host' lets the host run what its pin cannot",
            )
        warn_user(f"the host has to run {message}", RegionWarning)
        pins = replace(pins, released=pins.released | set(left))


def _block_seconds(
    candidates: Candidates, pricing: Pricing, one: Candidate, backend: Backend
) -> float:
    """The expected time of a candidate in blocks of rows; infinite if it does not run."""
    count = candidates.executions(one.nodes[0], one.rows)
    try:
        return count * price(backend, candidates.region(one.nodes, one.rows), pricing).seconds
    except UnrunnableError:  # of which `price_all` warns
        return math.inf


def _with_refusals(candidates: Candidates, reasons: Mapping[Candidate, str]) -> Candidates:
    """The candidates, with refusals for some of them."""
    refusals = dict(candidates.refusals)
    for candidate, reason in reasons.items():
        refused = Refused(candidate.backend, candidate.pattern, reason)
        last = candidate.nodes[-1]
        refusals[last] = (*refusals.get(last, ()), refused)
    return replace(candidates, refusals=refusals) if reasons else candidates


def _check_pins(pins: Pins, nodes: Sequence[Node], backends: Sequence[str]) -> None:
    unused = pins.unused(nodes)
    if unused:
        raise UserError(
            f"the pin '{unused[0]}' fits no node of the model",
            hint="pins are globs over names of ONNX nodes and results, as 'layer4/*=NAME'",
        )
    for pin in pins.pins:
        if not pin.forbidden and pin.backend not in (HOST_BACKEND, *backends):
            raise UserError(
                f"the pin '{pin}' names a backend that is no target",
                hint=f"the targets are {', '.join((*backends, HOST_BACKEND))}",
            )


def _limited(limits_hit: Sequence[str]) -> str:
    more = f" (and {len(limits_hit) - 1} more)" if len(limits_hit) > 1 else ""
    return f"the placement is the best of a limited number of candidates: {limits_hit[0]}{more}"


def _settled(
    wholes: _Wholes,
    prices: Mapping[Candidate, Cost],
    alternatives: Mapping[str, Choice],
    options: PartitionOptions,
) -> tuple[Choice, list[Choice]]:
    """The choice at which prices and choice agree, and the choices tried before.

    Initially, candidates are priced as parts of the largest region an accelerator can run, which is
    the least they can cost: so a region that costs less than the sum of its parts gets a chance."""
    for other in alternatives.values():
        prices = wholes.refined(prices, other)
    choices: dict[tuple[int, ...], Choice] = {}
    while True:
        placement = wholes.priced(prices)
        starts = [repriced(placement.problem, other) for other in alternatives.values()]
        choice = _chosen(placement, starts, options)
        if choice.options in choices or len(choices) == _MOST_REFINEMENTS:
            return choice, list(choices.values())
        choices[choice.options] = choice
        better = wholes.refined(prices, choice)
        if better == prices:
            return choice, []
        prices = better


class _Wholes:
    """The times of whole regions, where they can be measured or are declared; `placement` has the
    prices of single candidates."""

    def __init__(self, placement: Placement, pricing: Pricing) -> None:
        self.placement = placement
        self._pricing = pricing
        self._backends = {backend.name: backend for backend in placement.backends}
        self._prices: dict[tuple[int, ...], float | None] = {}

    def priced(self, prices: Mapping[Candidate, Cost]) -> Placement:
        """The same candidates at other prices."""
        start = self.placement
        return placement_of(start.candidates, prices, start.backends, self._pricing.host.limits)

    def _of(
        self, name: str, nodes: Sequence[Node], options: Sequence[int], is_declared: bool
    ) -> float | None:
        """The time of a region of several candidates in all its executions; infinite if it does not
        run."""
        key = tuple(options)
        if key not in self._prices:
            candidates = self.placement.candidates
            rows = self.placement.priced[options[0]].candidate.rows
            region = candidates.region(nodes, rows)
            try:
                backend, pricing = self._backends[name], self._pricing
                if is_declared:
                    cost = declared_price(backend, region, pricing)
                else:
                    limits = pricing.deadline, pricing.threads
                    cost = timed_region_of(backend, region, pricing.store, *limits)
                count = candidates.executions(nodes[0], rows)
                self._prices[key] = None if cost is None else count * cost.seconds
            except UnrunnableError as error:
                reason = f"{name} does not run one: {error}"
                self._pricing.report(Stage("pricing whole regions", detail=reason))
                self._prices[key] = math.inf
        return self._prices[key]

    def _measured(self, choice: Choice) -> Iterator[tuple[tuple[Candidate, ...], float]]:
        for name, nodes, options in regions(self.placement, choice):
            members = [self.placement.priced[option] for option in options]
            declared = [member.cost.source is Source.DECLARED for member in members]
            # declared prices are not measured, neither of candidates nor of regions
            is_asked = all(declared) and self._backends[name].prices_regions
            if len(members) == 1:  # its refined price, which may be a share of a larger region's
                whole: float | None = members[0].cost.seconds
            else:
                is_final = any(declared) and not is_asked
                whole = None if is_final else self._of(name, nodes, options, is_asked)
            if whole is not None:
                yield tuple(member.candidate for member in members), whole

    def refined(self, prices: Mapping[Candidate, Cost], choice: Choice) -> dict[Candidate, Cost]:
        """Prices that add up to the times of the regions of a choice."""
        finite = {m: whole for m, whole in self._measured(choice) if math.isfinite(whole)}
        return refined(prices, finite)

    def seconds(self, choice: Choice) -> float:
        """The time of a choice by its whole regions."""
        own = {item.candidate: item.cost.seconds for item in self.placement.priced}
        total = bill(self.placement.problem, choice.options, choice.stages).total
        for members, whole in self._measured(choice):
            total += whole - sum(own[member] for member in members)
        return total


def _chosen(placement: Placement, starts: Sequence[Choice], options: PartitionOptions) -> Choice:
    try:
        return choose(placement.problem, starts, options.time_limit)
    except ValueError as error:
        raise UserError(f"the model cannot be placed: {error}", hint="loosen the pins") from None


def other_choices(placement: Placement) -> dict[str, Choice]:
    """The choices of simpler schemes, to be priced beside the exact one."""
    problem = placement.problem
    macs = [node_work(node).macs for node in placement.candidates.nodes]
    result = {"host-only": host_only(problem), "greedy": greedy(problem)}
    if result["greedy"] is not None:
        result["greedy+prune"] = pruned(
            problem,
            result["greedy"],
            lambda region: sum(macs[node] for node in region) >= FEWEST_MACS,
        )
    return {name: choice for name, choice in result.items() if choice is not None}


def regions(placement: Placement, choice: Choice) -> list[tuple[str, list[Node], list[int]]]:
    """The accelerators' regions of a choice in order: backend, nodes, options."""
    problem = placement.problem
    sites = site_of(problem, choice.options)
    owner = {node: o for o in choice.options for node in problem.options[o].nodes}
    result = []
    for numbers in accelerator_regions(problem, choice).values():
        nodes = [placement.candidates.nodes[number] for number in numbers]
        options = list(dict.fromkeys(owner[number] for number in numbers))
        result.append((problem.sites[sites[numbers[0]]].name, nodes, options))
    return result


def plan_of(result: Partition, alternative: str) -> Plan:
    """The plan of another choice."""
    return _plan(result.placement, result.alternatives[alternative], result.alternatives)


def _plan(placement: Placement, choice: Choice, alternatives: Mapping[str, Choice]) -> Plan:
    versions = {backend.name: backend.version for backend in placement.backends}
    planned, blocks = [], {}
    for name, nodes, options in regions(placement, choice):
        rows = placement.priced[options[0]].candidate.rows
        if rows is not None:
            blocks.update(dict.fromkeys(nodes, rows.block))
        seconds = sum(placement.priced[option].cost.seconds for option in options)
        sources = {placement.priced[option].cost.source.value for option in options}
        planned.append((name, nodes, seconds, "+".join(sorted(sources))))
    candidates = placement.candidates
    plan = plan_from(candidates.graph, versions, planned, candidates.scopes, blocks)
    return replace(
        plan,
        predicted=choice.seconds,
        bound=choice.bound,
        method=choice.method,
        alternatives={name: other.seconds for name, other in alternatives.items()},
    )


def why_unplaced(
    node: Node,
    candidates: Candidates,
    failures: Mapping[Candidate, str],
    backends: Sequence[str],
    pins: Pins,
) -> str:
    """The reason why a node cannot be placed, for a message."""
    shown = " and ".join(f"'{pin}'" for pin in pins.of(node))
    subject = f"the pin {shown} leaves" if len(pins.of(node)) == 1 else f"the pins {shown} leave"
    allowed = [name for name in (*backends, HOST_BACKEND) if pins.verdict(node, name) is None]
    if not allowed:
        return f"{subject} it no backend"
    causes = [_cause(node, name, candidates, failures) for name in allowed]
    return f"{subject} it to {' or '.join(allowed)}; {'; '.join(causes)}"


def _cause(
    node: Node, backend: str, candidates: Candidates, failures: Mapping[Candidate, str]
) -> str:
    """Why a backend does not run a node: a failed trial, refusals of matches with the node, or no
    pattern."""
    for candidate, reason in failures.items():
        if candidate.backend == backend and node in candidate.nodes:
            return f"{backend} accepts {candidate.label} and does not run it: {reason}"
    refused = [item for item in candidates.refused_matches.get(node, ()) if item.backend == backend]
    if refused:
        return f"{backend} refuses it: {'; '.join(dict.fromkeys(r.reason for r in refused))}"
    refused = [item for item in candidates.refusals.get(node, ()) if item.backend == backend]
    reasons = dict.fromkeys(item.reason for item in refused)
    return f"no pattern of {backend} fits: {'; '.join(reasons) or 'it has none'}"

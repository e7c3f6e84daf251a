"""Prices of candidates: declared by their backends, measured, or estimated by a roofline.

The host's kernels are timed in one run of the whole graph. Nodes that are part of a kernel cost as
much as the kernel if they contain its heavy node (what follows runs in its epilogue), and a share
of that if they contain some of several; otherwise their price is that of memory traffic. All other
measurements are of single regions. `refined` corrects the prices of chosen candidates by the time
of whole regions, as measured, or as declared by backends with `prices_regions`.

Prices are per inference: in a body (`scopes.py`), the price of one execution times the expected
executions.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TypeVar

from graft.base.errors import warn_user
from graft.base.progress import Progress, Stage, quietly
from graft.byoc.boundary import wished
from graft.byoc.candidates import Candidate, Candidates
from graft.byoc.contract import HOST_BACKEND, Backend, Cost, Limits, Source, declared
from graft.byoc.measure import DEADLINE, UnrunnableError, bounded, timed_region_of
from graft.byoc.region import region_hash
from graft.byoc.sizes import node_work
from graft.byoc.store import PriceStore
from graft.ir.graph import Graph, Node
from graft.ir.op import Kind
from graft.runtime.regions import RegionWarning
from graft.target.roofline import Roofline, memory_roofline
from graft.target.target import host_target

_HEAVY = (Kind.ANCHOR, Kind.REDUCTION, Kind.OPAQUE)

_PER_NODE = 1e-6  # seconds, so that no node is free
# The price of a control-flow node itself, whose bodies' nodes have prices of their own.
_ENTERING = Cost(_PER_NODE, Source.ROOFLINE)

T = TypeVar("T")


@dataclass(frozen=True)
class Pricing:
    """How to price: the host, times of its kernels in a run of the graph, and the store."""

    host: Backend
    in_place: Mapping[str, Cost]  # value that a fusion group makes -> what that takes
    store: PriceStore | None = None  # None: nothing is measured
    report: Progress = quietly
    deadline: float = DEADLINE  # seconds for a call of a backend
    threads: int | None = None  # that the user allows
    # Declared prices by backend and structure of regions: vendors' compilers are slow, and networks
    # repetitive. Placements may share it.
    declared: dict[str, Cost | None] = field(default_factory=dict, compare=False)


@dataclass(frozen=True)
class Prices:
    """Costs of candidates, and why backends fail on others that they accept."""

    costs: Mapping[Candidate, Cost]
    failures: Mapping[Candidate, str]


def price_all(candidates: Candidates, backends: Sequence[Backend], pricing: Pricing) -> Prices:
    """A price for every candidate, for all its executions in an inference; a candidate on which the
    backend fails gets a failure instead."""
    by_name = {backend.name: backend for backend in backends}
    groups = _timed_groups(candidates, pricing)
    trials = _Trials(pricing)
    cost_by_region: dict[str, Cost | str] = {}
    prices: dict[Candidate, Cost] = {}
    failures: dict[Candidate, str] = {}
    for number, candidate in enumerate(candidates.candidates):
        region = candidates.region(candidate.nodes, candidate.rows)
        count = candidates.executions(candidate.nodes[0], candidate.rows)
        if candidate.backend == HOST_BACKEND:
            is_open = not candidates.open_nodes.isdisjoint(candidate.nodes)
            once = _ENTERING if is_open else _on_host(candidate, region, groups, pricing)
            prices[candidate] = repeated(once, count)
            continue
        backend = by_name[candidate.backend]
        key = f"{backend.name} {region_hash(region, contents=False)}"
        if key not in cost_by_region:
            total = len(candidates.candidates)
            pricing.report(Stage("pricing candidates", number + 1, total, candidate.label))
            cost_by_region[key] = trials.price(backend, region, candidate.label)
        cost = cost_by_region[key]
        if isinstance(cost, Cost):
            prices[candidate] = repeated(cost, count)
        else:
            failures[candidate] = cost
    trials.warn()
    return Prices(prices, failures)


class _Trials:
    """Prices regions, and remembers the ones on which backends fail."""

    def __init__(self, pricing: Pricing) -> None:
        self._pricing = pricing
        self._silent: set[str] = set()  # backends that did not answer in time once
        self._failed: dict[tuple[str, str], list[str]] = {}  # backend and reason -> regions

    def price(self, backend: Backend, region: Graph, label: str) -> Cost | str:
        """The price, or the reason why there is none."""
        if backend.name in self._silent:
            return "it did not answer in time before, and is not asked again"
        try:
            return price(backend, region, self._pricing)
        except UnrunnableError as error:
            self._failed.setdefault((backend.name, str(error)), []).append(label)
            if not error.in_time:
                self._silent.add(backend.name)
            return str(error)

    def warn(self) -> None:
        """Warn of regions that backends accept and do not run."""
        for (name, reason), labels in self._failed.items():
            more = f" and {len(labels) - 1} more" if len(labels) > 1 else ""
            then = "; it is not asked again" if name in self._silent else ""
            message = f"{name} accepts {labels[0]}{more} and does not run it: {reason}{then}"
            warn_user(message, RegionWarning)


def repeated(cost: Cost, count: float) -> Cost:
    """The cost of several executions."""
    return replace(cost, seconds=count * cost.seconds, spread=count * cost.spread)


Groups = Mapping[Node, tuple[Candidate, Cost]]  # the kernel that computed each node, and its time


def _timed_groups(candidates: Candidates, pricing: Pricing) -> Groups:
    best: dict[Node, tuple[Candidate, Cost]] = {}
    for group in candidates.candidates:
        *inner, last = group.nodes
        cost = pricing.in_place.get(last.output.name)
        if group.backend != HOST_BACKEND or cost is None or not cost.executions:
            continue
        if any(node.output.name in pricing.in_place for node in inner):
            continue  # it ran as several kernels
        once = repeated(cost, 1 / cost.executions)
        for node in group.nodes:
            if node not in best or len(best[node][0].nodes) < len(group.nodes):
                best[node] = (group, once)
    return best


def _on_host(candidate: Candidate, region: Graph, groups: Groups, pricing: Pricing) -> Cost:
    """The price of nodes on the host, by the kernels that computed them."""
    estimate = roofline(pricing.host, region)
    own = dict(groups[node] for node in candidate.nodes if node in groups)
    if candidate in own:
        return own[candidate]
    if candidate.nodes[0] not in groups:
        return estimate
    shares = {group: _heavy_share(candidate, group) for group in own}
    parts = [repeated(own[group], share) for group, share in shares.items() if share]
    if not parts:
        return min(estimate, *own.values(), key=lambda item: item.seconds)
    seconds, spread = sum(part.seconds for part in parts), sum(part.spread for part in parts)
    return replace(parts[0], seconds=seconds, spread=spread)


def _heavy_share(candidate: Candidate, group: Candidate) -> float:
    """The share of a kernel's heavy operations that a candidate contains."""
    works = {node: node_work(node) for node in group.nodes if node.op.kind in _HEAVY}
    operations = {node: work.macs + work.flops for node, work in works.items()}
    amounts = [operations[node] for node in candidate.nodes if node in operations]
    if len(amounts) == len(operations):
        return 1.0 if amounts else 0.0
    return sum(amounts) / max(sum(operations.values()), 1)


def price(backend: Backend, region: Graph, pricing: Pricing) -> Cost:
    """The price of a region on a backend."""
    cost = declared_price(backend, region, pricing)
    workspace = _asked(backend, backend.workspace, region, pricing)
    if cost is None:
        limits = pricing.deadline, pricing.threads
        cost = timed_region_of(backend, region, pricing.store, *limits)
    return replace(cost or roofline(backend, region), workspace=workspace)


def declared_price(backend: Backend, region: Graph, pricing: Pricing) -> Cost | None:
    """The declared price of a region; asked once for regions of equal structure."""
    key = f"{backend.name} {region_hash(region, contents=False)}"
    if key not in pricing.declared:
        pricing.declared[key] = _asked(backend, partial(declared, backend), region, pricing)
    return pricing.declared[key]


def _asked(backend: Backend, question: Callable[[Graph], T], region: Graph, pricing: Pricing) -> T:
    """The backend's answer about a region, in the form in which it would compile it."""
    formed = wished(region, backend.limits)
    try:
        return bounded(backend, pricing.deadline, lambda: question(formed))
    except (Exception, SystemExit) as error:  # a plug-in may raise anything
        raise UnrunnableError.of(error) from error


def roofline(backend: Backend, region: Graph) -> Cost:
    """The time of arithmetic or of memory traffic at peak rates, whichever is longer."""
    works = [node_work(node) for node in region.nodes if node.op.name != "constant"]
    flops = sum(2 * work.macs + work.flops for work in works)
    moved = sum(work.bytes for work in works)
    seconds = peak_rates(backend.limits).seconds(flops, moved)
    return Cost(seconds + _PER_NODE * len(works), Source.ROOFLINE)


def peak_rates(limits: Limits) -> Roofline:
    """The rates that a backend declares; by default those of a core of this machine."""
    if limits.peak_flops and limits.peak_bytes_per_second:
        return Roofline(limits.peak_flops, limits.peak_bytes_per_second)
    core = memory_roofline(host_target().machine)
    return Roofline(limits.peak_flops or core.flops, limits.peak_bytes_per_second or core.bytes)


def refined(
    prices: Mapping[Candidate, Cost], regions: Mapping[tuple[Candidate, ...], float]
) -> dict[Candidate, Cost]:
    """Prices of candidates that ran together, scaled to the time of the whole."""
    better = dict(prices)
    for members, seconds in regions.items():
        total = sum(prices[member].seconds for member in members)
        for member in members:
            share = prices[member].seconds / total if total > 0 else 1 / len(members)
            better[member] = replace(prices[member], seconds=share * seconds)
    return better

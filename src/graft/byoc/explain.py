"""Explanations of plans: a partition in; the refusals and priced alternatives of each node, the
costs of each region, and what would change the plan, out. Only names and numbers, no weights.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass

from graft.byoc.candidates import Candidate, Candidates, Refused
from graft.byoc.contract import HOST_BACKEND, Cost, Source
from graft.byoc.explain_flips import Flip, Hint, flips, hints
from graft.byoc.memory import in_words, peaks
from graft.byoc.partition import Partition, regions
from graft.byoc.plan import node_names
from graft.byoc.problem import HOST, accelerator_regions, site_of, transfers_by_stage
from graft.byoc.region import borders
from graft.byoc.scopes import operands_of
from graft.byoc.sizes import value_bytes
from graft.byoc.trust import Demotion
from graft.byoc.units import DEQUANTIZE, QUANTIZE, units_of

_MOST_OBSTACLES = 10


@dataclass(frozen=True, slots=True)
class Alternative:
    """A candidate that contains the node: its price, and the source of that; `rows` are those of a
    block, if it runs in blocks."""

    backend: str
    pattern: str
    nodes: int
    seconds: float
    source: str
    chosen: bool
    rows: int


@dataclass(frozen=True, slots=True)
class NodeFacts:
    """One node: where it runs, and why it does not run elsewhere."""

    name: str
    onnx: str  # the ONNX node that it comes from, possibly one of several
    op: str
    type: str  # of its first result
    backend: str
    region: str  # empty on the host
    macs: int
    why: str
    inputs: tuple[str, ...]  # values
    outputs: tuple[str, ...]
    refusals: tuple[Refused, ...]
    alternatives: tuple[Alternative, ...]
    body: str  # empty in the main graph
    executions: float  # per inference; prices and MACs are for all of them


@dataclass(frozen=True, slots=True)
class RegionFacts:
    """One region: its backend, its costs in seconds, and the bytes that cross its border."""

    label: str
    backend: str
    nodes: tuple[str, ...]
    macs: int
    execution: float
    transfers: float  # into it and, for its results, back to the host
    launch: float
    source: str
    input_bytes: int
    output_bytes: int
    body: str
    executions: float
    rows: int  # of a block, if it runs in blocks

    @property
    def seconds(self) -> float:
        return self.execution + self.transfers + self.launch


@dataclass(frozen=True, slots=True)
class BackendFacts:
    """One backend's share of the work."""

    name: str
    version: str
    simulated: bool
    nodes: int
    macs: int
    regions: int
    execution: float
    transfers: float
    launches: float

    @property
    def seconds(self) -> float:
        return self.execution + self.transfers + self.launches


@dataclass(frozen=True, slots=True)
class MemoryFacts:
    """The peak memory of a device in bytes; `limit` is None if it declares none."""

    name: str
    peak: int
    limit: int | None
    constants: int
    workspace: int
    values: tuple[tuple[str, int], ...]  # names and bytes
    text: str


@dataclass(frozen=True, slots=True)
class Total:
    """The time of the model under a scheme of placement; `measured` is end to end."""

    scheme: str
    predicted: float
    regions: int
    nodes: int  # off the host
    macs: int
    measured: float | None = None


@dataclass(frozen=True, slots=True)
class Obstacle:
    """A reason why a backend refuses nodes of an operator, and their time on the host."""

    backend: str
    op: str
    reason: str
    nodes: int
    seconds: float


@dataclass(frozen=True, slots=True)
class BodyFacts:
    """A body of a branch, loop or scan whose nodes are placed by themselves."""

    name: str
    node: str  # that has it
    nodes: int
    executions: float  # per inference
    source: str  # of the executions: known, measured or assumed
    operands: tuple[tuple[str, str], ...]  # inputs of the body, and the values that they stand for
    results: tuple[str, ...]


@dataclass(frozen=True)
class Explanation:
    """All facts about a plan."""

    model: str
    backends: tuple[BackendFacts, ...]  # the host last
    nodes: tuple[NodeFacts, ...]
    regions: tuple[RegionFacts, ...]
    macs: int
    predicted: float
    bound: float
    gap: float
    totals: tuple[Total, ...]  # the chosen scheme first
    flips: tuple[Flip, ...]
    hints: tuple[Hint, ...]
    obstacles: tuple[Obstacle, ...]
    demotions: tuple[Demotion, ...]
    memory: tuple[MemoryFacts, ...]  # of the devices that have work
    bodies: tuple[BodyFacts, ...]

    @property
    def simulated(self) -> bool:
        """Whether some times come from a model of a device."""
        return any(backend.simulated for backend in self.backends)

    def to_json(self) -> str:
        """All of it, for machines."""
        return json.dumps(asdict(self), indent=1, allow_nan=False)


def explain(
    partition: Partition,
    measured: Mapping[str, float] | None = None,
    demotions: Sequence[Demotion] = (),
    model: str = "",
) -> Explanation:
    """Explain a partition; `measured` are times end to end by scheme, `model` is the name of the
    model (by default the graph's)."""
    view = _View(partition)
    nodes = tuple(view.node(number) for number in range(len(partition.candidates.nodes)))
    region_facts = tuple(view.regions())
    return Explanation(
        model=model or partition.candidates.graph.name,
        backends=tuple(_backends(partition, nodes, region_facts)),
        nodes=nodes,
        regions=region_facts,
        macs=sum(node.macs for node in nodes),
        predicted=partition.choice.seconds,
        bound=partition.choice.bound,
        gap=partition.choice.gap,
        totals=tuple(_totals(partition, measured or {})),
        flips=tuple(flips(partition)),
        hints=tuple(hints(partition)),
        obstacles=tuple(_obstacles(partition.candidates, nodes)),
        demotions=tuple(demotions),
        memory=tuple(_memory(partition)),
        bodies=tuple(view.bodies()),
    )


class _View:
    """A partition with indices for lookups."""

    def __init__(self, partition: Partition) -> None:
        self.partition = partition
        self.problem, self.choice = partition.placement.problem, partition.choice
        self.names = node_names(partition.candidates.graph)
        self.prices: dict[Candidate, Cost] = {
            item.candidate: item.cost for item in partition.placement.priced
        }
        self.chosen = {partition.placement.priced[o].candidate for o in self.choice.options}
        self.tools = {backend.name: backend.priced_by for backend in partition.placement.backends}
        self.sites = site_of(self.problem, self.choice.options)
        self.parts = accelerator_regions(self.problem, self.choice)
        self.labels = {
            stage: f"{self.problem.sites[self.sites[nodes[0]]].name}_{number}"
            for number, (stage, nodes) in enumerate(self.parts.items())
        }

    def node(self, number: int) -> NodeFacts:
        node = self.partition.candidates.nodes[number]
        scope = self.partition.candidates.scope_of[node]
        backend = self.problem.sites[self.sites[number]].name
        options = [c for c in self.partition.candidates.of_node[node] if c in self.prices]
        alternatives = sorted(map(self._alternative, options), key=_per_node)
        refusals = self.partition.candidates.refusals.get(node, ())
        return NodeFacts(
            name=self.names[node],
            onnx=node.location.node if node.location is not None else "",
            op=node.op.name,
            type=str(node.output.type),
            backend=backend,
            region=self.labels.get(self.choice.stages[number], ""),
            macs=self.partition.candidates.macs[node],
            why=_why(backend, alternatives, refusals),
            inputs=tuple(value.name for value in node.args),
            outputs=tuple(value.name for value in node.outputs),
            refusals=refusals,
            alternatives=tuple(alternatives),
            body=scope.name,
            executions=scope.executions.count,
        )

    def _alternative(self, candidate: Candidate) -> Alternative:
        cost = self.prices[candidate]
        return Alternative(
            backend=candidate.backend,
            pattern=candidate.pattern,
            nodes=len(candidate.nodes),
            seconds=cost.seconds,
            source=self._source(candidate.backend, cost),
            chosen=candidate in self.chosen,
            rows=0 if candidate.rows is None else candidate.rows.block,
        )

    def _source(self, backend: str, cost: Cost) -> str:
        """The source of a price; of a declared one with the tool that it comes from."""
        tool = self.tools.get(backend, "") if cost.source is Source.DECLARED else ""
        return f"{cost.source.value} by {tool}" if tool else cost.source.value

    def regions(self) -> Iterator[RegionFacts]:
        carried = transfers_by_stage(self.problem, self.choice)
        placement, candidates = self.partition.placement, self.partition.candidates
        planned = regions(placement, self.choice)
        for stage, (name, nodes, options) in zip(self.parts, planned, strict=True):
            costs = [placement.priced[option].cost for option in options]
            scope = candidates.scope_of[nodes[0]]
            inputs, outputs = borders(nodes, scope.graph)
            yield RegionFacts(
                label=self.labels[stage],
                backend=name,
                nodes=tuple(self.names[node] for node in nodes),
                macs=sum(candidates.macs[node] for node in nodes),
                execution=sum(cost.seconds for cost in costs),
                transfers=carried.get(stage, 0.0),
                launch=self.problem.sites[self.problem.options[options[0]].site].launch,
                source="+".join(sorted({self._source(name, cost) for cost in costs})),
                input_bytes=sum(map(value_bytes, inputs)),
                output_bytes=sum(map(value_bytes, outputs)),
                body=scope.name,
                executions=scope.executions.count,
                rows=self._alternative(placement.priced[options[0]].candidate).rows,
            )

    def bodies(self) -> Iterator[BodyFacts]:
        """The bodies, outer ones first."""
        candidates = self.partition.candidates
        for scope in candidates.scopes:
            if scope.owner is not None:
                pairs = operands_of(scope.owner, scope.graph)
                yield BodyFacts(
                    name=scope.name,
                    node=self.names[scope.owner],
                    nodes=sum(one is scope for one in candidates.scope_of.values()),
                    executions=scope.executions.count,
                    source=scope.executions.source.value,
                    operands=tuple((inner.name, outer.name) for inner, outer in pairs),
                    results=tuple(value.name for value in scope.graph.outputs),
                )


def _per_node(option: Alternative) -> float:
    return option.seconds / option.nodes


def _why(backend: str, options: Sequence[Alternative], refusals: Sequence[Refused]) -> str:
    """One sentence on a node's backend."""
    others = {option.backend for option in options} - {backend}
    if not others:
        if refusals and backend == HOST_BACKEND:
            return f"only the host can run it; {refusals[0].backend}: {refusals[0].reason}"
        return f"only {backend} may run it"
    here = min((o for o in options if o.backend == backend), key=_per_node)
    there = min((o for o in options if o.backend != backend), key=_per_node)
    if _per_node(here) <= _per_node(there):
        return f"cheapest on {backend}"
    return f"cheaper by itself on {there.backend}, but not with its transfers, launches and region"


def _backends(
    partition: Partition, nodes: Sequence[NodeFacts], facts: Sequence[RegionFacts]
) -> list[BackendFacts]:
    problem = partition.placement.problem
    options = [problem.options[o] for o in partition.choice.options]
    versions = {b.name: (b.version, b.simulated) for b in partition.placement.backends}
    names = [site.name for site in problem.sites]
    result = []
    for name in dict.fromkeys([*names[1:], names[HOST]]):
        own = [node for node in nodes if node.backend == name]
        parts = [region for region in facts if region.backend == name]
        result.append(
            BackendFacts(
                name,
                *versions.get(name, ("", False)),
                len(own),
                sum(node.macs for node in own),
                len(parts),
                sum(option.seconds for option in options if names[option.site] == name),
                sum(region.transfers for region in parts),
                sum(region.launch for region in parts),
            )
        )
    return result


def _memory(partition: Partition) -> Iterator[MemoryFacts]:
    problem = partition.placement.problem
    for peak in peaks(problem, partition.choice.options, partition.choice.stages):
        yield MemoryFacts(
            name=peak.space.name,
            peak=peak.total,
            limit=peak.space.capacity,
            constants=peak.constants,
            workspace=peak.workspace[2] if peak.workspace else 0,
            values=tuple((problem.flows[buffer.flow].name, buffer.size) for buffer in peak.values),
            text=in_words(problem, peak),
        )


def _totals(partition: Partition, measured: Mapping[str, float]) -> list[Total]:
    macs = list(partition.candidates.macs.values())
    problem = partition.placement.problem
    result = []
    for name, choice in (("exact", partition.choice), *partition.alternatives.items()):
        parts = accelerator_regions(problem, choice)
        away = [node for nodes in parts.values() for node in nodes]
        total = sum(macs[node] for node in away)
        seconds = choice.seconds
        result.append(
            Total(
                scheme=name,
                predicted=seconds,
                regions=len(parts),
                nodes=len(away),
                macs=total,
                measured=measured.get(name),
            )
        )
    return result


def _obstacles(candidates: Candidates, nodes: Sequence[NodeFacts]) -> list[Obstacle]:
    """The refusals that keep most of the host's time there; those of a quantised unit count for
    the unit as a whole."""
    units = {n: u for scope in candidates.scopes for n, u in units_of(scope.graph).items()}
    facts = dict(zip(candidates.nodes, nodes, strict=True))
    order = {node: number for number, node in enumerate(candidates.nodes)}
    counts: dict[tuple[str, str, str], list[float]] = defaultdict(list)
    for node, last in facts.items():
        members = sorted(units.get(node, (node,)), key=order.__getitem__)
        if last.backend != HOST_BACKEND or node is not members[-1]:
            continue
        able = {option.backend for option in last.alternatives}
        seconds = sum(_per_node(o) for one in members for o in facts[one].alternatives if o.chosen)
        names = [one.op.name for one in members if one.op.name not in (QUANTIZE, DEQUANTIZE)]
        for backend in {refused.backend for refused in last.refusals} - able:
            reason = next(r.reason for r in last.refusals if r.backend == backend)
            counts[backend, "+".join(names) or last.op, reason].append(seconds)
    result = [Obstacle(*key, len(times), sum(times)) for key, times in counts.items()]
    result.sort(key=lambda item: (-item.seconds, item.backend, item.op, item.reason))
    return result[:_MOST_OBSTACLES]

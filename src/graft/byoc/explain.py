"""Why the plan is what it is: a partition in; per node the refusals and the priced alternatives,
per region what it takes, and what would change all this, out. No weights, only names and numbers.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass

from graft.byoc.candidates import Candidate, Candidates, Refused
from graft.byoc.contract import HOST_BACKEND, Cost, Source
from graft.byoc.explain_bodies import BodyFacts, body_facts
from graft.byoc.explain_flips import Flip, Hint, flips, hints
from graft.byoc.memory import in_words, peaks
from graft.byoc.partition import Partition
from graft.byoc.plan import node_names
from graft.byoc.problem import HOST, Choice, Problem, accelerator_regions, site_of
from graft.byoc.region import borders
from graft.byoc.sizes import value_bytes
from graft.byoc.trust import Demotion
from graft.byoc.units import DEQUANTIZE, QUANTIZE, units_of

_MOST_OBSTACLES = 10


@dataclass(frozen=True, slots=True)
class Alternative:
    """A candidate that the node is part of: what it would take, and how that is known."""

    backend: str
    pattern: str
    nodes: int
    seconds: float
    source: str
    chosen: bool


@dataclass(frozen=True, slots=True)
class NodeFacts:
    """One node: where it runs, and why not elsewhere."""

    name: str
    onnx: str  # the node of the model that it comes from, perhaps with others
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
    body: str  # that it is in; empty: the model's own graph
    executions: float  # in an inference, which prices and MACs are for


@dataclass(frozen=True, slots=True)
class RegionFacts:
    """One region: who runs it, what it takes, what crosses its border."""

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
    """What a device holds at its fullest, in bytes; `limit` is None where it declares none."""

    name: str
    peak: int
    limit: int | None
    constants: int
    workspace: int
    values: tuple[tuple[str, int], ...]  # names and bytes
    text: str


@dataclass(frozen=True, slots=True)
class Total:
    """What a scheme of placement makes of the model; `measured` is end to end, where it was."""

    scheme: str
    predicted: float
    regions: int
    nodes: int  # off the host
    macs: int
    measured: float | None = None


@dataclass(frozen=True, slots=True)
class Obstacle:
    """A reason that keeps nodes of one operator off a backend, and what they take on the host."""

    backend: str
    op: str
    reason: str
    nodes: int
    seconds: float


@dataclass(frozen=True)
class Explanation:
    """Everything about a plan that a person might ask."""

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
        """Whether times rest on a model of a device."""
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
    """Put a partition into words and numbers; `measured` are times end to end by scheme, `model`
    is what to call the model if not by the graph's name."""
    view = _View(partition)
    nodes = tuple(view.node(number) for number in range(len(partition.candidates.nodes)))
    regions = tuple(view.regions())
    return Explanation(
        model or partition.candidates.graph.name,
        tuple(_backends(partition, nodes, regions)),
        nodes,
        regions,
        sum(node.macs for node in nodes),
        partition.choice.seconds,
        partition.choice.bound,
        partition.choice.gap,
        tuple(_totals(partition, measured or {})),
        tuple(flips(partition)),
        tuple(hints(partition)),
        tuple(_obstacles(partition.candidates, nodes)),
        tuple(demotions),
        tuple(_memory(partition)),
        tuple(body_facts(partition.candidates, view.names)),
    )


class _View:
    """A partition, looked up from all sides."""

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
            self.names[node],
            node.location.node if node.location is not None else "",
            node.op.name,
            str(node.output.type),
            backend,
            self.labels.get(self.choice.stages[number], ""),
            self.partition.candidates.macs[node],
            _why(backend, alternatives, refusals),
            tuple(value.name for value in node.args),
            tuple(value.name for value in node.outputs),
            refusals,
            tuple(alternatives),
            scope.name,
            scope.executions.count,
        )

    def _alternative(self, candidate: Candidate) -> Alternative:
        cost = self.prices[candidate]
        return Alternative(
            candidate.backend,
            candidate.pattern,
            len(candidate.nodes),
            cost.seconds,
            self._source(candidate.backend, cost),
            candidate in self.chosen,
        )

    def _source(self, backend: str, cost: Cost) -> str:
        """Where a price comes from; a declared one with the tool that it rests on."""
        tool = self.tools.get(backend, "") if cost.source is Source.DECLARED else ""
        return f"{cost.source.value} by {tool}" if tool else cost.source.value

    def regions(self) -> list[RegionFacts]:
        carried = carried_seconds(self.problem, self.choice)
        owner = {n: o for o in self.choice.options for n in self.problem.options[o].nodes}
        result = []
        for stage, numbers in self.parts.items():
            site = self.problem.sites[self.sites[numbers[0]]]
            nodes = [self.partition.candidates.nodes[number] for number in numbers]
            options = dict.fromkeys(owner[number] for number in numbers)
            costs = [self.partition.placement.priced[option].cost for option in options]
            scope = self.partition.candidates.scope_of[nodes[0]]
            inputs, outputs = borders(nodes, scope.graph)
            result.append(
                RegionFacts(
                    self.labels[stage],
                    site.name,
                    tuple(self.names[node] for node in nodes),
                    sum(self.partition.candidates.macs[node] for node in nodes),
                    sum(cost.seconds for cost in costs),
                    carried.get(stage, 0.0),
                    site.launch,
                    "+".join(sorted({self._source(site.name, cost) for cost in costs})),
                    sum(map(value_bytes, inputs)),
                    sum(map(value_bytes, outputs)),
                    scope.name,
                    scope.executions.count,
                )
            )
        return result


def carried_seconds(problem: Problem, choice: Choice) -> dict[int, float]:
    """Transfers by stage: to the host by the producer of a value, in by its first reader."""
    forms = [problem.sites[site].form for site in site_of(problem, choice.options)]
    seconds: dict[int, float] = defaultdict(float)
    for flow in problem.flows:
        produced = 0 if flow.producer is None else forms[flow.producer]
        readers = {0: -1} if flow.leaves else {}
        for node in sorted(flow.consumers, key=lambda node: choice.stages[node]):
            readers.setdefault(forms[node], choice.stages[node])
        readers.pop(produced, None)
        if readers and flow.producer is not None and produced:
            seconds[choice.stages[flow.producer]] += flow.fetch[produced]
        for form, stage in readers.items():
            if form:
                seconds[stage] += flow.bring[form]
    return dict(seconds)


def _per_node(option: Alternative) -> float:
    return option.seconds / option.nodes


def _why(backend: str, options: Sequence[Alternative], refusals: Sequence[Refused]) -> str:
    """One sentence on a node's place."""
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
    partition: Partition, nodes: Sequence[NodeFacts], regions: Sequence[RegionFacts]
) -> list[BackendFacts]:
    problem = partition.placement.problem
    options = [problem.options[o] for o in partition.choice.options]
    versions = {b.name: (b.version, b.simulated) for b in partition.placement.backends}
    names = [site.name for site in problem.sites]
    result = []
    for name in dict.fromkeys([*names[1:], names[HOST]]):
        own = [node for node in nodes if node.backend == name]
        parts = [region for region in regions if region.backend == name]
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
            peak.space.name,
            peak.total,
            peak.space.capacity,
            peak.constants,
            peak.workspace[2] if peak.workspace else 0,
            tuple((problem.flows[buffer.flow].name, buffer.size) for buffer in peak.values),
            in_words(problem, peak),
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
        result.append(Total(name, seconds, len(parts), len(away), total, measured.get(name)))
    return result


def _obstacles(candidates: Candidates, nodes: Sequence[NodeFacts]) -> list[Obstacle]:
    """What keeps most of the host's time there; of quantised units it is what refuses the whole."""
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


def nodes_like(explanation: Explanation, name: str) -> list[NodeFacts]:
    """The nodes that go by a name: their own, that of a value they make, or their ONNX node's."""
    plain = name.removeprefix("%")
    own = [node for node in explanation.nodes if node.name == name or plain in node.outputs]
    return own or [node for node in explanation.nodes if node.onnx == name]

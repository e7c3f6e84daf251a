"""The placement problem in numbers, which the exact optimiser, greedy and brute force all solve.

Nodes are numbers in a topological order. A *site* is a backend. An *option* covers some nodes on
one site at a price; every node is covered by exactly one chosen option. Nodes also get a *stage*
that never decreases along an edge; all nodes of a stage are on one site and form one *region*,
which costs a launch. A value is made in the *form* (memory space, layout, dtype) of its site. If it
is read in another form, it is transferred through the host's form, once per form. A backend that
computes in several precisions is a site per precision; the sum of the options' squared errors is
limited.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

from graft.byoc.memory import in_words, overfull

HOST = 0  # the site that every problem has first; its form is 0
ERROR_TOLERANCE = 1e-6  # relative, of the limit on errors
PROVEN = 1e-6  # relative gap to the bound up to which a solution counts as the cheapest


@dataclass(frozen=True, slots=True)
class Site:
    """A backend. Sites of equal `form` exchange values for free."""

    name: str
    launch: float = 0.0
    form: int = 0
    capacity: int | None = None  # bytes
    space: str = ""  # the memory that values stay in between regions; empty: the host's


@dataclass(frozen=True, slots=True)
class Option:
    """A candidate: some nodes on a site, and its time."""

    site: int
    nodes: tuple[int, ...]
    seconds: float
    workspace: int = 0  # bytes that it needs of its site while it runs, beside values and constants
    error: float = 0.0  # that it adds to the squared relative error of the outputs


@dataclass(frozen=True, slots=True)
class Flow:
    """A value: its producer (None: an input of the graph, in the host's form) and its consumers.

    `bring[f]` is the time to convert it from the host's form to form f, `fetch[f]` to convert it
    back; both are 0 for form 0. A value that `leaves` is an output of the graph, in the host's
    form. `sizes[f]` are its bytes in form f."""

    producer: int | None
    consumers: tuple[int, ...]
    bring: tuple[float, ...]
    fetch: tuple[float, ...]
    leaves: bool = False
    sizes: tuple[int, ...] = ()  # empty: no bytes
    name: str = ""

    @property
    def ends(self) -> tuple[int, ...]:
        """The producer, if there is one, and the consumers."""
        return self.consumers if self.producer is None else (self.producer, *self.consumers)

    def bytes_in(self, form: int) -> int:
        """Bytes in a form."""
        return self.sizes[form] if self.sizes else 0


@dataclass(frozen=True)
class Problem:
    """A graph's placement as numbers."""

    sites: tuple[Site, ...]  # the host first
    nodes: int
    options: tuple[Option, ...]
    flows: tuple[Flow, ...]
    held: tuple[int, ...] = ()  # per node, bytes of its constants, for good; empty: none
    error_limit: float = math.inf  # of the errors of chosen options together

    def held_by(self, nodes: Iterable[int]) -> int:
        """Bytes of the constants of some nodes, which stay in memory whichever region runs."""
        return sum(self.held[node] for node in nodes) if self.held else 0

    @cached_property
    def covering(self) -> tuple[tuple[int, ...], ...]:
        """Per node, the options that cover it."""
        result: list[list[int]] = [[] for _ in range(self.nodes)]
        for number, option in enumerate(self.options):
            for node in option.nodes:
                result[node].append(number)
        return tuple(tuple(numbers) for numbers in result)

    @cached_property
    def touching(self) -> tuple[tuple[int, ...], ...]:
        """Per node, the flows that it makes or reads."""
        result: list[list[int]] = [[] for _ in range(self.nodes)]
        for number, flow in enumerate(self.flows):
            for node in dict.fromkeys(flow.ends):
                result[node].append(number)
        return tuple(tuple(numbers) for numbers in result)

    @cached_property
    def edges(self) -> tuple[tuple[int, int], ...]:
        """Which node reads from which, each pair once."""
        pairs = (
            (flow.producer, consumer)
            for flow in self.flows
            if flow.producer is not None
            for consumer in flow.consumers
        )
        return tuple(dict.fromkeys(pairs))

    @cached_property
    def host_seconds(self) -> tuple[float, ...]:
        """Per node, its share of the cheapest option on the host; infinite where it has none."""
        result = [math.inf] * self.nodes
        for option in self.options:
            if option.site == HOST:
                for node in option.nodes:
                    result[node] = min(result[node], option.seconds / len(option.nodes))
        return tuple(result)

    @cached_property
    def neighbours(self) -> tuple[tuple[int, ...], ...]:
        """Per node, those that read from it or that it reads from."""
        result: list[list[int]] = [[] for _ in range(self.nodes)]
        for before, after in self.edges:
            result[before].append(after)
            result[after].append(before)
        return tuple(tuple(numbers) for numbers in result)


@dataclass(frozen=True)
class Choice:
    """A solution: the chosen options, each node's stage, its price and a lower bound."""

    options: tuple[int, ...]
    stages: tuple[int, ...]
    seconds: float
    bound: float = 0.0  # no solution is cheaper
    method: str = ""

    @property
    def gap(self) -> float:
        """The gap to the bound, as a share of the price."""
        return 0.0 if self.seconds <= 0 else max(0.0, 1.0 - self.bound / self.seconds)

    @property
    def proven(self) -> bool:
        return self.gap <= PROVEN


@dataclass(frozen=True)
class Bill:
    """The price of a solution, itemised."""

    execution: float
    transfers: float
    launches: float
    regions: Mapping[int, tuple[int, ...]] = field(default_factory=dict)  # stage -> nodes

    @property
    def total(self) -> float:
        return self.execution + self.transfers + self.launches


def site_of(problem: Problem, options: Iterable[int]) -> list[int]:
    """Each node's site under the chosen options; an error if they are no exact cover."""
    sites = [-1] * problem.nodes
    for number in options:
        for node in problem.options[number].nodes:
            if sites[node] >= 0:
                raise ValueError(f"node {node} is covered twice")
            sites[node] = problem.options[number].site
    if -1 in sites:
        raise ValueError(f"node {sites.index(-1)} is not covered")
    return sites


def bill(problem: Problem, options: Sequence[int], stages: Sequence[int]) -> Bill:
    """Price a solution; an error if it violates a constraint."""
    sites = site_of(problem, options)
    regions = _regions(sites, stages)
    for before, after in problem.edges:
        if stages[after] < stages[before]:
            raise ValueError(f"node {after} comes before node {before}, which it reads from")
    for number in options:
        if len({stages[node] for node in problem.options[number].nodes}) > 1:
            raise ValueError(f"option {number} is torn apart")
    circle = cycle_among(problem, options)
    if circle:
        raise ValueError(f"the options {', '.join(map(str, circle))} wait for each other")
    peak = overfull(problem, options, stages)
    if peak is not None:
        raise ValueError(f"the placement needs {in_words(problem, peak)}")
    if is_inaccurate(problem, options):
        raise ValueError("the errors of the options are over the limit")
    return Bill(
        sum(problem.options[number].seconds for number in options),
        transfers(problem, sites),
        sum(problem.sites[sites[nodes[0]]].launch for nodes in regions.values()),
        regions,
    )


def is_inaccurate(problem: Problem, options: Iterable[int]) -> bool:
    """Whether the errors of the options exceed the limit, up to the solver's tolerance."""
    total = sum(problem.options[number].error for number in options)
    return total > problem.error_limit * (1 + ERROR_TOLERANCE)


def _regions(sites: Sequence[int], stages: Sequence[int]) -> dict[int, tuple[int, ...]]:
    result: dict[int, list[int]] = {}
    for node, stage in enumerate(stages):
        result.setdefault(stage, []).append(node)
    for stage, nodes in result.items():
        if len({sites[node] for node in nodes}) > 1:
            raise ValueError(f"stage {stage} is on two sites")
    return {stage: tuple(result[stage]) for stage in sorted(result)}


def cycle_among(problem: Problem, options: Sequence[int]) -> tuple[int, ...]:
    """Chosen options that each need a result of the next; empty if there is no cycle."""
    owner = {node: number for number in options for node in problem.options[number].nodes}
    needs: dict[int, set[int]] = {number: set() for number in options}
    for before, after in problem.edges:
        if owner[before] != owner[after]:
            needs[owner[after]].add(owner[before])
    ready = [number for number, others in needs.items() if not others]
    waiting = {number: len(others) for number, others in needs.items()}
    users: dict[int, list[int]] = {}
    for number, others in needs.items():
        for other in others:
            users.setdefault(other, []).append(number)
    while ready:
        number = ready.pop()
        del waiting[number]
        for user in users.get(number, ()):
            waiting[user] -= 1
            if not waiting[user]:
                ready.append(user)
    if not waiting:
        return ()
    path = [next(iter(waiting))]
    while path.count(path[-1]) == 1:
        path.append(next(other for other in sorted(needs[path[-1]]) if other in waiting))
    return tuple(path[path.index(path[-1]) : -1])


def unlimited(problem: Problem) -> Problem:
    """The problem without memory limits."""
    sites = tuple(replace(site, capacity=None) for site in problem.sites)
    return replace(problem, sites=sites)


def repriced(problem: Problem, choice: Choice) -> Choice:
    """A choice at the prices of this problem."""
    return replace(choice, seconds=bill(problem, choice.options, choice.stages).total)


def accelerator_regions(problem: Problem, choice: Choice) -> dict[int, tuple[int, ...]]:
    """The accelerators' regions in the order in which they run: stage -> nodes."""
    sites = site_of(problem, choice.options)
    regions = bill(problem, choice.options, choice.stages).regions
    return {stage: nodes for stage, nodes in regions.items() if sites[nodes[0]] != HOST}


def transfers(problem: Problem, sites: Sequence[int]) -> float:
    """The time of all transfers between the nodes' sites."""
    return sum(transfer(problem, flow, sites) for flow in problem.flows)


def transfers_by_stage(problem: Problem, choice: Choice) -> dict[int, float]:
    """The time of transfers by stage: those to the host count for the producer of a value, those
    from the host for its first reader."""
    forms = [problem.sites[site].form for site in site_of(problem, choice.options)]
    seconds: dict[int, float] = {}
    for flow in problem.flows:
        produced = 0 if flow.producer is None else forms[flow.producer]
        readers = {0: -1} if flow.leaves else {}
        for node in sorted(flow.consumers, key=lambda node: choice.stages[node]):
            readers.setdefault(forms[node], choice.stages[node])
        readers.pop(produced, None)
        times = [(stage, flow.bring[form]) for form, stage in readers.items() if form]
        if readers and flow.producer is not None and produced:
            times.append((choice.stages[flow.producer], flow.fetch[produced]))
        for stage, time in times:
            seconds[stage] = seconds.get(stage, 0.0) + time
    return seconds


def transfer(problem: Problem, flow: Flow, sites: Sequence[int]) -> float:
    """The time to transfer one value: from its producer to the host, then into every other form
    in which it is read."""
    origin = 0 if flow.producer is None else problem.sites[sites[flow.producer]].form
    forms = {problem.sites[sites[node]].form for node in flow.consumers}
    forms |= {0} if flow.leaves else set()
    forms -= {origin}
    if not forms:
        return 0.0
    return flow.fetch[origin] + sum(flow.bring[form] for form in forms if form)

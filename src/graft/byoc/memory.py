"""The memory of devices: a placement in, the peak memory of each device out.

While a model is loaded, a device keeps the constants of all its regions. A device with its own
memory (a space) also holds the values that cross borders of regions there, from their producer or
upload to their last reader, as programs allocate them (`runtime/tensor_pool.py`). A backend in the
host's memory holds operands and results of a region while that runs. In addition, a running region
holds its live intermediate values and the workspace that its backend declares.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from graft.program.plan_memory import Lifetime, fullest

if TYPE_CHECKING:
    from graft.byoc.problem import Flow, Problem


_MOST_NAMED = 6  # values of a device at its fullest


@dataclass(frozen=True, slots=True)
class Space:
    """Memory that some sites share; if it `stays`, values remain there between regions."""

    name: str
    sites: tuple[int, ...]
    capacity: int | None
    stays: bool


@dataclass(frozen=True, slots=True)
class HeldBuffer:
    """A value in a device's memory at its peak, in a form, during a stage; `is_inside`: it is an
    intermediate value of the region at that stage."""

    flow: int
    form: int
    stage: int
    size: int
    is_inside: bool = False


@dataclass(frozen=True, slots=True)
class Peak:
    """The contents of a device's memory at its peak, in bytes."""

    space: Space
    constants: int
    values: tuple[HeldBuffer, ...]
    node: int  # that runs then
    workspace: tuple[int, int, int] | None = None  # an option, its stage, and bytes

    @property
    def total(self) -> int:
        extra = self.workspace[2] if self.workspace else 0
        return self.constants + sum(value.size for value in self.values) + extra

    @property
    def fits(self) -> bool:
        return self.space.capacity is None or self.total <= self.space.capacity


def spaces_of(problem: Problem) -> list[Space]:
    """The memories of a problem; backends in the host's memory have one each."""
    by_name: dict[str, list[int]] = {}
    for number, site in enumerate(problem.sites[1:], 1):
        by_name.setdefault(site.space or f"\0{site.name}", []).append(number)
    result = []
    for sites in by_name.values():
        first = problem.sites[sites[0]]
        limits = [problem.sites[s].capacity for s in sites]
        least = min((limit for limit in limits if limit is not None), default=None)
        result.append(Space(first.space or first.name, tuple(sites), least, bool(first.space)))
    return result


def peaks(problem: Problem, options: Sequence[int], stages: Sequence[int]) -> list[Peak]:
    """The peak of each device under a choice; none for devices without work."""
    views = _views(problem, options, stages)
    return [max(view.peaks(options), key=lambda peak: peak.total) for view in views]


def overflows(problem: Problem, options: Sequence[int], stages: Sequence[int]) -> list[Peak]:
    """The memory contents at each node that exceed the capacity."""
    return [
        peak
        for view in _views(problem, options, stages)
        if view.space.capacity is not None
        for peak in view.each_node(options)
        if not peak.fits
    ]


def _views(problem: Problem, options: Sequence[int], stages: Sequence[int]) -> Iterator[_View]:
    """A choice as seen by each device that has work."""
    sites = [-1] * problem.nodes
    for number in options:
        for node in problem.options[number].nodes:
            sites[node] = problem.options[number].site
    for space in spaces_of(problem):
        forms = {
            node: problem.sites[site].form for node, site in enumerate(sites) if site in space.sites
        }
        if forms:
            yield _View(problem, space, forms, stages)


def region_bytes(problem: Problem, options: Sequence[int]) -> int:
    """Bytes that a region of these options needs while it runs, without constants."""
    site = problem.options[options[0]].site
    nodes = [node for number in options for node in problem.options[number].nodes]
    forms = dict.fromkeys(nodes, problem.sites[site].form)
    stages = defaultdict(int, dict.fromkeys(nodes, 1))
    alone = Space("", (site,), None, stays=False)
    view = _View(problem, alone, forms, stages)
    return max(peak.total for peak in view.peaks(options, with_constants=False))


class _View:
    """A choice as seen by one device."""

    def __init__(
        self,
        problem: Problem,
        space: Space,
        forms: Mapping[int, int],  # of the values that each node here reads and makes
        stages: Sequence[int] | Mapping[int, int],
    ) -> None:
        self.problem, self.space, self.forms, self.stages = problem, space, forms, stages
        self.regions = sorted({stages[node] for node in self.forms})
        self.inside: dict[int, list[tuple[HeldBuffer, Lifetime[int]]]] = {
            stage: [] for stage in self.regions
        }
        self.crossing: list[tuple[HeldBuffer, Lifetime[int]]] = []
        touched = {flow for node in self.forms for flow in problem.touching[node]}
        for number in sorted(touched):
            if problem.flows[number].sizes:
                self.add(number, problem.flows[number])

    def add(self, number: int, flow: Flow) -> None:
        """Add where and when one value is in this memory."""
        maker, stages = flow.producer, self.stages
        produced = None if maker is None else self.forms.get(maker)
        readers: dict[int, list[int]] = {}
        for node in flow.consumers:
            if node in self.forms:
                readers.setdefault(self.forms[node], []).append(stages[node])
        if produced is not None and maker is not None:
            own = stages[maker]
            if not flow.leaves and all(stages[node] == own for node in flow.consumers):
                buffer = HeldBuffer(number, produced, own, flow.bytes_in(produced), is_inside=True)
                self.inside[own].append((buffer, Lifetime(buffer.size, maker, max(flow.ends))))
                return
            readers.setdefault(produced, []).append(own)
        for form, during in readers.items():
            spans = [(min(during), max(during))]
            if not self.space.stays:
                spans = [(stage, stage) for stage in dict.fromkeys(during)]
            size = flow.bytes_in(form)
            for first, last in spans:
                buffer = HeldBuffer(number, form, first, size)
                self.crossing.append((buffer, Lifetime(size, first, last)))

    def peaks(self, options: Sequence[int], with_constants: bool = True) -> list[Peak]:
        """The peak during each region."""
        constants = self.problem.held_by(self.forms) if with_constants else 0
        result = []
        for stage in self.regions:
            _, position = fullest(interval for _, interval in self.inside[stage])
            result.append(self.at(position, stage, constants, self.workspace(stage, options)))
        return result

    def each_node(self, options: Sequence[int]) -> Iterator[Peak]:
        """The contents during each node."""
        constants = self.problem.held_by(self.forms)
        workspaces = {stage: self.workspace(stage, options) for stage in self.regions}
        for node in self.forms:
            stage = self.stages[node]
            yield self.at(node, stage, constants, workspaces[stage])

    def at(
        self, node: int, stage: int, constants: int, workspace: tuple[int, int, int] | None
    ) -> Peak:
        """The contents while a node of a region runs."""
        values = [
            HeldBuffer(buffer.flow, buffer.form, stage, buffer.size)
            for buffer, interval in self.crossing
            if interval.first <= stage <= interval.last
        ]
        values += [
            buffer
            for buffer, interval in self.inside[stage]
            if interval.first <= node <= interval.last
        ]
        return Peak(self.space, constants, tuple(values), node, workspace)

    def workspace(self, stage: int, options: Sequence[int]) -> tuple[int, int, int] | None:
        """The largest workspace in a region: its option, the stage, and bytes."""
        sizes = [
            (self.problem.options[number].workspace, number)
            for number in options
            if self.stages[self.problem.options[number].nodes[0]] == stage
        ]
        most, owner = max(sizes)
        return (owner, stage, most) if most else None


def overfull(problem: Problem, options: Sequence[int], stages: Sequence[int]) -> Peak | None:
    """The first device whose peak exceeds its capacity."""
    if all(site.capacity is None for site in problem.sites):
        return None
    return next((peak for peak in peaks(problem, options, stages) if not peak.fits), None)


def in_words(problem: Problem, peak: Peak) -> str:
    """The contents of a device at its peak, the largest values first."""
    sizes: dict[str, int] = {}
    for buffer in peak.values:
        name = problem.flows[buffer.flow].name or f"value {buffer.flow}"
        sizes[name] = sizes.get(name, 0) + buffer.size
    parts = [f"{peak.constants:,} of constants"] if peak.constants else []
    if peak.workspace:
        parts.append(f"{peak.workspace[2]:,} of workspace")
    ranked = sorted(sizes.items(), key=lambda item: -item[1])
    parts += [f"{size:,} of %{name}" for name, size in ranked[:_MOST_NAMED]]
    if len(ranked) > _MOST_NAMED:
        rest = sum(size for _, size in ranked[_MOST_NAMED:])
        parts.append(f"{rest:,} of {len(ranked) - _MOST_NAMED} more values")
    limit = "" if peak.space.capacity is None else f" of {peak.space.capacity:,}"
    return f"{peak.total:,}{limit} bytes of {peak.space.name}: {', '.join(parts) or 'nothing'}"

"""Executes a plan: regions are outlined, compiled, checked and linked to the host's program.

A region that fails its check is tried again in two parts, down to single candidates; a single
candidate that fails is demoted to the host, and the graph is outlined again without it. The result
is a graph with `region` nodes, and for each of them a runner: the accelerator's code, with the
host's as a fallback.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial

from graft.base.errors import warn_user
from graft.base.progress import Progress, Stage, quietly
from graft.byoc.boundary import with_wishes
from graft.byoc.contract import Backend
from graft.byoc.measure import DEADLINE
from graft.byoc.outline import outline, region_label
from graft.byoc.rows import NO_ROWS
from graft.byoc.scopes import scopes_of
from graft.byoc.split import halves
from graft.byoc.trust import CompiledRegion, Demotion, Failure, RegionCompiler
from graft.ir.graph import Graph, Node
from graft.runtime.breaker import Breaker
from graft.runtime.grafted import StoredRegion, region_blobs
from graft.runtime.regions import HOST_SPACE, Policy, Region, RegionWarning

Planned = Sequence[tuple[str, Sequence[Node]]]  # backend and nodes, in order

_SPLITS = 32  # splits of failed regions per plan


@dataclass(frozen=True)
class OffloadedGraph:
    """A graph with a node per region, the runners of these, and the regions demoted to the host."""

    graph: Graph
    compiled: tuple[CompiledRegion, ...]
    regions: Mapping[str, Region]  # by label
    demotions: tuple[Demotion, ...] = ()


def offload(
    graph: Graph,
    planned: Planned,
    backends: Mapping[str, Backend],
    host: Backend,
    policy: Policy,
    check: bool = True,
    judge: Backend | None = None,
    threads: int | None = None,
    report: Progress = quietly,
    rows: Mapping[Node, int] = NO_ROWS,
) -> OffloadedGraph:
    """Outline, compile and check regions until all that are left pass. `judge` is the host backend
    that results are compared with, if it is not the one that runs the model; `rows` as in
    `outline`."""
    deadline = policy.deadline or DEADLINE
    compiler = RegionCompiler(judge or host, check, deadline, threads)
    repair = _Repair(graph, backends, rows)
    limits = {name: backend.limits for name, backend in backends.items()}
    left: Planned = planned
    while True:
        outlined = with_wishes(outline(graph, left, rows), limits)
        nodes = {node.attrs.label: node for node in outlined.walk() if node.op.name == "region"}
        outcomes = []
        for number, (backend, members) in enumerate(left):
            label = region_label(backend, number)
            report(Stage("compiling and checking regions", number + 1, len(left), label))
            outcomes.append(compiler.compile(nodes[label], backends[backend], members))
        compiled = tuple(item for item in outcomes if isinstance(item, CompiledRegion))
        if len(compiled) == len(outcomes):
            breakers = {name: Breaker() for name in backends}
            regions = {item.label: _region(item, host, policy, breakers) for item in compiled}
            return OffloadedGraph(outlined, compiled, regions, tuple(repair.demotions))
        left = repair.without(left, outcomes)


class _Repair:
    """Splits or demotes regions that fail."""

    def __init__(
        self, graph: Graph, backends: Mapping[str, Backend], rows: Mapping[Node, int]
    ) -> None:
        self._graph, self._backends, self._rows = graph, backends, rows
        self._splits = _SPLITS
        self.demotions: list[Demotion] = []

    def without(self, planned: Planned, outcomes: Sequence[CompiledRegion | Failure]) -> Planned:
        """The regions that pass, and parts of the others."""
        left: list[tuple[str, Sequence[Node]]] = []
        for number, ((backend, nodes), item) in enumerate(zip(planned, outcomes, strict=True)):
            if isinstance(item, CompiledRegion):
                left.append((backend, nodes))
            else:
                label = region_label(backend, number)
                left += [(backend, part) for part in self._parts(backend, nodes, label, item)]
        return left

    def _parts(
        self, backend: str, nodes: Sequence[Node], label: str, failure: Failure
    ) -> list[list[Node]]:
        parts: list[list[Node]] = []
        if failure.in_time and self._splits:
            scope = next(s.graph for s in scopes_of(self._graph) if nodes[0] in s.graph.nodes)
            parts = halves(scope, nodes, self._backends[backend], self._rows.get(nodes[0], 0))
        if parts:
            self._splits -= 1
            message = f"{label} is tried again in two parts: {failure.reason}"
        else:
            names = tuple(node.output.name for node in nodes)
            self.demotions.append(Demotion(label, backend, failure.reason, names))
            message = f"{label} goes back to the host: {failure.reason}"
        warn_user(message, RegionWarning)
        return parts


def _region(
    item: CompiledRegion, host: Backend, policy: Policy, breakers: Mapping[str, Breaker]
) -> Region:
    backend = item.backend
    return Region(
        item.label,
        backend.name,
        item.runner,
        partial(host.runner, item.body),
        policy,
        HOST_SPACE if item.blocks else backend.limits.space,
        device_breaker=breakers[backend.name],
    )


@dataclass(frozen=True, eq=False)
class Attachments:
    """The compiled regions of a model by variant (the general program's name is empty); `host`
    compiles the fallbacks."""

    regions: Mapping[str, Sequence[CompiledRegion]]
    host: Backend
    policy: Policy

    @property
    def versions(self) -> dict[str, str]:
        """The versions of the backends that compiled the regions."""
        backends = (region.backend for own in self.regions.values() for region in own)
        return {backend.name: backend.version for backend in backends}

    def blobs(self) -> dict[str, bytes]:
        """The blobs that a file stores for the regions; equal regions share code."""
        codes: dict[str, bytes] = {}
        numbers: dict[str, int] = {}

        def stored(region: CompiledRegion) -> StoredRegion:
            number = numbers.setdefault(region.key, len(numbers))
            code, fallback = f"region {number}", f"region {number} on the host"
            codes.setdefault(code, region.blob)
            # for fallback and comparison
            has_host = self.policy.fallback == "host" or self.policy.verify != "off"
            if has_host and fallback not in codes:
                codes[fallback] = self.host.compile(region.body)
            backend = region.backend
            return StoredRegion(
                label=region.label,
                backend=backend.name,
                version=backend.version,
                device=backend.device,
                options=dict(backend.options),
                code=code,
                host=fallback if fallback in codes else "",
                isolation=backend.isolation,
                rows=region.blocks.rows if region.blocks else 0,
                whole=region.blocks.whole if region.blocks else (),
            )

        result = {name: [stored(one) for one in own] for name, own in self.regions.items() if own}
        return region_blobs(result, codes, self.policy)

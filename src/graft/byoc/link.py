"""A plan put to work: regions outlined, compiled, checked and tied to the host's program.

Regions that fail their check are demoted, and the graph is outlined again without them, until all
that is left can be trusted. What comes out is a graph with `region` nodes and, for each, what runs
it: the accelerator's code with the host's behind it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from graft.byoc.contract import Backend, Runner
from graft.byoc.outline import outline
from graft.byoc.trust import CompiledRegion, Demotion, RegionCompiler
from graft.ir.graph import Graph, Node
from graft.runtime.regions import Incident, Policy, Region

Planned = Sequence[tuple[str, Sequence[Node]]]  # backend and nodes, in order


@dataclass(frozen=True)
class Linked:
    """The outlined graph, what runs its regions, and what had to go back to the host."""

    graph: Graph
    compiled: tuple[CompiledRegion, ...]
    regions: Mapping[str, Region]  # by label
    demotions: tuple[Demotion, ...] = ()

    @property
    def incidents(self) -> list[Incident]:
        """All failures at run time so far."""
        return [incident for region in self.regions.values() for incident in region.incidents]


def link(
    graph: Graph,
    planned: Planned,
    backends: Mapping[str, Backend],
    host: Backend,
    policy: Policy,
    check: bool = True,
) -> Linked:
    """Outline, compile and check until every region that is left holds."""
    compiler = RegionCompiler(host, check)
    demotions: list[Demotion] = []
    left = list(planned)
    while True:
        outlined = outline(graph, left)
        nodes = [node for node in outlined.nodes if node.op.name == "region"]
        made = [compiler.compile(node, backends[node.attrs.backend]) for node in nodes]
        failed = [item for item in made if isinstance(item, Demotion)]
        if not failed:
            compiled = tuple(item for item in made if isinstance(item, CompiledRegion))
            regions = {item.label: _region(item, host, policy) for item in compiled}
            return Linked(outlined, compiled, regions, tuple(demotions))
        demotions += failed
        labels = {item.label for item in failed}
        numbered = [f"{backend}_{number}" for number, (backend, _) in enumerate(left)]
        left = [item for item, label in zip(left, numbered, strict=True) if label not in labels]


def _region(item: CompiledRegion, host: Backend, policy: Policy) -> Region:
    on_host: Callable[[], Runner] = lambda: host.runner(item.body)  # noqa: E731
    return Region(item.label, item.backend.name, item.runner, on_host, policy)

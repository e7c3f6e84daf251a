"""The placement of a compiled model: which backend runs which nodes."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from graft.base.names import printable
from graft.base.quantities import counted, number, time_text
from graft.byoc.contract import HOST_BACKEND, REFERENCE
from graft.byoc.plan import Plan
from graft.byoc.scopes import Scope, inference_macs, nodes_in_order, scopes_of
from graft.byoc.trust import Demotion
from graft.runtime.placement import PlacedRegion, StoredPlacement
from graft.runtime.session import Session
from graft.stages import Linked

_MOST_BODIES = 3  # that a line names

# What `graft.compile` returns, as `graft.load` does.
Module = Session


@dataclass(frozen=True, slots=True)
class Placement:
    """The backends of nodes and regions, and why some nodes run on the reference evaluator.
    `python` are the host's nodes without machine code (strings are looked up, rows packed into
    maps). `plan` is the chosen plan, `demotions` are regions that failed their check."""

    nodes: Mapping[str, int]
    reasons: Mapping[str, str] = field(default_factory=dict)
    regions: tuple[PlacedRegion, ...] = ()
    macs: int = 0
    plan: Plan | None = None
    demotions: tuple[Demotion, ...] = ()
    simulated: tuple[str, ...] = ()  # backends whose times are a model's
    variants: Mapping[str, Placement] = field(default_factory=dict)  # those for some sizes, by name
    python: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def of(cls, linked: Linked) -> Placement:
        """The placement of a linked graph."""
        left, python = linked.executable.reference_nodes, linked.executable.python_nodes
        if linked.offloaded is None:
            total = sum(1 for _ in linked.graph.walk())
            counts = {HOST_BACKEND: total - len(left), REFERENCE: len(left)}
            return cls(_counted(counts), left, python=python)
        whole = {node for item in linked.compiled for node in item.nodes}
        scopes = tuple(_as_priced(scopes_of(linked.graph, closed=whole), linked.plan))
        macs, scope_of = inference_macs(scopes), dict(nodes_in_order(scopes))
        placed = tuple(
            PlacedRegion(
                label=item.label,
                backend=item.backend.name,
                nodes=tuple(node.output.name for node in item.nodes),
                macs=sum(macs[node] for node in item.nodes),
                body=scope_of[item.nodes[0]].name,
                executions=scope_of[item.nodes[0]].executions.count,
                rows=item.blocks.rows if item.blocks else 0,
            )
            for item in linked.compiled
        )
        evaluated = sum(node.output.name in left for node in macs)
        counts = {HOST_BACKEND: len(macs) - evaluated - sum(len(region.nodes) for region in placed)}
        for region in placed:
            counts[region.backend] = counts.get(region.backend, 0) + len(region.nodes)
        return cls(
            _counted({**counts, REFERENCE: evaluated}),
            left,
            placed,
            sum(macs.values()),
            linked.plan,
            linked.demotions,
            tuple({item.backend.name for item in linked.compiled if item.backend.simulated}),
            python=python,
        )

    def __str__(self) -> str:
        """One line; variants with equal placements share a part of it."""
        names: dict[str, list[str]] = {}
        for name, variant in self.variants.items():
            names.setdefault(str(variant), []).append(name)
        alike = (f"{' or '.join(own)}: {text}" for text, own in names.items())
        return printable(" | ".join([self._line(), *alike]))

    def _line(self) -> str:
        total = sum(self.nodes.values())
        parts = [self._of(backend, count, total) for backend, count in self.nodes.items()]
        if self.python:
            parts[0] += f" ({len(self.python)} in Python)"
        parts += self._bodies()
        plan = self.plan
        if plan is not None and plan.predicted:
            label = " (simulated)" if self.simulated else ""
            parts.append(f"predicted {time_text(plan.predicted)}{label}")
            alone = plan.alternatives.get("host-only")
            if alone is not None and plan.method != "host-only":
                parts[-1] += f", host-only {time_text(alone)}"
            if plan.method == "exact" and not plan.proven:
                least = f"no plan takes less than {time_text(plan.bound)}"
                parts[-1] += f", within {plan.gap:.2%} of the best: {least}"
            if plan.method in plan.measured:
                parts[-1] += f"; measured {time_text(plan.measured[plan.method])}"
        return "; ".join(parts)

    def _bodies(self) -> list[str]:
        """The expected executions of bodies with regions."""
        bodies = self.plan.bodies if self.plan is not None else {}
        names = [n for n in dict.fromkeys(r.body for r in self.regions) if n in bodies]
        shown = [f"{name} × {bodies[name]}" for name in names[:_MOST_BODIES]]
        more = [f"{len(names) - _MOST_BODIES} more bodies"] if len(names) > _MOST_BODIES else []
        return [f"in {', '.join([*shown, *more])}"] if shown else []

    def _of(self, backend: str, count: int, total: int) -> str:
        own = [region for region in self.regions if region.backend == backend]
        if not own:
            return f"{backend}: {counted(count, 'node')}"
        share = sum(region.macs for region in own) / max(self.macs, 1)
        regions = counted(len(own), "region")
        name = f"{backend} (simulated)" if backend in self.simulated else backend
        return f"{name}: {number(count)} of {number(total)} nodes, {share:.1%} of MACs, {regions}"

    def to_json(self) -> str:
        """All of it as JSON."""
        return json.dumps(self._facts())

    def stored(self) -> StoredPlacement:
        """The form that files store."""
        return StoredPlacement(str(self), self._facts())

    def _facts(self) -> dict[str, Any]:
        plan = self.plan
        return {
            "nodes": dict(self.nodes),
            "reference": dict(self.reasons),
            "python": dict(self.python),
            "regions": [asdict(region) for region in self.regions],
            "demotions": [asdict(demotion) for demotion in self.demotions],
            "predicted_seconds": plan.predicted if plan else None,
            "bound_seconds": plan.bound if plan else None,
            "alternatives": dict(plan.alternatives) if plan else {},
            "bodies": {
                name: {"executions": one.count, "source": one.source.value}
                for name, one in (plan.bodies if plan else {}).items()
            },
            "variants": {name: variant._facts() for name, variant in self.variants.items()},
        }


def _as_priced(scopes: Iterable[Scope], plan: Plan | None) -> Iterator[Scope]:
    """Scopes with the executions for which a plan was priced."""
    executions = {} if plan is None else plan.bodies
    for scope in scopes:
        yield replace(scope, executions=executions.get(scope.name, scope.executions))


def _counted(nodes: Mapping[str, int]) -> dict[str, int]:
    return {name: count for name, count in nodes.items() if count}

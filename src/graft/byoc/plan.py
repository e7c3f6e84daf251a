"""Plans: who runs what, as a value and as a text that can be saved, compared, edited and replayed.

    graft plan 1
    model 5f2c…
    backend onednn 3.2
    predicted 0.0312 bound 0.0312 method exact
    alternative host-only 0.0480
    region onednn 0.0201 measured
      conv1+bn1+relu
      layer1.0.conv1
    rest host

Nodes go by their ONNX names where these are unique, else by the value that they make. What no
region names runs on the host. A name that no line can hold is a string of JSON.
"""

from __future__ import annotations

import hashlib
import json
import shlex
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from graft.base.errors import ParseError, UserError
from graft.base.names import quoted
from graft.byoc.problem import PROVEN
from graft.byoc.scopes import (
    Counted,
    Executions,
    Scope,
    all_nodes,
    nodes_in_order,
    scopes_of,
)
from graft.ir.graph import Graph, Node
from graft.ir.printer import to_text

VERSION = 1


@dataclass(frozen=True, slots=True)
class PlannedRegion:
    """Nodes that one backend runs as one region, and what that is thought to take."""

    backend: str
    nodes: tuple[str, ...]
    seconds: float = 0.0
    source: str = ""


@dataclass(frozen=True)
class Plan:
    """Regions in the order in which they run; the rest is the host's."""

    model: str  # hash of the graph that it was made for
    backends: Mapping[str, str]  # versions
    regions: tuple[PlannedRegion, ...]
    predicted: float = 0.0
    bound: float = 0.0
    method: str = ""
    alternatives: Mapping[str, float] = field(default_factory=dict)
    measured: Mapping[str, float] = field(default_factory=dict)  # end to end, by method
    bodies: Mapping[str, Executions] = field(default_factory=dict)  # as they were priced

    @property
    def gap(self) -> float:
        return 0.0 if self.predicted <= 0 else max(0.0, 1.0 - self.bound / self.predicted)

    @property
    def proven(self) -> bool:
        """Whether no plan is cheaper at these prices."""
        return self.gap <= PROVEN

    def to_text(self) -> str:
        lines = [f"graft plan {VERSION}", f"model {self.model}"]
        lines += [f"backend {name} {shlex.quote(v)}" for name, v in sorted(self.backends.items())]
        lines.append(
            f"predicted {self.predicted:.6g} bound {self.bound:.6g} method {self.method or '-'}"
        )
        lines += [f"alternative {name} {s:.6g}" for name, s in self.alternatives.items()]
        lines += [f"measured {name} {s:.6g}" for name, s in self.measured.items()]
        lines += [
            f"body {one.count:.6g} {one.source.value} {_written(name)}"
            for name, one in self.bodies.items()
        ]
        for region in self.regions:
            lines.append(f"region {region.backend} {region.seconds:.6g} {region.source or '-'}")
            lines += [f"  {_written(name)}" for name in region.nodes]
        return "\n".join([*lines, "rest host", ""])


def parse_plan(text: str) -> Plan:
    """Read a plan back."""
    return _Reader(text).plan()


class _Reader:
    def __init__(self, text: str) -> None:
        self.model = ""
        self.backends: dict[str, str] = {}
        self.numbers = (0.0, 0.0, "")
        self.alternatives: dict[str, float] = {}
        self.measured: dict[str, float] = {}
        self.bodies: dict[str, Executions] = {}
        self.regions: list[PlannedRegion] = []
        self.lines = [
            (number, line) for number, line in enumerate(text.splitlines(), 1) if line.strip()
        ]

    def plan(self) -> Plan:
        if not self.lines or self.lines[0][1].split() != ["graft", "plan", str(VERSION)]:
            raise ParseError(f"this is no plan: it does not begin with 'graft plan {VERSION}'")
        for number, line in self.lines[1:]:
            try:
                self.read(line)
            except (ValueError, IndexError):
                raise ParseError(f"line {number} of the plan cannot be read: {line!r}") from None
        predicted, bound, method = self.numbers
        return Plan(
            self.model,
            self.backends,
            tuple(self.regions),
            predicted,
            bound,
            method,
            self.alternatives,
            self.measured,
            self.bodies,
        )

    def read(self, line: str) -> None:
        if line[0].isspace():
            last = self.regions.pop()
            nodes = (*last.nodes, *_read(line.strip()))
            self.regions.append(PlannedRegion(last.backend, nodes, last.seconds, last.source))
            return
        if line.startswith("body "):
            _, count, source, name = line.split(" ", 3)
            (body,) = _read(name)
            self.bodies[body] = Executions(float(count), Counted(source))
            return
        match shlex.split(line):
            case ["model", model]:
                self.model = model
            case ["backend", name, version]:
                self.backends[name] = version
            case ["predicted", seconds, "bound", bound, "method", method]:
                self.numbers = float(seconds), float(bound), "" if method == "-" else method
            case ["alternative", name, seconds]:
                self.alternatives[name] = float(seconds)
            case ["measured", name, seconds]:
                self.measured[name] = float(seconds)
            case ["region", backend, seconds, source]:
                shown = "" if source == "-" else source
                self.regions.append(PlannedRegion(backend, (), float(seconds), shown))
            case ["rest", "host"]:
                pass
            case _:
                raise ValueError(line)


def _written(name: str) -> str:
    """A node's name on a line: as a shell has it, or as JSON where no line could hold it."""
    return shlex.quote(name) if name.isprintable() else quoted(name)


def _read(line: str) -> list[str]:
    return [json.loads(line)] if line.startswith('"') else shlex.split(line)


def model_hash(graph: Graph) -> str:
    """What a plan is locked to: the optimised graph, its constants by type only."""
    return hashlib.sha256(to_text(graph).text.encode()).hexdigest()[:32]


def node_names(graph: Graph) -> dict[Node, str]:
    """What plans call the nodes, those of bodies included."""
    nodes = all_nodes(graph)
    onnx_names = [node.location.node if node.location is not None else "" for node in nodes]
    counts = Counter(onnx_names)
    return {
        node: name if name and counts[name] == 1 else f"%{node.output.name}"
        for node, name in zip(nodes, onnx_names, strict=True)
    }


def regions_of(
    plan: Plan, graph: Graph, versions: Mapping[str, str]
) -> list[tuple[str, list[Node]]]:
    """The plan's regions as nodes of the graph; refuses a plan that is not for it."""
    if plan.model != model_hash(graph):
        raise UserError(
            "the plan was made for another model, or by another version of Graft",
            hint="make a new plan; `graft compile --save-plan` writes one",
        )
    for name, version in plan.backends.items():
        if versions.get(name, version) != version:
            raise UserError(
                f"the plan is for version {version} of '{name}', and this is {versions[name]}",
                hint="make a new plan",
            )
    by_name = {name: node for node, name in node_names(graph).items()}
    scopes = dict(nodes_in_order(scopes_of(graph)))
    order = {node: number for number, node in enumerate(scopes)}
    claimed: set[Node] = set()
    result = []
    for region in plan.regions:
        nodes = [_named(name, by_name) for name in region.nodes]
        for node in nodes:
            if node in claimed:
                raise UserError(f"the plan has '{node.output.name}' in two regions")
            claimed.add(node)
            if scopes[node] is not scopes[nodes[0]]:
                where = f"{scopes[nodes[0]]} and {scopes[node]}"
                raise UserError(f"the plan has a region in two bodies: {where}")
        if nodes:
            result.append((region.backend, sorted(nodes, key=lambda node: order[node])))
    for node in claimed:
        if any(one.owner in claimed for one in scopes[node].chain):
            raise UserError(f"the plan has '{node.output.name}' in a region within another one")
    return result


def _named(name: str, by_name: Mapping[str, Node]) -> Node:
    if name not in by_name:
        raise UserError(f"the plan names '{name}', which is no node of the model")
    return by_name[name]


def plan_from(
    graph: Graph,
    versions: Mapping[str, str],
    regions: Sequence[tuple[str, Sequence[Node], float, str]],
    scopes: Sequence[Scope] = (),
) -> Plan:
    """A plan of regions that are given as nodes."""
    names = node_names(graph)
    planned = tuple(
        PlannedRegion(backend, tuple(names[node] for node in nodes), seconds, source)
        for backend, nodes, seconds, source in regions
    )
    backends = {region.backend for region in planned}
    return Plan(
        model_hash(graph),
        {name: version for name, version in versions.items() if name in backends},
        planned,
        bodies={str(scope): scope.executions for scope in scopes if scope.parent is not None},
    )

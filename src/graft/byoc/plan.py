"""Plans: the backend of each node, as a value and as text to save, compare, edit and replay.

    graft plan 1
    model 5f2c…
    backend onednn 3.2
    predicted 0.0312 bound 0.0312 method exact
    alternative host-only 0.0480
    region onednn 0.0201 measured
      conv1+bn1+relu
      layer1.0.conv1
    region npu 0.0004 declared rows 32
      head.fc
    rest host

A node is named by its ONNX name if that is unique, else by its first result. Nodes in no region run
on the host; `rows` are those of a block, of a region that runs in blocks (`byoc/rows.py`). A name
with unprintable characters is written as a JSON string.
"""

from __future__ import annotations

import hashlib
import json
import shlex
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from graft.base.errors import ParseError, UserError
from graft.base.names import quoted
from graft.byoc.problem import PROVEN
from graft.byoc.rows import NO_ROWS
from graft.byoc.scopes import Counted, Executions, Scope, all_nodes, nodes_in_order, scopes_of
from graft.ir.graph import Graph, Node
from graft.ir.printer import to_text

VERSION = 1


@dataclass(frozen=True, slots=True)
class PlannedRegion:
    """Nodes that one backend runs as one region, and the predicted time."""

    backend: str
    nodes: tuple[str, ...]
    seconds: float = 0.0
    source: str = ""
    rows: int = 0  # of a block, if it runs in blocks


@dataclass(frozen=True)
class Plan:
    """Regions in the order in which they run; all other nodes run on the host."""

    model: str  # hash of the graph that the plan is for
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
            rows = f" rows {region.rows}" if region.rows else ""
            source = f"{region.source or '-'}{rows}"
            lines.append(f"region {region.backend} {region.seconds:.6g} {source}")
            lines += [f"  {_written(name)}" for name in region.nodes]
        return "\n".join([*lines, "rest host", ""])


def parse_plan(text: str) -> Plan:
    """Read a plan back."""
    lines = [(number, line) for number, line in enumerate(text.splitlines(), 1) if line.strip()]
    if not lines or lines[0][1].split() != ["graft", "plan", str(VERSION)]:
        raise ParseError(f"this is no plan: it does not begin with 'graft plan {VERSION}'")
    plan = Plan("", {}, ())
    for number, line in lines[1:]:
        try:
            plan = replace(plan, **_parsed(line, plan))
        except (ValueError, IndexError):
            raise ParseError(f"line {number} of the plan cannot be read: {line!r}") from None
    return plan


def _parsed(line: str, plan: Plan) -> dict[str, Any]:
    """The fields of a plan that a line of its text changes."""
    if line[0].isspace():
        *before, last = plan.regions
        nodes = (*last.nodes, *_read(line.strip()))
        return {"regions": (*before, replace(last, nodes=nodes))}
    if line.startswith("body "):
        _, count, source, name = line.split(" ", 3)
        (body,) = _read(name)
        return {"bodies": {**plan.bodies, body: Executions(float(count), Counted(source))}}
    match shlex.split(line):
        case ["model", model]:
            return {"model": model}
        case ["backend", name, version]:
            return {"backends": {**plan.backends, name: version}}
        case ["predicted", seconds, "bound", bound, "method", method]:
            method = "" if method == "-" else method
            return {"predicted": float(seconds), "bound": float(bound), "method": method}
        case ["alternative", name, seconds]:
            return {"alternatives": {**plan.alternatives, name: float(seconds)}}
        case ["measured", name, seconds]:
            return {"measured": {**plan.measured, name: float(seconds)}}
        case ["region", backend, seconds, source, *rest]:
            if rest and rest[0] != "rows":
                raise ValueError(line)
            source = "" if source == "-" else source
            rows = int(rest[1]) if rest else 0
            region = PlannedRegion(backend, (), float(seconds), source, rows)
            return {"regions": (*plan.regions, region)}
        case ["rest", "host"]:
            return {}
    raise ValueError(line)


def _written(name: str) -> str:
    """A node's name on a line: quoted as in a shell, or as JSON if it is not printable."""
    return shlex.quote(name) if name.isprintable() else quoted(name)


def _read(line: str) -> list[str]:
    return [json.loads(line)] if line.startswith('"') else shlex.split(line)


def model_hash(graph: Graph) -> str:
    """A hash of the optimised graph, constants by type only; a plan is for one such hash."""
    return hashlib.sha256(to_text(graph).text.encode()).hexdigest()[:32]


def node_names(graph: Graph) -> dict[Node, str]:
    """The names of nodes in plans, those of bodies included."""
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
    """The plan's regions as nodes of the graph; an error if the plan is for another graph."""
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


def rows_of(plan: Plan, graph: Graph) -> dict[Node, int]:
    """The rows of a block, by node, for the plan's regions that run in blocks."""
    by_name = {name: node for node, name in node_names(graph).items()}
    in_rows = [region for region in plan.regions if region.rows]
    return {_named(name, by_name): region.rows for region in in_rows for name in region.nodes}


def _named(name: str, by_name: Mapping[str, Node]) -> Node:
    if name not in by_name:
        raise UserError(f"the plan names '{name}', which is no node of the model")
    return by_name[name]


def plan_from(
    graph: Graph,
    versions: Mapping[str, str],
    regions: Sequence[tuple[str, Sequence[Node], float, str]],
    scopes: Sequence[Scope] = (),
    rows: Mapping[Node, int] = NO_ROWS,
) -> Plan:
    """A plan with regions of these nodes, times and price sources; `rows` as in `outline`."""
    names = node_names(graph)
    planned = tuple(
        PlannedRegion(
            backend, tuple(names[node] for node in nodes), seconds, source, rows.get(nodes[0], 0)
        )
        for backend, nodes, seconds, source in regions
    )
    backends = {region.backend for region in planned}
    return Plan(
        model_hash(graph),
        {name: version for name, version in versions.items() if name in backends},
        planned,
        bodies={str(scope): scope.executions for scope in scopes if scope.parent is not None},
    )

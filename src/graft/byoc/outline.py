"""Outlining: a graph and regions in; the graph with one `region` node per region out.

The order of nodes follows the regions, so that each is one call and they run in the planned order:
the memory that devices hold depends on it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from heapq import heapify, heappop, heappush
from itertools import pairwise

from graft.base.errors import UserError
from graft.byoc.region import borders, region_graph
from graft.byoc.rows import NO_ROWS, extent_of, own_rows
from graft.ir.graph import Graph, Node, make_node
from graft.ir.nested import change_nested


def outline(
    graph: Graph,
    regions: Sequence[tuple[str, Sequence[Node]]],
    rows: Mapping[Node, int] = NO_ROWS,
) -> Graph:
    """The graph with each region as one node, in an executable order; regions in bodies are
    outlined there. `rows` are the rows of a block, by node, for regions that run in blocks."""
    labelled = [
        (region_label(backend, number), backend, nodes, rows.get(nodes[0], 0))
        for number, (backend, nodes) in enumerate(regions)
    ]
    return _outlined(graph, labelled)


_Labelled = Sequence[tuple[str, str, Sequence[Node], int]]


def _outlined(graph: Graph, regions: _Labelled) -> Graph:
    members = set(graph.nodes)
    own = [region for region in regions if region[2][0] in members]
    inner = [region for region in regions if region[2][0] not in members]
    outlined = _in_one_graph(graph, own) if own else graph
    return change_nested(outlined, lambda body: _outlined(body, inner)) if inner else outlined


def _in_one_graph(graph: Graph, regions: _Labelled) -> Graph:
    region_nodes: dict[Node, Node] = {}  # member -> region node
    planned: list[Node] = []
    for label, backend, nodes, rows in regions:
        node = region_node(graph, backend, nodes, label, rows)
        region_nodes.update(dict.fromkeys(nodes, node))
        planned.append(node)
    units = tuple(dict.fromkeys(region_nodes.get(node, node) for node in graph.nodes))
    # regions as late as possible: this keeps the plan's order, if that is executable
    rank = {node: number for number, node in enumerate((*units, *planned))}
    order = [node for node in _in_order(units, rank) if node.op.name == "region"]
    result = _in_order(units, {node: number for number, node in enumerate(units)}, order)
    return replace(graph, nodes=tuple(result))


def region_label(backend: str, number: int) -> str:
    """The name of a region in the module."""
    return f"{backend}_{number}"


def region_node(
    graph: Graph, backend: str, nodes: Sequence[Node], label: str, rows: int = 0
) -> Node:
    """The node for a region."""
    inputs, outputs = borders(nodes, graph)
    body = region_graph(nodes, graph, label)
    if rows:
        body = own_rows(body, extent_of(nodes, outputs))
    # the body has values of its own; the region node defines the graph's
    attrs = {"body": body, "label": label, "backend": backend, "rows": rows}
    return make_node("region", inputs, outputs, nodes[-1].location, **attrs)


def _in_order(
    nodes: Sequence[Node], rank: Mapping[Node, int], one_by_one: Sequence[Node] = ()
) -> list[Node]:
    """Topological order by rank; the nodes of `one_by_one` keep their order."""
    producer = {value: node for node in nodes for value in node.outputs}
    waits = {node: {producer[v] for v in node.args if v in producer} - {node} for node in nodes}
    for before, after in pairwise(one_by_one):
        waits[after].add(before)
    users: dict[Node, list[Node]] = {}
    for node, sources in waits.items():
        for source in sources:
            users.setdefault(source, []).append(node)
    ready = [(rank[node], node) for node, sources in waits.items() if not sources]
    heapify(ready)
    result: list[Node] = []
    while ready:
        _, node = heappop(ready)
        result.append(node)
        for user in users.get(node, ()):
            waits[user].discard(node)
            if not waits[user]:
                heappush(ready, (rank[user], user))
    if len(result) < len(nodes):
        stuck = next(node for node in nodes if node not in set(result))
        raise UserError(f"the regions wait for each other at %{stuck.output.name}")
    return result

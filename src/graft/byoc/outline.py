"""Regions out of the graph: nodes in, one `region` node in their place, the graph otherwise as it
was. The order of nodes follows the regions, so that each runs in one piece."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from graft.base.errors import UserError
from graft.byoc.region import borders, region_graph
from graft.ir.attrs import make_attrs
from graft.ir.graph import Graph, Node
from graft.ir.op import get_op


def outline(graph: Graph, regions: Sequence[tuple[str, Sequence[Node]]]) -> Graph:
    """The graph with each region as one node, in an order in which everything can run."""
    made: dict[Node, Node] = {}  # member -> region node
    for number, (backend, nodes) in enumerate(regions):
        node = region_node(graph, backend, nodes, region_label(backend, number))
        made.update(dict.fromkeys(nodes, node))
    units = dict.fromkeys(made.get(node, node) for node in graph.nodes)
    return replace(graph, nodes=tuple(_in_order(tuple(units))))


def region_label(backend: str, number: int) -> str:
    """The name of a region in the module."""
    return f"{backend}_{number}"


def region_node(graph: Graph, backend: str, nodes: Sequence[Node], label: str) -> Node:
    """One node that stands for some."""
    inputs, outputs = borders(nodes, graph)
    body = region_graph(nodes, graph, label)
    # the body's results are values of its own, the graph's go on being the graph's
    op = get_op("region")
    attrs = make_attrs(op.attrs, {"body": body, "label": label, "backend": backend})
    return Node(op, inputs, attrs, outputs, nodes[-1].place)


def _in_order(nodes: Sequence[Node]) -> list[Node]:
    """As given as far as possible, each node after what it reads."""
    producer = {value: node for node in nodes for value in node.outputs}
    waits = {node: {producer[v] for v in node.args if v in producer} - {node} for node in nodes}
    users: dict[Node, list[Node]] = {}
    for node, sources in waits.items():
        for source in sources:
            users.setdefault(source, []).append(node)
    position = {node: number for number, node in enumerate(nodes)}
    ready = {position[node]: node for node, sources in waits.items() if not sources}
    found: list[Node] = []
    while ready:
        node = ready.pop(min(ready))
        found.append(node)
        for user in users.get(node, ()):
            waits[user].discard(node)
            if not waits[user]:
                ready[position[user]] = user
    if len(found) < len(nodes):
        stuck = next(node for node in nodes if node not in set(found))
        raise UserError(f"the regions wait for each other at %{stuck.output.name}")
    return found

"""Drops nodes whose results are unused, in nested graphs too."""

from __future__ import annotations

from dataclasses import replace

from graft.ir.graph import Graph, Node, Value
from graft.ir.nested import change_nested


def eliminate_dead_code(graph: Graph) -> Graph:
    """Keep the nodes that the outputs depend on, in their order."""
    live: set[Value] = set(graph.outputs)
    alive: list[Node] = []
    for node in reversed(graph.nodes):
        if any(value in live for value in node.outputs):
            alive.append(node)
            live.update(node.args)
    if len(alive) < len(graph.nodes):
        graph = replace(graph, nodes=tuple(reversed(alive)))
    return change_nested(graph, eliminate_dead_code)

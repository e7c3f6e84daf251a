"""Applies a change to the graphs nested in nodes: branches, loop bodies, regions."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields, replace
from typing import Any

from graft.ir.graph import Graph, Node

GraphChange = Callable[[Graph], Graph]


def change_nested(graph: Graph, change: GraphChange) -> Graph:
    """The graph with `change` applied to each nested graph (which is left to recurse itself)."""
    nodes = tuple(change_node(node, change) for node in graph.nodes)
    if all(new is old for new, old in zip(nodes, graph.nodes, strict=True)):
        return graph
    return replace(graph, nodes=nodes)


def change_node(node: Node, change: GraphChange) -> Node:
    """The node with `change` applied to the graphs in its attributes."""
    changed: dict[str, Any] = {}
    for name in dict.fromkeys(name for name, _ in node.graphs()):
        attribute = getattr(node.attrs, name)
        if isinstance(attribute, tuple):
            new: Any = tuple(change(g) if isinstance(g, Graph) else g for g in attribute)
            same = all(a is b for a, b in zip(new, attribute, strict=True))
        else:
            new = change(attribute)
            same = new is attribute
        if not same:
            changed[name] = new
    return replace(node, attrs=replace(node.attrs, **changed)) if changed else node


def has_graphs(node: Node) -> bool:
    """Whether the node holds nested graphs."""
    return any(field.type in _GRAPH_FIELDS for field in fields(node.attrs))


_GRAPH_FIELDS = ("Graph", "Graph | None", "tuple[Graph, ...]")

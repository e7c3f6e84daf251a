"""Gives values of nested graphs names that no other value of the whole graph has.

A nested graph is closed, so that its names only have to differ from each other. Whoever speaks of
nodes of the whole graph (plans, timings, pins) has to be able to tell them apart. A graph that
occurs twice becomes two.
"""

from __future__ import annotations

from dataclasses import replace

from graft.ir.graph import Graph, Node, Value
from graft.ir.names import FreshNames
from graft.ir.nested import change_nested, change_node


def name_apart(graph: Graph) -> Graph:
    """The graph with other names in nested graphs, where they are used before."""
    names = FreshNames(value.name for value in graph.values)
    return change_nested(graph, lambda inner: _named_apart(inner, names))


def _named_apart(graph: Graph, names: FreshNames) -> Graph:
    if not any(value.name in names for value in graph.values):
        names.reserve(*(value.name for value in graph.values))
        return change_nested(graph, lambda inner: _named_apart(inner, names))
    renamed: dict[Value, Value] = {}

    def fresh(value: Value) -> Value:
        renamed[value] = Value(names(value.name), value.type)
        return renamed[value]

    def again(node: Node) -> Node:
        node = change_node(node.on(renamed), lambda inner: _named_apart(inner, names))
        return replace(node, outputs=tuple(map(fresh, node.outputs)))

    inputs = tuple(map(fresh, graph.inputs))
    nodes = tuple(map(again, graph.nodes))
    outputs = tuple(renamed[value] for value in graph.outputs)
    return replace(graph, inputs=inputs, nodes=nodes, outputs=outputs)

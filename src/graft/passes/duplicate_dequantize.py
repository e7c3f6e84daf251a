"""Gives every reader of a dequantised value a dequantisation of its own.

An operator and the dequantisations before it are placed as one unit, which a dequantisation with
several readers would keep from being whole. It is a copy of a few bytes of parameters and a scaling
that fuses into its reader, so that doubling it costs nothing. Common subexpressions are
eliminated before, not after.
"""

from __future__ import annotations

from dataclasses import replace

from graft.ir.graph import Graph, Node, Value
from graft.ir.names import FreshNames
from graft.ir.nested import change_nested

_DEQUANTIZE = "qnn.dequantize"


def duplicate_dequantize(graph: Graph) -> Graph:
    """One dequantisation per reading node; the first reader keeps the original."""
    graph = change_nested(graph, duplicate_dequantize)
    fresh = FreshNames(value.name for value in graph.values)
    served = set(graph.outputs)  # dequantised values that have their reader
    nodes: list[Node] = []
    for node in graph.nodes:
        copies: dict[Value, Value] = {}
        for value in dict.fromkeys(node.args):
            source = graph.producers.get(value)
            if source is None or source.op.name != _DEQUANTIZE:
                continue
            if value in served:
                copies[value] = Value(fresh(value.name), value.type)
                nodes.append(replace(source, outputs=(copies[value],)))
            served.add(value)
        nodes.append(node.on(copies))
    return replace(graph, nodes=tuple(nodes)) if len(nodes) > len(graph.nodes) else graph

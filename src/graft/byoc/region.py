"""A region as a function: some nodes of a graph in, a closed graph of their own out."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from graft.ir.graph import Graph, Node, Value
from graft.ir.printer import to_text


def borders(nodes: Sequence[Node], graph: Graph) -> tuple[tuple[Value, ...], tuple[Value, ...]]:
    """What the nodes read from outside, constants apart, and what others read of theirs."""
    inside = set(nodes)
    made = {value for node in nodes for value in node.outputs}
    read = dict.fromkeys(value for node in nodes for value in node.args if value not in made)
    inputs = tuple(value for value in read if not is_constant(value, graph))
    returned = set(graph.outputs)
    outputs = tuple(
        value
        for node in nodes
        for value in node.outputs
        if value in returned or any(user not in inside for user in graph.users.get(value, ()))
    )
    return inputs, outputs


def is_constant(value: Value, graph: Graph) -> bool:
    """Whether a node `constant` makes the value."""
    node = graph.producers.get(value)
    return node is not None and node.op.name == "constant"


def region_graph(nodes: Sequence[Node], graph: Graph, name: str = "region") -> Graph:
    """The closed graph of nodes in the order of the graph, with the constants that they read."""
    inputs, outputs = borders(nodes, graph)
    formal = {value: Value(value.name, value.type) for value in inputs}
    read = dict.fromkeys(value for node in nodes for value in node.args)
    constants = [graph.producers[value] for value in read if is_constant(value, graph)]
    inner = [
        replace(node, inputs=tuple(None if v is None else formal.get(v, v) for v in node.inputs))
        for node in nodes
    ]
    return Graph(name, tuple(formal.values()), (*constants, *inner), outputs)


def region_hash(graph: Graph, contents: bool = True) -> str:
    """The same for regions that mean the same: names and places do not count.

    Without `contents` constants count by type only, as they do for what a region costs.
    """
    text = to_text(_anonymous(graph))
    digest = hashlib.sha256(text.text.encode())
    for name, array in sorted(text.constants.items()):
        digest.update(name.encode())
        shape = repr((array.dtype, array.shape)).encode()
        digest.update(np.ascontiguousarray(array).tobytes() if contents else shape)
    return digest.hexdigest()


def _anonymous(graph: Graph) -> Graph:
    """The same graph with values named by position and without places."""
    renamed: dict[Value, Value] = {}

    def fresh(value: Value) -> Value:
        renamed[value] = Value(f"v{len(renamed)}", value.type)
        return renamed[value]

    inputs = tuple(fresh(value) for value in graph.inputs)
    nodes = tuple(
        replace(
            node,
            inputs=tuple(None if v is None else renamed[v] for v in node.inputs),
            outputs=tuple(fresh(value) for value in node.outputs),
            place=None,
        )
        for node in graph.nodes
    )
    return Graph("region", inputs, nodes, tuple(renamed[value] for value in graph.outputs))

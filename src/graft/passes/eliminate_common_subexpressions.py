"""Computes once what is written twice: equal operators on equal operands with equal attributes.

Constants take part, by content. Operators that draw random numbers do not.
"""

from __future__ import annotations

from dataclasses import replace

from graft.ir.attrs import Attrs
from graft.ir.equal import attrs_difference
from graft.ir.graph import Graph, Node, Value
from graft.ir.nested import change_nested
from graft.ir.op import Op

_Key = tuple[Op, tuple["Value | None", ...], Attrs]


def eliminate_common_subexpressions(graph: Graph) -> Graph:
    """Value numbering in one sweep."""
    graph = change_nested(graph, eliminate_common_subexpressions)
    first_by_key: dict[_Key, Node] = {}
    same: dict[Value, Value] = {}
    nodes: list[Node] = []
    for node in graph.nodes:
        current = node.on(same)
        earlier = first_by_key.setdefault(_key(current), current) if node.op.pure else current
        # A key takes -0.0 and 0.0 for the same, which they are not.
        if earlier is current or attrs_difference(earlier.attrs, current.attrs) is not None:
            nodes.append(current)
        else:
            same.update(zip(node.outputs, earlier.outputs, strict=True))
    if not same:
        return graph
    outputs = tuple(same.get(value, value) for value in graph.outputs)
    return replace(graph, nodes=tuple(nodes), outputs=outputs)


def _key(node: Node) -> _Key:
    inputs = node.inputs
    if node.op.commutative and len(inputs) == 2:
        first, second = sorted(inputs, key=id)
        inputs = (first, second)
    return node.op, inputs, node.attrs

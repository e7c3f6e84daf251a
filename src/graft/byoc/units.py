"""Quantised units: a graph in, the nodes that have to stay together out.

A quantised unit is an operator with the dequantisations before it and the quantisation behind it,
and elementwise nodes (bias, activation) in between. Split, it would compute in floats what was
meant to be integers, so a candidate contains all or nothing of a unit. A dequantisation with
several readers belongs to none: `passes.duplicate_dequantize` gives each reader its own.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from graft.ir.graph import Graph, Node
from graft.ir.op import Kind
from graft.rewrite.rule import Refusal

QUANTIZE = "qnn.quantize"
DEQUANTIZE = "qnn.dequantize"
_POINTWISE = (Kind.ELEMENTWISE, Kind.BROADCAST)

Units = Mapping[Node, frozenset[Node]]


def units_of(graph: Graph) -> Units:
    """The unit of every node that is in one."""
    result: dict[Node, set[Node]] = {}
    for node in graph.nodes:
        if node.op.name in (QUANTIZE, DEQUANTIZE, "constant"):
            continue
        before = dequantized(node, graph)
        behind = way_to_quantize(node, graph)
        if not before and len(behind) > 1:
            behind = []  # without dequantised operands, only its own quantisation belongs to it
        members = {node, *before, *behind}
        for member in behind:
            members.update(dequantized(member, graph))
        if len(members) > 1:
            for member in tuple(members):
                members |= result.get(member, set())
            result.update(dict.fromkeys(members, members))
    return {node: frozenset(members) for node, members in result.items()}


def dequantized(node: Node, graph: Graph) -> list[Node]:
    """The dequantisations that only this node reads."""
    sources = (graph.producers.get(value) for value in node.args if len(graph.users[value]) == 1)
    return [source for source in sources if source is not None and source.op.name == DEQUANTIZE]


def way_to_quantize(node: Node, graph: Graph) -> list[Node]:
    """Elementwise nodes up to a quantisation, and that; empty if there is none."""
    way: list[Node] = []
    returned = set(graph.outputs)
    while not way or way[-1].op.kind in _POINTWISE:
        value = (way[-1] if way else node).output
        users = graph.users.get(value, [])
        if len(users) != 1 or value in returned:
            return []
        way.append(users[0])
        if users[0].op.name == QUANTIZE:
            return way
    return []


def torn_units(nodes: Sequence[Node], units: Units) -> Refusal | None:
    """Refuse nodes that contain one part of a unit and not another."""
    inside = set(nodes)
    for node in nodes:
        missing = [other for other in units.get(node, ()) if other not in inside]
        if missing:
            other = min(missing, key=lambda item: item.output.name)
            return Refusal(
                f"%{node.output.name} would be torn from its {other.op.name} %{other.output.name}",
                node,
            )
    return None

"""Data-dependent indices that may be out of range: a graph in, the same with guards out.

Kernels read and write nothing outside of a tensor, but cannot raise errors. So beside each node
with such indices goes another one that counts those out of range; the counts of all guards are one
more output, which the runtime checks. Where all indices are provably in range there is none.
"""

from __future__ import annotations

from dataclasses import replace

from graft.ir.attrs import Attrs
from graft.ir.graph import Graph, Node, Value
from graft.ir.names import FreshNames
from graft.ops import get_op
from graft.ops.indexed import IndexRanges, index_bounds
from graft.ops.movement import ConcatenateAttrs
from graft.program.guards import Guard


def insert_guards(graph: Graph, ranges: IndexRanges) -> tuple[Graph, tuple[Guard, ...]]:
    """The graph with the guards' counts as its last output, and the guards in order.

    It may be a part of the graph whose `ranges` are known."""
    accesses = ((node, index_bounds(node)) for node in graph.nodes)
    unchecked = {node: one for node, one in accesses if one and not ranges.are_inside(one)}
    if not unchecked:
        return graph, ()
    names = FreshNames(value.name for value in graph.values)
    names.reserve(*graph.output_names)
    nodes: list[Node] = []
    violations: dict[tuple[Value, Attrs], Value] = {}  # indices of several nodes are checked once
    guards: list[Guard] = []
    for node in graph.nodes:
        nodes.append(node)
        access = unchecked.get(node)
        if access is None or (access.indices, access.attrs) in violations:
            continue
        guards += access.guards(node)
        nodes.append(_new_node("out_of_range", (access.indices,), access.attrs, names, node))
        violations[access.indices, access.attrs] = nodes[-1].output
    whole, *others = violations.values()
    if others:
        nodes.append(_new_node("concatenate", (whole, *others), ConcatenateAttrs(0), names, None))
        whole = nodes[-1].output
    outputs = (*graph.outputs, whole)
    output_names = (*graph.output_names, names("out_of_range"))
    changed = replace(graph, nodes=tuple(nodes), outputs=outputs, output_names=output_names)
    return changed, tuple(guards)


def _new_node(
    name: str, operands: tuple[Value, ...], attrs: Attrs, names: FreshNames, node: Node | None
) -> Node:
    op = get_op(name)
    (type_,) = op.result_types(attrs, tuple(value.type for value in operands))
    place = None if node is None else node.location
    return Node(op, operands, attrs, (Value(names("out_of_range"), type_),), place)

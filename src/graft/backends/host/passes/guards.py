"""Indices that are data and may lie outside: a graph in, the same with guards beside them out.

Kernels read and write nothing outside of a tensor, but cannot raise errors. So beside each node
with such indices stands another one that looks for any outside; what all of these find is one more
output, which the run time looks at. There is none where nothing can be found.
"""

from __future__ import annotations

from dataclasses import replace

from graft.ir.attrs import Attrs
from graft.ir.graph import Graph, Node, Value
from graft.ir.names import FreshNames
from graft.ops import get_op
from graft.ops.indexed import IndexRanges, pointing
from graft.ops.movement import ConcatenateAttrs
from graft.program.guards import Guard


def guarded(graph: Graph, ranges: IndexRanges) -> tuple[Graph, tuple[Guard, ...]]:
    """The graph with what is found as its last output, and for which guards, in order.

    It may be a part of the graph whose `ranges` are known."""
    pointed_by = ((node, pointing(node)) for node in graph.nodes)
    unsure = {node: one for node, one in pointed_by if one and not ranges.are_inside(one)}
    if not unsure:
        return graph, ()
    names = FreshNames(value.name for value in graph.values)
    names.reserve(*graph.output_names)
    nodes: list[Node] = []
    found: dict[tuple[Value, Attrs], Value] = {}  # what several nodes point with is looked at once
    guards: list[Guard] = []
    for node in graph.nodes:
        nodes.append(node)
        pointed = unsure.get(node)
        if pointed is None or (pointed.indices, pointed.attrs) in found:
            continue
        guards += pointed.guards(node)
        nodes.append(_made("out_of_range", (pointed.indices,), pointed.attrs, names, node))
        found[pointed.indices, pointed.attrs] = nodes[-1].output
    whole, *others = found.values()
    if others:
        nodes.append(_made("concatenate", (whole, *others), ConcatenateAttrs(0), names, None))
        whole = nodes[-1].output
    outputs = (*graph.outputs, whole)
    output_names = (*graph.output_names, names("out_of_range"))
    changed = replace(graph, nodes=tuple(nodes), outputs=outputs, output_names=output_names)
    return changed, tuple(guards)


def _made(
    name: str, operands: tuple[Value, ...], attrs: Attrs, names: FreshNames, node: Node | None
) -> Node:
    op = get_op(name)
    (type_,) = op.result_types(attrs, tuple(value.type for value in operands))
    place = None if node is None else node.place
    return Node(op, operands, attrs, (Value(names("out_of_range"), type_),), place)

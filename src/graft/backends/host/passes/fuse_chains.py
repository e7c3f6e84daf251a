"""Merges fusion groups whose anchors follow one another, where one kernel is declared for both.

A graph of fusion groups enters, and leaves with fewer: where a group alone reads the result of
another, and a template takes the two together for less than they cost apart (`Chain`), they become
one composite. What lies between them is then no tensor of the graph any more.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import partial

from graft.backends.host.group import group_of
from graft.backends.host.layout import blocked_stores
from graft.backends.host.storage import BLOCKS
from graft.backends.host.templates import chain_cost, is_chain, layouts_for
from graft.ir.graph import Graph, Node, Value, closed_graph, make_node
from graft.ir.literal import Literal
from graft.ir.nested import change_nested
from graft.rewrite.rule import Refusal
from graft.target.target import Target

# Estimates are not exact to less: what gains less may lose.
LEAST_GAIN = 0.05


def fuse_chains(graph: Graph, target: Target) -> Graph:
    """Merge pairs of groups, those that gain most first; a merged one is not merged again."""
    graph = change_nested(graph, partial(fuse_chains, target=target))
    constants, returned = graph.constants, set(graph.outputs)
    pairs: list[tuple[float, Node, Node, Node]] = []
    for node in graph.nodes:
        source = _source(graph, node, constants)
        if source is not None and source.output not in returned:
            both = merged_group(source, node)
            gain = merging_gain(source, node, both, constants, target)
            if not isinstance(gain, Refusal):
                pairs.append((gain, source, node, both))
    merged: dict[Node, Node] = {}
    for _, source, node, both in sorted(pairs, key=lambda pair: -pair[0]):
        if source not in merged and node not in merged:
            merged[source] = merged[node] = both
    nodes = (merged.get(node, node) for node in graph.nodes)
    kept = {id(one): one for one in reversed(tuple(nodes))}  # a composite where its last group was
    return replace(graph, nodes=tuple(reversed(kept.values()))) if merged else graph


def merging_gain(
    source: Node, node: Node, both: Node, constants: Mapping[Value, Literal], target: Target
) -> float | Refusal:
    """Cycles that a kernel for both saves, or why there is none that pays."""
    block = BLOCKS[0]
    apart = 0.0
    for one in (source, node):
        costs = [cost for _, cost in layouts_for(group_of(one, constants), block, target)]
        if not costs:
            return Refusal("one of them has no kernel for images in blocks", one)
        apart += min(costs)
    group = group_of(both, constants)
    cost = chain_cost(group, blocked_stores(group, block), block, target)
    if isinstance(cost, Refusal):
        return cost
    if cost < (1 - LEAST_GAIN) * apart:
        return apart - cost
    return Refusal(f"it takes {cost:.0f} cycles, and the two apart {apart:.0f}", node)


def _source(graph: Graph, node: Node, constants: Mapping[Value, Literal]) -> Node | None:
    """The group that makes what a group's anchor reads first, if nothing else reads it and there
    are kernels for such anchors."""
    group = group_of(node, constants)
    if group.anchor is None or not group.anchor.args:
        return None
    value = group.outer(group.anchor.args[0])
    source = graph.producers.get(value)
    if source is None or len(graph.users[value]) != 1 or len(source.outputs) != 1:
        return None
    before = group_of(source, constants).anchor
    names = () if before is None else (before.op.name, group.anchor.op.name)
    return source if is_chain(*names) else None


def merged_group(source: Node, node: Node) -> Node:
    """The nodes of both groups as one."""
    nodes = (*_nodes(source), *_nodes(node))
    inside = {value for one in nodes for value in one.outputs}
    outer = tuple(dict.fromkeys(v for one in nodes for v in one.args if v not in inside))
    body = closed_graph(node.output.name, outer, nodes, node.outputs)
    label = "+".join(one.op.name for one in nodes if one.op.name != "constant")
    return make_node("composite", outer, node.outputs, node.location, body=body, label=label)


def _nodes(node: Node) -> tuple[Node, ...]:
    """A group's nodes, constants included, on the values of the graph."""
    if node.op.name != "composite":
        return (node,)
    body: Graph = node.attrs.body
    formal = dict(zip(body.inputs, node.args, strict=True))
    return tuple(one.on(formal) for one in body.nodes)

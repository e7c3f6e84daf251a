"""Merges fusion groups whose anchors follow one another, where one kernel is declared for all.

A graph of fusion groups enters, and leaves with fewer: where a group alone reads the result of
another, and so on, and a template takes all of them together for less than they cost apart
(`Chain`), they become one composite. What lies between them is then no tensor of the graph any
more.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
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
    """Merge groups, those that gain most first; a merged one is not merged again."""
    graph = change_nested(graph, partial(fuse_chains, target=target))
    constants = graph.constants
    chains: list[tuple[float, tuple[Node, ...], Node]] = []
    for node in graph.nodes:
        for members in _chains(graph, node, constants):
            whole = merged_group(*members)
            gain = merging_gain(members, whole, constants, target)
            if not isinstance(gain, Refusal):
                chains.append((gain, members, whole))
    merged: dict[Node, Node] = {}
    for _, members, whole in sorted(chains, key=lambda chain: (-chain[0], -len(chain[1]))):
        if merged.keys().isdisjoint(members):
            merged.update(dict.fromkeys(members, whole))
    nodes = (merged.get(node, node) for node in graph.nodes)
    latest = {
        id(one): one for one in reversed(tuple(nodes))
    }  # a composite where its last group was
    return replace(graph, nodes=tuple(reversed(latest.values()))) if merged else graph


def merging_gain(
    members: Sequence[Node], whole: Node, constants: Mapping[Value, Literal], target: Target
) -> float | Refusal:
    """Cycles that a kernel for all members saves, or why there is none that pays."""
    block = BLOCKS[0]
    apart = 0.0
    for member in members:
        costs = [cost for _, cost in layouts_for(group_of(member, constants), block, target)]
        if not costs:
            return Refusal("one of them has no kernel for images in blocks", member)
        apart += min(costs)
    group = group_of(whole, constants)
    cost = chain_cost(group, blocked_stores(group, block), block, target)
    if isinstance(cost, Refusal):
        return cost
    if cost < (1 - LEAST_GAIN) * apart:
        return apart - cost
    return Refusal(f"it takes {cost:.0f} cycles, and all apart {apart:.0f}", members[-1])


def _chains(
    graph: Graph, node: Node, constants: Mapping[Value, Literal]
) -> Iterator[tuple[Node, ...]]:
    """The groups that end with a node, each reading what only it reads, for whose anchors there are
    kernels."""
    members: tuple[Node, ...] = (node,)
    names = _anchor_name(node, constants)
    while (source := _source(graph, members[0], constants)) is not None:
        members, names = (source, *members), (*_anchor_name(source, constants), *names)
        if not is_chain(*names):
            return
        yield members


def _anchor_name(node: Node, constants: Mapping[Value, Literal]) -> tuple[str, ...]:
    anchor = group_of(node, constants).anchor
    return () if anchor is None else (anchor.op.name,)


def _source(graph: Graph, node: Node, constants: Mapping[Value, Literal]) -> Node | None:
    """The group that makes what a group's anchor reads first, if nothing else reads it."""
    group = group_of(node, constants)
    if group.anchor is None or not group.anchor.args:
        return None
    value = group.outer(group.anchor.args[0])
    source = graph.producers.get(value)
    if source is None or len(graph.users[value]) != 1 or len(source.outputs) != 1:
        return None
    return None if value in graph.outputs or not _anchor_name(source, constants) else source


def merged_group(*members: Node) -> Node:
    """The nodes of groups, each of which reads the one before, as one."""
    node = members[-1]
    nodes = tuple(one for member in members for one in _nodes(member))
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

"""Bisects a region that failed its check: two parts of it out, to be compiled and checked again.

Candidates are never torn, and the first part never waits for the second: each candidate gives away
the results of its last node only, so that in the order of these nodes none waits for a later one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from graft.byoc.candidates import Candidate, find_candidates
from graft.byoc.contract import Backend
from graft.ir.graph import Graph, Node

_MOST_STEPS = 10_000  # pieces that are tried where they overlap


def halves(graph: Graph, nodes: Sequence[Node], backend: Backend) -> list[list[Node]]:
    """Two parts with about as many candidates each; none for a single candidate."""
    pieces = [piece.nodes for piece in pieces_of(graph, nodes, backend)]
    if len(pieces) < 2 or sum(map(len, pieces)) < len(nodes):
        return []
    middle = len(pieces) // 2
    order = {node: number for number, node in enumerate(graph.nodes)}
    return [
        sorted((node for piece in part for node in piece), key=lambda node: order[node])
        for part in (pieces[:middle], pieces[middle:])
    ]


def pieces_of(graph: Graph, nodes: Sequence[Node], backend: Backend) -> list[Candidate]:
    """A region as candidates, large ones where there is a choice, in an order in which they can
    run; nothing where candidates do not cover it. Nodes in no candidate at all do not count: they
    are at the border of a region, whose values are in another form outside."""
    result = [c for c in find_candidates(graph, [backend]).candidates if c.backend == backend.name]
    inside = {node for one in result for node in one.nodes}.intersection(nodes)
    order = {node: number for number, node in enumerate(graph.nodes)}
    by_root: dict[Node, list[Candidate]] = {}
    for one in sorted(result, key=lambda one: -len(one.nodes)):
        if inside >= set(one.nodes):
            by_root.setdefault(one.nodes[-1], []).append(one)
    return _cover(sorted(inside, key=lambda node: order[node]), by_root)


def _cover(nodes: Sequence[Node], by_root: Mapping[Node, Sequence[Candidate]]) -> list[Candidate]:
    """Nodes, which are in the order of the graph, as disjoint pieces; empty where that is not
    found. The last node that is left is always the last one of its piece."""
    if not nodes:
        return []
    cover: list[Candidate] = []
    iterators = [iter(by_root.get(nodes[-1], ()))]
    for _ in range(_MOST_STEPS):
        piece = next(iterators[-1], None)
        covered = {node for own in cover for node in own.nodes}
        if piece is None:
            iterators.pop()
            if not cover:
                return []
            cover.pop()
        elif covered.isdisjoint(piece.nodes):
            cover.append(piece)
            left = [node for node in nodes if node not in covered and node not in piece.nodes]
            if not left:
                return cover[::-1]
            iterators.append(iter(by_root.get(left[-1], ())))
    return []

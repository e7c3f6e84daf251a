"""Bisects a region that failed its check: two parts of it out, to be compiled and checked again.

Candidates are not split, and the first part does not depend on the second: only the results of a
candidate's last node leave it, so in the order of these nodes no candidate waits for a later one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from graft.byoc.candidates import Candidate, find_candidates
from graft.byoc.contract import Backend
from graft.byoc.region import borders
from graft.byoc.rows import Rows, block_of_rows, extent_of
from graft.ir.graph import Graph, Node

_MOST_STEPS = 10_000  # pieces that are tried where they overlap


def halves(
    graph: Graph, nodes: Sequence[Node], backend: Backend, rows: int = 0
) -> list[list[Node]]:
    """Two parts with about as many candidates each; empty for a single candidate. `rows` are those
    of a block, if the region runs in blocks."""
    if rows:
        extent = extent_of(nodes, borders(nodes, graph)[1])
        graph, origin = block_of_rows(nodes, graph, Rows(extent, rows))
        return [[origin[node] for node in part] for part in halves(graph, list(origin), backend)]
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
    """A region as disjoint candidates in a possible order, large ones preferred; empty if
    candidates do not cover it. Nodes in no candidate are skipped: they convert values at the border
    of the region."""
    result = [c for c in find_candidates(graph, [backend]).candidates if c.backend == backend.name]
    inside = {node for one in result for node in one.nodes}.intersection(nodes)
    order = {node: number for number, node in enumerate(graph.nodes)}
    by_root: dict[Node, list[Candidate]] = {}
    for one in sorted(result, key=lambda one: -len(one.nodes)):
        if inside >= set(one.nodes):
            by_root.setdefault(one.nodes[-1], []).append(one)
    return _cover(sorted(inside, key=lambda node: order[node]), by_root)


def _cover(nodes: Sequence[Node], by_root: Mapping[Node, Sequence[Candidate]]) -> list[Candidate]:
    """Nodes in the order of the graph as disjoint pieces; empty if none is found. Each piece ends
    with the last node that is left."""
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

"""A region that does not hold -> two parts of it, to be tried again.

Candidates are never torn, and the first part never waits for the second: each candidate gives away
the results of its last node only, so that in the order of these nodes none waits for a later one.
"""

from __future__ import annotations

from collections.abc import Sequence

from graft.byoc.candidates import find_candidates
from graft.byoc.contract import Backend
from graft.ir.graph import Graph, Node


def halves(graph: Graph, nodes: Sequence[Node], backend: Backend) -> list[list[Node]]:
    """Two parts with about as many candidates each; none for a single candidate."""
    pieces = pieces_of(graph, nodes, backend)
    if len(pieces) < 2:
        return []
    middle = len(pieces) // 2
    order = {node: number for number, node in enumerate(graph.nodes)}
    return [
        sorted((node for piece in part for node in piece), key=lambda node: order[node])
        for part in (pieces[:middle], pieces[middle:])
    ]


def pieces_of(graph: Graph, nodes: Sequence[Node], backend: Backend) -> list[tuple[Node, ...]]:
    """A region as candidates, large ones where there is a choice, in an order in which they can
    run; nothing where candidates do not cover it."""
    left = set(nodes)
    found = [one for one in find_candidates(graph, [backend]).candidates if left >= set(one.nodes)]
    own = [one.nodes for one in found if one.backend == backend.name]
    pieces = []
    for piece in sorted(own, key=len, reverse=True):
        if left >= set(piece):
            pieces.append(piece)
            left -= set(piece)
    order = {node: number for number, node in enumerate(graph.nodes)}
    return [] if left else sorted(pieces, key=lambda piece: order[piece[-1]])

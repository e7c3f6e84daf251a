"""Candidates in blocks of rows: what a backend of fixed shapes runs of nodes with symbolic rows.

For every backend and every extent along which nodes compute each row by itself (`byoc/rows.py`),
one number of rows per block is chosen by price; then the backend's patterns are matched against
such a block. Nodes that the backend takes at any size are left to it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

from graft.base.dims import AnyDim
from graft.byoc.annotate import Pins
from graft.byoc.candidates import Candidate, Candidates, find_candidates
from graft.byoc.contract import Backend
from graft.byoc.rows import Rows, block_of_rows, row_extent
from graft.byoc.scopes import Scope
from graft.byoc.sizes import number
from graft.ir.graph import Graph, Node

# Numbers of rows that are priced: one, the power of two that holds all that are expected, and these
# fractions of that.
_FRACTIONS = (1, 4, 16)

# The seconds of a candidate on a backend, infinite where it does not run.
Price = Callable[[Candidate, Backend], float]


def with_row_blocks(
    candidates: Candidates, backends: Sequence[Backend], pins: Pins, price: Price
) -> Candidates:
    """The candidates, with those in blocks of rows."""
    taken: dict[str, set[Node]] = {backend.name: set() for backend in backends}
    for one in candidates.candidates:
        if one.backend in taken:
            taken[one.backend].update(one.nodes)
    more: list[Candidate] = []
    for scope in candidates.scopes:
        extents = _row_extents(scope) if scope.executions.count else {}
        for backend in backends if extents else ():
            free = {n: e for n, e in extents.items() if n not in taken[backend.name]}
            for extent in dict.fromkeys(free.values()):
                nodes = _with_weights(scope.graph, [n for n, own in free.items() if own == extent])
                more += _chosen(_Offer(scope.graph, nodes, extent, backend, pins), price)
    return replace(candidates, candidates=(*candidates.candidates, *more)) if more else candidates


def _row_extents(scope: Scope) -> dict[Node, AnyDim]:
    extents = ((node, row_extent(node)) for node in scope.graph.nodes)
    return {node: extent for node, extent in extents if extent is not None}


def _with_weights(graph: Graph, nodes: Sequence[Node]) -> list[Node]:
    """The nodes, in the order of the graph, and those that compute what only they read from
    constants: patterns of quantised layers contain them."""
    result = set(nodes)
    for node in reversed(graph.nodes):
        users = [user for value in node.outputs for user in graph.users.get(value, ())]
        is_fixed = node.op.name != "constant" and all(v in graph.constants for v in node.args)
        if is_fixed and users and result.issuperset(users) and node.op.pure:
            result.add(node)
    return [node for node in graph.nodes if node in result]


@dataclass(frozen=True)
class _Offer:
    """Nodes with rows, and the backend to which blocks of them are offered."""

    graph: Graph
    nodes: Sequence[Node]
    extent: AnyDim
    backend: Backend
    pins: Pins

    def candidates(self, rows: Rows) -> Iterator[Candidate]:
        """What the backend accepts of a block; the last node of each has the rows."""
        block, origin = block_of_rows(self.nodes, self.graph, rows)
        for one in find_candidates(block, [self.backend], self.pins).candidates:
            nodes = tuple(origin[node] for node in one.nodes)
            if one.backend == self.backend.name and row_extent(nodes[-1]) == self.extent:
                yield Candidate(one.backend, one.pattern, nodes, rows=rows)


def _chosen(offer: _Offer, price: Price) -> list[Candidate]:
    """The candidates in blocks of the number of rows that is the cheapest in the geometric mean of
    two runs: one of a single row, as batches often have, and one of all rows that are expected."""
    largest = 2 ** math.ceil(math.log2(max(number(offer.extent), 1)))
    sizes = sorted({1, *(max(largest // fraction, 1) for fraction in _FRACTIONS)})
    offers: list[tuple[int, float, list[Candidate]]] = []
    for size in sizes:
        rows = Rows(offer.extent, size)
        found = list(offer.candidates(rows))
        cover = [(one, price(one, offer.backend)) for one in _cover(found)]
        nodes = sum(len(one.nodes) for one, seconds in cover if math.isfinite(seconds))
        total = sum(seconds for _, seconds in cover if math.isfinite(seconds))
        total += rows.calls * offer.backend.limits.launch_seconds
        offers.append((-nodes, total * total / rows.calls, found))
    nodes, _, found = min(offers, key=lambda one: one[:2])
    return found if nodes else []


def _cover(candidates: Sequence[Candidate]) -> Iterator[Candidate]:
    """Disjoint candidates, large ones first."""
    covered: set[Node] = set()
    for one in sorted(candidates, key=lambda one: -len(one.nodes)):
        if covered.isdisjoint(one.nodes):
            covered.update(one.nodes)
            yield one

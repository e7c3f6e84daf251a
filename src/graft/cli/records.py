"""Outputs whose rows belong together: the boxes, scores and labels of detections.

How many rows there are is up to the data, and their order hangs on comparisons of numbers that may
be all but equal: two correct implementations put near ties in different orders. Rows that agree
within the tolerance, all outputs of the group included, are the same wherever they stand.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from graft.base.dims import IndexExpr, symbols_of
from graft.base.dtypes import Array
from graft.cli.compare import Tolerance, compare
from graft.ir.evaluate import Data
from graft.ir.graph import Graph


def in_expected_order(
    graph: Graph, actual: Sequence[Data], expected: Sequence[Data], tolerance: Tolerance
) -> tuple[list[Data], int]:
    """The actual outputs with rows where the expected ones have them, and how many moved."""
    aligned, moved = list(actual), 0
    for positions in _groups(graph):
        mine = [actual[position] for position in positions]
        other = [expected[position] for position in positions]
        order = _matching(mine, other, tolerance)
        if order is not None:
            moved += int(np.count_nonzero(order != np.arange(len(order))))
            for position in positions:
                aligned[position] = actual[position][order]
    return aligned, moved


def _groups(graph: Graph) -> list[list[int]]:
    """Positions of outputs that share a first extent which only the data decide."""
    found: dict[IndexExpr, list[int]] = {}
    for position, value in enumerate(graph.outputs):
        shape = getattr(value.type, "shape", None)
        first = shape[0] if shape else None
        if isinstance(first, IndexExpr) and not symbols_of(first) <= graph.input_symbols:
            found.setdefault(first, []).append(position)
    return list(found.values())


def _matching(
    actual: Sequence[Array], expected: Sequence[Array], tolerance: Tolerance
) -> Array | None:
    """For each expected row the actual row that is the same; None where one has none."""
    if any(mine.shape != other.shape for mine, other in zip(actual, expected, strict=True)):
        return None
    free = dict.fromkeys(range(len(expected[0])))
    order = np.arange(len(free))
    for row in range(len(order)):
        candidates = (row, *free) if row in free else tuple(free)
        found = next((i for i in candidates if _same(actual, i, expected, row, tolerance)), None)
        if found is None:
            return None
        order[row] = found
        del free[found]
    return order


def _same(
    actual: Sequence[Array], i: int, expected: Sequence[Array], j: int, tolerance: Tolerance
) -> bool:
    pairs = zip(actual, expected, strict=True)
    return all(compare(mine[i], other[j], tolerance).agrees for mine, other in pairs)

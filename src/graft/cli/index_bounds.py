"""What generated inputs have to lie below: a graph in, bounds by the inputs' names out.

An input that is used as an index, as tokens are, points into a table. Whoever makes up its numbers
has to know how large the table is.
"""

from __future__ import annotations

from graft.ir.graph import Graph
from graft.ops.index_ranges import index_limits


def index_bounds(graph: Graph) -> dict[str, int]:
    """The least of the extents that each such input points into, where they are known."""
    found: dict[str, int] = {}
    for value, extents in index_limits(graph).items():
        known = [extent for extent in extents if isinstance(extent, int)]
        if known:
            found[value.name] = min(known)
    return found
